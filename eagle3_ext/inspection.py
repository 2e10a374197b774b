"""One screen about a drafter's folder: what it is, what decided that, and what others would make of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, DrafterConfig, LayerIds, load_checkpoint
from .checkpoint.files import read_json
from .engines import EngineCapture, engine_captures
from .errors import BoundaryError, CheckpointError, FeatureWidthError
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
    if not path.exists():
        hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path))
        raise CheckpointError(f"the target {path} does not exist; expected a local folder with config.json, or that "
                              f"file{': a hub id is not looked up, download it first' if hub else ''}")
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"the target's folder {path} holds no config.json")
    raw = read_json(file)
    text = raw
    if isinstance(raw, dict):
        text = next((raw[key] for key in ("text_config", "llm_config", "language_config") if key in raw), raw)
    if not isinstance(text, dict):
        raise CheckpointError(f"{file} holds a {type(text).__name__} where a target's config is expected, an object")
    for key, needed in (("num_hidden_layers", True), ("hidden_size", True), ("vocab_size", False)):
        value = text.get(key)
        if (needed or value is not None) and (type(value) is not int or value < 1):
            said = "is missing" if value is None else f"is {value!r}"
            raise CheckpointError(f"{file} is no target's config: {key} {said}; expected a positive integer")
    return TargetFacts(text["num_hidden_layers"], text["hidden_size"], text.get("vocab_size"),
                       str(text.get("model_type", raw.get("model_type", ""))))


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
            ("conflicts and warnings", notes or ["none"]),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        provenance = self.checkpoint.provenance
        assert provenance is not None
        dtype = provenance.declared_dtype
        plan = self.plan and {"boundaries": list(self.plan.boundaries), "width": self.plan.width,
                              "final_norm": self.plan.final_norm, "text": str(self.plan)}
        return {
            "path": str(self.path),
            "config": dataclasses.asdict(self.checkpoint.config),
            "provenance": dataclasses.asdict(provenance)
            | {"declared_dtype": dtype and str(dtype).removeprefix("torch.")},
            "target": self.target and dataclasses.asdict(self.target),
            "cache_numbers_per_token": self.checkpoint.config.cache_width,
            "plan": plan,
            "plan_problem": self.plan_problem or None,
            "engines": [dataclasses.asdict(capture) for capture in self.engines],
            "notes": [*self.checkpoint.report, *self._warnings()],
        }

    def _boundaries(self) -> list[str]:
        provenance, config = self.checkpoint.provenance, self.checkpoint.config
        assert provenance is not None
        ids = provenance.layer_ids
        if self.target is None and config.fusion != "none":
            if ids is None:
                return ["the file names no layers; with --target the published default (2, n//2, n-3) is shown"]
            lines = [f"the file's layer ids {list(ids.listed)}: {ids.because}"]
            if ids.boundaries is None:
                lines.append(f"captures either {boundaries_in_words(ids.as_boundaries())} or "
                             f"{boundaries_in_words(ids.as_outputs())}: boundaries= must settle it")
            else:
                lines.append(f"captures {boundaries_in_words(ids.boundaries)}{_unless_last(ids)}")
            return [*lines, "with --target, what each engine captures is shown"]
        plan = self.plan
        lines = [part for part in (plan.describe(), plan.decided_by, plan.other_reading) if part] if plan else \
            self.plan_problem.split("; ")
        if self.target is not None and plan and not plan.final_norm:
            layers = self.target.num_layers
            default = default_boundaries(layers)
            if not default[0] < default[1] < default[2]:
                lines.append(f"a target of {layers} layers is too shallow for the published default (2, n//2, n-3)")
            elif default != plan.boundaries:
                lines.append(f"the published default of a target of {layers} layers is boundaries {_listed(default)}")
        for capture in self.engines:
            agrees = "" if plan is None or capture.boundaries == plan.boundaries else ", NOT as above"
            lines.append(f"{capture.engine} captures {'boundaries' if len(capture.boundaries) > 1 else 'boundary'} "
                         f"{_listed(capture.boundaries)} ({capture.rule}){agrees}")
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


def _listed(boundaries: Sequence[int]) -> str:
    return ", ".join(map(str, boundaries))


def _unless_last(ids: LayerIds) -> str:
    """No layer n has an output, so on a target of that depth ids that name outputs cannot."""
    if ids.reading != "outputs":
        return ""
    return f"; on a target of {max(ids.listed)} layers, {boundaries_in_words(ids.as_boundaries())}"


def _dimensions(config: DrafterConfig, dtypes: Sequence[str]) -> list[str]:
    size = _BYTES.get(dtypes[0], 2) if dtypes else 2
    per_token = config.cache_width * size
    many = f"{config.num_states} states" if config.num_states > 1 else "1 state"
    of_4096 = f"{per_token * 4096 / 2**20:.1f} MiB per sequence of 4096 tokens"
    return [
        f"drafter width h {config.hidden_size}, MLP {config.intermediate_size}, stored as {', '.join(dtypes)}",
        f"features {config.features_width} wide: {many} of the target's hidden size H {config.target_hidden_size}",
        f"cache {per_token} bytes per token in {dtypes[0] if dtypes else 'BF16'}, {of_4096}",
    ]


def _fusion(config: DrafterConfig) -> str:
    norm = {"none": "", "whole": "input_norm over the whole row, then ", "per_state": "fc_norm over each state, then "}
    if config.fusion == "none":
        return "none: one state, after the target's final norm, is the drafter's input"
    bias = ", with bias" if config.fc_bias else ""
    return f"{norm[config.feature_norm]}fc {config.features_width} -> {config.hidden_size}{bias}"


def _layers(config: DrafterConfig) -> list[str]:
    flags = {"q, k and v": config.qkv_bias, "o": config.o_bias, "MLP": config.mlp_bias}
    biases = [name for name, present in flags.items() if present]
    kinds = [f"layer {i} reads {'embedding and hidden side by side' if layer.joins_embedding else 'the hidden alone'}, "
             f"sees {f'the last {layer.window} tokens' if layer.window else 'every token before it'}"
             for i, layer in enumerate(config.layers)]
    residual = "before its norm"
    if config.norm_before_residual:
        residual = "after its norm (norm_before_residual)"
    if not config.has_hidden_norm:
        residual = "which has no norm (no hidden_norm)"
    return [_attention(config), *([f"biases on {', '.join(biases)}"] if biases else []), *kinds,
            f"the residual of layer 0 is the hidden, {residual}", f"RMSNorm eps {config.eps:g}"]


def _attention(config: DrafterConfig) -> str:
    mla = config.mla
    if mla is None:
        normed = ", q and k normed per head" if config.qk_norm else ""
        return (f"attention with {config.num_q_heads} query and {config.num_kv_heads} key and value heads of "
                f"{config.head_dim}{normed}")
    q = f"q from a latent of {mla.q_lora_rank}" if mla.q_lora_rank else "q without a latent"
    scale = f"; softmax scale times {mla.mscale:.4g} squared" if mla.mscale != 1.0 else ""
    return (f"latent attention (MLA) with {config.num_q_heads} heads of {mla.nope_head_dim} plain and "
            f"{mla.rope_head_dim} rotated dimensions, values of {mla.v_head_dim}; {q}, k and v from one of "
            f"{mla.kv_lora_rank}{scale}")


def _rope(config: DrafterConfig) -> str:
    rope = config.rope
    if rope.kind == "none":
        return "none: positions turn nothing (NoPE)"
    pairs = "adjacent pairs (interleaved)" if rope.interleaved else "pairs of halves (NeoX)"
    parts = [f"{rope.kind}, theta {config.rope_theta:g}",
             f"{config.rotary_dim} of a head's {config.head_dim} dimensions in {pairs}"]
    parts += ["trained with mrope: equal rows only"] if rope.mrope else []
    if rope.kind != "default":
        parts.append(f"factor {rope.factor:g}" if rope.alpha is None else f"alpha {rope.alpha:g}")
        parts += [f"over {rope.original_length} positions"] if rope.original_length else []
    if rope.attention_factor != 1.0:
        parts.append(f"cosines and sines times {rope.attention_factor:.6g}")
    return ", ".join(parts)


def _output(config: DrafterConfig) -> list[str]:
    if not config.has_final_norm:
        recurrent = "the last layer's output; there is no final norm"
    else:
        recurrent = f"{'y, after' if config.norm_output else 's, before'} the final norm"
    head = "its own" if config.own_head else "its own embedding (tied)" if config.tied_head else "the target's"
    embedding = "its own" if config.own_embedding else "the target's"
    scale = "" if config.logit_scale == 1.0 else f", logits times {config.logit_scale:g}"
    share = config.draft_vocab_size / config.vocab_size
    return [
        f"a draft step hands the next one {recurrent}",
        f"head: {head}{scale}; embedding: {embedding}",
        f"drafts {config.draft_vocab_size} of {config.vocab_size} tokens ({share:.1%})",
    ]
