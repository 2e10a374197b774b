"""The doctor on a decode loop of one's own, as the README writes it: nobody tells the trace where a round begins."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from loops import Loop, plain_text, small_loop
from transformers import DynamicCache
from verdicts import ids

from eagle3_ext import CapturePlan, Drafter, Features, capture, ops
from eagle3_ext.doctor import trace
from eagle3_ext.doctor.trace_rules import diagnose_trace
from eagle3_ext.drafter import DraftTokens

WIDTH = 4  # three drafts


def as_captured(features: Features, rows: torch.Tensor) -> torch.Tensor:
    return features.gather(rows)


def decode(
    loop: Loop, rounds: int, gather=as_captured, reset_first: bool = True, plan: CapturePlan | None = None, **options
) -> list[dict]:
    """The events of README's loop, for every prompt. `gather` is what decode's extends get.

    The drafts of a round begin with up to three of the target's own tokens, so that rounds of every length come up.
    """
    model, drafter = loop.model, loop.drafter(**options)
    texts = [torch.tensor(plain_text(loop, prompt)) for prompt in loop.prompts]
    with trace.recording() as recorder, torch.inference_mode(), capture(model, plan or drafter.plan) as features:
        for prompt, text in zip(loop.prompts, texts):
            n, cache = len(prompt), DynamicCache(config=model.config)
            if reset_first:
                drafter.reset()
            first = model(prompt[None], past_key_values=cache).logits[0, -1:].argmax(-1)
            if not reset_first:
                drafter.reset()
            drafter.extend(features.tensor, torch.cat([prompt[1:], first]), torch.arange(n), torch.tensor([0, n]))
            for round_ in range(rounds):
                drafts = drafter.draft(WIDTH - 1).tokens.clone()
                known = text[n + 1 : n + 1 + round_ % WIDTH]
                drafts[0, : len(known)] = known
                choices = model(torch.cat([first[None], drafts.clamp(min=0)], 1), past_key_values=cache).logits.argmax(
                    -1
                )
                lengths, _ = ops.verify_greedy(drafts, choices)
                rows, row_offsets = ops.accepted_rows(lengths, width=WIDTH)
                positions = torch.arange(n, n + WIDTH)
                drafter.extend(gather(features, rows), choices[0], positions, row_offsets)
                settled = int(lengths)
                cache.crop(settled - WIDTH)
                n, first = n + settled, choices[0, settled - 1 : settled]
    return recorder.events


@pytest.mark.parametrize("reset_first", [True, False])
def test_a_healthy_loop_has_no_findings(reset_first):
    """Rounds and texts are told apart by what passes, wherever the loop resets the drafter."""
    loop = small_loop(0, WIDTH - 1, texts=2)
    events = decode(loop, 7, reset_first=reset_first)
    assert diagnose_trace(events) == []
    forwards, extends = (
        {(event["text"], event["round"]) for event in events if event["phase"] in phases}
        for phases in (("witness",), ("prefill extend", "extend"))
    )
    assert len(extends) == 2 * 8 and len(forwards) >= 9 and forwards <= extends
    assert len({text for text, _ in extends}) == (2 if reset_first else 1)


def test_a_long_text_is_witnessed_less_and_less():
    loop = dataclasses.replace(small_loop(0, WIDTH - 1), new_tokens=80)
    events = decode(loop, 17)
    witnessed = [event["round"] for event in events if event["phase"] == "witness"]
    assert witnessed == [*range(9), 16] and diagnose_trace(events) == []


def test_stale_features_are_named():
    blocks = []

    def one_round_late(features, rows):
        blocks.append(features.tensor[-WIDTH:].clone())
        return blocks[max(len(blocks) - 2, 0)][rows.clamp(min=0)]

    loop = small_loop(0, WIDTH - 1)
    events = decode(loop, 7, one_round_late)
    assert ids(diagnose_trace(events)) == ["stale-features"]


@pytest.mark.parametrize("shift", [1, -1])
def test_shifted_boundaries_are_named(shift):
    """The capture runs with another plan than the drafter's, which judges."""
    loop = small_loop(0, WIDTH - 1)
    plan = loop.drafter().plan
    plan = dataclasses.replace(plan, boundaries=tuple(boundary + shift for boundary in plan.boundaries))
    events = decode(loop, 7, plan=plan)
    assert ids(diagnose_trace(events)) == ["shifted-boundary"]


