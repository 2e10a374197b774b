"""One screen about a drafter's folder: what it is, what decided that, and what others would make of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, DrafterConfig, load_checkpoint
from .engines import EngineCapture, engine_captures
from .errors import BoundaryError, CheckpointError, FeatureWidthError
from .native_form import not_native
from .plan import CapturePlan, boundaries_in_words, default_boundaries, resolve_plan

_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True)
class TargetFacts:
    """What a plan needs of a target: read from its config.json alone, no weights."""

    num_layers: int
    hidden_size: int
    vocab_size: int | None
    model_type: str


def read_target(path: Path) -> TargetFacts:
    """The facts of a target's folder or config.json. CheckpointError where they are not there."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_text())
        text = next((raw[key] for key in ("text_config", "llm_config", "language_config") if key in raw), raw)
        return TargetFacts(int(text["num_hidden_layers"]), int(text["hidden_size"]), text.get("vocab_size"),
                           str(text.get("model_type", raw.get("model_type", ""))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} gives no target's num_hidden_layers and hidden_size: {error!r}") from error


@dataclass(frozen=True)
class Inspection:
    """Everything `inspect` prints. `plan` is None without a target or where the file leaves the boundaries open."""

    path: Path
    checkpoint: Checkpoint
    plan: CapturePlan | None
    plan_problem: str
    engines: tuple[EngineCapture, ...]
    target: TargetFacts | None

    def sections(self) -> list[tuple[str, list[str]]]:
        """Headings and lines, in the order they are shown."""
        config, provenance = self.checkpoint.config, self.checkpoint.provenance
        assert provenance is not None
        notes = [*self.checkpoint.report, *self._warnings()]
        evidence = ", ".join(provenance.family.evidence)
        return [
            ("family", [f"{provenance.family.name}: {evidence}", *_origin(self.checkpoint)]),
            ("dimensions", _dimensions(config, provenance.dtypes)),
            ("fusion", [_fusion(config)]),
            ("layers", _layers(config)),
            ("rope", [_rope(config)]),
            ("output", _output(config)),
            ("boundaries", self._boundaries()),
            ("native", [f"not computed natively: {', '.join(missing)}" if (missing := not_native(config)) else
                        "every part is computed natively"]),
            ("conflicts and warnings", notes or ["none"]),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        plan = self.plan and {"boundaries": list(self.plan.boundaries), "width": self.plan.width,
                              "final_norm": self.plan.final_norm, "text": str(self.plan)}
        return {
            "path": str(self.path),
            "config": dataclasses.asdict(self.checkpoint.config),
            "provenance": json.loads(json.dumps(dataclasses.asdict(self.checkpoint.provenance), default=str)),
            "cache_numbers_per_token": self.checkpoint.config.cache_width,
            "plan": plan,
            "plan_problem": self.plan_problem or None,
            "engines": [dataclasses.asdict(capture) for capture in self.engines],
            "not_native": not_native(self.checkpoint.config),
            "notes": [*self.checkpoint.report, *self._warnings()],
        }

    def _boundaries(self) -> list[str]:
        provenance, config = self.checkpoint.provenance, self.checkpoint.config
        assert provenance is not None
        ids = provenance.layer_ids
        if self.target is None and config.fusion != "none":
            if ids is None:
                return ["the file names no layers; with --target the published default (2, n//2, n-3) is shown"]
            lines = [f"layer ids {list(ids.listed)}, {ids.reading}: {ids.because}"]
            if ids.boundaries is not None:
                lines.append(f"captures {boundaries_in_words(ids.boundaries)}, unless the last id is the target's n")
            return [*lines, "--target shows what each engine would capture"]
        lines = [str(self.plan)] if self.plan else [self.plan_problem]
        for capture in self.engines:
            agrees = "" if self.plan is None or capture.boundaries == self.plan.boundaries else ", NOT the plan's"
            lines.append(f"{capture.engine} captures boundaries {', '.join(map(str, capture.boundaries))} "
                         f"({capture.rule}){agrees}")
        return lines

    def _warnings(self) -> list[str]:
        config, target, found = self.checkpoint.config, self.target, []
        if target is None:
            return found
        if target.hidden_size != config.target_hidden_size:
            found.append(f"the target's hidden size is {target.hidden_size}, the drafter fuses states of "
                         f"{config.target_hidden_size}")
        if target.vocab_size is not None and target.vocab_size < config.vocab_size:
            found.append(f"the target has {target.vocab_size} tokens, the drafter's vocabulary {config.vocab_size}")
        if target.model_type.startswith("llama4") and not config.rope.interleaved:
            found.append("the target is a Llama 4, whose RoPE is interleaved; the file does not say so of the drafter")
        if self.plan and self.plan.boundaries != default_boundaries(target.num_layers) and not self.plan.final_norm:
            found.append(f"not the published default of {target.num_layers} layers, "
                         f"{default_boundaries(target.num_layers)}")
        return found


def inspect_checkpoint(
    path: Path, target: Path | None = None, *, boundaries: Sequence[int] | None = None,
    norm_before_residual: bool | None = None,
) -> Inspection:
    """Loads the checkpoint folder `path` and, with a target's folder or config.json, resolves its plan.

    Raises CheckpointError as `load_checkpoint` does; a plan that cannot be resolved is part of the result.
    """
    checkpoint = load_checkpoint(path, norm_before_residual=norm_before_residual)
    if target is None:
        return Inspection(path, checkpoint, None, "", (), None)
    facts, plan, problem = read_target(target), None, ""
    try:
        plan = resolve_plan(checkpoint.config, facts.num_layers, facts.hidden_size, boundaries, checkpoint.provenance)
    except (BoundaryError, FeatureWidthError) as error:
        problem = str(error)
    captures = tuple(engine_captures(checkpoint, facts.num_layers, facts.model_type))
    return Inspection(path, checkpoint, plan, problem, captures, facts)


def _origin(checkpoint: Checkpoint) -> list[str]:
    provenance = checkpoint.provenance
    assert provenance is not None
    trained = [f"trained for {provenance.verifier}"] if provenance.verifier else []
    if provenance.speculative_tokens:
        trained.append(f"{provenance.speculative_tokens} speculative tokens")
    return [", ".join(trained)] if trained else []


def _dimensions(config: DrafterConfig, dtypes: Sequence[str]) -> list[str]:
    size = _BYTES.get(dtypes[0], 2) if dtypes else 2
    per_token = config.cache_width * size
    width = f"{config.num_states} states of H {config.target_hidden_size}: features {config.features_width}"
    return [
        f"drafter width h {config.hidden_size}; {width}; MLP {config.intermediate_size}; stored {', '.join(dtypes)}",
        f"cache {per_token} bytes per token in {dtypes[0] if dtypes else 'BF16'}, "
        f"{per_token * 4096 / 2**20:.1f} MiB per sequence of 4096 tokens",
    ]


def _fusion(config: DrafterConfig) -> str:
    norm = {"none": "", "whole": "input_norm over the whole row, then ", "per_state": "fc_norm over each state, then "}
    if config.fusion == "none":
        return "none: one state, after the target's final norm, is the drafter's input"
    return f"{norm[config.feature_norm]}fc {config.features_width} -> {config.hidden_size}{_biased(config.fc_bias)}"


def _biased(present: bool, what: str = "") -> str:
    return f", {what}bias" if present else ""


def _layers(config: DrafterConfig) -> list[str]:
    mla = config.mla
    if mla is not None:
        heads = (f"latent attention, {config.num_q_heads} heads of {mla.nope_head_dim} + {mla.rope_head_dim} (value "
                 f"{mla.v_head_dim}), latents q {mla.q_lora_rank} and kv {mla.kv_lora_rank}, mscale {mla.mscale:.4g}")
    else:
        heads = f"{config.num_q_heads} query and {config.num_kv_heads} key heads of {config.head_dim}"
        heads += ", q and k normed" if config.qk_norm else ""
    heads += _biased(config.qkv_bias, "q/k/v ") + _biased(config.o_bias, "o ") + _biased(config.mlp_bias, "MLP ")
    kinds = [f"layer {i}: {'[embedding | hidden]' if layer.joins_embedding else 'hidden'}, "
             f"{f'window {layer.window}' if layer.window else 'sees all'}" for i, layer in enumerate(config.layers)]
    residual = "the normed hidden (norm_before_residual)" if config.norm_before_residual else "the fused hidden"
    norm = "" if config.has_hidden_norm else ", no hidden_norm"
    return [heads, *kinds, f"residual of layer 0 is {residual}{norm}; eps {config.eps:g}"]


def _rope(config: DrafterConfig) -> str:
    rope = config.rope
    if rope.kind == "none":
        return "none (NoPE)"
    parts = [f"{rope.kind}, theta {config.rope_theta:g}", f"{config.rotary_dim} of {config.head_dim} dimensions"]
    parts += ["interleaved pairs"] if rope.interleaved else []
    parts += ["mrope, equal rows only"] if rope.mrope else []
    if rope.kind != "default":
        parts.append(f"factor {rope.factor:g}" if rope.alpha is None else f"alpha {rope.alpha:g}")
        parts += [f"over {rope.original_length} positions"] if rope.original_length else []
    if rope.attention_factor != 1.0:
        parts.append(f"cosines and sines times {rope.attention_factor:.6g}")
    return ", ".join(parts)


def _output(config: DrafterConfig) -> list[str]:
    recurrent = "y, after the final norm (norm_output)" if config.norm_output else "s, before the final norm"
    head = "its own" if config.own_head else "its own embedding" if config.tied_head else "the target's"
    share = config.draft_vocab_size / config.vocab_size
    return [
        f"recurrent hidden is {recurrent}{'' if config.has_final_norm else '; there is no final norm'}",
        f"head: {head}{'' if config.logit_scale == 1.0 else f', times {config.logit_scale:g}'}; "
        f"embedding: {'its own' if config.own_embedding else 'the target' + chr(39) + 's'}",
        f"drafts {config.draft_vocab_size} of {config.vocab_size} tokens ({share:.1%})",
    ]
