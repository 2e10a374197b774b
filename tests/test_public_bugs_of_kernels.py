"""Public bug reports about kernels, batches, numbers and builds: what engines got wrong is right here, or refused.

The reports are named by repository and number. RAMP: three states of 16 rows whose every value tells its place, exact
in every dtype. What only a GPU can show at all (graphs, streams, offsets past 2^31) is in tools/gpu_check.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import backends
import pytest
import test_ops
import torch
from backends import Backend
from cases import CASES, DTYPES, Case, Inputs, placed
from test_bad_input import changed, tensor_arguments
from test_drafter import make_rows
from test_drafter_on_devices import make_drafter, on, small_config
from torch import Tensor

from eagle3_ext import _build, ops
from eagle3_ext.features import CapturePlan, Features

BF16 = torch.bfloat16
RAMP = [(64 * k + torch.arange(64.0).view(16, 4)).to(BF16) for k in range(3)]
JOINED = torch.cat(RAMP, dim=1)


def gather(rows: list[int] | Tensor, **changes: object) -> Inputs:
    return {"states": RAMP, "rows": torch.as_tensor(rows), **changes}


# ---- batches and indices


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_zero_rows_leave_the_device_usable(run: Backend, dtype: torch.dtype):  # sglang 23609, pytorch 46572
    """A grid of no blocks is an error that CUDA reports to the next call, whatever that is."""
    joined = run("gather_concat", {"states": [state[:0] for state in RAMP], "rows": torch.empty(0, dtype=dtype)})
    assert joined.shape == (0, 12) and joined.dtype == BF16
    assert run("gather_concat", gather(torch.empty(0, dtype=dtype))).shape == (0, 12)
    weight = torch.ones(8, 24, dtype=BF16)
    assert run("skinny_linear", {"x": weight[:0], "weight": weight}).shape == (0, 8)
    for case in CASES:
        if case.rows == 0:
            run(case.op, case.inputs())
    assert torch.equal(run("gather_concat", gather([5, 0])), JOINED[[5, 0]])


@pytest.mark.parametrize("lengths, rows", [([3, 1], [0, 1, 2, 4]), ([3, 0, 2], [0, 1, 2, 8, 9])])
def test_rows_of_a_request_begin_at_its_block(run: Backend, lengths, rows):  # sglang 26163, 28496
    accepted, _ = run("accepted_rows", {"accept_lengths": torch.tensor(lengths), "width": 4})
    assert accepted.tolist() == rows + [-1] * (4 * len(lengths) - len(rows))
    gathered = run("gather_concat", gather(accepted))
    assert torch.equal(gathered[: len(rows)], JOINED[rows]) and not gathered[len(rows) :].any()
    assert gathered[3, 0] == 4 * rows[3], "row 4 begins with 16, where the local row 0 would give 0"


def test_twelve_requests_keep_their_order(run: Backend):  # speculators 279, DMI 67
    width, lengths = 3, [1 + i % 3 for i in range(12)]
    states = torch.arange(12.0).repeat_interleave(width)[:, None].expand(-1, 8)
    rows, offsets = run("accepted_rows", {"accept_lengths": torch.tensor(lengths), "width": width})
    gathered = run("gather_concat", {"states": [states], "rows": rows})
    assert gathered[offsets[:-1], 0].tolist() == list(range(12))


@pytest.fixture(params=["cpu", "simt", "cuda", "cuda-graphs"])
def drafters(request) -> Iterator[tuple[str, dict]]:
    """(device, options): where a drafter's tensors live, and what it is made with beside its sizes."""
    if request.param.startswith("cuda"):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        yield "cuda", {"cuda_graphs": request.param == "cuda-graphs"}
    elif request.param == "simt":
        with backends.emulated_drafter():
            yield "cpu", {}
    else:
        yield "cpu", {}


def extend(drafter, device: str, parts: list[dict], sequences: list[int] | None = None) -> None:
    """One sequence per part, whose rows these are."""
    counts = [len(part["tokens"]) for part in parts]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    offsets = torch.tensor([0, *counts]).cumsum(0).to(device)
    chosen = None if sequences is None else torch.tensor(sequences, device=device)
    drafter.extend(**on(device, joined), row_offsets=offsets, sequences=chosen)


