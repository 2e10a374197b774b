"""Whether the stored tensors are what a config calls for, and the vocabulary tables among them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from ..errors import CheckpointError
from .config import DrafterConfig, expected_shapes
from .files import FLOATS, StoredTensor

_TABLES = {"d2t": ("I32", "I64"), "t2d": ("BOOL",)}


def compare(stored: Mapping[str, StoredTensor], config: DrafterConfig) -> list[str]:
    """Every difference between the stored tensors and what `config` calls for, one sentence each."""
    expected = expected_shapes(config)
    if expected.pop("target_ids", None):
        expected["d2t"] = (config.draft_vocab_size,)
    optional = {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    problems = [f"missing: {name} {list(shape)}{_why(name, config)}" for name, shape in expected.items()
                if name not in stored]
    for name, tensor in stored.items():
        shape = expected.get(name, optional.get(name))
        known_as = "" if name == tensor.name else f" (as {name})"
        if shape is None:
            problems.append(f"unknown: {tensor.name}{known_as} {list(tensor.shape)}")
            continue
        if tensor.shape != shape:
            problems.append(f"misshapen: {tensor.name}{known_as} is {list(tensor.shape)}, expected {list(shape)}")
        dtypes = _TABLES.get(name, tuple(FLOATS))
        if tensor.dtype not in dtypes:
            problems.append(f"wrong dtype: {tensor.name} is {tensor.dtype}, expected one of {', '.join(dtypes)}")
    return problems


def without_elements(stored: Mapping[str, StoredTensor]) -> list[str]:
    """One problem for each tensor from whose shape nothing can be told."""
    return [f"misshapen: {tensor.name} is {list(tensor.shape)}: it holds no rows" for tensor in stored.values()
            if not tensor.shape or 0 in tensor.shape]


def check_values(names: Mapping[str, str], weights: Mapping[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """The problems (values that are not finite) and the notes (matrices of zeros) of loaded weights, each named as in
    its file by `names`."""
    problems, notes = [], []
    for name, weight in weights.items():
        if not weight.is_floating_point():
            continue
        # One pass without a copy, faster than reading the file: nan and inf both reach an end of the range.
        low, high = map(float, torch.aminmax(weight))
        if not (math.isfinite(low) and math.isfinite(high)):
            bad = ~torch.isfinite(weight)
            first = bad.flatten().to(torch.uint8).argmax()
            at = [int(i) for i in torch.unravel_index(first, weight.shape)]
            problems.append(f"not finite: {names[name]} holds {int(bad.sum())} of {weight.numel()} values that are nan "
                            f"or inf, the first {float(weight[tuple(at)])} at {at}")
        elif low == high == 0 and weight.dim() > 1:
            notes.append(f"{names[name]} {list(weight.shape)} holds nothing but zeros")
    return problems, notes


def _why(name: str, config: DrafterConfig) -> str:
    if name == "d2t":
        return f": without it {config.draft_vocab_size} draft ids do not name {config.vocab_size} tokens"
    return ""


def target_ids(d2t: torch.Tensor | None, t2d: torch.Tensor | None, config: DrafterConfig) -> torch.Tensor | None:
    """d2t's offsets as absolute ids, int64 [Vd]; None where draft and target vocabulary are the same.

    Raises CheckpointError when an id leaves the vocabulary or repeats, when t2d marks other tokens, or when d2t was
    never filled in (all zeros for a pruned vocabulary, and no t2d to confirm it).
    """
    if d2t is None or (config.draft_vocab_size == config.vocab_size and not d2t.any()):
        return None
    ids = d2t.long() + torch.arange(config.draft_vocab_size, device="cpu")
    outside = ((ids < 0) | (ids >= config.vocab_size)).nonzero().flatten()
    if outside.numel():
        i = int(outside[0])
        raise CheckpointError(f"d2t[{i}] = {int(d2t[i])} maps draft id {i} to {int(ids[i])}, outside the vocabulary of "
                              f"{config.vocab_size} (d2t holds offsets: target id = i + d2t[i])")
    values, counts = ids.unique(return_counts=True)
    if values.numel() < ids.numel():
        repeated = int(values[counts > 1][0])
        raise CheckpointError(f"d2t maps two draft ids to one target id, {repeated} (it holds offsets: target id = "
                              "i + d2t[i])")
    if t2d is None:
        if not d2t.any():
            raise CheckpointError(f"d2t is all zeros for {config.draft_vocab_size} of {config.vocab_size} tokens: the "
                                  "vocabulary was never mapped")
    elif not torch.equal(t2d.nonzero().flatten(), values):
        raise CheckpointError(f"t2d marks {int(t2d.sum())} tokens that are not the {ids.numel()} ids i + d2t[i]: "
                              "the two tables come from different vocabularies")
    return ids


def coverage(config: DrafterConfig, weights: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> float:
    """Share of `tokens` (target ids, any shape) that the drafter can say at all: the ceiling of its acceptance."""
    if not tokens.numel():
        return float("nan")
    ids = weights.get("target_ids", torch.arange(config.draft_vocab_size, device=tokens.device))
    return float(torch.isin(tokens, ids).double().mean())
