"""Where an op's kernel runs: `cpu`, `cuda`, or `simt`, the CUDA kernels on the emulator of tests/simt.

A backend is called with an op's name and inputs on the CPU. It runs the op on its device, writes what the op mutated back
into the inputs and returns the results on the CPU, so that one test body compares them all.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cases import Inputs
from torch import Tensor

from eagle3_ext import build_info, ops

BUILD_FOLDER = Path(__file__).parents[1] / "build" / str(sys.implementation.cache_tag)
# simt/test_sanitizers.py runs tests again with a library of its own, and needs no more than one order for that.
SIMT_LIBRARY = BUILD_FOLDER / os.environ.get("EAGLE3_SIMT_LIBRARY", "_simt.so")
THREAD_ORDERS = os.environ.get("EAGLE3_SIMT_ORDERS", "forward reverse random").split()

Backend = Callable[[str, Inputs], object]


def cpu(op: str, inputs: Inputs) -> object:
    return getattr(ops, op.partition(".")[0])(**inputs)


def cuda(op: str, inputs: Inputs) -> object:
    moved = copied(inputs, "cuda")
    try:
        return matching(inputs, moved, cpu(op, moved))
    finally:
        write_back(inputs, moved)


def simt(op: str, inputs: Inputs) -> object:
    """Runs it in three orders of threads and blocks, which must agree byte for byte: no order is promised on a GPU."""
    runs, before = [], copied(inputs, "cpu")
    with emulated_ops():
        for order in THREAD_ORDERS:
            torch.ops.eagle3_simt._set_order(order, 1)
            moved = copied(before, "cpu")
            try:
                result = matching(inputs, moved, cpu(op, moved))
            finally:
                if not runs:
                    write_back(inputs, moved)
            runs.append((order, moved, result))
    (_, first_inputs, first_result), *others = runs
    for order, other_inputs, other_result in others:
        pairs = zip(tensors_of([first_inputs, first_result]), tensors_of([other_inputs, other_result]), strict=True)
        assert all(same_bytes(a, b) for a, b in pairs), f"{op} depends on the order of threads: forward, {order}"
    return first_result


@contextmanager
def emulated_ops() -> Iterator[None]:
    """Inside, `ops` runs the emulated CUDA kernels for CPU tensors."""
    load_simt()
    native, ops._native = ops._native, torch.ops.eagle3_simt
    try:
        with poisoned_memory():
            yield
    finally:
        ops._native = native


@contextmanager
def emulated_drafter() -> Iterator[None]:
    """Inside, `Drafter` runs the emulated CUDA kernels, and the host reads no index, as on a GPU."""
    import eagle3_ext.drafter

    load_simt()
    spec = importlib.util.spec_from_file_location("_simt", SIMT_LIBRARY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    native, eagle3_ext.drafter._C = eagle3_ext.drafter._C, module
    torch.ops.eagle3_simt._read_values(False)
    try:
        with poisoned_memory():
            yield
    finally:
        eagle3_ext.drafter._C = native
        torch.ops.eagle3_simt._read_values(True)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, new tensors hold NaN or the largest integer, results and workspaces too: what a kernel forgets shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def load_simt() -> None:
    if not SIMT_LIBRARY.is_file():
        if build_info()["cuda"]:
            pytest.fail("_simt is not built; `make build` does, or CMAKE_ARGS=-DEAGLE3_BUILD_TESTS=ON with pip")
        pytest.skip("built without a CUDA toolkit, whose headers the emulator needs")
    torch.ops.load_library(SIMT_LIBRARY)


def tensors_of(value: object) -> list[Tensor]:
    """All tensors inside nested lists, tuples and dicts, in order."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [tensor for item in items for tensor in tensors_of(item)]


def copied(inputs: Inputs, device: str) -> Inputs:
    """The inputs with every tensor in new memory on `device`, of the same layout. One given twice stays one, and those
    that share memory still do."""
    copies: dict[int, Tensor] = {}
    memories: dict[object, Tensor] = {}

    def copy(value: object) -> object:
        if isinstance(value, list):
            return [copy(item) for item in value]
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return value
        if id(value) not in copies:
            place = (value.untyped_storage().data_ptr(), value.dtype)
            if place not in memories:
                memories[place] = whole_memory(value).to(device, copy=True)
            copies[id(value)] = memories[place].as_strided(value.shape, value.stride(), value.storage_offset())
        return copies[id(value)]

    return {name: copy(value) for name, value in inputs.items()}


def whole_memory(tensor: Tensor) -> Tensor:
    """[elements of the storage]: what the tensor shows and what lies around it."""
    return tensor.new_empty(0).set_(tensor.untyped_storage())


def write_back(inputs: Inputs, moved: Inputs) -> None:
    for original, copy in zip(tensors_of(inputs), tensors_of(moved), strict=True):
        if original is copy:  # not on the CPU
            continue
        if not same_bytes(original, copy):
            original.copy_(copy)
        assert same_bytes(whole_memory(original), whole_memory(copy)), "the op wrote beside its tensor"


def matching(inputs: Inputs, moved: Inputs, result: object) -> object:
    """The result on the CPU; a tensor that was passed in is the one the caller knows."""
    known = {id(copy): original for original, copy in zip(tensors_of(inputs), tensors_of(moved), strict=True)}
    if isinstance(result, tuple):
        return tuple(matching(inputs, moved, item) for item in result)
    return known.get(id(result), result.cpu()) if isinstance(result, Tensor) else result


def same_bytes(a: Tensor, b: Tensor) -> bool:
    a, b = (t.detach().cpu().contiguous().flatten().view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)
