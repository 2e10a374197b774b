"""The ops as PyTorch sees them: schemas tell the truth, fakes have the right shapes, torch.compile goes through."""

from __future__ import annotations

import backends
import pytest
import torch
from cases import CASES, Case, cases_of

from eagle3_ext import ops, reference

NAMESPACE = "eagle3_ext::"
REGISTERED = sorted(
    name.removeprefix(NAMESPACE) for name in torch._C._dispatch_get_all_op_names() if name.startswith(NAMESPACE)
)


def overload(op: str, namespace: str = "eagle3_ext") -> torch._ops.OpOverload:
    name, _, variant = op.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant or "default")


def few(op: str) -> list[Case]:
    """One case of no rows, one of many, and the special ones' first: enough for what does not depend on values."""
    cases = cases_of(op)
    empty = next(case for case in cases if case.rows == 0)
    many = next(case for case in cases if case.rows == 7)
    return list(dict.fromkeys([empty, many, cases[-1]]))


def test_every_registered_op_has_cases():
    assert sorted({case.op for case in CASES}) == REGISTERED


@pytest.mark.parametrize("op", sorted({name.partition(".")[0] for name in REGISTERED}))
def test_every_op_has_a_documented_wrapper_and_a_reference(op: str):
    wrapper = getattr(ops, op)
    assert callable(getattr(reference, op))
    assert f"Source: csrc/ops/{op.removesuffix('_').removesuffix('_capture')}.cpp" in wrapper.__doc__


@pytest.mark.parametrize("op", REGISTERED)
def test_every_op_answers_to_cuda_tensors(op: str):
    """With kernels, or in a build without them with a sentence that says so."""
    assert torch._C._dispatch_has_kernel_for_dispatch_key(NAMESPACE + op, "CUDA")


@pytest.mark.parametrize("op", REGISTERED)
def test_the_emulated_op_has_the_same_schema(op: str):
    backends.load_simt()
    emulated, native = overload(op, "eagle3_simt"), overload(op)
    assert str(emulated._schema).removeprefix("eagle3_simt::") == str(native._schema).removeprefix(NAMESPACE)
    for case in few(op):
        torch.library.opcheck(emulated, (), case.inputs(), test_utils="test_schema")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", [case for op in REGISTERED for case in few(op)], ids=str)
def test_opcheck(case: Case, device: str):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.library.opcheck(overload(case.op), (), backends.copied(case.inputs(), device))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_schema_and_fake(case: Case):
    torch.library.opcheck(overload(case.op), (), case.inputs(), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("op", REGISTERED)
def test_compile_without_graph_breaks(op: str):
    case = next(case for case in cases_of(op) if case.rows == 7)
    wrapper = getattr(ops, op.partition(".")[0])
    eager, compiled = case.inputs(), case.inputs()
    expected = wrapper(**eager)
    actual = torch.compile(wrapper, fullgraph=True, backend="eager")(**compiled)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    for name, value in eager.items():  # what the op mutated
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(compiled[name], value, rtol=0, atol=0)
