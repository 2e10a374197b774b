"""RoPE angles: every form against published values and transformers, and the order in which one kernel serves all."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle3_ext import reference
from eagle3_ext.rope import (
    Rope,
    flat_positions,
    half_rotation_order,
    half_rotation_table,
    inverse_frequencies,
    rope_table,
)

# head_dim 8, theta 10000. The first four: published by the stacks whose files carry the form.
FREQUENCIES = {
    "default": (Rope(), [1, 0.1, 0.01, 0.001]),
    "linear": (Rope(kind="linear", factor=2.0), [0.5, 0.05, 0.005, 0.0005]),
    "llama3": (
        Rope(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=64),
        [1, 0.01304226, 0.00125, 0.000125],
    ),
    "yarn": (Rope(kind="yarn", factor=4.0, original_length=64), [1, 0.0625, 0.0025, 0.00025]),
    "yarn-untruncated": (
        Rope(kind="yarn", factor=4.0, original_length=64, truncate=False),
        [1, 0.02559525, 0.0025, 0.00025],
    ),
    "dynamic-alpha": (Rope(kind="dynamic", alpha=16.0, original_length=64), [(1e4 * 16 ** (4 / 3)) ** -(i / 4)
                                                                            for i in range(4)]),
    "none": (Rope(kind="none"), [0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_are_the_published_ones(name: str):
    rope, expected = FREQUENCIES[name]
    assert inverse_frequencies(10000.0, 8, rope).tolist() == pytest.approx(expected, abs=1e-7)


def test_theta_alone_sets_the_plain_frequencies():
    assert inverse_frequencies(1e6, 8).tolist() == pytest.approx([1, 0.03162278, 0.001, 0.00003162278], rel=1e-6)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn"])
@pytest.mark.parametrize("head_dim, theta", [(16, 1e4), (64, 5e5)])
def test_frequencies_are_transformers(kind: str, head_dim: int, theta: float):
    parameters = {"rope_type": kind, "rope_theta": theta, "factor": 6.0, "original_max_position_embeddings": 48}
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=48
    )
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, seq_len=200)
    rope = Rope(kind=kind, factor=6.0, original_length=48)
    assert inverse_frequencies(theta, head_dim, rope, length=200).tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert factor == pytest.approx(1.0 if kind != "yarn" else 0.1 * 1.791759469 + 1)


def test_dynamic_rows_are_plain_up_to_the_trained_length():
    rope = Rope(kind="dynamic", factor=4.0, original_length=8)
    table, plain = rope_table(1e4, 8, 12, rope=rope), rope_table(1e4, 8, 12)
    assert torch.equal(table[:8], plain[:8])
    assert not torch.isclose(table[8:, :4], plain[8:, :4]).all(dim=1).any()


def test_attention_factor_scales_the_table():
    rope = Rope(kind="yarn", factor=1.0, original_length=64, attention_factor=1.5)
    scaled = rope_table(1e4, 8, 5, torch.float64, rope)
    torch.testing.assert_close(scaled, 1.5 * rope_table(1e4, 8, 5, torch.float64))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 4, 8])
def test_one_kernel_serves_interleaved_and_partial_heads(interleaved: bool, rotary_dim: int | None):
    """q.k of heads put in half-rotation order and turned as a whole is q.k of the heads as the file has them."""
    rope = Rope(interleaved=interleaved, rotary_dim=rotary_dim)
    q, k = torch.randn(2, 6, 1, 12, dtype=torch.float64)
    angles = rope_table(1e4, rotary_dim or 12, 6, torch.float64, rope)
    expected = torch.einsum("ihd,jhd->ij", *(reference.rotate(x, angles, interleaved) for x in (q, k)))
    order, table = half_rotation_order(12, rope), half_rotation_table(1e4, 12, 6, rope)
    assert sorted(order.tolist()) == list(range(12))
    got = torch.einsum("ihd,jhd->ij", *(reference.rotate(x[..., order], table) for x in (q, k)))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # the kernels' table is float32


def test_positions_are_flat_or_three_equal_rows():
    flat = torch.arange(40)
    assert flat_positions(flat, 40) is flat
    assert torch.equal(flat_positions(flat.expand(3, 40), 40), flat)
    with pytest.raises(ValueError, match=r"positions is \[10\] for 40 rows"):
        flat_positions(torch.arange(10), 40)
    with pytest.raises(ValueError, match="mrope"):
        flat_positions(torch.stack([flat, flat, flat + 1]), 40)


@pytest.mark.parametrize("dim", [-2, 3])
def test_odd_widths_are_refused(dim: int):
    with pytest.raises(ValueError, match="must be even"):
        rope_table(1e4, dim, 4)
