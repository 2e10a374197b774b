"""Reading drafter checkpoints, strictly: `load_checkpoint(path)` gives a whole `Checkpoint` or one `CheckpointError`.

Every public EAGLE-3 training stack's files are read (docs/drafters.md lists them); what is not computed here is refused
by the key or tensor that gives it away, never half-understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from .config import DrafterConfig, Layer, Mla, expected_shapes
from .families import Family, recognise, tell_pitfalls
from .files import FLOATS, find_files, read_headers, read_json
from .layer_ids import LayerIds, read_layer_ids
from .names import foreign_tensors
from .reader import read_config, refuse_foreign, unify_pre_norms
from .sidecar import read_sidecar
from .source import Source
from .weights import check_values, compare, coverage, target_ids, without_elements

__all__ = ["Checkpoint", "DrafterConfig", "Family", "Layer", "LayerIds", "Mla", "Provenance", "coverage",
           "expected_shapes", "load_checkpoint"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True)
class Provenance:
    """Where a checkpoint comes from, as far as its file says.

    Attributes:
        family: the training stack and what gave it away.
        layer_ids: the layer ids as listed, and how they are meant; None where the file lists none.
        sidecar_boundaries: those of the folder's `eagle3_ext.json`, which come before the file's own.
        dtypes: of the stored floating tensors, safetensors' names, most frequent first.
        declared_dtype: the config's `dtype` or `torch_dtype`; the stored one is used.
        verifier, speculative_tokens: the target and D it was trained for (speculators).
    """

    family: Family
    layer_ids: LayerIds | None = None
    sidecar_boundaries: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] = ()
    declared_dtype: torch.dtype | None = None
    verifier: str | None = None
    speculative_tokens: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A drafter in canonical form. `weights` keep the stored dtype; `report` tells what the loader decided and why."""

    config: DrafterConfig
    weights: dict[str, torch.Tensor]
    report: tuple[str, ...]
    provenance: Provenance | None = None


def load_checkpoint(path: str | Path, *, norm_before_residual: bool | None = None) -> Checkpoint:
    """Reads a checkpoint folder: `config.json` and safetensors, or a `.bin` that loads as weights only.

    A file `eagle3_ext.json` in the folder may settle what the checkpoint leaves open: {"boundaries": [3, 31, 59],
    "norm_before_residual": false}. `norm_before_residual` comes before both.

    Raises CheckpointError that lists every unknown, missing, duplicate and misshapen tensor and every unsupported
    config value by name. Nothing is loaded before all of them have been checked. Weights that are nan or inf are
    refused by name too, once loaded.
    """
    folder = Path(path)
    raw = _read_config_file(folder)
    sidecar = read_sidecar(folder)
    files, passed_over = find_files(folder)
    stored, duplicates, skipped = read_headers(files)
    source = Source(raw, {name: tensor.shape for name, tensor in stored.items()})
    source.notes += [*passed_over, *skipped]
    names = tuple(tensor.name for tensor in stored.values())
    refuse_foreign(source, names)
    source.check_counts()
    source.problems += foreign_tensors(stored) + without_elements(stored)
    unify_pre_norms(stored, source)
    source.shapes = {name: tensor.shape for name, tensor in stored.items()}
    family = recognise(source, names)
    ids = read_layer_ids(source, family, names)
    residual = sidecar.get("norm_before_residual") if norm_before_residual is None else norm_before_residual
    config = None if source.problems else read_config(source, ids, residual)
    declared = _declared_dtype(raw, source)
    if config is not None:
        source.problems += compare(stored, config)
    source.problems += duplicates
    if source.problems or config is None:
        raise _refusal(folder, source)
    tell_pitfalls(family, source, config)
    weights = {name: tensor.load() for name, tensor in stored.items()}
    not_finite, zeros = check_values({name: tensor.name for name, tensor in stored.items()}, weights)
    source.notes += zeros
    if not_finite:
        source.problems += not_finite
        raise _refusal(folder, source)
    absolute = target_ids(weights.pop("d2t", None), weights.pop("t2d", None), config)
    if absolute is not None:
        weights["target_ids"] = absolute
    dtypes = [tensor.dtype for tensor in stored.values() if tensor.dtype in FLOATS]
    _tell_dtype(source, declared, weights)
    boundaries = sidecar.get("boundaries")
    provenance = Provenance(family, ids, boundaries and tuple(boundaries),
                            tuple(sorted(set(dtypes), key=dtypes.count, reverse=True)), declared, *_trained_for(source))
    return Checkpoint(config, weights, tuple(source.notes), provenance)


def _refusal(folder: Path, source: Source) -> CheckpointError:
    # The notes belong to it: where a shape was believed before the config, that shape may be what is wrong.
    lines = [*source.problems, *(f"(note: {note})" for note in source.notes)]
    return CheckpointError(f"{folder} is no usable drafter:\n" + "\n".join(f"  {line}" for line in lines))


def _read_config_file(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder} {what}; expected a folder with config.json and *.safetensors")
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} is no drafter checkpoint: it holds no config.json")
    raw = read_json(file)
    if not isinstance(raw, dict):
        raise CheckpointError(f"{file} holds a {type(raw).__name__}, expected an object")
    return raw


def _declared_dtype(raw: Mapping[str, Any], source: Source) -> torch.dtype | None:
    """`dtype` (transformers 5) or `torch_dtype` (before), with or without "torch."; disagreement is a problem."""
    said = {key: raw[key] for key in ("dtype", "torch_dtype") if raw.get(key) is not None}
    found = {key: _DTYPES.get(str(value).removeprefix("torch.")) for key, value in said.items()}
    for key, dtype in found.items():
        if dtype is None:
            source.problem(f"config.json: {key} is {said[key]!r}; expected one of {', '.join(_DTYPES)}")
    if len(set(found.values())) > 1:
        source.problem(f"config.json: {' but '.join(f'{key} is {value!r}' for key, value in said.items())}")
    return next(iter(found.values()), None)


def _tell_dtype(source: Source, declared: torch.dtype | None, weights: Mapping[str, torch.Tensor]) -> None:
    stored = {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if declared is not None and declared not in stored:
        source.note(f"config.json: the dtype is {declared}, but the weights are stored in "
                    f"{', '.join(sorted(map(str, stored)))}: took that")


def _trained_for(source: Source) -> tuple[str | None, int | None]:
    """The target's name and D of a speculators file."""
    config = source.places.get("speculators_config") or {}
    verifier = config.get("verifier")
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    tokens = source.proposal_methods[0].get("speculative_tokens") if source.proposal_methods else None
    return (name if isinstance(name, str) else None), tokens