def drafts_alone(config, device: str, rounds: list[list[dict]], num_tokens: int) -> list[list[int]]:
    """The last draft of every sequence in a drafter of its own; rounds[b] is what sequence b is extended by."""
    single, drafts = make_drafter(config, device, max_length=32), []
    for parts in rounds:
        single.reset()
        for part in parts:
            extend(single, device, [part])
            draft = single.draft(num_tokens)
        drafts.append(draft.tokens[0].tolist())
    return drafts


def test_twelve_sequences_are_drafted_for_in_the_order_given(drafters):  # speculators 279, vllm 14645
    """The order of the request ids as text, 0, 1, 10, 11, 2, ..., which is neither theirs nor the cache's."""
    device, options = drafters
    config, order = small_config(), sorted(range(12), key=str)
    parts = [make_rows(config, 1 + i % 3, seed=i) for i in range(12)]
    drafter = make_drafter(config, device, max_batch=12, max_length=32, **options)
    extend(drafter, device, [parts[i] for i in order], order)
    alone = drafts_alone(config, device, [[part] for part in parts], 2)
    assert len({str(draft) for draft in alone}) > 6, "a wrong order must show"
    assert drafter.draft(2).tokens.tolist() == [alone[i] for i in order]
    assert drafter.lengths.tolist() == [len(part["tokens"]) for part in parts]


def test_the_kept_requests_are_not_the_first_ones(run: Backend):  # sglang 9252
    states = torch.tensor([[10.0], [20.0], [30.0]])
    rows, offsets = run("accepted_rows", {"accept_lengths": torch.tensor([1, 0, 1]), "width": 1})
    assert run("gather_concat", {"states": [states], "rows": rows}).flatten().tolist() == [10, 30, 0]
    assert offsets.tolist() == [0, 1, 1, 2]


def settled(run: Backend, draft: list[list[int]], target: list[list[int]], states: list[Tensor]) -> tuple:
    """(accept lengths, next tokens, row offsets, features of the accepted rows) of a round."""
    tokens = {"draft_tokens": torch.tensor(draft, dtype=torch.int64), "target_tokens": torch.tensor(target)}
    lengths, bonus = run("verify_greedy", tokens)
    rows, offsets = run("accepted_rows", {"accept_lengths": lengths, "width": len(target[0])})
    return lengths.tolist(), bonus.tolist(), offsets.tolist(), run("gather_concat", {"states": states, "rows": rows})


def test_a_request_without_drafts_this_round(run: Backend):  # vllm 7505, vllm-gaudi 593
    drafts = [[5, 6, 7], [], [8, 9, 10]]
    target = [[5, 6, 7, 1], [2, 0, 0, 0], [8, 9, 10, 3]]
    padded = [tokens + [-1] * (3 - len(tokens)) for tokens in drafts]
    states = [state[:12] for state in RAMP]
    lengths, bonus, offsets, features = settled(run, padded, target, states)
    assert (lengths, bonus, offsets) == ([4, 1, 4], [1, 2, 3], [0, 4, 5, 9])
    assert not features[9:].any()
    for b, tokens in enumerate(drafts):
        block = [state[4 * b : 4 * b + 1 + len(tokens)] for state in states]
        alone = settled(run, [tokens], [target[b][: 1 + len(tokens)]], block)
        assert alone[:2] == (lengths[b : b + 1], bonus[b : b + 1])
        assert torch.equal(alone[3], features[offsets[b] : offsets[b + 1]])


def test_the_placeholder_is_no_token_and_no_last_row(run: Backend):  # vllm 46533, 50939, vllm-ascend 10043
    lengths, bonus = run("verify_greedy", {"draft_tokens": torch.tensor([[5, -1, -1]]),
                                           "target_tokens": torch.tensor([[5, 7, -1, -1]])})  # fmt: skip
    assert (lengths.tolist(), bonus.tolist()) == ([2], [7]), "one draft accepted: the output is 5, 7"
    gathered = run("gather_concat", gather([0, -1]))
    assert torch.equal(gathered[0], JOINED[0]) and not gathered[1].any(), "padding is zeros, never row 15"
    table, gain = torch.ones(32, 4), torch.ones(4)
    inputs = {"tokens": torch.tensor([5, -1]), "hidden": torch.ones(2, 4), "embed_weight": table}
    x = run("draft_input", inputs | {"embed_norm": gain, "hidden_norm": gain, "eps": 0.0})
    assert x.tolist() == [[1] * 8, [0] * 8], "row 31 of the table is not looked up"


