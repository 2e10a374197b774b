"""The doctor against the fault library: faults are named, healthy runs are not accused."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from embedded import needs_target
from faults import FAULTS, ROW_FAULTS, Tampered, with_config, without_fusion
from loops import Loop, run_batched, small_checkpoint, small_loop, small_model
from verdicts import accusations, ids, print_table

from eagle3_ext import SpeculativeDecoder, demo
from eagle3_ext.doctor import trace
from eagle3_ext.doctor.trace_rules import diagnose_trace

DEPTHS = (1, 3, 7)
SEEDS = range(10)
MORE_SEEDS = (5, 9)  # the two of ten under which a wrong vocabulary map once passed for rounding
OF_THE_DRAFTER = ("norm-flag-ignored", "wrong-vocabulary-map", "drafter-differs")  # found by the drafter's witness only


# ---- the confusion table


@pytest.mark.parametrize("depth", DEPTHS)
def test_healthy_runs_are_not_accused(depth):
    rows = []
    for seed in SEEDS:
        events, stats = small_loop(seed, depth).run()
        rows.append((f"healthy, seed {seed}, D={depth}", "", " ".join(accusations(diagnose_trace(events)))))
        assert stats.rounds and any(event["phase"] == "witness" for event in events)
        assert depth == 1 or any(event["phase"] == "draft step" for event in events), "width h, and no finding"
    print_table(rows)
    assert all(expected == given for _, expected, given in rows)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE_SEEDS)])
def test_every_fault_is_named_and_nothing_else(seed, depth):
    rows = []
    for name, fault in FAULTS.items():
        if depth >= fault.depth:
            # The drafter's witness is most of the time; at D=3 it is there for every fault, to accuse none of them.
            events, _ = small_loop(seed, depth).run(fault.build, witness=depth == 3 or fault.finding in OF_THE_DRAFTER)
            rows.append((f"{name}, seed {seed}, D={depth}", fault.finding, " ".join(ids(diagnose_trace(events)))))
    print_table(rows)
    assert all(expected == given for _, expected, given in rows)


@pytest.mark.parametrize("name", ROW_FAULTS)
def test_rows_mixed_up_in_a_batch(name):
    mix, words = ROW_FAULTS[name]
    (finding,) = diagnose_trace(run_batched(twelve_sequences(), 3, mix))
    assert finding.id == "wrong-rows" and words in finding.evidence[0], finding.evidence
    assert any("prefill extend 0 of 12" in line for line in finding.evidence)


def test_a_healthy_batch_is_not_accused():
    assert accusations(diagnose_trace(run_batched(twelve_sequences(), 3))) == []


def drafted(tokens: list[int], log_probs: list[float], **witness: tuple[list, list, list]) -> dict:
    """A draft event; per variant of the witness its tokens, their log-probabilities, those of the drafted tokens."""
    names = ("tokens", "log_probs", "drafted_log_probs")
    variants = {name.replace("_", " "): dict(zip(names, values)) for name, values in witness.items()}
    return {"phase": "draft", "tokens": tokens, "log_probs": log_probs, "witness": variants}


def test_rounding_excuses_a_token_and_nothing_else_does():
    """Another token is a near-tie when the witness itself finds it nearly as probable as its own, however the two
    sides' log-probabilities compare: under a wrong vocabulary map they are equal."""
    near_tie = drafted([5, 9], [-1.0, -2.0], as_the_file_says=([6, 9], [-0.98, -2.0], [-1.02, -2.0]))
    assert diagnose_trace([near_tie] * 20) == []
    known = drafted([5, 9], [-1.0, -2.0], as_the_file_says=([6, 9], [-1.0, -2.0], [-7.0, -2.0]))
    unknown = drafted([5, 9], [-1.0, -2.0], as_the_file_says=([6, 9], [-1.0, -2.0], [None, -2.0]))
    for other_token in (known, unknown):
        assert ids(diagnose_trace([other_token] * 3)) == ["drafter-differs"]
        assert diagnose_trace([other_token] * 2) == [], "two tokens are too few"
        same = drafted([5] * 4, [-1.0] * 4, as_the_file_says=([5] * 4, [-1.0] * 4, [-1.0] * 4))
        assert diagnose_trace([other_token] * 3 + [same] * 7) == [], "3 of 31 steps"
    other_probability = drafted([5], [-1.0], as_the_file_says=([5], [-1.3], [-1.3]))
    assert ids(diagnose_trace([other_probability] * 8)) == ["drafter-differs"]


