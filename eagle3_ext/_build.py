"""What the native module was built for, checked before it is loaded: a mismatch is a sentence, not a loader error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_INFO_FILE = Path(__file__).with_name("_build_info.json")
_REBUILD = "pip install --no-build-isolation -e . (or `make build`) builds it"


def check(torch_version: str) -> dict[str, Any]:
    """The build's facts, after checking that this Python and this torch are the ones it was built for.

    C++ symbols of torch change between minor versions, so only the patch version may differ.

    Raises:
        ImportError: nothing was built, or it was built for another Python or torch; the message says which.
    """
    if not _INFO_FILE.is_file():
        raise ImportError(f"the native module of eagle3_ext is not built: {_REBUILD}")
    info = json.loads(_INFO_FILE.read_text())
    python_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if info["python"] != python_version:
        raise ImportError(f"eagle3_ext was built for Python {info['python']}, but this is {python_version}: {_REBUILD}")
    if _major_minor(info["torch"]) != _major_minor(torch_version):
        raise ImportError(f"eagle3_ext was built for torch {info['torch']}, but this is {torch_version}: {_REBUILD}")
    return info


def build_info() -> dict[str, Any]:
    """Facts about this build and this machine.

    Keys: torch, python, compiler, build_type, cuda (the toolkit's version; None without CUDA kernels),
    cuda_architectures (as CMake writes them: "90-real", "100-virtual"), cpu_levels (those compiled), and
    cpu_level (the one selected on this machine, or forced by the environment variable EAGLE3_CPU).
    """
    from . import _C

    return {**json.loads(_INFO_FILE.read_text()), "cpu_level": _C.cpu_level()}


def _major_minor(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])
