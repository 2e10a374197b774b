"""A drafter's weights in the form the native code wants them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .checkpoint import DrafterConfig
from .rope import half_rotation_order, half_rotation_table, rope_table


def native_weights(config: DrafterConfig, weights: Mapping[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """`weights` plus `cos_sin` over `length` positions, with the rotated dimensions in half-rotation order.

    The native code rotates pairs (i, i + d/2). The order of q's and k's dimensions is invisible to attention, so
    interleaved and partial RoPE are that same rotation after their rows have been put in `half_rotation_order`.
    """
    native = dict(weights)
    if config.tied_head:
        native["lm_head.weight"] = native["embed_tokens.weight"]
    if config.mla is not None:
        native["cos_sin"] = rope_table(config.rope_theta, config.mla.rope_head_dim, length, rope=config.rope)
    else:
        native["cos_sin"] = half_rotation_table(config.rope_theta, config.head_dim, length, config.rope)
    order = _row_order(config)
    if order.tolist() == list(range(len(order))):
        return native
    for name in native:
        module, _, projection = name.rpartition(".self_attn.")
        projection = projection.partition(".")[0]
        if module and projection in _ROTATED:
            native[name] = _reordered(native[name], order, config, projection)
    return native


# Projections whose rows are heads of q or k, the norms of those heads, and the one whose last rows are the key that all
# heads of latent attention share.
_ROTATED = ("q_proj", "k_proj", "q_norm", "k_norm", "q_b_proj", "kv_a_proj_with_mqa")


def _row_order(config: DrafterConfig) -> torch.Tensor:
    """Where each row of a q or k head must come from; with latent attention only its last part is rotated."""
    if config.mla is None:
        return half_rotation_order(config.head_dim, config.rope)
    nope = config.mla.nope_head_dim
    rotated = half_rotation_order(config.mla.rope_head_dim, config.rope)
    return torch.cat([torch.arange(nope, device="cpu"), nope + rotated])


def _reordered(weight: torch.Tensor, order: torch.Tensor, config: DrafterConfig, projection: str) -> torch.Tensor:
    """`weight` [rows, ...] with the rows of every head in `order`."""
    if projection == "kv_a_proj_with_mqa":
        latent, nope = config.mla.kv_lora_rank, config.mla.nope_head_dim
        return torch.cat([weight[:latent], weight[latent:][order[nope:] - nope]])
    return weight.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)
