"""A few cases of every op and two rounds of a small drafter: what compute-sanitizer watches, which makes it slow.

As `python -m gpu_check.workload plant` it reads past the end of a tensor instead: a sanitizer that stays silent then
does not watch the kernels.
"""

from __future__ import annotations

import sys

import torch
from backends import copied
from cases import CASES, Case

from eagle3_ext import ops

from .devices import Findings, main
from .drafters import rounds_of, small_drafter

MOST_ELEMENTS = 60_000


def chosen() -> list[Case]:
    """Per op: one case of few rows in each dtype, and the last of its special ones."""
    found = []
    for op in sorted({case.op for case in CASES}):
        mine = [case for case in CASES if case.op == op and case.rows > 0 and _elements(case) <= MOST_ELEMENTS]
        by_dtype = {case.dtype: case for case in mine}
        found += list(dict.fromkeys([*by_dtype.values(), mine[-1]]))
    return found


def _elements(case: Case) -> int:
    return sum(value.numel() for value in case.inputs().values() if isinstance(value, torch.Tensor))


def past_the_end(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """[elements] at the address of the contiguous `tensor`, whatever its own size. torch itself refuses to make one."""
    size = elements * tensor.element_size()
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, size)
    return tensor.new_empty(0).set_(storage, 0, (elements,), (1,))


def plant(device: str) -> None:
    """One launch that reads 64 KiB from a tensor of 1 KiB; the rest of its page is mapped, so nothing else happens."""
    short = torch.zeros(256, device=device)
    ops.silu_mul(past_the_end(short, 16384)[None])
    torch.cuda.synchronize()


def run(backend: str, device: str) -> Findings:
    cases = chosen()
    for case in cases:
        getattr(ops, case.op.partition(".")[0])(**copied(case.inputs(), device))
    drafter = small_drafter(device)
    drafted = sum(draft.numel() for draft in rounds_of(drafter, device, ((4, 6), (1, 3))))
    if device == "cuda":
        torch.cuda.synchronize()
    return {"ops": len(cases), "drafted tokens": drafted}


if __name__ == "__main__":
    if sys.argv[1:] == ["plant"]:
        plant("cuda")
    else:
        main(run, __doc__)
