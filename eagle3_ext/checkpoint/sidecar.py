"""`eagle3_ext.json` beside a checkpoint: what its own files leave open, settled once by whoever knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .files import read_json

NAME = "eagle3_ext.json"


def read_sidecar(folder: Path) -> dict[str, Any]:
    """Its values, {} where there is none. CheckpointError for keys or values that mean nothing."""
    file = folder / NAME
    if not file.is_file():
        return {}
    values = read_json(file)
    unknown = sorted(values.keys() - {"boundaries", "norm_before_residual"}) if isinstance(values, dict) else [values]
    if unknown:
        raise CheckpointError(f"{file} may hold boundaries and norm_before_residual, not {unknown}")
    boundaries = values.get("boundaries")
    if boundaries is not None and not (isinstance(boundaries, list) and boundaries
                                       and all(type(b) is int and b >= 0 for b in boundaries)):
        raise CheckpointError(f"{file}: boundaries is {boundaries!r}; expected a list such as [3, 31, 59]")
    residual = values.get("norm_before_residual", False)
    if not isinstance(residual, bool):
        raise CheckpointError(f"{file}: norm_before_residual is {residual!r}; expected true or false")
    return values
