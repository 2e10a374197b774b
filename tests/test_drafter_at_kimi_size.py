"""The native drafter at the sizes of Kimi-K2.5's: fc [7168, 21504], 64 heads, a layer of 2 GB in bf16."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from test_drafter import BOUNDS, assert_same_draft, extend, make_rows

from eagle3_ext import Drafter, reference
from eagle3_ext.bench.gpu import DRAFTERS
from eagle3_ext.checkpoint import Checkpoint, expected_shapes

BF16 = torch.bfloat16
# A vocabulary of 163840 in the model: rows of a table that only lookups read, left out to spare 1.8 GB.
CONFIG = dataclasses.replace(DRAFTERS["Kimi-K2.5"], vocab_size=40000, own_embedding=False)


class Widened(dict):
    """bf16 weights that become float64 when they are used, one at a time: all of them at once would take 10 GB."""

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = super().__getitem__(name)
        return weight.double() if weight.is_floating_point() else weight

    def get(self, name: str, default=None):
        return self[name] if name in self else default


def random_matrix(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Uniform, with the variance that keeps activations near 1; gains near 1."""
    if len(shape) == 1:
        return torch.empty(shape, dtype=BF16).uniform_(0.8, 1.2, generator=generator)
    limit = (3 / shape[1]) ** 0.5
    return torch.empty(shape, dtype=BF16).uniform_(-limit, limit, generator=generator)


@pytest.mark.slow
def test_agrees_with_the_reference_at_kimi_size():
    generator = torch.Generator().manual_seed(1)
    shapes = expected_shapes(CONFIG)
    weights = {name: random_matrix(shape, generator) for name, shape in shapes.items() if name != "target_ids"}
    weights["target_ids"] = torch.arange(CONFIG.draft_vocab_size) + CONFIG.vocab_size - CONFIG.draft_vocab_size
    embedding = random_matrix((CONFIG.vocab_size, CONFIG.hidden_size), generator).mul_(50)
    text = SimpleNamespace(num_hidden_layers=61, hidden_size=CONFIG.hidden_size, max_position_embeddings=262144)
    model = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda decoder: text),
        get_input_embeddings=lambda: SimpleNamespace(weight=embedding),
    )
    drafter = Drafter.from_checkpoint(Checkpoint(CONFIG, weights, report=()), model, dtype=BF16, max_length=64)
    oracle = reference.Drafter(CONFIG, weights, embedding)
    oracle.weights, oracle.dtype = Widened(oracle.weights), torch.float64
    oracle.reset()
    start = 0
    for count, steps in ((5, 2), (2, 3)):  # a prefill, then a round that accepted one draft
        rows = make_rows(CONFIG, count, start, dtype=BF16)
        extend(drafter, rows)
        oracle.extend(**rows)
        start += count
        assert_same_draft(drafter, oracle, steps, BOUNDS[BF16])
