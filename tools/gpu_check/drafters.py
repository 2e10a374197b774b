"""A small drafter of random weights, and rounds to feed it with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from eagle3_ext import Drafter
from eagle3_ext.checkpoint import DrafterConfig, expected_shapes
from eagle3_ext.plan import CapturePlan

CONFIG = DrafterConfig(
    hidden_size=64,
    target_hidden_size=64,
    intermediate_size=96,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    draft_vocab_size=96,
    vocab_size=200,
    boundaries=(2, 15, 27),
    own_embedding=True,
)
BATCH, LENGTH, STEPS = 2, 64, 4


def small_drafter(device: str, dtype: torch.dtype = torch.float32, cuda_graphs: bool = False) -> Drafter:
    """The same weights on every call."""
    generator = torch.Generator().manual_seed(3)
    weights = {}
    for name, shape in expected_shapes(CONFIG).items():
        if name == "target_ids":
            weights[name] = torch.arange(shape[0]) * 2
        else:
            scale = 1.0 if len(shape) == 1 else shape[1] ** -0.5
            weights[name] = (torch.randn(shape, generator=generator) * scale).to(dtype)
    moved = {name: weight.to(device) for name, weight in weights.items()}
    plan = CapturePlan(CONFIG.boundaries, CONFIG.target_hidden_size)
    return Drafter(CONFIG, moved, plan, max_batch=BATCH, max_length=LENGTH, cuda_graphs=cuda_graphs)


def rounds_of(drafter: Drafter, device: str, counts: Sequence[tuple[int, int]]) -> Iterator[torch.Tensor]:
    """Extends both sequences by counts[i] rows of the i-th round and yields its draft tokens [2, 4], on the CPU."""
    for inputs in inputs_of(drafter.dtype, device, counts):
        drafter.extend(**inputs)
        yield drafter.draft(STEPS).tokens.cpu()


def inputs_of(dtype: torch.dtype, device: str, counts: Sequence[tuple[int, int]]) -> Iterator[dict[str, torch.Tensor]]:
    """What `extend` takes in each round."""
    generator = torch.Generator().manual_seed(7)
    starts = [0] * BATCH
    for counts_now in counts:
        rows = sum(counts_now)
        inputs = {
            "features": torch.randn(rows, CONFIG.features_width, generator=generator).to(dtype),
            "tokens": torch.randint(CONFIG.vocab_size, (rows,), generator=generator),
            "positions": torch.cat([torch.arange(start, start + n) for start, n in zip(starts, counts_now)]),
            "row_offsets": torch.tensor([0, counts_now[0], rows]),
        }
        yield {name: value.to(device) for name, value in inputs.items()}
        starts = [start + n for start, n in zip(starts, counts_now)]
