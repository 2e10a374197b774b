"""The comparisons of test_ops, with what they measured kept: for the notebook that shows it.

The bounds are those of the tests, because it is the tests that run here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest
from unittest import mock

import test_ops
import torch
from backends import tensors_of
from cases import CASES, Case, Inputs
from torch import Tensor

from eagle3_ext import reference

TESTS: dict[str, Callable] = {
    "capture_": test_ops.test_capture,
    "add_rms_norm_": test_ops.test_add_rms_norm,
    "add_rms_norm_capture_": test_ops.test_add_rms_norm,
    "gather_concat": test_ops.test_gather_concat,
    "gather_concat.out": test_ops.test_gather_concat,
    "accepted_rows": test_ops.test_accepted_rows,
    "draft_input": test_ops.test_draft_input,
    "head_rms_norm_": test_ops.test_head_rms_norm,
    "rope_append_": test_ops.test_rope_append,
    "mla_append_": test_ops.test_mla_append,
    "draft_attention": test_ops.test_draft_attention,
    "silu_mul": test_ops.test_silu_mul,
    "skinny_linear": test_ops.test_skinny_linear,
    "argmax_tokens": test_ops.test_argmax_tokens,
    "verify_greedy": test_ops.test_verify_greedy,
}


@dataclass
class Comparison:
    """A case of an op on one backend.

    Attributes:
        error: the largest |result - float64| as a share of its bound; None where no bound is tested, only bits.
        same_bits: everything that is tested bit for bit was equal; None where nothing is.
    """

    case: Case
    error: float | None = None
    same_bits: bool | None = None


def some_cases(op: str, count: int | None = None) -> list[Case]:
    """The op's cases that have rows: all, or `count` that take turns among the pairs of dtype and layout."""
    by_kind: dict[object, list[Case]] = {}
    for case in CASES:
        if case.op == op and case.rows > 0:
            by_kind.setdefault((case.dtype, case.layout), []).append(case)
    return [case for case in chain(*zip_longest(*by_kind.values())) if case][:count]


def table_row(case: Case) -> str:
    """The op, with latent attention apart: its kernel is another one."""
    return f"{case.op} (latent)" if case.name.startswith("latent-") else case.op


def dtype_and_layouts(case: Case) -> tuple[str, set[str]]:
    """What the kernel really gets: of the float tensors, or of the indices where an op reads nothing else.

    A layout is looked up in the tensors, because the case's own is a wish: one row has no strides, and an argument that
    must be contiguous is. `cos_sin`, float32 in every case, does not count.
    """
    tensors = tensors_of(case.inputs())
    if any(tensor.is_floating_point() for tensor in tensors):
        tensors, name = [tensor for tensor in tensors if tensor.dtype == case.dtype], str(case.dtype)
    else:
        name = str(min((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize))
    layouts = {"strided" for tensor in tensors if not tensor.is_contiguous()}
    layouts |= {"misaligned" for tensor in tensors if tensor.numel() and tensor.data_ptr() % 16}
    return name.removeprefix("torch."), layouts or {"contiguous"}


def compare(case: Case, backend: Callable[[str, Inputs], object]) -> Comparison:
    """Runs the case's test with its two assertions replaced by ones that keep what they see and go on."""
    seen = Comparison(case)

    def same_bits(actual: Tensor, expected: Tensor) -> None:
        seen.same_bits = (seen.same_bits is not False) and _raises_nothing(assert_same_bits, actual, expected)

    def within(actual: Tensor, expected: Tensor, bound: Tensor | float) -> None:
        share = (actual.double() - expected).abs() / (bound + test_ops.smallest(actual.dtype))
        share[actual.double() == expected] = 0.0  # infinities
        largest = share.nan_to_num(torch.inf).max().item() if share.numel() else 0.0
        seen.error = max(seen.error or 0.0, largest)

    assert_same_bits = test_ops.assert_same_bits
    with (
        mock.patch.object(test_ops, "assert_same_bits", same_bits),
        mock.patch.object(test_ops, "assert_within", within),
    ):
        TESTS[case.op](case, backend)
    return seen


def all_same_bits(comparisons: list[Comparison]) -> bool | None:
    """Whether all that were tested bit for bit were equal; None where none was."""
    tested = [found.same_bits for found in comparisons if found.same_bits is not None]
    return all(tested) if tested else None


def _raises_nothing(check: Callable, *arguments: object) -> bool:
    try:
        check(*arguments)
    except AssertionError:
        return False
    return True


def plain_pytorch(op: str, inputs: Inputs) -> object:
    """The specification in the inputs' own dtype, as one more backend."""
    return getattr(reference, op.partition(".")[0])(**inputs)
