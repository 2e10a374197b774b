"""`probe_boundaries` on the embedded target: it finds the shift that the plan is off by."""

from __future__ import annotations

import pytest
import torch
from embedded import needs_target

from eagle3_ext import load_checkpoint, smollm2
from eagle3_ext.demo import DRAFTER_PATH
from eagle3_ext.errors import BoundaryError
from eagle3_ext.plan import CapturePlan
from eagle3_ext.probe import _compare, probe_boundaries

REPLIES = {
    "How does a microwave oven heat food?": "A microwave oven heats food by using electromagnetic radiation, "
    "specifically microwaves, which are a type of electromagnetic radiation. Microwaves are a form of electromagnetic "
    "radiation that can heat food by interacting with the molecules of food. When food is placed in a microwave, it "
    "absorbs microwave radiation, which",
    "Why do leaves turn red and yellow before they fall?": "The process of photosynthesis is a remarkable adaptation "
    "that allows plants to thrive in the Earth's climate. During photosynthesis, plants convert sunlight into energy, "
    "which they use to build their own food. However, when the leaves of a plant are exposed to sunlight, they undergo "
    "a chemical reaction that",
    "What makes the tides rise and fall twice a day?": "The tides rise and fall twice a day due to the Coriolis effect."
    " This phenomenon occurs because the Earth's rotation creates a spinning motion, causing the Coriolis effect. When "
    "the Sun rises, it creates a spinning motion, which is counterbalanced by the Earth's rotation",
}

@pytest.fixture(scope="module")
def target():
    return smollm2.load_target(torch.float32)


@pytest.fixture(scope="module")
def texts(target):
    """The target's own greedy replies, cut off after 56 tokens: its text is what the drafter was trained to foresee."""
    _, tokenizer = target
    return [tokenizer.encode(smollm2.chat_prompt(prompt) + reply).ids for prompt, reply in REPLIES.items()]


@needs_target
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_the_probe_finds_what_the_plan_is_off_by(target, texts, off):
    model, _ = target
    checkpoint = load_checkpoint(DRAFTER_PATH)
    shifted = tuple(boundary + off for boundary in checkpoint.config.boundaries)
    probe = probe_boundaries(model, checkpoint, texts, boundaries=shifted)
    assert probe.best == -off, str(probe)
    assert probe.boundaries(probe.best) == checkpoint.config.boundaries
    others = [share for shift, share in probe.agreement.items() if shift != probe.best]
    assert max(others) < probe.agreement[probe.best]
    # One layer costs a drafter too little for 282 rows to be sure of; three, which reach the last layer, cost any of them.
    late = probe_boundaries(model, checkpoint, texts, boundaries=shifted, shifts=(-off, 3 - off))
    assert late.winner == late.best == -off, str(late)
    assert "trained on the outputs of layers 1, 14, 26 (boundaries 2, 15, 27)" in str(late)


@needs_target
def test_texts_that_compare_nothing_are_refused(target):
    checkpoint = load_checkpoint(DRAFTER_PATH)
    with pytest.raises(BoundaryError, match="2 tokens"):
        probe_boundaries(target[0], checkpoint, [[1, 2]])
    with pytest.raises(BoundaryError, match="empty"):
        probe_boundaries(target[0], checkpoint, [])
    with pytest.raises(BoundaryError, match="no shift"):
        probe_boundaries(target[0], checkpoint, [[1, 2, 3]], shifts=(4,))


@needs_target
def test_texts_that_are_no_token_ids_are_refused_by_name(target):
    checkpoint, good = load_checkpoint(DRAFTER_PATH), [1, 2, 3]
    for text, told in [("a text", "a str"), (["a", "b", "c"], "a list"), ([1.5, 2.0, 3.0], "torch.float32"),
                       (torch.ones(4), "torch.float32"), ([True, False, True], "torch.bool"), (None, "a NoneType")]:
        with pytest.raises(TypeError, match=rf"texts\[1\] is (of )?{told}: .*integer"):
            probe_boundaries(target[0], checkpoint, [good, text])
    for wrong in (-1, 49152):
        with pytest.raises(ValueError, match=rf"texts\[1\]\[3\] is {wrong}; expected token ids from 0 to 49151"):
            probe_boundaries(target[0], checkpoint, [good, torch.tensor([1, 2, 3, wrong], dtype=torch.int32)])


@needs_target
def test_one_row_names_no_winner(target, texts):
    probe = probe_boundaries(target[0], load_checkpoint(DRAFTER_PATH), [texts[0][:3]])
    assert probe.rows == 1 and probe.winner is None and "cannot tell" in str(probe) and "trained on" not in str(probe)


def compared(hits: dict[int, list[int]]):
    return _compare(CapturePlan((2, 15, 27), 576), {shift: torch.tensor(rows) == 1 for shift, rows in hits.items()})


def test_a_tie_has_no_winner():
    probe = compared({-1: [1, 0] * 50, 0: [0, 1] * 50, 1: [1, 0] * 50})
    assert probe.agreement == {-1: 0.5, 0: 0.5, 1: 0.5} and probe.best == 0 and probe.winner is None
    assert str(probe).splitlines()[-1].startswith("cannot tell: shift +0 leads -1 and +1 by no more than two")


@pytest.mark.parametrize("only_best, only_other, wins", [(4, 0, False), (5, 0, True), (16, 4, True), (14, 6, False)])
def test_a_winner_leads_by_more_than_two_standard_errors_of_the_paired_rows(only_best, only_other, wins):
    """b rows where only the best agrees, c where only the other does: b - c > 2 sqrt(b + c); rows that both have or
    both lack say nothing."""
    same = 100 - only_best - only_other
    best = [1] * only_best + [0] * only_other + [1] * same
    other = [0] * only_best + [1] * only_other + [1] * same
    probe = compared({0: other, 1: best})
    assert probe.best == 1 and probe.winner == (1 if wins else None)
    assert probe.errors == pytest.approx({1: 0.0, 0: (only_best + only_other) ** 0.5 / 100})
    assert ("trained on" in str(probe)) == wins == ("cannot tell" not in str(probe))


def test_a_shift_alone_wins_nothing():
    assert compared({0: [1] * 50}).winner is None
    assert "cannot tell: no other shift fits" in str(compared({0: [1] * 50}))
