"""The drafter where the host reads no index: on a GPU, and on the emulator of the same kernels, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import backends
import pytest
import torch
from test_drafter import (
    BOUNDS,
    VARIANTS,
    assert_same_draft,
    extend,
    make_checkpoint,
    make_config,
    make_model,
    make_rows,
    rounded_reference,
)

from eagle3_ext import Drafter, ops
from eagle3_ext.draft_graphs import DraftGraphs

SMALL = {
    "hidden_size": 48,
    "target_hidden_size": 48,
    "intermediate_size": 80,
    "num_q_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 16,
    "draft_vocab_size": 96,
    "vocab_size": 256,
}


@pytest.fixture(params=["simt", "cuda"])
def device(request) -> Iterator[str]:
    """Where tensors live: "cuda", or "cpu" with the emulated CUDA kernels behind `Drafter`; "cpu" where asked for."""
    if request.param == "cpu":
        yield "cpu"
        return
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        yield "cuda"
        return
    with backends.emulated_drafter():
        yield "cpu"


def small_config(**changes):
    sizes = SMALL | changes
    if "num_kv_heads" in changes:
        sizes["num_kv_heads"] = sizes["num_q_heads"]
    if "target_hidden_size" in changes:
        sizes["target_hidden_size"] = 48 if changes.get("fusion") == "none" else 56
    if "draft_vocab_size" in changes:
        sizes["draft_vocab_size"] = sizes["vocab_size"]
    return make_config(**sizes)


def make_drafter(config, device: str, dtype=torch.float32, **options) -> Drafter:
    return Drafter.from_checkpoint(make_checkpoint(config, dtype), make_model(config, dtype), device=device, **options)


def make_with_references(config, device: str, dtype=torch.float32, **options):
    """A drafter, the reference in float64, and the reference in the drafter's dtype."""
    checkpoint, model = make_checkpoint(config, dtype), make_model(config, dtype)
    drafter = Drafter.from_checkpoint(checkpoint, model, device=device, **options)
    tables = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    rounded = rounded_reference(config, checkpoint.weights, *tables)
    return drafter, rounded.to(torch.float64), rounded


