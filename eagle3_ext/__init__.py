"""EAGLE-3 speculative decoding: the native data path from a target's hidden states to a drafter's tokens.

Start with `Drafter.from_pretrained(path, model)` and `SpeculativeDecoder(model, drafter)`; `ops` holds the native ops,
`reference` the same in plain PyTorch. Modules load on first use, so that importing the package costs what torch costs.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from . import _build

_build.check(torch.__version__)

from . import _C as _C  # noqa: E402  registers torch.ops.eagle3_ext; after torch, whose libraries it links
from . import ops  # noqa: E402  registers the ops' fakes
from ._build import build_info  # noqa: E402
from .errors import BoundaryError, CheckpointError, FeatureWidthError  # noqa: E402

__version__ = "0.1.0"

_HOME_OF = {
    "CapturePlan": "plan",
    "Checkpoint": "checkpoint",
    "DecodeStats": "stats",
    "Drafter": "drafter",
    "DrafterConfig": "checkpoint",
    "DraftTokens": "drafter",
    "Features": "features",
    "SpeculativeDecoder": "decoder",
    "TransformersTarget": "target",
    "capture": "features",
    "greedy_decode": "decoder",
    "load_checkpoint": "checkpoint",
    "probe_boundaries": "probe",
    "resolve_plan": "plan",
}

__all__ = [
    "BoundaryError",
    "CheckpointError",
    "FeatureWidthError",
    "build_info",
    "ops",
    *_HOME_OF,
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    elif name == "reference":
        value = importlib.import_module(".reference", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "reference"})