@pytest.mark.parametrize(("given", "expected"), [((3, 5, 7), "shifted-boundary"), ((2, 4, 7), "other-boundary")])
def test_boundaries_given_against_the_file_are_noted(given, expected):
    """No fault by itself: what is captured is what was asked for, and a file may number its layers otherwise."""
    (finding,) = diagnose_trace(decode(small_loop(0, WIDTH - 1), 7, boundaries=given))
    assert (finding.id, finding.severity) == (expected, "note")
    assert finding.evidence == (f"the drafter was built with boundaries {list(given)}; its file says [2, 4, 6]",)


def test_zeros_that_come_again_are_no_stale_features():
    """Every row of zeros has the same bytes; what is wrong with them is that the states are missing."""
    for rounds in (7, 2):  # also where fewer rows are decoded than the prompt has
        loop = dataclasses.replace(small_loop(0, WIDTH - 1), prompts=[torch.arange(9)])
        events = decode(loop, rounds, lambda features, rows: torch.zeros_like(features.gather(rows)))
        (finding,) = diagnose_trace(events)
        assert finding.id == "missing-states" and finding.evidence[0].startswith("extend: all zero"), finding


def test_padding_rows_among_right_ones_are_called_missing():
    """A gather that is one row off takes a row that nothing was written to."""

    def first_row_from_padding(features, rows):
        gathered = features.gather(rows)
        gathered[0] = 0 if rows[1] >= 0 else gathered[0]
        return gathered

    findings = diagnose_trace(decode(small_loop(0, WIDTH - 1), 7, first_row_from_padding))
    assert ids(findings) == ["missing-states"] and "as a padding row's are" in findings[0].evidence[0]


def test_a_weight_that_is_nan_is_not_healthy():
    """Nothing is drafted then, from features that are finite. A sequence that was not extended drafts nothing, too."""
    loop = small_loop(0, WIDTH - 1)
    weights = dict(loop.checkpoint.weights)
    weights["fc.weight"] = weights["fc.weight"].clone()
    weights["fc.weight"][0, 0] = torch.nan
    loop.checkpoint = dataclasses.replace(loop.checkpoint, weights=weights)
    (finding,) = diagnose_trace(decode(loop, 3))
    assert finding.id == "not-finite" and "3 of 3 drafts were cut" in finding.evidence[0], finding.evidence

    drafter = small_loop(0, WIDTH - 1).drafter(max_batch=2)
    with trace.recording() as recorder:
        features, tokens = torch.randn(2, drafter.config.features_width), torch.tensor([1, 2])
        drafter.extend(features, tokens, torch.arange(2), torch.tensor([0, 2, 2]))
        assert drafter.draft(2).lengths.tolist() == [2, 0]
    assert diagnose_trace(recorder.events) == []


@pytest.mark.parametrize(("drafted", "cut"), [(2, False), (1, True)])
def test_a_draft_that_a_full_cache_ended_is_not_cut(drafted, cut):
    """On a GPU, whose lengths the drafter does not read: 7 of 8 rows are taken, so the second draft is the last."""
    loop = small_loop(0, WIDTH - 1)
    drafter = Drafter.from_checkpoint(loop.checkpoint, loop.model, max_length=8)
    with trace.recording() as recorder:
        features, tokens = torch.randn(7, drafter.config.features_width), torch.arange(7)
        drafter.extend(features, tokens, torch.arange(7), torch.tensor([0, 7]))
        ended = torch.tensor([[5] * drafted + [-1] * (4 - drafted)])
        recorder.draft(drafter, DraftTokens(ended, torch.tensor([drafted]), torch.zeros(1, 4)))
    assert [event["finite"] for event in recorder.events if event["phase"] == "draft"] == [not cut]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_prefill_in_chunks(together, wrong):
    """One extend for all chunks, or one for each, from features that append: rows are compared with their own chunk."""
    loop = small_loop(0, WIDTH - 1)
    prompt, drafter = torch.arange(12), loop.drafter()
    tokens, cache = prompt + 1, DynamicCache(config=loop.model.config)
    with trace.recording() as recorder, torch.no_grad(), capture(loop.model, drafter.plan, append=True) as features:
        drafter.reset()
        extended = 0
        for begin, end in ((0, 3), (3, 8), (8, 12)):
            loop.model(prompt[None, begin:end], past_key_values=cache)
            if not together or end == 12:
                rows = features.tensor[extended:end]
                rows = rows.roll(1, 0) if wrong else rows
                offsets = torch.tensor([0, end - extended])
                drafter.extend(rows, tokens[extended:end], torch.arange(extended, end), offsets)
                extended = end
    compared = sum(len(event["sampled"]) for event in recorder.events if event["phase"] == "witness")
    assert compared == 12 and ids(diagnose_trace(recorder.events)) == (["wrong-rows"] if wrong else [])
