"""What notebook 02 is made of sees faults: a comparison that is handed wrong results, a kernel over its budget."""

from __future__ import annotations

import backends
import codegen
import codegen_table
import equivalence
import pytest
from cases import CASES, DTYPES, LAYOUTS, cases_of
from test_bad_input import written


def test_every_op_is_compared():
    assert set(equivalence.TESTS) == {case.op for case in CASES}


@pytest.mark.parametrize("op", equivalence.TESTS)
def test_comparisons_see_a_wrong_result(op: str):
    (case,) = equivalence.some_cases(op, 1)
    right = equivalence.compare(case, backends.cpu)
    assert right.same_bits is not False and (right.error or 0) <= 1
    assert right.same_bits is not None or right.error is not None, "nothing was compared"

    def wrong(name, inputs):
        """One element off: of the result, or of the first tensor that the op writes to."""
        result = backends.cpu(name, inputs)
        first = written(name, inputs)[0] if result is None else result[0] if isinstance(result, tuple) else result
        first[0] += 3
        return result

    found = equivalence.compare(case, wrong)
    assert found.same_bits is False or found.error > 1


@pytest.mark.parametrize("op", equivalence.TESTS)
def test_nine_cases_have_every_dtype_in_every_layout(op: str):
    pairs = {(case.dtype, case.layout) for case in equivalence.some_cases(op, 9)}
    assert pairs == {(dtype, layout) for dtype in DTYPES for layout in LAYOUTS}
    assert len(equivalence.some_cases(op)) == len([case for case in cases_of(op) if case.rows > 0])


@pytest.mark.parametrize(
    "case, expected",
    [
        ("gather_concat-7x576-float32-int32-contiguous", ("float32", {"contiguous"})),
        ("gather_concat-83x3420-float32-int64-strided", ("float32", {"strided"})),
        ("capture_-1x3-float32-int32-strided", ("float32", {"contiguous"})),  # one row
        ("draft_attention-latent-4x512+64-float32", ("float32", {"strided"})),  # the values: a part of the keys
        ("draft_attention-latent-3x512+64-bfloat16", ("bfloat16", {"strided", "misaligned"})),
        ("accepted_rows-7x576-float32-int32-contiguous", ("int32", {"contiguous"})),
    ],
)
def test_layouts_are_those_of_the_tensors(case: str, expected: tuple[str, set[str]]):
    (found,) = (each for each in CASES if str(each) == case)
    assert equivalence.dtype_and_layouts(found) == expected


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
    assert f"{most + 1} registers, expected at most {most}" in codegen_table.over_budget([kernel])[0]
    kernel.name = "new_kernel"
    assert "no row" in codegen_table.over_budget([kernel])[0]
    kernel.name, kernel.registers, kernel.stack_bytes = row["kernel"], most, 8
    assert "8 bytes of stack" in codegen_table.over_budget([kernel])[0]


def test_a_kernel_whose_instructions_were_read_must_move_128_bits():
    row = next(row for row in codegen_table.BUDGET if row.get("wide_loads") and row.get("wide_stores_only"))
    kernel = codegen.Kernel(row["kernel"], True, "sm_90", "symbol")
    assert codegen_table.over_budget([kernel]) == [], "nothing was read, so nothing is known"
    kernel.memory.update({"LDG.E.128": row["wide_loads"], "STG.E.128": 2})
    assert codegen_table.over_budget([kernel]) == []
    assert f"{row['wide_loads']}/{row['wide_loads']}" in "\n".join(codegen_table.table([kernel]))
    kernel.memory.update({"LDG.E.128": -1, "STG.E.64": 1})
    loads, stores = codegen_table.over_budget([kernel])
    assert "128-bit loads" in loads and "expected 128-bit ones and no others" in stores
    assert "2/3" in "\n".join(codegen_table.table([kernel]))
