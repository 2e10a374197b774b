"""What the native drafter computes of `DrafterConfig`'s space, and the weights in the form it wants them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .checkpoint import DrafterConfig
from .rope import half_rotation_order, half_rotation_table


def not_native(config: DrafterConfig) -> list[str]:
    """The parts of a config that only `reference.Drafter` computes, by name; [] where the native drafter has all."""
    parts = {
        "sliding windows": any(layer.window is not None for layer in config.layers),
        "multi-head latent attention": config.mla is not None,
        "a norm of q and k": config.qk_norm,
    }
    return [name for name, present in parts.items() if present]


def native_weights(config: DrafterConfig, weights: Mapping[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """`weights` plus `cos_sin` over `length` positions, with the heads of q and k in half-rotation order.

    The native code rotates whole heads in halves. The order of q's and k's dimensions is invisible to attention, so
    interleaved and partial RoPE are that same rotation after their rows have been put in `half_rotation_order`.
    """
    native = dict(weights)
    if config.tied_head:
        native["lm_head.weight"] = native["embed_tokens.weight"]
    native["cos_sin"] = half_rotation_table(config.rope_theta, config.head_dim, length, config.rope)
    order = half_rotation_order(config.head_dim, config.rope)
    if torch.equal(order, torch.arange(config.head_dim)):
        return native
    for i in range(len(config.layers)):
        for part in ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"):
            name = f"layers.{i}.self_attn.{part}"
            if name in native:
                native[name] = native[name].unflatten(0, (-1, config.head_dim))[:, order].flatten(0, 1)
    return native