def on(device: str, rows: dict) -> dict:
    return {name: value.to(device) for name, value in rows.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_the_reference(device, variant, dtype):
    config = small_config(**VARIANTS[variant])
    drafter, oracle, rounded = make_with_references(config, device, dtype, max_length=64)
    start = 0
    for count, steps in ((12, 1), (3, 5), (1, 2)):
        rows = make_rows(config, count, start, dtype=dtype)
        extend(drafter, on(device, rows))
        oracle.extend(**rows)
        rounded.extend(**rows)
        start += count
        assert drafter.lengths.tolist() == [start]
        assert_same_draft(drafter, oracle, steps, BOUNDS[dtype], None if dtype == torch.float32 else rounded)


@pytest.mark.parametrize("device", ["cpu", "simt", "cuda"], indirect=True)
def test_positions_are_the_callers(device):
    """They begin at 20 and jump to 40, and a truncated cache is gone on from: draft steps follow the last of them."""
    config = small_config()
    drafter, oracle, _ = make_with_references(config, device, max_length=64)
    for position, count in ((20, 12), (40, 3), (33, 2)):
        if position == 33:
            drafter.truncate(0, 12)
            oracle.truncate(12)
        rows = make_rows(config, count, position)
        extend(drafter, on(device, rows))
        oracle.extend(**rows)
        assert_same_draft(drafter, oracle, 4, BOUNDS[torch.float32])


def test_rows_that_fill_their_threads(device):
    """127 rows and one sequence: with the last offset as many items as a block has threads."""
    config = small_config()
    drafter, oracle, _ = make_with_references(config, device, max_length=160)
    rows = make_rows(config, 127)
    extend(drafter, on(device, rows))
    oracle.extend(**rows)
    assert_same_draft(drafter, oracle, 2, BOUNDS[torch.float32])


def test_a_batch_equals_its_sequences(device):
    config = small_config()
    batched = make_drafter(config, device, max_batch=4, max_length=64)
    counts, sequences, steps = (5, 17, 9), (2, 0, 3), 4
    rows = [make_rows(config, count, seed=seed) for seed, count in enumerate(counts)]
    padding = make_rows(config, 3) | {"tokens": torch.full((3,), -1)}
    joined = {name: torch.cat([part[name] for part in (*rows, padding)]) for name in padding}
    for _ in range(2):  # the second time over the first's draft entries
        batched.extend(
            **on(device, joined),
            row_offsets=torch.tensor([0, 5, 22, 31], device=device),
            sequences=torch.tensor(sequences, dtype=torch.int32, device=device),
        )
        draft = batched.draft(steps)
    assert batched.lengths.tolist() == [34, 0, 10, 18]
    for b, part in enumerate(rows):
        single = make_drafter(config, device, max_length=64)
        for _ in range(2):
            single.extend(**on(device, part), row_offsets=torch.tensor([0, len(part["tokens"])], device=device))
            alone = single.draft(steps)
        assert torch.equal(draft.tokens[b], alone.tokens[0])


def test_a_run_again_follows_new_inputs_and_fewer_live_rows(device):
    """What a CUDA graph replays: `run_draft` of one (batch, D), after extends that the host has not read."""
    config, steps = small_config(), 3
    drafter = make_drafter(config, device, max_batch=2, max_length=64)

    def round_of(counts: list[int], seed: int) -> list[list[int]]:
        offsets = [0, counts[0], sum(counts)]
        rows = on(device, make_rows(config, sum(counts), seed=seed))
        drafter.extend(**rows, row_offsets=torch.tensor(offsets, device=device))
        return drafter.draft(steps).tokens.tolist()

    both = round_of([4, 6], seed=1)
    assert all(token >= 0 for tokens in both for token in tokens)
    before = drafter.lengths.tolist()
    only_second = round_of([0, 2], seed=2)
    assert only_second[0] == [-1] * steps and min(only_second[1]) >= 0
    assert drafter.lengths.tolist() == [before[0], before[1] + 2]
    # Sequence 0 slept for a round: it goes on exactly as in a drafter where nothing else happened.
    after = round_of([3, 0], seed=3)
    alone = make_drafter(config, device, max_batch=2, max_length=64)
    rows = on(device, make_rows(config, 10, seed=1))
    alone.extend(**rows, row_offsets=torch.tensor([0, 4, 10], device=device))
    alone.extend(**on(device, make_rows(config, 3, seed=3)), row_offsets=torch.tensor([0, 3, 3], device=device))
    assert after[0] == alone.draft(steps).tokens[0].tolist() and after[1] == [-1] * steps


def test_an_extend_past_the_capacity_changes_nothing(device):
    """Where nobody can read the lengths to refuse it: the sequence stays as it was, and so does its neighbour's cache."""
    config = small_config()
    drafter, undisturbed = (make_drafter(config, device, max_batch=3, max_length=8) for _ in range(2))
    first = on(device, make_rows(config, 6, seed=1))
    for each in (drafter, undisturbed):
        each.extend(**first, row_offsets=torch.tensor([0, 3, 3, 6], device=device))
    too_many = on(device, make_rows(config, 12, seed=2))
    drafter.extend(**too_many, row_offsets=torch.tensor([0, 12], device=device))
    assert drafter.lengths.tolist() == [3, 0, 3]
    assert drafter.draft(2).tokens.tolist() == [[-1, -1]]
    for each in (drafter, undisturbed):
        each.extend(
            **on(device, make_rows(config, 4, seed=3)),
            row_offsets=torch.tensor([0, 2, 4], device=device),
            sequences=torch.tensor([0, 2], device=device),
        )
    assert drafter.draft(3).tokens.tolist() == undisturbed.draft(3).tokens.tolist()


def test_a_draft_ends_where_its_cache_or_its_rope_table_does(device):
    """Where nobody can read lengths and positions to refuse it. A token needs a row only for the one after it."""
    config = small_config()
    for positions, expected in (([0] * 7, 2), ([0] * 8, 1), ([3, 4, 5], 3), ([4, 5, 6], 2), ([5, 6, 7], 1)):
        drafter, rows = make_drafter(config, device, max_length=8), make_rows(config, len(positions))
        given = on(device, rows | {"positions": torch.tensor(positions)})
        drafter.extend(**given, row_offsets=torch.tensor([0, len(positions)], device=device))
        draft = drafter.draft(4)
        assert draft.lengths.tolist() == [expected], positions
        assert (draft.tokens >= 0).tolist() == [[step < expected for step in range(4)]]


def test_indices_that_no_one_checked_stay_inside(device):
    """Sequences the drafter does not have, tokens outside the vocabulary: nothing is read or written beside its place."""
    config = small_config()
    drafter = make_drafter(config, device, max_batch=2, max_length=16)
    rows = on(device, make_rows(config, 4))
    rows["tokens"] = torch.tensor([5, config.vocab_size + 7, -3, 9], device=device)
    drafter.extend(
        **rows,
        row_offsets=torch.tensor([0, 2, 4], device=device),
        sequences=torch.tensor([7, 1], device=device),
    )
    draft = drafter.draft(2)
    assert drafter.lengths.tolist() == [0, 2] and draft.tokens[0].tolist() == [-1, -1]


@pytest.mark.parametrize("offsets", [[0, 9], [-3, 4], [2**40, 4], [0, 2**40]], ids=str)
def test_offsets_that_claim_other_rows_draft_nothing(device, offsets):
    """Rows that never come, or that come before the first: nothing is committed and nothing drafted from."""
    config = small_config()
    drafter, undisturbed = (make_drafter(config, device, max_batch=2, max_length=16) for _ in range(2))
    for each in (drafter, undisturbed):
        extend(each, on(device, make_rows(config, 3)), [0, 3])
        each.draft(2)
    drafter.extend(**on(device, make_rows(config, 4, seed=1)), row_offsets=torch.tensor(offsets, device=device))
    draft = drafter.draft(2)
    assert drafter.lengths.tolist() == [3, 0]
    assert draft.lengths.tolist() == [0] and draft.tokens.tolist() == [[-1, -1]]
    for each in (drafter, undisturbed):
        extend(each, on(device, make_rows(config, 2, 3, seed=2)), [0, 2])
    assert drafter.draft(3).tokens.tolist() == undisturbed.draft(3).tokens.tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_draft_the_same():
    config = small_config()
    plain, graphed = (
        make_drafter(config, "cuda", max_batch=2, max_length=64, cuda_graphs=graphs) for graphs in (False, True)
    )
    for seed in range(4):
        rows = on("cuda", make_rows(config, 5 + seed, seed=seed))
        for each in (plain, graphed):
            each.extend(**rows, row_offsets=torch.tensor([0, 2, 5 + seed], device="cuda"))
        assert torch.equal(plain.draft(3).tokens, graphed.draft(3).tokens)
    with pytest.raises(ValueError, match="extend"):
        graphed.draft(3)


class StandIn:
    """For torch.cuda's device, stream, Stream, graph and CUDAGraph: inside `with`, what it was made for is in force."""

    in_force: list[object] = []
    replays = 0

    def __init__(self, of=None, stream=None, capture_error_mode=None):
        self.of = stream or of

    def __enter__(self):
        self.in_force.append(self.of)

    def __exit__(self, *_):
        self.in_force.pop()

    def wait_stream(self, _):
        pass

    def replay(self):
        self.replays += 1


@pytest.fixture
def stand_in(monkeypatch):
    for name in ("device", "stream", "Stream", "graph", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, StandIn)


def test_graphs_are_kept_by_batch_and_length(stand_in):
    """The bookkeeping: capture runs the draft twice, a replay not at all."""
    calls = []
    graphs = DraftGraphs(lambda num_tokens: calls.append(num_tokens) or (num_tokens,) * 3, torch.device("cuda:1"))
    for batch, num_tokens in ((1, 3), (1, 3), (2, 3), (1, 4), (1, 3)):
        assert graphs.run(batch, num_tokens) == (num_tokens,) * 3
    assert calls == [3, 3, 3, 3, 4, 4]
    assert [graph.replays for graph, _ in graphs._graphs.values()] == [3, 1, 1]


def test_graphs_run_on_the_drafters_device(stand_in, monkeypatch):
    """Before a capture, in it and in a replay the device is in force, and the streams are its own."""
    seen, mine = [], torch.device("cuda:1")

    def note(*_):
        seen.append([getattr(each, "of", each) for each in StandIn.in_force])

    monkeypatch.setattr(StandIn, "replay", note)
    DraftGraphs(note, mine).run(1, 3)
    assert seen == [[mine, mine], [mine, mine], [mine]] and not StandIn.in_force


def launches_of(call) -> int:
    before = torch.ops.eagle3_simt._launch_count()
    call()
    return torch.ops.eagle3_simt._launch_count() - before


def test_a_rounds_hidden_path_is_two_launches():
    """From accepted lengths to features: rows, then all states joined, whatever K. Capture and copies need none."""
    states, lengths = [torch.ones(10, 24, dtype=torch.bfloat16)] * 3, torch.tensor([3, 1])
    with backends.emulated_ops():
        assert launches_of(lambda: ops.gather_concat(states, ops.accepted_rows(lengths, 5)[0], check=False)) == 2


def test_every_draft_step_launches_the_same_kernels():
    """As many for each, and no more than the docstring of `Drafter` says."""
    with backends.emulated_drafter():
        drafter = make_drafter(small_config(), "cpu", max_length=64)
        counts = []
        for steps in (1, 2, 3, 4):
            drafter.reset()
            extend(drafter, make_rows(drafter.config, 5))
            counts.append(launches_of(lambda: drafter.draft(steps)))
    per_step = {after - before for before, after in zip(counts, counts[1:])}
    assert len(per_step) == 1 and 8 <= per_step.pop() <= 15, counts
