"""A checkpoint's files and what their headers say. Nothing here reads a weight before it is asked for by name.

Every claim of a file is checked against the bytes it has, so that a bad file costs an error and no memory: safetensors
checks its own header, and the storages of a `.bin` are mapped, not read.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError
from .config import Shape
from .names import canonical_name, is_skipped

FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_SPELLING = {dtype: name for name, dtype in FLOATS.items()} | {
    torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL", torch.int8: "I8", torch.uint8: "U8"}
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ADAPTER = "adapter_model.safetensors"  # a LoRA of the *target*, which some exporters put beside the drafter


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies (`file`, `name` as stored) and what is known of it without reading it."""

    file: Path
    name: str
    shape: Shape
    dtype: str  # safetensors' spelling, such as "BF16"
    mapped: torch.Tensor | None = None  # of a .bin, whose bytes are still on disk

    def load(self) -> torch.Tensor:
        if self.mapped is not None:
            return self.mapped.clone()
        with safe_open(self.file, framework="pt") as file:
            return file.get_tensor(self.name)


def read_json(file: Path) -> Any:
    """What a JSON file holds, with or without a byte order mark. CheckpointError says why it holds nothing."""
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise CheckpointError(f"{file} cannot be read: its lists or objects are nested too deeply") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error


def find_files(folder: Path) -> tuple[list[Path], list[str]]:
    """The tensor files of a checkpoint folder, and notes on those passed over.

    An index's shards, or the one file of the usual name, or all there are; safetensors before `.bin`.
    """
    safetensors = _files_of(folder, "model.safetensors", "*.safetensors")
    pickles = _files_of(folder, "pytorch_model.bin", "*.bin")
    chosen = safetensors or pickles
    if not chosen:
        raise CheckpointError(f"{folder} holds neither *.safetensors nor *.bin")
    present = [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]
    return chosen, [f"not read: {path.name}; the tensors come from {', '.join(file.name for file in chosen)}"
                    for path in present if path not in chosen]


def _files_of(folder: Path, single: str, pattern: str) -> list[Path]:
    index = folder / f"{single}.index.json"
    if index.is_file():
        return _shards(folder, index)
    if (folder / single).is_file():
        return [folder / single]
    return sorted(path for path in folder.glob(pattern) if path.name != _ADAPTER)


def _shards(folder: Path, index: Path) -> list[Path]:
    held = read_json(index)
    try:
        places = dict(held["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index} is no index of shards: {error!r}") from error
    # A shard is a file of this folder: an index must not make the loader read any other.
    homeless = [f"{name} in {place!r}" for name, place in places.items()
                if not isinstance(place, str) or place in ("", ".", "..") or Path(place).name != place]
    if homeless:
        raise CheckpointError(f"{index} puts tensors outside its folder: {', '.join(sorted(homeless))}")
    files = sorted({folder / place for place in places.values()})
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(f"{index} lists shards that are not there: {', '.join(missing)}")
    return files


def read_headers(files: list[Path]) -> tuple[dict[str, StoredTensor], list[str], list[str]]:
    """Canonical name -> stored tensor, the problems (duplicates), and the notes (skipped tensors)."""
    stored: dict[str, StoredTensor] = {}
    problems: list[str] = []
    notes: list[str] = []
    for path in files:
        _refuse_pointer(path)
        for tensor in _pickled(path) if path.suffix == ".bin" else _safetensors(path):
            canonical = canonical_name(tensor.name)
            if is_skipped(canonical):
                notes.append(f"skipped {tensor.name}: no part of the drafter")
            elif canonical in stored:
                first = stored[canonical]
                problems.append(f"duplicate: {first.name} ({first.file.name}) and {tensor.name} ({path.name}) are "
                                f"both {canonical}")
            else:
                stored[canonical] = tensor
    return stored, problems, notes


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise CheckpointError(f"{path} is a git-lfs pointer, a text that stands in for the file; fetch the file itself "
                              "with `git lfs pull`")


def _safetensors(path: Path) -> list[StoredTensor]:
    try:
        with safe_open(path, framework="pt") as file:
            headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 -- safe_open is no dict
            return [StoredTensor(path, name, tuple(header.get_shape()), str(header.get_dtype()))
                    for name, header in headers.items()]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}") from error


def _pickled(path: Path) -> list[StoredTensor]:
    """The tensors of a `.bin`, mapped. weights_only runs no code; each tensor must fit the bytes it claims to have."""
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is no zip archive as torch.save writes it; save it again or convert it to "
                              "safetensors")
    try:
        with zipfile.ZipFile(path) as archive:
            stored_bytes = sum(entry.file_size for entry in archive.infolist())
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, ValueError, TypeError, EOFError, OSError,
            KeyError, AttributeError, IndexError, OverflowError, MemoryError, RecursionError) as error:
        reason = _without_advice(error)
        raise CheckpointError(f"{path} does not load as weights only ({reason}); convert it to safetensors") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}, expected names and tensors")
    strangers = [f"{name!r} is a {type(value).__name__}" for name, value in loaded.items()
                 if not isinstance(name, str) or not isinstance(value, torch.Tensor)]
    if strangers:
        raise CheckpointError(f"{path} holds more than named tensors: {', '.join(strangers)}")
    for name, tensor in loaded.items():
        claimed = tensor.numel() * tensor.element_size()
        backed = min(tensor.untyped_storage().nbytes(), stored_bytes) if tensor.layout == torch.strided else 0
        if claimed > backed:
            raise CheckpointError(f"{path}: {name} claims {tensor.numel()} elements ({claimed} bytes), but {backed} "
                                  "bytes are stored for it")
    return [StoredTensor(path, name, tuple(tensor.shape), _SPELLING.get(tensor.dtype, str(tensor.dtype)), tensor)
            for name, tensor in loaded.items()]


def _without_advice(error: Exception) -> str:
    """The reason alone: torch also advises to set weights_only to False, which would run the file's code."""
    text = str(error).strip()
    told = re.search(r"Trying to load .*|(?<=WeightsUnpickler error: ).*", text) or re.match(".*", text)
    kept = (told[0] if told else "").partition(". Please")[0].strip(" .")
    return kept if kept and "weights_only" not in kept else type(error).__name__
