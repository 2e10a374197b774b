"""Bit-stable mode on the real target: bf16 logits do not depend, by a single bit, on how tokens are split into forwards."""

from __future__ import annotations

import pytest
import torch
from embedded import needs_target

from eagle3_ext import TransformersTarget, smollm2
from eagle3_ext.demo_prompts import PROMPTS

pytestmark = needs_target
CONTINUATION = 24


@pytest.fixture(scope="module")
def loaded():
    return smollm2.load_target(torch.bfloat16)


def logits_of(target: TransformersTarget, prompt: torch.Tensor, tokens: torch.Tensor, rows: int) -> torch.Tensor:
    target.prefill(prompt)
    blocks = []
    for block in tokens.split(rows):
        blocks.append(target.verify(block))
        target.rollback(0)
    return torch.cat(blocks)


@pytest.mark.parametrize("threads", [1, 2])
def test_logits_are_equal_for_every_split(loaded, threads: int):
    model, tokenizer = loaded
    torch.set_num_threads(threads)
    # An odd length: with a multiple of 64 torch's attention happens to be row-invariant on more processors.
    static, dynamic = (TransformersTarget(model, max_length=151, cache=kind) for kind in ("static", "dynamic"))
    for text in PROMPTS[:2]:
        prompt = torch.tensor(tokenizer.encode(smollm2.chat_prompt(text), add_special_tokens=False).ids)
        tokens = torch.randint(100, 40000, (CONTINUATION,), generator=torch.Generator().manual_seed(len(text)))
        one = logits_of(static, prompt, tokens, 1)
        for rows in (2, 3, 4, 8):
            assert torch.equal(logits_of(static, prompt, tokens, rows), one), f"{rows} rows in one forward"
        assert torch.equal(logits_of(dynamic, prompt, tokens, 4), one), "a cache that grows"


def test_the_switch_leaves_no_trace(loaded):
    model, _ = loaded
    implementation, forward = model.config._attn_implementation, model.lm_head.forward
    target = TransformersTarget(model, max_length=64)
    target.prefill(torch.arange(5, 10))
    assert model.config._attn_implementation == implementation
    assert model.lm_head.forward == forward