def test_what_is_affected_is_counted_among_what_could_be_compared():
    """Later rounds have no witness: they must not look like healthy ones."""
    (finding,) = diagnose_trace(small_loop(0, 3).run(FAULTS["boundaries one late"].build, witness=False)[0])
    (affected,) = (line for line in finding.evidence if line.startswith("affected"))
    phases = affected.removeprefix("affected: ").removesuffix(" of those with a witness").split(", ")
    assert [phase.rsplit(" ", 3)[0] for phase in phases] == ["prefill extend", "extend"]
    assert all(phase.split()[-3] == phase.split()[-1] for phase in phases), affected


def twelve_sequences() -> Loop:
    """Text order differs from batch order from eleven sequences on."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 9, (12,), generator=generator).tolist()
    prompts = [torch.randint(0, 67, (length,), generator=generator) for length in lengths]
    return dataclasses.replace(small_loop(0, 3), prompts=prompts, new_tokens=16)


@pytest.mark.parametrize(
    ("switch", "filed", "ignored"),
    [("feature_norm", "per_state", "none"), ("norm_before_residual", True, False), ("norm_output", True, False)],
)
def test_a_switch_that_the_file_sets_and_the_engine_ignores(switch, filed, ignored):
    loop = dataclasses.replace(small_loop(2, 3), checkpoint=small_checkpoint(2, **{switch: filed}))
    assert accusations(diagnose_trace(loop.run()[0])) == []
    (finding,) = diagnose_trace(loop.run(with_config(**{switch: ignored}))[0])
    assert finding.id == "norm-flag-ignored" and switch in finding.evidence[1], finding.evidence


def test_a_drafter_without_fusion_is_healthy_after_the_final_norm():
    loop = small_loop(3, 3)
    loop = dataclasses.replace(loop, checkpoint=without_fusion(loop.checkpoint))
    assert accusations(diagnose_trace(loop.run()[0])) == []


# ---- the embedded model


@pytest.fixture(scope="module")
def setup():
    return demo.EmbeddedSetup.load()


def embedded_loop(setup, tokens: int) -> Loop:
    prompts = [setup.encode(prompt)[0] for prompt in demo.PROMPTS[:1]]
    return Loop(setup.model, setup.checkpoint, prompts, 3, tokens)


FEW = (
    "decode: last state only (width H)",
    "EAGLE instead of EAGLE3",
    "first two states swapped",
    "boundaries one late",
    "accepted rows from the end",
    "norm_before_residual turned",
    "d2t ignored",
)


@needs_target
def test_the_embedded_model_healthy_and_with_a_few_faults(setup):
    loop = embedded_loop(setup, 12)
    healthy, _ = loop.run()
    rows = [("healthy", "", " ".join(ids(diagnose_trace(healthy))))]
    for name in FEW:
        events, _ = loop.run(FAULTS[name].build)
        rows.append((name, FAULTS[name].finding, " ".join(ids(diagnose_trace(events)))))
    print_table(rows)
    assert all(expected == given for _, expected, given in rows)


@pytest.mark.slow
@needs_target
def test_the_embedded_model_with_every_fault(setup):
    loop = embedded_loop(setup, 24)
    rows = []
    for name, fault in FAULTS.items():
        events, _ = loop.run(fault.build)
        rows.append((name, fault.finding, " ".join(ids(diagnose_trace(events)))))
    print_table(rows)
    assert all(expected == given for _, expected, given in rows)


# ---- the trace


def test_the_trace_changes_no_token_and_is_off_by_default():
    loop = small_loop(4, 3)
    assert trace.active is None
    target, drafter = loop.parts()
    decoder = SpeculativeDecoder(target, drafter, 3)
    before = decoder.generate(loop.prompts[0], 16, ()).tokens
    with trace.recording() as recorder:
        assert decoder.generate(loop.prompts[0], 16, ()).tokens == before
    assert trace.active is None and recorder.events
    known = len(recorder.events)
    decoder.generate(loop.prompts[0], 16, ())
    assert len(recorder.events) == known


def test_a_trace_file_reads_back_what_was_recorded(tmp_path):
    path = tmp_path / "run.jsonl"
    with trace.recording(path):
        trace.record("extend", torch.tensor([[1.0, torch.nan], [3.0, 4.0]]), expected_width=2, rank=3)
    (event,) = trace.read_trace(path)
    assert (event["rows"], event["width"], event["expected_width"], event["rank"]) == (2, 2, 2, 3)
    assert event["norms"] == [[None], [5.0]] and event["first5"][1] == [[3.0, 4.0]] and event["finite"] is False
    path.write_text('{"phase":"plan"}\n{"phase":\n{"phase":"plan"}\n')
    with pytest.raises(ValueError, match="line 2 is no trace event"):
        list(trace.read_trace(path))


def test_the_size_of_an_event_does_not_depend_on_the_prompt():
    with trace.recording() as recorder:
        for rows in (1, 8, 9, 5000):
            trace.record("extend", torch.ones(rows, 12), state_width=4)
    assert [event["sampled"] for event in recorder.events] == [
        [0], list(range(8)), [0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3, 4996, 4997, 4998, 4999]
    ]  # fmt: skip
    assert len(json.dumps(recorder.events[3])) < 2000


def feed(widths: list[tuple[str, int]], H: int = 8, expected: int = 24) -> list[dict]:
    """What another engine would record: no plan, no witness."""
    generator = torch.Generator().manual_seed(0)
    with trace.recording() as recorder:
        for round_, (phase, width) in enumerate(widths):
            step = phase.startswith("draft")
            hidden = torch.randn(2, width, generator=generator)
            trace.record(phase, hidden, state_width=H, expected_width=H if step else expected, round=round_)
    return recorder.events


def test_another_engines_events_without_a_witness():
    healthy = [("prefill extend", 24), ("draft step", 8), ("extend", 24), ("draft step", 8), ("extend", 24)]
    assert diagnose_trace(feed(healthy)) == []
    (finding,) = diagnose_trace(feed([("prefill extend", 24), ("extend", 8), ("draft step", 8), ("extend", 8)]))
    assert finding.id == "one-state-in-extend", "prefill right, decode wrong"
    assert "prefill extend 0 of 1, extend 2 of 2" in " ".join(finding.evidence)
    (finding,) = diagnose_trace(feed([("extend", 20)] * 3))
    assert finding.id == "width-mismatch"


def test_a_draft_step_that_reads_an_old_buffer():
    with trace.recording() as recorder:
        for round_ in range(3):
            for step in (1, 2):
                trace.record("draft step", torch.full((1, 8), float(round_)), step=step, expected_width=8, round=round_)
    (finding,) = diagnose_trace(recorder.events)
    assert (finding.id, finding.severity) == ("identical-steps", "fault")


def test_a_weak_drafter_is_a_suspect_and_no_fault():
    loop = dataclasses.replace(small_loop(5, 1), lucky=None, new_tokens=40)
    (finding,) = diagnose_trace(loop.run()[0])
    assert (finding.id, finding.severity) == ("weak-drafter", "suspect")
    assert "plain PyTorch in 39 drafts" in finding.evidence[2], finding.evidence


def test_stale_rows_of_a_round_without_a_witness():
    """Rounds 16 and 24 have one, those before them none: what comes from there is no state of any forward on record."""
    loop = dataclasses.replace(small_loop(5, 1), lucky=None, new_tokens=40)
    events, stats = loop.run(FAULTS["extend buffer one round late"].build)
    assert stats.rounds > 24
    assert [finding.id for finding in diagnose_trace(events) if finding.severity != "note"] == ["stale-features"]


def test_rounds_that_fall_after_the_first():
    with trace.recording() as recorder:
        for _ in range(10):
            recorder.begin_text()
            for round_ in range(6):
                recorder.begin_round()
                recorder.record("round", drafted=3, accepted=2 if round_ == 0 else 0)
    assert "falls-after-first-round" in ids(diagnose_trace(recorder.events))


def test_features_that_are_no_state_of_the_forward():
    """Half of every state, as one rank of two would hold before the all-reduce."""

    def partial_sums(loop):
        target, drafter = loop.parts()
        return target, Tampered(drafter, lambda features, _prefill: features / 2)

    (finding,) = diagnose_trace(small_loop(0, 3).run(partial_sums)[0])
    assert finding.id == "unknown-states"


def test_the_witness_is_needed_only_for_what_it_sees():
    """Hooks of a small model at every boundary: 0 to n, the norms and updates around the plan, the final norm."""
    events, _ = small_loop(0, 1).run(witness=False)
    (states,) = {tuple(event["states"]) for event in events if event["phase"] == "witness"}
    layers = len(small_model(0).model.layers)
    assert {str(boundary) for boundary in range(layers + 1)} <= set(states)
    assert {f"norm {layers}", "norm 2", "norm 4", "norm 6", "update 2", "update 4", "update 6"} <= set(states)