@pytest.mark.parametrize(
    "draft, target, count, token",
    [
        ([5, 5], [9, 1, 1], 1, 9),
        ([9, 5], [9, 4, 1], 2, 4),
        ([9, 5], [9, 9, 1], 2, 9),
        ([5, 5], [0, 1, 1], 1, 0),  # token 0 is a token
        ([9, 32], [9, 31, 1], 2, 31),
    ],
)
def test_the_next_token_is_the_last_one_emitted(run: Backend, draft, target, count, token):  # vllm 56417
    lengths, bonus = run("verify_greedy", {"draft_tokens": torch.tensor([draft, [-1, -1]]),
                                           "target_tokens": torch.tensor([target, [3, 3, 3]])})  # fmt: skip
    assert (lengths.tolist(), bonus.tolist()) == ([count, 1], [token, 3])


def test_both_integer_widths_are_the_same_index(run: Backend):  # vllm 39951
    rows = torch.tensor([5, 0, 3])
    narrow, wide = (run("gather_concat", gather(rows.to(dtype))) for dtype in (torch.int32, torch.int64))
    assert torch.equal(narrow, wide) and torch.equal(wide, JOINED[rows])
    lengths = torch.tensor([2, 0, 3])
    narrow, wide = (
        run("accepted_rows", {"accept_lengths": lengths.to(dtype), "width": 4}) for dtype in (torch.int32, torch.int64)
    )
    assert all(torch.equal(a, b) and a.dtype == torch.int64 for a, b in zip(narrow, wide))


