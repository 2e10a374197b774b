"""Stored tensors: which files hold them, what their names mean here, and whether they are what a config calls for.

Shapes and names come from the safetensors headers, so that every check runs before a weight is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError
from .config import DrafterConfig, Shape, expected_shapes

FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_TABLES = {"d2t": ("I32", "I64"), "t2d": ("BOOL",)}

# Applied in this order, each at most once.
_ALIASES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\.(?=\d+\.)"), "layers."),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^fc\.linear\."), "fc."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)
# Stored by some trainers, of no use to a drafter: the target's own norm and head, and RoPE frequencies (recomputed).
_SKIPPED = re.compile(r"^verifier_(norm|lm_head)\.|rotary_emb\.inv_freq$")


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies (`file`, `name` as stored) and what its header says."""

    file: Path
    name: str
    shape: Shape
    dtype: str  # safetensors' spelling, such as "BF16"

    def load(self) -> torch.Tensor:
        with safe_open(self.file, framework="pt") as file:
            return file.get_tensor(self.name)


def canonical_name(name: str) -> str:
    """`midlayer.hidden_norm.weight` -> `layers.0.hidden_norm.weight`, and so on; other names pass unchanged."""
    for pattern, replacement in _ALIASES:
        name = pattern.sub(replacement, name, count=1)
    return name


def find_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder: the index's shards, or `model.safetensors`, or all there are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{index} is no safetensors index: {error!r}") from error
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{index} lists shards that are not there: {', '.join(missing)}")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; it holds {', '.join(pickles)}, and pickles are not read: convert to safetensors" if pickles else ""
        raise CheckpointError(f"{folder} holds no *.safetensors file{hint}")
    return files


def read_headers(files: list[Path]) -> tuple[dict[str, StoredTensor], list[str], list[str]]:
    """Canonical name -> stored tensor, the problems (duplicates), and the notes (skipped tensors)."""
    stored: dict[str, StoredTensor] = {}
    problems: list[str] = []
    notes: list[str] = []
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 -- safe_open is no dict
                    header = file.get_slice(name)
                    tensor = StoredTensor(path, name, tuple(header.get_shape()), str(header.get_dtype()))
                    canonical = canonical_name(name)
                    if _SKIPPED.search(canonical):
                        notes.append(f"skipped {name}: no part of the drafter")
                    elif canonical in stored:
                        first = stored[canonical]
                        problems.append(f"duplicate: {first.name} ({first.file.name}) and {name} ({path.name}) are "
                                        f"both {canonical}")
                    else:
                        stored[canonical] = tensor
        except SafetensorError as error:
            raise CheckpointError(f"{path} is no safetensors file: {error}") from error
    return stored, problems, notes


def compare(stored: Mapping[str, StoredTensor], config: DrafterConfig) -> list[str]:
    """Every difference between the stored tensors and what `config` calls for, one sentence each."""
    expected = expected_shapes(config)
    if expected.pop("target_ids", None):
        expected["d2t"] = (config.draft_vocab_size,)
    optional = {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    problems = [f"missing: {name} {list(shape)}" for name, shape in expected.items() if name not in stored]
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


def target_ids(d2t: torch.Tensor | None, t2d: torch.Tensor | None, config: DrafterConfig) -> torch.Tensor | None:
    """d2t's offsets as absolute ids, int64 [Vd]; None where draft and target vocabulary are the same.

    Raises CheckpointError when an id leaves the vocabulary or repeats, when t2d marks other tokens, or when d2t was
    never filled in (all zeros for a pruned vocabulary, and no t2d to confirm it).
    """
    if d2t is None or (config.draft_vocab_size == config.vocab_size and not d2t.any()):
        return None
    ids = d2t.long() + torch.arange(config.draft_vocab_size)
    outside = ((ids < 0) | (ids >= config.vocab_size)).nonzero().flatten()
    if outside.numel():
        i = int(outside[0])
        raise CheckpointError(f"d2t[{i}] = {int(d2t[i])} maps draft id {i} to {int(ids[i])}, outside the vocabulary of "
                              f"{config.vocab_size} (d2t holds offsets: target id = i + d2t[i])")
    if ids.unique().numel() < ids.numel():
        raise CheckpointError("d2t maps two draft ids to one target id (it holds offsets: target id = i + d2t[i])")
    if t2d is None:
        if not d2t.any():
            raise CheckpointError(f"d2t is all zeros for {config.draft_vocab_size} of {config.vocab_size} tokens: the "
                                  "vocabulary was never mapped")
    elif not torch.equal(t2d.nonzero().flatten(), ids.sort().values):
        raise CheckpointError(f"t2d marks {int(t2d.sum())} tokens that are not the {ids.numel()} ids i + d2t[i]: "
                              "the two tables come from different vocabularies")
    return ids
