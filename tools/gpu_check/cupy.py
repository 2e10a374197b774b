"""Copies and argmax against an array library that shares nothing with torch but the memory, through DLPack.

CuPy on a GPU; NumPy, which has the same functions, on the emulator.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from eagle3_ext import ops

from .devices import Findings, main, require

# rows, source rows, states, width; the last is Kimi-K2.5's
GATHERS = {
    "simt": ((0, 3, 3, 7), (7, 5, 3, 46), (9, 16, 2, 48)),
    "cuda": ((0, 3, 3, 7), (83, 50, 3, 3421), (4097, 8192, 3, 7168)),
}
LOGITS = {"simt": ((3, 100), (2, 1027)), "cuda": ((7, 1027), (64, 32000), (256, 163840))}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def bits(xp, tensor: Tensor):
    """The tensor's bits as an integer array over the same memory: not every array library has bfloat16."""
    return xp.from_dlpack(tensor.detach().view({2: torch.int16, 4: torch.int32}[tensor.element_size()]))


def gathered(xp, states: list[Tensor], rows: Tensor):
    """gather_concat in array operations: -1 gives zeros."""
    index = xp.from_dlpack(rows)
    parts = [xp.where((index < 0)[:, None], 0, bits(xp, state)[xp.maximum(index, 0)]) for state in states]
    return xp.concatenate(parts, axis=1)


def first_best(xp, logits: Tensor):
    """Index of the first maximum, NaN as -inf. Not by argmax: which of two equals that gives is not promised."""
    values = xp.from_dlpack(logits.float())  # exact, and again a dtype that every library has
    values = xp.where(xp.isnan(values), -xp.inf, values)
    columns = xp.arange(values.shape[1])
    return xp.where(values == values.max(axis=1, keepdims=True), columns, values.shape[1]).min(axis=1)


def check_gather(xp, device: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    rows, source, count, width = shape
    states = [torch.randn(source, width, device=device, dtype=dtype) for _ in range(count)]
    index = torch.randint(-1, source, (rows,), device=device)
    expected = gathered(xp, states, index)
    require(
        bool((bits(xp, ops.gather_concat(states, index)) == expected).all()),
        f"gather_concat {shape} {dtype} differs from {xp.__name__}",
    )


def check_argmax(xp, device: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    logits = (torch.randn(shape, device=device) * 3).round().to(dtype)  # whole numbers: many ties
    logits[0, ::5] = torch.nan
    ids = torch.randperm(2 * shape[1], device=device)[: shape[1]]
    tokens, _, _ = ops.argmax_tokens(logits, ids)
    expected = xp.from_dlpack(ids)[first_best(xp, logits)]
    require(
        bool((xp.from_dlpack(tokens) == expected).all()), f"argmax_tokens {shape} {dtype} differs from {xp.__name__}"
    )


def check(backend: str, device: str) -> Findings:
    xp = importlib.import_module("cupy" if backend == "cuda" else "numpy")
    for dtype in DTYPES:
        for shape in GATHERS[backend]:
            check_gather(xp, device, shape, dtype)
        for shape in LOGITS[backend]:
            check_argmax(xp, device, shape, dtype)
    return {
        "oracle": f"{xp.__name__} {xp.__version__}",
        "gather_concat": f"{len(DTYPES) * len(GATHERS[backend])} cases equal bit for bit",
        "argmax_tokens": f"{len(DTYPES) * len(LOGITS[backend])} cases equal",
    }


if __name__ == "__main__":
    main(check, __doc__)