@pytest.mark.parametrize(
    "dtype, name",
    [(torch.float32, "Float"), (torch.int16, "Short"), (torch.uint8, "Byte"), (torch.bool, "Bool")],
    ids=str,
)
def test_other_dtypes_are_no_index(run: Backend, dtype: torch.dtype, name: str):  # vllm 39951
    """A bool mask above all: as ids it would be 0 and 1."""
    with pytest.raises(ValueError, match=f"rows has dtype {name}, expected int32 or int64"):
        run("gather_concat", gather(torch.tensor([1, 0, 1]).to(dtype)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_an_index_on_the_cpu_for_states_on_cuda():  # vllm 39951
    with pytest.raises(ValueError, match="rows is on cpu, expected cuda:0"):
        ops.gather_concat([state.cuda() for state in RAMP], torch.tensor([5, 0, 3]))


GARBAGE = 4510424140297813696


@pytest.mark.parametrize("row", [16, GARBAGE, 2**32 + 3])
def test_an_index_out_of_range_is_named_and_the_device_lives(run: Backend, row: int):  # sglang 15638, 37936
    with pytest.raises(IndexError, match=rf"rows\[1\] is {row}, .*\[0, 16\)"):
        run("gather_concat", gather([3, row], check=True))
    unchecked = run("gather_concat", gather([3, row], check=False))
    assert torch.equal(unchecked[0], JOINED[3]) and not unchecked[1].any(), "no wrap to 32 bits"
    assert torch.equal(run("gather_concat", gather([15, 4])), JOINED[[15, 4]])


# ---- kernels


def twice(state: Tensor) -> Tensor:
    """[32, 4] whose every second row is the state's."""
    return torch.stack([state, torch.full_like(state, 77)], dim=1).flatten(0, 1)


LAYOUTS = {
    "chunks": lambda: list(JOINED.chunk(3, dim=-1)),
    "transposed": lambda: [state.t().contiguous().t() for state in RAMP],
    "every-second-row": lambda: [twice(state)[::2] for state in RAMP],
    "expanded": lambda: [state[3:4].expand(16, 4) for state in RAMP],
}
STRIDES = {"chunks": (12, 1), "transposed": (1, 16), "every-second-row": (8, 1), "expanded": (0, 1)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_followed(run: Backend, layout: str):  # kernels-community 106, aiter 5292, sglang 27498
    states = LAYOUTS[layout]()
    assert {state.stride() for state in states} == {STRIDES[layout]}
    every_second = torch.tensor([5, 9, 0, 9, 3, 9])[::2]
    expected = JOINED[[3, 3, 3]] if layout == "expanded" else JOINED[[5, 0, 3]]
    assert torch.equal(run("gather_concat", {"states": states, "rows": every_second}), expected)
    features = torch.full((16, 12), 77, dtype=BF16)
    for slot, state in enumerate(states):
        run("capture_", {"features": features, "slot": slot, "hidden": state})
    assert torch.equal(features, JOINED[3:4].expand(16, 12) if layout == "expanded" else JOINED)


@pytest.mark.parametrize("moved", ["states", "second state", "out", "states and out"])
@pytest.mark.parametrize("width", [1, 3, 4, 5, 8, 46, 48, 3420])
def test_memory_off_the_alignment_of_a_vector(run: Backend, width: int, moved: str):  # qkan 26, flashinfer 5013
    """Widths that fill vectors and widths that do not, bf16 from element 1 of its memory on."""
    states = [torch.randn(16, width).to(BF16) for _ in range(3)]
    rows, out = torch.tensor([5, 0, -1, 15]), torch.zeros(4, 3 * width, dtype=BF16)
    expected = torch.cat(states, dim=1)[rows].masked_fill(rows[:, None] == -1, 0)
    if "states" in moved:
        states = [placed(state, "misaligned") for state in states]
    if moved == "second state":
        states[1] = placed(states[1], "misaligned")
    if "out" in moved:
        out = placed(out, "misaligned")
    assert (out if "out" in moved else states[1]).data_ptr() % 4 == 2
    assert torch.equal(run("gather_concat", {"states": states, "rows": rows, "out": out}), expected)


def vectors_case(op: str) -> Case:
    """The op's case whose widths fill vectors and whose memory is aligned."""
    return next(case for case in CASES if case.op == op and "x576-" in case.name and case.layout == "contiguous")


@pytest.mark.parametrize("op, name", tensor_arguments())
def test_one_tensor_off_the_alignment_of_all_others(run: Backend, op: str, name: str):  # vllm 45466, qkan 26
    """A check of some addresses is none of the others'. The op is judged as in its own test."""

    def move_one(maker) -> Inputs:
        return changed(case.build(maker), name, lambda tensor: placed(tensor, "misaligned"))

    case = vectors_case(op)
    moved = dataclasses.replace(case, build=move_one)
    test = "add_rms_norm" if op.startswith("add_rms_norm") else op.partition(".")[0].rstrip("_")
    torch.manual_seed(0)
    getattr(test_ops, f"test_{test}")(moved, run)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize("cuda_graphs", [False, True], ids=["launches", "graphs"])
def test_tensors_on_another_cuda_device_than_the_current_one(cuda_graphs: bool):  # pytorch 54077, mmdetection 1608
    states, rows = [state.to("cuda:1") for state in RAMP], torch.tensor([5, 0, 3], device="cuda:1")
    with torch.cuda.device(0):
        assert torch.equal(ops.gather_concat(states, rows).cpu(), JOINED[[5, 0, 3]])
        assert torch.cuda.current_device() == 0
        with pytest.raises(ValueError, match=r"states\[1\] is on cuda:0, expected cuda:1"):
            ops.gather_concat([states[0], RAMP[1].to("cuda:0"), states[2]], rows)
        with pytest.raises(ValueError, match="rows is on cuda:0, expected cuda:1"):
            ops.gather_concat(states, rows.to("cuda:0"))
        for device in ("cuda:0", "cuda:1"):  # torch's own stream for captures is where the first one was
            drafter = make_drafter(small_config(), device, max_length=32, cuda_graphs=cuda_graphs)
            parts: list[dict] = []
            drafts = []
            for seed in range(3):  # a graph that holds nothing repeats the first draft
                parts.append(make_rows(drafter.config, 3, 3 * seed, seed=seed))
                extend(drafter, device, parts[-1:])
                drafts.append(drafter.draft(3).tokens.tolist())
                assert drafts[-1] == drafts_alone(drafter.config, "cpu", [parts], 3)
            assert len({str(draft) for draft in drafts}) == 3, "a repeated draft must show"


def test_a_batch_smaller_than_before(drafters):  # sglang 6309, 10892
    """8 sequences, then 5 of them, then 8 again, drafted for at once or each by itself; 9 are refused."""
    device, options = drafters
    config = small_config()
    drafter = make_drafter(config, device, max_batch=8, max_length=32, **options)
    rounds: list[list[dict]] = [[] for _ in range(8)]
    for number, batch in enumerate((8, 5, 8)):
        parts = []
        for b in range(batch):
            start = sum(len(part["tokens"]) for part in rounds[b])
            parts.append(make_rows(config, 1 + (b + number) % 2, start, seed=b))
            rounds[b].append(parts[-1])
        extend(drafter, device, parts)
        assert drafter.draft(3).tokens.tolist() == drafts_alone(config, device, rounds[:batch], 3)
    with pytest.raises(ValueError, match="9 sequences.*max_batch=8"):
        extend(drafter, device, [make_rows(config, 1)] * 9)


# ---- numbers


@pytest.mark.parametrize("rows", [1, 8, 9])
def test_a_long_row_of_ones_is_summed_in_float32(run: Backend, rows: int):  # sglang 27883
    """A running sum in bf16 stops at 256, one in fp16 that goes past 65504 on its way is inf."""
    for dtype in DTYPES:
        ones = torch.ones(rows, 768, dtype=dtype)
        assert (run("skinny_linear", {"x": ones, "weight": ones[:1]}) == 768).all()
    x, weight = torch.full((rows, 768), 240.0).half(), torch.tensor([1.0, -1.0]).repeat_interleave(384)[None].half()
    assert (run("skinny_linear", {"x": x, "weight": weight}) == 0).all()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_overflow_in_fp16_is_named_and_bf16_has_room(device: str):  # sglang 27883, EAGLE 69
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    features = Features(CapturePlan((2, 31), 4))
    for dtype in (BF16, torch.float16):
        features.begin_forward()
        for slot in range(2):
            state = torch.full((3, 4), 70000.0 if slot else 1.0, device=device)
            features.write(slot, state.masked_fill_(torch.arange(3, device=device)[:, None] != 1, 1.0).to(dtype))
        if dtype == BF16:
            features.check_finite()
            assert features.gather(torch.tensor([1], device=device))[0].tolist() == [1.0] * 4 + [70144.0] * 4
    with pytest.raises(ValueError, match=r"row 1 is not finite at boundary 31 \(the output of layer 30\)"):
        features.check_finite()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 8, 9, 11, 12, 151_666])
def test_argmax_stays_inside_the_vocabulary(run: Backend, width: int, dtype: torch.dtype):  # sglang 35872
    """All logits are below 0, which a tail of zeros would beat, and the memory after each row is above all of them."""
    logits = placed(torch.full((3, width), -5.0, dtype=dtype), "strided")
    logits[0, width - 1] = -1
    logits[2, width // 2] = -1
    tokens, valid, log_probs = run("argmax_tokens", {"logits": logits, "with_log_probs": True})
    assert tokens.tolist() == [width - 1, 0, width // 2] and valid.all()
    expected = logits.double().log_softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_state_beyond_fp16_is_never_stored_in_it(run: Backend):  # elk 208, EAGLE 259
    state = torch.full((2, 4), 70000.0).to(BF16)
    features = torch.zeros(2, 4, dtype=torch.float16)
    with pytest.raises(ValueError, match="Half.*BFloat16|BFloat16.*Half"):
        run("capture_", {"features": features, "slot": 0, "hidden": state})
    features = features.to(BF16)
    run("capture_", {"features": features, "slot": 0, "hidden": state})
    assert run("gather_concat", {"states": [features], "rows": torch.tensor([1])}).tolist() == [[70144.0] * 4]


# ---- builds


@pytest.mark.parametrize("version", ["2.10.0", "3.11.0+cu130"])
def test_a_build_for_another_torch_is_a_sentence(tmp_path, monkeypatch, version):  # fvdb-reality-capture 295, ao 3471
    info = json.loads(_build._INFO_FILE.read_text())
    file = tmp_path / "_build_info.json"
    monkeypatch.setattr(_build, "_INFO_FILE", file)
    with pytest.raises(ImportError, match="not built"):
        _build.check(torch.__version__)
    file.write_text(json.dumps(info))
    assert _build.check(torch.__version__) == info
    file.write_text(json.dumps(info | {"torch": version}))
    with pytest.raises(ImportError, match="built for torch.*but this is") as error:
        _build.check(torch.__version__)
    assert version in str(error.value) and torch.__version__ in str(error.value)
    file.write_text(json.dumps(info | {"python": "3.1"}))
    with pytest.raises(ImportError, match="built for Python 3.1,"):
        _build.check(torch.__version__)
