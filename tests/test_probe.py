"""`probe_boundaries` on the embedded target: it finds the shift that the plan is off by."""

from __future__ import annotations

import pytest
import torch
from embedded import needs_target

from eagle3_ext import load_checkpoint, smollm2
from eagle3_ext.demo import DRAFTER_PATH
from eagle3_ext.demo_prompts import PROMPTS
from eagle3_ext.errors import BoundaryError
from eagle3_ext.probe import probe_boundaries


@pytest.fixture(scope="module")
def target():
    return smollm2.load_target(torch.float32)


@pytest.fixture(scope="module")
def texts(target):
    """What the target itself says: its own greedy text is what the drafter was trained to foresee."""
    model, tokenizer = target
    texts = []
    for prompt in PROMPTS[:2]:
        ids = torch.tensor(tokenizer.encode(smollm2.chat_prompt(prompt)).ids)
        texts.append(model.generate(ids[None], max_new_tokens=40, do_sample=False)[0])
    return texts


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
