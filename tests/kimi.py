"""A drafter with Kimi-K2.5's widths and boundaries, small elsewhere: for what depends on widths, not on weights."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_ext import Drafter
from eagle3_ext.checkpoint import Checkpoint, DrafterConfig
from eagle3_ext.checkpoint.config import expected_shapes

LAYERS = 61


def kimi_shaped_drafter(hidden_size: int = 7168, num_states: int = 3) -> Drafter:
    """bf16, random weights: fc [7168, 21504] in full; few heads, a narrow MLP and a small vocabulary to spare memory."""
    config = DrafterConfig(
        hidden_size=hidden_size,
        target_hidden_size=hidden_size,
        num_states=num_states,
        intermediate_size=64,
        num_q_heads=2,
        num_kv_heads=2,
        head_dim=128,
        draft_vocab_size=128,
        vocab_size=128,
        boundaries=(3, 31, 59),
        own_embedding=True,
    )
    weights = {name: torch.randn(shape, dtype=torch.bfloat16) * 0.02 for name, shape in expected_shapes(config).items()}
    with torch.device("meta"):  # the target lends its shape only: its weights are never touched
        target = LlamaConfig(
            hidden_size=hidden_size,
            num_hidden_layers=LAYERS,
            intermediate_size=64,
            num_attention_heads=56,
            vocab_size=128,
        )
        model = LlamaForCausalLM(target)
    return Drafter.from_checkpoint(Checkpoint(config, weights, report=()), model, dtype=torch.bfloat16, device="cpu")
