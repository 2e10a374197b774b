"""What notebook 02 is made of sees faults: a comparison that is handed wrong results, a kernel over its budget."""

from __future__ import annotations

import backends
import codegen
import codegen_table
import equivalence
import pytest
import torch
from cases import CASES


def test_every_op_is_compared():
    assert set(equivalence.TESTS) == {case.op.partition(".")[0] for case in CASES}


@pytest.mark.parametrize("op", equivalence.TESTS)
def test_comparisons_see_a_wrong_result(op: str):
    (case,) = equivalence.some_cases(op, 1)
    right = equivalence.compare(case, backends.cpu)
    assert right.same_bits is not False and (right.error or 0) <= 1
    assert right.same_bits is not None or right.error is not None, "nothing was compared"

    def wrong(name, inputs):
        """One element off: of the result, or of the first tensor that the op writes to."""
        result = backends.cpu(name, inputs)
        mutated = {"capture_": "features", "head_rms_norm_": "qkv", "rope_append_": "qkv", "mla_append_": "q_pe"}.get(
            name, "residual"
        )
        first = inputs[mutated] if result is None else result[0] if isinstance(result, tuple) else result
        first[0] += 3
        return result

    found = equivalence.compare(case, wrong)
    assert found.same_bits is False or found.error > 1


def test_some_cases_are_spread_over_dtypes():
    for op in ("capture_", "silu_mul", "skinny_linear", "argmax_tokens"):
        assert {case.dtype for case in equivalence.some_cases(op, 6)} == {torch.float32, torch.bfloat16, torch.float16}


def test_no_bits_is_not_equal_bits():
    found = [equivalence.Comparison(None, same_bits=value) for value in (None, True, False)]
    assert equivalence.all_same_bits(found[:1]) is None and equivalence.all_same_bits(found[:2]) is True
    assert equivalence.all_same_bits(found) is False


def test_a_kernel_over_its_budget_is_named():
    row = codegen_table.BUDGET[0]
    most = row["registers"]["sm_90"]
    kernel = codegen.Kernel(row["kernel"], row.get("aligned"), "sm_90", "symbol", registers=most)
    assert codegen_table.over_budget([kernel]) == [] and f"{most}/{most}" in "\n".join(codegen_table.table([kernel]))
    kernel.registers += 1
    assert f"{most + 1} of {most} registers" in codegen_table.over_budget([kernel])[0]
    kernel.name = "new_kernel"
    assert "no row" in codegen_table.over_budget([kernel])[0]
    kernel.name, kernel.registers, kernel.stack_bytes = row["kernel"], most, 8
    assert "8 bytes of stack" in codegen_table.over_budget([kernel])[0]
