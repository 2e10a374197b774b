"""Every op refuses what it cannot mean: the error names op, tensor and value, and nothing has been written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import backends
import pytest
import torch
from backends import Backend, tensors_of
from cases import CASES, Inputs, cases_of
from torch import Tensor

OPS = sorted({case.op for case in CASES})


def good(op: str) -> Inputs:
    """Two rows or more in plain layout, with every optional tensor given where the op has a case with it."""
    cases = [case for case in cases_of(op) if case.rows >= 2 and case.layout != "strided"]
    candidates = [case.inputs() for case in cases]
    return max(candidates, key=lambda inputs: sum(isinstance(v, Tensor) or bool(v) for v in inputs.values()))


def arguments_of(op: str) -> list[torch.Argument]:
    name, _, variant = op.partition(".")
    return getattr(getattr(torch.ops.eagle3_ext, name), variant or "default")._schema.arguments


def changed(inputs: Inputs, name: str, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The inputs with one tensor, or the last of a list of tensors, changed."""
    value = inputs[name]
    return inputs | {name: [*value[:-1], change(value[-1])] if isinstance(value, list) else change(value)}


def tensor_arguments(mutated_only: bool = False) -> list:
    found = []
    for op in OPS:
        inputs = good(op)
        for argument in arguments_of(op):
            is_tensor = isinstance(inputs.get(argument.name), (Tensor, list)) and inputs[argument.name] != []
            is_mutated = argument.alias_info is not None and argument.alias_info.is_write
            if is_tensor and (is_mutated or not mutated_only):
                found.append(pytest.param(op, argument.name, id=f"{op}-{argument.name}"))
    return found


