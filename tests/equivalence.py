"""The comparisons of test_ops, with what they measured kept: for the notebook that shows it.

The bounds are those of the tests, because it is the tests that run here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import test_ops
import torch
from cases import CASES, Case, Inputs
from torch import Tensor

from eagle3_ext import reference

TESTS: dict[str, Callable] = {
    "capture_": test_ops.test_capture,
    "add_rms_norm_": test_ops.test_add_rms_norm,
    "add_rms_norm_capture_": test_ops.test_add_rms_norm,
    "gather_concat": test_ops.test_gather_concat,
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


def some_cases(op: str, count: int, most_elements: int = 40_000) -> list[Case]:
    """`count` cases with rows, spread over dtypes and the op's table; large ones left out, for the emulator's sake."""
    by_dtype: dict[torch.dtype, list[Case]] = {}
    for case in CASES:
        if case.op == op and case.rows > 0 and _elements(case) <= most_elements:
            by_dtype.setdefault(case.dtype, []).append(case)
    share = math.ceil(count / len(by_dtype))
    return [case for found in by_dtype.values() for case in found[:: max(1, len(found) // share)][:share]][:count]


def _elements(case: Case) -> int:
    return sum(value.numel() for value in case.inputs().values() if isinstance(value, Tensor))


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
