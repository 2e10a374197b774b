"""The one source of RoPE angles: the native drafter, the reference and the tests all take their table from here."""

from __future__ import annotations

import torch


def rope_table(theta: float, dim: int, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Cosines and sines of every position in [0, length), as `rope_append_` wants them.

    Frequency i of dim/2 is theta^(-2i/dim). Angles, cosines and sines are computed in float64 and rounded once: at
    position 100 000 a float32 angle would already be off by 0.004.

    Args:
        theta: the base, `rope_theta` of the drafter's config.
        dim: rotated dimensions of a head, even.
        length: number of positions.
        dtype: float32 for the kernels; float64 for a float64 reference.

    Returns:
        [length, dim] in `dtype`: cosines in columns [0, dim/2), sines in [dim/2, dim). Column i rotates the pair
        (i, i + dim/2) of a head, the rotate_half convention of transformers' Llama.

    Raises:
        ValueError: dim is odd or negative.
    """
    if dim < 0 or dim % 2:
        raise ValueError(f"rope_table: dim is {dim}; RoPE rotates pairs of dimensions, so it must be even")
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype)
