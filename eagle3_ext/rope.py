"""The one source of RoPE angles: the native drafter, the reference and the tests all take their table from here.

Every tensor made here names its dtype and device: torch.set_default_dtype and torch.device as a context must not turn
the kernels' tables into another type, or into one without values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Every form of rotary embedding that published drafters use; `rope_theta` stands beside it in `DrafterConfig`.

    Attributes:
        kind: how the frequencies theta^(-2i/dim) are stretched. "none" rotates nothing (NoPE).
        rotary_dim: leading dimensions of a head that are rotated, the others pass; None: all of them.
        interleaved: dimension pairs (2i, 2i + 1) turn together (GPT-J, DeepSeek), else (i, i + dim/2) (NeoX, Llama).
        mrope: trained with rows of temporal, height and width positions. Equal rows are ordinary positions whatever
            the sections; rows that differ are refused.
        factor: the stretch of linear, dynamic, llama3 and yarn.
        original_length: positions the model was trained on before it was stretched (dynamic, llama3, yarn).
        low_freq_factor, high_freq_factor: llama3.
        beta_fast, beta_slow, truncate: yarn.
        alpha: dynamic with a fixed base theta * alpha^(dim / (dim - 2)) instead of a growing one.
        attention_factor: multiplies cosines and sines, so q.k by its square (yarn).
    """

    kind: Literal["default", "linear", "dynamic", "llama3", "yarn", "none"] = "default"
    rotary_dim: int | None = None
    interleaved: bool = False
    mrope: bool = False
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    alpha: float | None = None
    attention_factor: float = 1.0


def inverse_frequencies(theta: float, dim: int, rope: Rope = Rope(), length: int = 0) -> torch.Tensor:
    """Radians per position of each of the dim/2 rotated pairs, float64.

    `length` matters for kind "dynamic" only: tokens of the sequence, whose base grows past `original_length`.
    """
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    if rope.kind == "dynamic":
        growth = rope.alpha or max(1.0, rope.factor * length / rope.original_length - (rope.factor - 1))
        return (theta * growth ** (dim / (dim - 2))) ** -exponents
    plain = theta**-exponents
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(plain, theta, dim, rope)
    return torch.zeros_like(plain) if rope.kind == "none" else plain


def _llama3(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Long wavelengths are stretched, short ones kept, those between blended by how often they fit the old length."""
    turns = rope.original_length * plain / (2 * math.pi)
    if rope.high_freq_factor == rope.low_freq_factor:  # no blend: a step at the one threshold
        return torch.where(turns < rope.low_freq_factor, plain / rope.factor, plain)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return plain * (kept + (1 - kept) / rope.factor)


def _yarn(plain: torch.Tensor, theta: float, dim: int, rope: Rope) -> torch.Tensor:
    """Pairs below `low` keep their frequency, above `high` are stretched, with a ramp over the pair's index between."""

    def pair_that_turns(times: float) -> float:
        return dim * math.log(rope.original_length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    stretched = ((torch.arange(dim // 2, dtype=torch.float64, device="cpu") - low) / width).clamp(0, 1)
    return plain * (1 - stretched) + plain / rope.factor * stretched


def rope_table(
    theta: float, dim: int, length: int, dtype: torch.dtype = torch.float32, rope: Rope = Rope()
) -> torch.Tensor:
    """Cosines and sines of every position in [0, length), as `rope_append_` wants them.

    Frequency i of dim/2 is theta^(-2i/dim), stretched as `rope` says. Angles, cosines and sines are computed in float64
    and rounded once: at position 100 000 a float32 angle would already be off by 0.004. Row p of kind "dynamic" has the
    frequencies of a sequence of p + 1 tokens, those transformers uses when it decodes token by token.

    Args:
        theta: the base, `rope_theta` of the drafter's config.
        dim: rotated dimensions of a head, even.
        length: number of positions.
        dtype: float32 for the kernels; float64 for a float64 reference.
        rope: the form; `rotary_dim` and `interleaved` are the caller's to apply.

    Returns:
        [length, dim] in `dtype`: cosines in columns [0, dim/2), sines in [dim/2, dim), both times `attention_factor`.
        Column i rotates the pair (i, i + dim/2) of a head, the rotate_half convention of transformers' Llama, or the
        pair (2i, 2i + 1) of an interleaved one.

    Raises:
        ValueError: dim is odd or negative.
    """
    if dim < 0 or dim % 2:
        raise ValueError(f"rope_table: dim is {dim}; RoPE rotates pairs of dimensions, so it must be even")
    positions = torch.arange(length, dtype=torch.float64, device="cpu")
    angles = torch.outer(positions, inverse_frequencies(theta, dim, rope))
    if rope.kind == "dynamic" and rope.alpha is None:
        for position in range(rope.original_length, length):
            angles[position] = position * inverse_frequencies(theta, dim, rope, position + 1)
    return (torch.cat([angles.cos(), angles.sin()], dim=-1) * rope.attention_factor).to(dtype)


def half_rotation_order(head_dim: int, rope: Rope) -> torch.Tensor:
    """Where each dimension of a head must come from so that rotating (i, i + head_dim/2) is what `rope` means.

    int64 [head_dim]. Attention only sees q.k, so the rows of the q and k projections (and the gains of a q/k norm) may
    be put in this order together, and one kernel serves interleaved and partial RoPE. Pairs past `rotary_dim` get the
    angle 0 of `half_rotation_table`.
    """
    rotated = head_dim if rope.rotary_dim is None else rope.rotary_dim
    dims = torch.arange(head_dim, device="cpu")
    turning, resting = dims[:rotated], dims[rotated:]
    first, second = (turning[0::2], turning[1::2]) if rope.interleaved else turning.chunk(2)
    rest_first, rest_second = resting.chunk(2) if rotated < head_dim else (resting, resting)
    return torch.cat([first, rest_first, second, rest_second])


def half_rotation_table(theta: float, head_dim: int, length: int, rope: Rope) -> torch.Tensor:
    """`rope_table` over the whole head, float32 [length, head_dim], for heads in `half_rotation_order`."""
    rotated = head_dim if rope.rotary_dim is None else rope.rotary_dim
    cos, sin = rope_table(theta, rotated, length, rope=rope).chunk(2, dim=-1)
    passing = torch.ones(length, (head_dim - rotated) // 2, dtype=cos.dtype, device="cpu")
    return torch.cat([cos, passing, sin, torch.zeros_like(passing)], dim=-1)


def flat_positions(positions: torch.Tensor, rows: int) -> torch.Tensor:
    """Positions [rows], from that or from mrope's [3, rows] with equal rows.

    Raises ValueError for another shape, or for rows that differ: no drafter is fed with image grids.
    """
    if positions.shape[-1:] != (rows,) or positions.shape[:-1] not in ((), (3,)):
        raise ValueError(f"positions is {list(positions.shape)} for {rows} rows; expected [{rows}] or [3, {rows}]")
    if positions.dim() == 1:
        return positions
    if not torch.equal(positions[:1].expand_as(positions), positions):
        raise ValueError("positions has three rows that differ (mrope over images); only equal rows are supported")
    return positions[0]
