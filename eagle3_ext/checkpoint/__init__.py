"""Reading drafter checkpoints, strictly: `load_checkpoint(path)` gives a whole `Checkpoint` or one `CheckpointError`.

Read: the LlamaForCausalLMEagle3 family (SafeAILab, SpecForge, SGLang names), one layer, safetensors in one file or in
shards. Anything else is refused by name rather than half-understood.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from .config import DrafterConfig, expected_shapes
from .reader import ConfigReader
from .weights import compare, find_files, read_headers, target_ids

__all__ = ["Checkpoint", "DrafterConfig", "expected_shapes", "load_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A drafter in canonical form. `weights` keep the stored dtype; `report` tells what the loader decided and why."""

    config: DrafterConfig
    weights: dict[str, torch.Tensor]
    report: tuple[str, ...]


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint folder: `config.json` and safetensors.

    Raises CheckpointError that lists every unknown, missing, duplicate and misshapen tensor and every unsupported
    config value by name. Nothing is loaded before all of them have been checked.
    """
    folder = Path(path)
    raw = _read_config(folder)
    stored, problems, notes = read_headers(find_files(folder))
    reader = ConfigReader(raw, {name: tensor.shape for name, tensor in stored.items()})
    config = reader.read()
    problems += reader.problems
    if config is not None:
        problems += compare(stored, config)
    if problems or config is None:
        raise CheckpointError(f"{folder} is no usable drafter:\n" + "\n".join(f"  {problem}" for problem in problems))
    weights = {name: tensor.load() for name, tensor in stored.items()}
    ids = target_ids(weights.pop("d2t", None), weights.pop("t2d", None), config)
    if ids is not None:
        weights["target_ids"] = ids
    return Checkpoint(config, weights, (*notes, *reader.notes))


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder} {what}; expected a folder with config.json and *.safetensors")
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} is no drafter checkpoint: it holds no config.json")
    try:
        raw = json.loads(file.read_text())
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{file} holds a {type(raw).__name__}, expected an object")
    return raw
