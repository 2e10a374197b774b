"""`DrafterConfig`: one canonical form for every published drafter format, and the tensors that form calls for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]

ATTENTION = "layers.0.self_attn."
MLP = "layers.0.mlp."


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Everything the drafter's forward depends on, apart from the weights.

    `hidden_size` is the drafter's width h, `target_hidden_size` the width H of one target state, `num_states` their
    number K. `boundaries` is None where the file does not say; `features.resolve_plan` then decides by the target's
    depth. `norm_output` selects the recurrent hidden of a draft step: y (after the final norm) instead of s.
    """

    hidden_size: int
    target_hidden_size: int
    num_states: int = 3
    fusion: Literal["fc", "none"] = "fc"
    feature_norm: Literal["none", "whole", "per_state"] = "none"
    fc_bias: bool = False
    has_hidden_norm: bool = True
    norm_before_residual: bool = False
    norm_output: bool = False
    has_final_norm: bool = True
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float = 1e-6
    rope_theta: float = 10000.0
    draft_vocab_size: int
    vocab_size: int
    boundaries: tuple[int, ...] | None = None
    own_embedding: bool = False
    own_head: bool = True
    max_position_embeddings: int = 2048
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "target_hidden_size", "num_states", "intermediate_size", "num_q_heads",
                     "num_kv_heads", "head_dim", "draft_vocab_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(f"num_q_heads {self.num_q_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; RoPE pairs dimensions, so it must be even")
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size} exceeds vocab_size {self.vocab_size}")
        if self.fusion == "none" and (self.num_states, self.target_hidden_size) != (1, self.hidden_size):
            raise ValueError(f"without fc the features are the drafter's input, so they must be 1 x {self.hidden_size} "
                             f"wide, not {self.num_states} x {self.target_hidden_size}")

    @property
    def features_width(self) -> int:
        """K*H, the only width `Drafter.extend` accepts."""
        return self.num_states * self.target_hidden_size


def expected_shapes(config: DrafterConfig) -> dict[str, Shape]:
    """Canonical name -> shape of every tensor that a checkpoint of this config holds (d2t is `target_ids` [Vd])."""
    h, width, d = config.hidden_size, config.features_width, config.head_dim
    q, kv, i = config.num_q_heads * d, config.num_kv_heads * d, config.intermediate_size
    shapes: dict[str, Shape] = {}
    if config.fusion == "fc":
        shapes["fc.weight"] = (h, width)
        if config.fc_bias:
            shapes["fc.bias"] = (h,)
    if config.feature_norm == "whole":
        shapes["input_norm.weight"] = (width,)
    elif config.feature_norm == "per_state":
        shapes |= {f"fc_norm.{j}.weight": (config.target_hidden_size,) for j in range(config.num_states)}
    shapes["layers.0.input_layernorm.weight"] = (h,)
    if config.has_hidden_norm:
        shapes["layers.0.hidden_norm.weight"] = (h,)
    shapes |= {
        "layers.0.post_attention_layernorm.weight": (h,),
        f"{ATTENTION}q_proj.weight": (q, 2 * h),
        f"{ATTENTION}k_proj.weight": (kv, 2 * h),
        f"{ATTENTION}v_proj.weight": (kv, 2 * h),
        f"{ATTENTION}o_proj.weight": (h, q),
        f"{MLP}gate_proj.weight": (i, h),
        f"{MLP}up_proj.weight": (i, h),
        f"{MLP}down_proj.weight": (h, i),
    }
    if config.has_final_norm:
        shapes["norm.weight"] = (h,)
    if config.own_head:
        shapes["lm_head.weight"] = (config.draft_vocab_size, h)
    if config.own_embedding:
        shapes["embed_tokens.weight"] = (config.vocab_size, h)
    if config.draft_vocab_size < config.vocab_size:
        shapes["target_ids"] = (config.draft_vocab_size,)
    return shapes
