"""What the serving engines capture from the same file, by reading their releases: same list, different states.

Facts, not advice: vLLM (EagleModelMixin), SGLang 0.5.23, TensorRT-LLM, llama.cpp and SafeAILab's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .checkpoint import Checkpoint
from .plan import default_boundaries

_DEFAULT = "the published default"
# SGLang's targets that do not simply add 1 to explicit ids.
_ADDS_ONE_IF_FIRST_IS_ONE = ("deepseek", "kimi", "glm4_moe_lite")


@dataclass(frozen=True)
class EngineCapture:
    """`boundaries` an engine feeds the drafter with, ascending, and the rule that gives them."""

    engine: str
    boundaries: tuple[int, ...]
    rule: str


def engine_captures(checkpoint: Checkpoint, num_layers: int, target_type: str) -> list[EngineCapture]:
    """What each engine captures on a target of `num_layers` layers and transformers model_type `target_type`.

    Boundaries past num_layers are shown as the engine computes them: it then captures too few states. So it does on a
    target too shallow for the published default; those below 0 and repeated ones are left out, and the rule says so.
    """
    return [_without_lacking(capture, num_layers) for capture in _computed(checkpoint, num_layers, target_type)]


def _without_lacking(capture: EngineCapture, num_layers: int) -> EngineCapture:
    kept = tuple(sorted({boundary for boundary in capture.boundaries if boundary >= 0}))
    lost = len(capture.boundaries) - len(kept)
    if not lost:
        return capture
    rule = f"{capture.rule}: a target of {num_layers} layers has only {len(kept)} of {len(capture.boundaries)}"
    return EngineCapture(capture.engine, kept, rule)


def _computed(checkpoint: Checkpoint, num_layers: int, target_type: str) -> list[EngineCapture]:
    provenance = checkpoint.provenance
    ids = list(provenance.layer_ids.listed) if provenance and provenance.layer_ids else None
    nested = ids is not None and provenance is not None and not provenance.family.name.startswith("speculators")
    default = tuple(sorted(default_boundaries(num_layers)))
    if checkpoint.config.fusion == "none":
        return [EngineCapture(engine, (num_layers,), "the state after the final norm (no fc)")
                for engine in ("vLLM", "SGLang", "TensorRT-LLM")]
    listed = tuple(sorted(set(ids))) if ids else default
    unread = "always the published default, whatever the ids"
    return [
        EngineCapture("vLLM", listed, "ids are boundaries, sorted, repeats dropped" if ids else _DEFAULT),
        EngineCapture("SGLang", *(_sglang(ids, num_layers, target_type) if nested and ids else
                                  _sglang_default(num_layers, target_type, ids))),
        EngineCapture("TensorRT-LLM", tuple(i + 1 for i in listed) if ids else default,
                      "ids are outputs, sorted" if ids else _DEFAULT),
        EngineCapture("llama.cpp", default, unread),
        EngineCapture("SafeAILab", default, unread),
    ]


def _sglang(ids: Sequence[int], num_layers: int, target_type: str) -> tuple[tuple[int, ...], str]:
    ordered = tuple(sorted(set(ids)))
    if target_type.startswith(_ADDS_ONE_IF_FIRST_IS_ONE):
        adds, rule = ids[0] == 1, f"{target_type}: adds 1 only if the first id is 1"
    elif target_type.startswith("gpt_oss"):
        adds, rule = max(ids) != num_layers, f"gpt_oss: adds 1 unless the last id is {num_layers}"
    else:
        adds, rule = True, "adds 1 to explicit ids"
    return tuple(i + adds for i in ordered), rule


def _sglang_default(num_layers: int, target_type: str, ids: list[int] | None) -> tuple[tuple[int, ...], str]:
    default = default_boundaries(num_layers)
    unread = ": the file's ids are not in eagle_config, where it looks" if ids else ""
    if target_type.startswith("minimax_m3_vl"):
        return tuple(sorted(b + 1 for b in default)), f"minimax_m3_vl's own default{unread}"
    return tuple(sorted(default)), f"{_DEFAULT}{unread}"
