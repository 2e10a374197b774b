"""The drafter's forward and protocol: every published variant, as `DrafterConfig` describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..errors import FeatureWidthError
from ..rope import flat_positions, rope_table
from .ops import argmax_tokens, draft_attention, draft_input, rms_norm, rotate, silu_mul, wide

if TYPE_CHECKING:
    from ..checkpoint import DrafterConfig


class Drafter:
    """An EAGLE-3 drafter for one sequence, whatever variant its config describes.

    A round is `extend(features, tokens, positions)` with the rows the target has verified, then `draft(D)`. Row t pairs
    the features of position t with the token of position t + 1. `extend` appends to the cache at the committed length,
    over whatever the last draft left behind; `draft` works past that length and commits nothing.

    Attributes:
        length: committed rows.
        s, y: [rows, h] of the last forward, before and after the final norm: all rows of an extend, or the one row of
            the last draft step.
        logits: [steps, Vd] of the last draft, scaled; a row per drafted token.
        caches: per layer its rows' keys [n, nkv, d] and values [n, nkv, d], rotated; with latent attention the latents
            [n, kv_lora] and the rotated keys [n, 1, rope] that all heads share.
    """

    def __init__(
        self,
        config: DrafterConfig,
        weights: dict[str, Tensor],
        embed_weight: Tensor | None = None,
        head_weight: Tensor | None = None,
    ) -> None:
        """Takes canonical `weights` of one float dtype; the target's embedding [V, h] and head [V, h] serve where they
        hold none of their own."""
        self.config = config
        self.weights = {name: weight.detach() for name, weight in weights.items()}
        if embed_weight is not None:
            self.weights.setdefault("embed_tokens.weight", embed_weight.detach()[: config.vocab_size])
        if config.tied_head:
            head_weight = self.weights.get("embed_tokens.weight")
        if head_weight is not None:
            self.weights.setdefault("lm_head.weight", head_weight.detach()[: config.draft_vocab_size])
        for name in ("embed_tokens.weight", "lm_head.weight"):
            if name not in self.weights:
                raise ValueError(f"the drafter's weights hold no {name}; pass the target's")
        self.dtype = self.weights["embed_tokens.weight"].dtype
        self.device = self.weights["embed_tokens.weight"].device
        self._cos_sin = self._table(64)
        self.reset()

    def to(self, dtype: torch.dtype) -> Drafter:
        """The same drafter in another float dtype, with an empty cache."""
        cast = {name: w.to(dtype) if w.is_floating_point() else w for name, w in self.weights.items()}
        return Drafter(self.config, cast)

    def reset(self) -> None:
        """Forgets the sequence."""
        config, mla = self.config, self.config.mla
        keys = (config.num_kv_heads, config.head_dim)
        shapes = ((0, mla.kv_lora_rank), (0, 1, mla.rope_head_dim)) if mla else ((0, *keys), (0, *keys))
        self.caches = [
            tuple(torch.empty(shape, dtype=self.dtype, device=self.device) for shape in shapes) for _ in config.layers
        ]
        self.length = 0
        self._ready = False

    def truncate(self, length: int) -> None:
        """Keeps the first `length` committed rows; as after a reset, an extend must come before the next draft."""
        if not 0 <= length <= self.length:
            raise IndexError(f"cannot truncate to {length} rows; the sequence has {self.length}")
        self._ready = self._ready and length == self.length
        self.length = length

    def extend(
        self,
        features: Tensor,
        tokens: Tensor | Sequence[int],
        positions: Tensor | Sequence[int],
        token_embeddings: Tensor | None = None,
    ) -> None:
        """Commits rows: features [m, K*H] (cast to the drafter's dtype), tokens [m], positions [m] or [3, m]."""
        width, rows = self.config.features_width, len(features)
        if features.shape[-1] != width:
            raise FeatureWidthError(f"features have width {features.shape[-1]}; this drafter fuses {width}")
        tokens = torch.as_tensor(tokens)
        if len(tokens) != rows:
            raise ValueError(f"features have {rows} rows, but tokens has {len(tokens)}")
        positions = flat_positions(torch.as_tensor(positions, device=self.device), rows)
        self.caches = [tuple(part[: self.length] for part in cache) for cache in self.caches]
        if token_embeddings is not None:  # tokens are placeholders, none of which means padding
            tokens = torch.zeros_like(tokens)
        self._forward(self.fuse(features.to(self.dtype)), tokens, positions, token_embeddings)
        self.length = len(self.caches[0][0])
        self._position = int(positions[-1])
        self._ready = True

    def draft(self, num_tokens: int) -> list[int]:
        """Up to `num_tokens` target ids, greedily; fewer if the logits turn to NaN. One draft per extend."""
        if not self._ready:
            raise ValueError("draft() needs an extend() first: one per extend, and none after a reset or truncate")
        self._ready = False
        tokens: list[int] = []
        logits: list[Tensor] = []
        for step in range(num_tokens):
            if step > 0:
                recurrent = self.y if self.config.norm_output else self.s
                position = torch.tensor([self._position + step], device=self.device)
                self._forward(recurrent[-1:], torch.tensor(tokens[-1:]), position)
            logits.append(self.head(self.y[-1:]))
            token, valid, _ = argmax_tokens(logits[-1], self.weights.get("target_ids"))
            if not valid:
                break
            tokens.append(int(token))
        self.logits = torch.cat(logits)
        return tokens

    def fuse(self, features: Tensor) -> Tensor:
        """features [m, K*H] -> u [m, h]: the norm and the fc the config asks for."""
        config, weights = self.config, self.weights
        if config.feature_norm == "whole":
            features = rms_norm(features, weights["input_norm.weight"], config.eps)
        elif config.feature_norm == "per_state":
            states = enumerate(features.split(config.target_hidden_size, dim=-1))
            normed = [rms_norm(state, weights[f"fc_norm.{j}.weight"], config.eps) for j, state in states]
            features = torch.cat(normed, dim=-1)
        return self._linear(features, "fc") if config.fusion == "fc" else features

    def head(self, y: Tensor) -> Tensor:
        """y [m, h] -> logits [m, Vd]."""
        logits = self._linear(y, "lm_head")
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.config.eps)

    def _forward(self, u: Tensor, tokens: Tensor, positions: Tensor, token_embeddings: Tensor | None = None) -> None:
        """u [m, h] (fused features or recurrent hidden) -> s, y; appends m rows to every layer's cache."""
        config, hidden = self.config, u
        for i, layer in enumerate(config.layers):
            prefix = f"layers.{i}"
            if layer.joins_embedding:
                x = draft_input(
                    tokens.to(self.device),
                    hidden,
                    self.weights["embed_tokens.weight"],
                    self.weights[f"{prefix}.input_layernorm.weight"],
                    self.weights.get(f"{prefix}.hidden_norm.weight"),
                    config.eps,
                    token_embeddings,
                )
            else:
                x = self._norm(hidden, f"{prefix}.input_layernorm")
            residual = x[:, config.hidden_size :] if i == 0 and config.norm_before_residual else hidden
            attend = self._latent_attention if config.mla else self._attention
            s1 = residual + self._linear(attend(i, x, self._angles(positions)), f"{prefix}.self_attn.o_proj")
            z = self._norm(s1, f"{prefix}.post_attention_layernorm")
            gate_up = torch.cat([self._linear(z, f"{prefix}.mlp.{name}_proj") for name in ("gate", "up")], dim=-1)
            hidden = s1 + self._linear(silu_mul(gate_up), f"{prefix}.mlp.down_proj")
        self.s = hidden
        self.y = self._norm(hidden, "norm") if config.has_final_norm else hidden

    def _attention(self, i: int, x: Tensor, angles: Tensor) -> Tensor:
        """Layer i's grouped-query attention: x [m, h | 2h] -> [m, nq * d]."""
        config, prefix = self.config, f"layers.{i}.self_attn"
        q, k, v = (self._linear(x, f"{prefix}.{p}_proj").unflatten(-1, (-1, config.head_dim)) for p in "qkv")
        if config.qk_norm:
            q, k = self._norm(q, f"{prefix}.q_norm"), self._norm(k, f"{prefix}.k_norm")
        q, k = (rotate(part, angles, config.rope.interleaved) for part in (q, k))
        keys, values = self._append(i, k, v)
        return self._attend(i, q, keys, values)

    def _latent_attention(self, i: int, x: Tensor, angles: Tensor) -> Tensor:
        """Layer i's multi-head latent attention: x [m, h | 2h] -> [m, nq * v]. The cache never holds a head's key."""
        config, mla, prefix = self.config, self.config.mla, f"layers.{i}.self_attn"
        assert mla is not None
        if mla.q_lora_rank is None:
            q = self._linear(x, f"{prefix}.q_proj")
        else:
            latent_q = self._norm(self._linear(x, f"{prefix}.q_a_proj"), f"{prefix}.q_a_layernorm")
            q = self._linear(latent_q, f"{prefix}.q_b_proj")
        q_nope, q_rope = q.unflatten(-1, (-1, config.head_dim)).split([mla.nope_head_dim, mla.rope_head_dim], dim=-1)
        joint = self._linear(x, f"{prefix}.kv_a_proj_with_mqa")
        latent, k_rope = joint.split([mla.kv_lora_rank, mla.rope_head_dim], dim=-1)
        latents, rotated = self._append(
            i,
            self._norm(latent, f"{prefix}.kv_a_layernorm"),
            rotate(k_rope[:, None, :], angles, config.rope.interleaved),
        )
        return self._attend_latents(i, q_nope, rotate(q_rope, angles, config.rope.interleaved), latents, rotated)

    def _attend_latents(self, i: int, q_nope: Tensor, q_rope: Tensor, latents: Tensor, rotated: Tensor) -> Tensor:
        """Every head's keys and values out of the latents, then plain attention."""
        mla, count = self.config.mla, self.config.num_q_heads
        assert mla is not None
        heads = self._linear(latents, f"layers.{i}.self_attn.kv_b_proj").unflatten(-1, (count, -1))
        k_nope, values = heads.split([mla.nope_head_dim, mla.v_head_dim], dim=-1)
        keys = torch.cat([k_nope, rotated.expand(-1, count, -1)], dim=-1)
        return self._attend(i, torch.cat([q_nope, q_rope], dim=-1), keys, values)

    def _append(self, i: int, *rows: Tensor) -> tuple[Tensor, ...]:
        self.caches[i] = tuple(torch.cat([part, new]) for part, new in zip(self.caches[i], rows, strict=True))
        return self.caches[i]

    def _attend(self, i: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        start, length, offsets = (torch.tensor(value) for value in ([0], [len(keys)], [0, len(q)]))
        scale, window = self.config.attention_scale, self.config.layers[i].window
        return draft_attention(q, keys, values, offsets, start, length, scale, window)

    def _angles(self, positions: Tensor) -> Tensor:
        if len(positions) and int(positions.max()) >= len(self._cos_sin):
            self._cos_sin = self._table(2 * int(positions.max()))
        return self._cos_sin[positions.long()]

    def _table(self, length: int) -> Tensor:
        config = self.config
        return rope_table(config.rope_theta, config.rotary_dim, length, wide(self.dtype), config.rope).to(self.device)
