"""Which training stack wrote a file: recognised by its config keys and tensor names, and what that settles.

Nothing of the forward depends on the family. It decides how layer ids are read, and what a user should be told.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from .config import DrafterConfig
from .source import Source

SPECULATORS = ("Eagle3Speculator", "Eagle3DraftModel")
MLA_ARCHITECTURE = "Eagle3DeepseekV2ForCausalLM"
ARCHITECTURES = (
    "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle3Deep", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM",
    MLA_ARCHITECTURE, *SPECULATORS,
)
# Refused by the architecture's name alone, and what it stands for.
FOREIGN_ARCHITECTURES = {
    "PEagle": "P-EAGLE (all tokens in one pass)",
    "Eagle4": "EAGLE-4 (low-rank head)",
    "DFlash": "DFlash",
    "DSpark": "DSpark",
    "Medusa": "Medusa",
    "MTP": "a multi-token-prediction head",
    "LlamaForCausalLMEagle": "EAGLE-1 or EAGLE-2 (it takes the last hidden state only)",
    "EagleLlamaForCausalLM": "EAGLE-1 or EAGLE-2 (it takes the last hidden state only)",
}


@dataclass(frozen=True)
class Family:
    """A training stack, and what in the file says so."""

    name: str
    evidence: tuple[str, ...]


def recognise(source: Source, names: Collection[str]) -> Family:
    """The family of a file from its config and its tensor names *as stored*; the most telling signs come first."""
    raw, architecture = source.raw, source.architecture
    said = f"architectures {architecture}"
    if "speculators_model_type" in raw or "transformer_layer_config" in raw or architecture in SPECULATORS:
        return _speculators(source, said)
    if "_torchspec_version" in raw:
        return Family("TorchSpec", (f"_torchspec_version {raw['_torchspec_version']}", said))
    if any(name.startswith("model.layers.") for name in names) and any(name.startswith("layers.") for name in names):
        return Family("DeepSpec", ("tensors named layers.* and model.layers.*",))
    if any(name.startswith(("model.fc", "model.midlayer", "model.layers")) for name in names):
        return Family("NeMo Automodel", ("tensors named model.*",))
    if architecture == "Eagle3LlamaForCausalLM":
        return Family("AngelSlim", (said,))
    if architecture == MLA_ARCHITECTURE:
        if any(name.startswith("midlayer.") for name in names):
            return Family("TorchSpec", (said, "tensors named midlayer.*"))
        return Family("ModelOpt MLA or TorchSpec for vLLM", (said, "tensors named layers.0.*"))
    if any(re.match(r"midlayer\.\d", name) for name in names):
        return Family("ModelOpt Megatron", ("tensors named midlayer.0.*",))
    ids = source.said("eagle_aux_hidden_state_layer_ids") or None
    if any(name.startswith("midlayer.") for name in names):
        if isinstance(ids, list) and all(type(i) is int for i in ids) and ids != sorted(ids):
            return Family("ModelOpt Megatron", ("tensors named midlayer.*", f"unsorted layer ids {ids}"))
        if raw.get("eagle_config") is not None or ids is not None:
            sign = "eagle_config" if ids is None else "layer ids"
            return Family("SpecForge or TorchSpec", ("tensors named midlayer.*", f"{sign} in config.json"))
        return Family("SafeAILab", ("tensors named midlayer.*", "no eagle_config in config.json"))
    if any(name.startswith("layers.") for name in names):
        return Family("ModelOpt", ("tensors named layers.0.*", said))
    return Family("unknown", (said,))


def _speculators(source: Source, said: str) -> Family:
    evidence = tuple(f"{key} {source.raw[key]}" for key in ("speculators_model_type", "speculators_version")
                     if key in source.raw)
    if "Eagle3Speculator" in said:
        # Written by speculators' converter and by its first native models: the file does not say which.
        return Family("speculators converted, or before 0.3", (said, *evidence))
    return Family("speculators", (said, *evidence))


def tell_pitfalls(family: Family, source: Source, config: DrafterConfig) -> None:
    """Notes what this family's trainers and the engines are known to disagree about, where this file meets it."""
    if "SpecForge" in family.name and config.norm_output:
        source.note("norm_output is true: the recurrent hidden is y, as every engine serves it; SpecForge's trainer "
                    "feeds s and means only that the head reads y")
    if "TorchSpec" in family.name and config.rope.kind in ("linear", "dynamic", "yarn"):
        source.note(f"TorchSpec trains {config.rope.kind} RoPE with base 10000 whatever rope_theta says; the file's "
                    "value is used, as in the engines")
    if family.name == "ModelOpt":
        source.note("ModelOpt's trainers since December 2025 apply input_layernorm's gain to the fused hidden too; no "
                    "engine does, and neither does this one")
        if config.norm_before_residual:
            source.note("norm_before_residual is true: ModelOpt's conversion for vLLM writes that although its "
                        "training keeps the un-normed residual")