def assert_refused(run: Backend, op: str, inputs: Inputs, error: type[Exception], *mentions: str) -> None:
    mutated = written(op, inputs)
    before = [tensor.clone() for tensor in mutated if tensor.device.type == "cpu"]
    with pytest.raises(error) as caught:
        run(op, inputs)
    message = str(caught.value).partition("\n")[0]
    assert message.startswith(f"{op.partition('.')[0]}: ")
    for mention in mentions:
        assert re.search(rf"(?<![\w.]){re.escape(mention)}", message), f"{mention!r} is not in {message!r}"
    for tensor, old in zip((t for t in mutated if t.device.type == "cpu"), before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("op, name", tensor_arguments())
def test_wrong_rank(run: Backend, op: str, name: str):
    inputs = changed(good(op), name, lambda tensor: tensor[None])
    value = inputs[name][-1] if isinstance(inputs[name], list) else inputs[name]
    assert_refused(run, op, inputs, ValueError, name, str(list(value.shape)))


@pytest.mark.parametrize("op, name", tensor_arguments())
def test_wrong_dtype(run: Backend, op: str, name: str):
    """float64, and int16 for indices: no kernel reads them."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor.short()

    inputs = changed(good(op), name, cast)
    value = inputs[name][-1] if isinstance(inputs[name], list) else inputs[name]
    assert_refused(run, op, inputs, ValueError, name, "Double" if value.is_floating_point() else "Short")


@pytest.mark.parametrize("run", ["cpu", "cuda"], indirect=True)  # a meta tensor goes to the fakes, which simt has none of
@pytest.mark.parametrize(
    "op, name", [param for param in tensor_arguments() if param.values[0] not in ("accepted_rows", "silu_mul")]
)
def test_wrong_device(run: Backend, op: str, name: str):
    device = "cuda" if run is backends.cuda else "cpu"
    inputs = changed(good(op), name, lambda tensor: tensor.to("meta"))
    assert_refused(run, op, inputs, ValueError, name, "meta", device)


@pytest.mark.parametrize("op, name", tensor_arguments(mutated_only=True))
def test_a_mutated_tensor_with_gaps_in_its_rows(run: Backend, op: str, name: str):
    """It is refused rather than made contiguous, because a copy would swallow the writes."""

    def with_gaps(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor], dim=-1)[..., 0]

    inputs = changed(good(op), name, with_gaps)
    assert_refused(run, op, inputs, ValueError, f"{name} has strides", str(list(inputs[name].stride())))


def without_last_row(tensor: Tensor) -> Tensor:
    return tensor[:-1]


def without_last_column(tensor: Tensor) -> Tensor:
    return tensor[..., :-1].contiguous()


@pytest.mark.parametrize(
    "op, name, change",
    [
        ("capture_", "features", without_last_row),
        ("capture_", "residual", without_last_row),
        ("capture_", "residual", without_last_column),
        ("add_rms_norm_", "residual", without_last_row),
        ("add_rms_norm_", "weight", without_last_row),
        ("add_rms_norm_capture_", "features", without_last_row),
        ("gather_concat", "states", without_last_row),
        ("gather_concat", "states", without_last_column),
        ("gather_concat.out", "out", without_last_row),
        ("gather_concat.out", "out", without_last_column),
        ("draft_input", "tokens", without_last_row),
        ("draft_input", "embed_weight", without_last_column),
        ("draft_input", "embed_norm", without_last_row),
        ("draft_input", "hidden_norm", without_last_row),
        ("head_rms_norm_", "qkv", without_last_column),
        ("head_rms_norm_", "k_weight", without_last_row),
        ("rope_append_", "positions", without_last_row),
        ("rope_append_", "slots", without_last_row),
        ("rope_append_", "qkv", without_last_column),
        ("rope_append_", "v_cache", without_last_row),
        ("rope_append_", "cos_sin", without_last_column),
        ("mla_append_", "kv", without_last_row),
        ("mla_append_", "kv", without_last_column),
        ("mla_append_", "positions", without_last_row),
        ("mla_append_", "slots", without_last_row),
        ("mla_append_", "cos_sin", without_last_column),
        ("mla_append_", "cache", without_last_column),
        ("draft_attention", "v_cache", without_last_row),
        ("draft_attention", "k_cache", without_last_column),
        ("draft_attention", "row_offsets", without_last_row),
        ("draft_attention", "cache_lengths", without_last_row),
        ("skinny_linear", "weight", without_last_column),
        ("skinny_linear", "bias", without_last_row),
        ("argmax_tokens", "target_ids", without_last_row),
        ("verify_greedy", "target_tokens", without_last_row),
        ("verify_greedy", "target_tokens", without_last_column),
        ("silu_mul", "gate_up", without_last_column),
    ],
)
def test_sizes_that_do_not_match(run: Backend, op: str, name: str, change: Callable[[Tensor], Tensor]):
    assert_refused(run, op, changed(good(op), name, change), ValueError, name)


def attention(**changes: list[int]) -> Inputs:
    """Two sequences of 1 and 2 rows in a cache of 10."""
    cache = torch.ones(10, 1, 4)
    indices = {"row_offsets": [0, 1, 3], "cache_starts": [0, 5], "cache_lengths": [3, 5]} | changes
    tensors = {name: torch.tensor(values) for name, values in indices.items()}
    return {"q": torch.ones(3, 2, 4), "k_cache": cache, "v_cache": cache.clone(), "scale": 1.0} | tensors


def rope(**changes: list[int]) -> Inputs:
    indices = {"positions": [0, 3], "slots": [1, -1]} | changes
    tensors = {name: torch.tensor(values) for name, values in indices.items()}
    heads = {"num_q_heads": 2, "num_kv_heads": 1}
    caches = {"k_cache": torch.ones(5, 1, 4), "v_cache": torch.ones(5, 1, 4)}
    return {"qkv": torch.ones(2, 16), "cos_sin": torch.ones(4, 4), **heads, **caches, **tensors}


def mla(**changes: list[int]) -> Inputs:
    indices = {"positions": [0, 3], "slots": [1, -1]} | changes
    tensors = {name: torch.tensor(values) for name, values in indices.items()}
    latents = {"kv": torch.ones(2, 7), "kv_weight": torch.ones(3), "eps": 1e-6, "cache": torch.ones(5, 7)}
    return {"q_pe": torch.ones(2, 3, 4), "cos_sin": torch.ones(4, 4), **latents, **tensors}


def lookup(tokens: list[int]) -> Inputs:
    norm = torch.ones(3)
    inputs = {"tokens": torch.tensor(tokens), "hidden": torch.ones(2, 3), "embed_weight": torch.ones(6, 3)}
    return inputs | {"embed_norm": norm, "hidden_norm": norm, "eps": 1e-6}


def gather(rows: list[int], **changes: object) -> Inputs:
    return {"states": [torch.ones(4, 3), torch.ones(4, 3)], "rows": torch.tensor(rows), "check": True} | changes


READ_BY_KERNELS_ALONE = ("tokens", "positions", "slots", "row_offsets", "cache_", "accept_lengths")


def skip_unless_values_are_read(run: Backend, mentions: list[str]) -> None:
    """On a GPU nobody reads index values before the kernel does, unless asked to: gather_concat's `check`."""
    if run is backends.cuda and mentions[0].startswith(READ_BY_KERNELS_ALONE) and "[" in mentions[0]:
        pytest.skip("index values on a GPU are not checked: that would wait for it")


def slot(value: int) -> Inputs:
    return {"features": torch.ones(2, 7), "slot": value, "hidden": torch.ones(2, 3)}


HEAD_NORM = {"qkv": torch.ones(2, 16), "q_weight": torch.ones(4), "k_weight": torch.ones(4), "eps": 1e-6}
HEAD_NORM |= {"num_q_heads": 2, "num_kv_heads": 1}
NORM = {"hidden": torch.ones(2, 3), "residual": torch.ones(2, 3), "weight": torch.ones(3), "eps": 1e-6}


@pytest.mark.parametrize(
    "op, inputs, mentions",
    [
        ("capture_", slot(2), ["slot is 2", "[0, 2)"]),
        ("capture_", slot(-1), ["slot is -1"]),
        ("add_rms_norm_capture_", NORM | {"features": torch.ones(2, 7), "slot": 2}, ["slot is 2", "[0, 2)"]),
        ("gather_concat", gather([0, 4]), ["rows[1] is 4", "[0, 4)"]),
        ("gather_concat", gather([-2, 0]), ["rows[0] is -2"]),
        ("gather_concat", gather([2**40, 0]), [f"rows[0] is {2**40}"]),
        ("gather_concat", gather([0], states=[torch.ones(0, 3)]), ["rows[0] is 0"]),
        ("gather_concat.out", gather([0, 4], out=torch.ones(2, 6)), ["rows[1] is 4"]),
        ("draft_input", lookup([0, 6]), ["tokens[1] is 6", "[0, 6)"]),
        ("draft_input", lookup([-2, 0]), ["tokens[0] is -2"]),
        ("rope_append_", rope(slots=[5, -1]), ["slots[0] is 5", "[0, 5)"]),
        ("rope_append_", rope(slots=[0, -2]), ["slots[1] is -2"]),
        ("rope_append_", rope(positions=[4, 0]), ["positions[0] is 4", "4)"]),
        ("rope_append_", rope(positions=[-1, 0]), ["positions[0] is -1"]),
        ("mla_append_", mla(slots=[5, -1]), ["slots[0] is 5", "[0, 5)"]),
        ("mla_append_", mla(slots=[0, -2]), ["slots[1] is -2"]),
        ("mla_append_", mla(positions=[4, 0]), ["positions[0] is 4", "4)"]),
        ("mla_append_", mla(positions=[-1, 0]), ["positions[0] is -1"]),
        ("draft_attention", attention(row_offsets=[1, 1, 3]), ["row_offsets[0] is 1"]),
        ("draft_attention", attention(row_offsets=[0, 2, 1]), ["row_offsets[2] is 1"]),
        ("draft_attention", attention(row_offsets=[0, 1, 4]), ["row_offsets[2] is 4"]),
        ("draft_attention", attention(cache_starts=[0, 11]), ["cache_starts[1] is 11"]),
        ("draft_attention", attention(cache_starts=[-1, 5]), ["cache_starts[0] is -1"]),
        ("draft_attention", attention(cache_lengths=[3, 6]), ["cache_lengths[1] is 6", "[2, 5]"]),
        ("draft_attention", attention(cache_lengths=[3, 1]), ["cache_lengths[1] is 1"]),
    ],
)
def test_indices_out_of_range(run: Backend, op: str, inputs: Inputs, mentions: list[str]):
    skip_unless_values_are_read(run, mentions)
    assert_refused(run, op, inputs, IndexError, *mentions)


SAME = torch.ones(2, 3)
JOINT = torch.ones(2, 3, 8)


@pytest.mark.parametrize(
    "op, inputs, mentions",
    [
        ("add_rms_norm_", NORM | {"hidden": SAME, "residual": SAME}, ["hidden", "residual"]),
        ("gather_concat", {"states": [], "rows": torch.tensor([0])}, ["states has 0"]),
        ("gather_concat", {"states": [SAME] * 17, "rows": torch.tensor([0])}, ["states has 17", "16"]),
        ("gather_concat", gather([0], norm_weights=[torch.ones(3)]), ["norm_weights", "[3]", "6"]),
        ("gather_concat", gather([0], norm_weights=[torch.ones(3)] * 3), ["norm_weights has 3"]),
        ("gather_concat", gather([0], states=[SAME], norm_weights=[SAME[0]] * 2), ["width 3", "2"]),
        ("accepted_rows", {"accept_lengths": torch.tensor([1, 5]), "width": 4}, ["accept_lengths[1] is 5", "4"]),
        ("accepted_rows", {"accept_lengths": torch.tensor([-1]), "width": 4}, ["accept_lengths[0] is -1"]),
        ("accepted_rows", {"accept_lengths": torch.tensor([0]), "width": 0}, ["width is 0"]),
        ("accepted_rows", {"accept_lengths": torch.tensor([0] * 4), "width": 2**62 + 1}, [f"width is {2**62 + 1}", "4"]),
        ("draft_input", lookup([0, 1]) | {"embed_weight": None}, ["embed_weight", "token_embeddings"]),
        ("rope_append_", rope() | {"cos_sin": torch.ones(4, 6)}, ["rotary_dim", "6", "4"]),
        ("draft_attention", attention() | {"q": torch.ones(3, 3, 4), "k_cache": torch.ones(10, 2, 4),
                                           "v_cache": torch.ones(10, 2, 4)}, ["q has 3", "2"]),
        ("draft_attention", attention() | {"v_cache": torch.ones(10, 2, 4)}, ["v_cache", "[10, 2, 4]"]),
        ("draft_attention", attention() | {"window": 0}, ["window is 0"]),
        ("draft_attention", attention() | {"window": -1}, ["window is -1"]),
        ("head_rms_norm_", HEAD_NORM | {"num_q_heads": -1}, ["num_q_heads is -1"]),
        ("head_rms_norm_", HEAD_NORM | {"num_kv_heads": 2**62}, [f"num_kv_heads is {2**62}", "0 to 16"]),
        ("head_rms_norm_", HEAD_NORM | {"q_weight": HEAD_NORM["qkv"][0, :4]}, ["qkv and q_weight share memory"]),
        ("head_rms_norm_", HEAD_NORM | {"k_weight": HEAD_NORM["qkv"][1, 8:12]}, ["qkv and k_weight share memory"]),
        ("rope_append_", rope() | {"num_q_heads": 6, "num_kv_heads": -1}, ["num_kv_heads is -1", "0 to 16"]),
        ("rope_append_", rope() | {"num_q_heads": -3}, ["num_q_heads is -3"]),
        ("mla_append_", mla() | {"q_pe": JOINT[:, :, :4], "kv": JOINT[:, 0, 1:8]}, ["q_pe and kv share memory"]),
        ("mla_append_", mla() | {"q_pe": JOINT[:, :, :4], "cache": JOINT.view(-1)[:35].view(5, 7)},
         ["cache and q_pe share memory"]),
        ("mla_append_", mla() | {"q_pe": torch.ones(2, 1, 4).expand(2, 3, 4)}, ["q_pe has strides", "[4, 0, 1]"]),
        ("mla_append_", mla() | {"q_pe": torch.ones(22).as_strided((2, 3, 4), (7, 4, 1))}, ["q_pe", "[7, 4, 1]"]),
        ("mla_append_", mla() | {"q_pe": torch.ones(2, 3, 3), "kv": torch.ones(2, 6), "cache": torch.ones(5, 6),
                                 "cos_sin": torch.ones(4, 3)}, ["r = 3"]),
        ("argmax_tokens", {"logits": torch.ones(2, 0)}, ["logits", "[2, 0]"]),
    ],
)  # fmt: skip
def test_values_without_a_meaning(run: Backend, op: str, inputs: Inputs, mentions: list[str]):
    skip_unless_values_are_read(run, mentions)
    assert_refused(run, op, inputs, ValueError, *mentions)


@pytest.mark.parametrize("head_dim, value_dim", [(769, 4), (4, 513)])
def test_heads_that_the_cuda_kernel_was_not_built_for(run: Backend, head_dim: int, value_dim: int):
    cache = {"k_cache": torch.ones(10, 1, head_dim), "v_cache": torch.ones(10, 1, value_dim)}
    inputs = attention() | cache | {"q": torch.ones(3, 2, head_dim)}
    if run is backends.cpu:
        assert torch.equal(run("draft_attention", inputs), torch.ones(3, 2 * value_dim))
    else:
        sizes = [f"heads have {head_dim} dimensions and values {value_dim}", "up to 768 and 512"]
        assert_refused(run, "draft_attention", inputs, ValueError, *sizes)


@pytest.fixture(params=["simt", "cuda"])
def run_unchecked(request) -> Iterator[Backend]:
    """The CUDA kernels on index values that nobody has checked."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    backends.load_simt()
    torch.ops.eagle3_simt._read_values(False)
    yield getattr(backends, request.param)
    torch.ops.eagle3_simt._read_values(True)


@pytest.mark.parametrize(
    "op, bad, padded",
    [
        ("gather_concat", gather([1, 4, -9], check=False), gather([1, -1, -1])),
        ("gather_concat", gather([2**40, -(2**40), 3], check=False), gather([-1, -1, 3])),
        ("draft_input", lookup([0, 6]), lookup([0, -1])),
        ("draft_input", lookup([-(2**40), 2**40]), lookup([-1, -1])),
        ("rope_append_", rope(slots=[5, 1]), rope(slots=[-1, 1])),
        ("rope_append_", rope(slots=[2**40, -2]), rope(slots=[-1, -1])),
        ("mla_append_", mla(slots=[5, 1]), mla(slots=[-1, 1])),
        ("mla_append_", mla(slots=[2**40, -2]), mla(slots=[-1, -1])),
    ],
)
def test_kernels_take_a_bad_index_for_padding(run_unchecked: Backend, op: str, bad: Inputs, padded: Inputs):
    result, expected = run_unchecked(op, bad), run_unchecked(op, padded)
    for actual, wanted in zip(tensors_of([result, *written(op, bad)]), tensors_of([expected, *written(op, padded)])):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize(
    "op, inputs",
    [
        ("accepted_rows", {"accept_lengths": torch.tensor([1, 5, -3, 2**40]), "width": 4}),
        ("accepted_rows", {"accept_lengths": torch.tensor([1, 5, -3, 2**40]), "width": 4, "block_front": True}),
        ("rope_append_", rope(positions=[4, -1], slots=[0, 1])),
        ("rope_append_", rope(positions=[2**40, -(2**40)], slots=[0, 1])),
        ("mla_append_", mla(positions=[4, -1], slots=[0, 1])),
        ("mla_append_", mla(positions=[2**40, -(2**40)], slots=[0, 1])),
        ("draft_attention", attention(row_offsets=[1, 1, 3])),
        ("draft_attention", attention(row_offsets=[0, 2, 1])),
        ("draft_attention", attention(row_offsets=[0, 1, 2**40])),
        ("draft_attention", attention(row_offsets=[-5, 1, 3])),
        ("draft_attention", attention(cache_starts=[0, 11])),
        ("draft_attention", attention(cache_starts=[-1, 2**40])),
        ("draft_attention", attention(cache_lengths=[3, 6])),
        ("draft_attention", attention(cache_lengths=[-3, 2**40])),
        ("draft_attention", attention(cache_lengths=[3, 1])),
        ("draft_attention", attention(cache_lengths=[3, -(2**63)])),
        ("draft_attention", attention(row_offsets=[-(2**63), 1, 2**63 - 1])),
        ("draft_attention", attention(row_offsets=[0, 3, 0])),
    ],
)
def test_kernels_never_follow_a_bad_index(run_unchecked: Backend, op: str, inputs: Inputs):
    """Nothing is read or written outside: the backend compares what surrounds the tensors, and the sanitizers' run of
    this test sees reads. Results are finite, so no garbage came in either."""
    result = run_unchecked(op, inputs)
    for tensor in tensors_of([result, *written(op, inputs)]):
        assert not tensor.is_floating_point() or tensor.isfinite().all()


def written(op: str, inputs: Inputs) -> list[Tensor]:
    return [inputs[a.name] for a in arguments_of(op) if a.alias_info is not None and a.alias_info.is_write]
