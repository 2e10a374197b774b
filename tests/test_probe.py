"""`probe_boundaries` on the embedded target: it finds the shift that the plan is off by."""

from __future__ import annotations

import pytest
import torch
from embedded import needs_target

from eagle3_ext import load_checkpoint, smollm2
from eagle3_ext.demo import DRAFTER_PATH
from eagle3_ext.errors import BoundaryError
from eagle3_ext.probe import probe_boundaries

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
    assert "trained on the outputs of layers 1, 14, 26 (boundaries 2, 15, 27)" in str(probe)


@needs_target
def test_texts_that_compare_nothing_are_refused(target):
    checkpoint = load_checkpoint(DRAFTER_PATH)
    with pytest.raises(BoundaryError, match="2 tokens"):
        probe_boundaries(target[0], checkpoint, [[1, 2]])
    with pytest.raises(BoundaryError, match="empty"):
        probe_boundaries(target[0], checkpoint, [])
    with pytest.raises(BoundaryError, match="no shift"):
        probe_boundaries(target[0], checkpoint, [[1, 2, 3]], shifts=(4,))
