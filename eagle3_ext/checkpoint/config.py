"""`DrafterConfig`: one canonical form for every published drafter format, and the tensors that form calls for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..rope import Rope

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """What may differ from one decoder layer to the next.

    Attributes:
        joins_embedding: attention reads [RMS(e) | RMS(hidden)], 2h wide, instead of RMS(hidden). Always in layer 0; in
            later layers where the file says `next_layer_regular: false`.
        window: keys a row sees, its own included (sliding window); None sees all.
    """

    joins_embedding: bool = True
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class Mla:
    """Multi-head latent attention (DeepSeek): the cache holds one latent and one rotated key per row, for all heads.

    Attributes:
        q_lora_rank: width of q's own latent; None: one q_proj makes the queries.
        kv_lora_rank: width of the latent that kv_b_proj turns into every head's key and value.
        nope_head_dim, rope_head_dim: dimensions of a query and key head without and with RoPE, in this order.
        v_head_dim: dimensions of a value head.
        mscale: the softmax scale is mscale^2 / sqrt(nope_head_dim + rope_head_dim) (yarn's mscale_all_dim).
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    mscale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Everything the drafter's forward depends on, apart from the weights: the space of published EAGLE-3 drafters.

    `reference.Drafter` states what each field means for the numbers.

    Widths:
        hidden_size h, target_hidden_size H, num_states K, intermediate_size.
    Fusion, features [K*H] -> u [h]:
        fusion: "fc", or "none" where the features are the drafter's input (K = 1, H = h).
        feature_norm: RMSNorm before fc, none, over the whole row (`input_norm`) or over each state (`fc_norm.j`).
        fc_bias: fc has a bias.
    Decoder layers:
        layers: one `Layer` each.
        has_hidden_norm: u is normed before it joins the embedding.
        norm_before_residual: layer 0's residual is the normed u, not u.
        num_q_heads, num_kv_heads, head_dim: with `mla`, head_dim is nope + rope and every head has its own key.
        mla: latent attention instead of grouped-query attention.
        qk_norm: RMSNorm over each head of q and k, before RoPE.
        qkv_bias (with mla: of q_a_proj or q_proj, and kv_a_proj_with_mqa), o_bias, mlp_bias: these have biases.
        rope_theta, rope: how positions turn q and k.
        eps: of every RMSNorm.
    Output:
        has_final_norm: y = RMS(s; norm), else y = s.
        norm_output: the recurrent hidden of a draft step is y, not s.
        logit_scale: multiplies the logits.
        own_head: the file has lm_head; tied_head: the file's own embedding is its head; neither: the target's head.
    Vocabulary:
        draft_vocab_size Vd, vocab_size V; own_embedding: the file has embed_tokens, else the target's is used.
    The file's word, not part of the forward:
        boundaries: None where the file does not say, or not without knowing the target (`plan.resolve_plan` decides).
        max_position_embeddings: often the training length. Never a limit and never the size of a table.
    """

    hidden_size: int
    target_hidden_size: int
    num_states: int = 3
    intermediate_size: int

    fusion: Literal["fc", "none"] = "fc"
    feature_norm: Literal["none", "whole", "per_state"] = "none"
    fc_bias: bool = False

    layers: tuple[Layer, ...] = (Layer(),)
    has_hidden_norm: bool = True
    norm_before_residual: bool = False
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    mla: Mla | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float = 10000.0
    rope: Rope = Rope()
    eps: float = 1e-6

    has_final_norm: bool = True
    norm_output: bool = False
    logit_scale: float = 1.0
    own_head: bool = True
    tied_head: bool = False

    draft_vocab_size: int
    vocab_size: int
    own_embedding: bool = False

    boundaries: tuple[int, ...] | None = None
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        for name in ("hidden_size", "target_hidden_size", "num_states", "intermediate_size", "num_q_heads",
                     "num_kv_heads", "head_dim", "draft_vocab_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(f"num_q_heads {self.num_q_heads} is no multiple of num_kv_heads {self.num_kv_heads} "
                             "(num_attention_heads, num_key_value_heads)")
        if not 0 < self.rotary_dim <= self.head_dim or self.rotary_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim} and {self.rotary_dim} of it are rotated; RoPE pairs "
                             "dimensions, so that number must be even and within the head")
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size} exceeds vocab_size {self.vocab_size}")
        if self.fusion == "none" and (self.num_states, self.target_hidden_size) != (1, self.hidden_size):
            raise ValueError(f"without fc the features are the drafter's input, so they must be 1 x {self.hidden_size} "
                             f"wide, not {self.num_states} x {self.target_hidden_size}")
        if not self.layers or not self.layers[0].joins_embedding:
            raise ValueError(f"layers is {self.layers}; the first layer joins the embedding")
        if self.mla is not None and self.head_dim != self.mla.nope_head_dim + self.mla.rope_head_dim:
            raise ValueError(f"head_dim is {self.head_dim}; with mla it is nope {self.mla.nope_head_dim} + rope "
                             f"{self.mla.rope_head_dim}")
        if self.tied_head and (self.own_head or not self.own_embedding or self.draft_vocab_size != self.vocab_size):
            raise ValueError("tied_head makes the file's own embedding its head, so it needs one over the full "
                             "vocabulary and no lm_head")

    @property
    def features_width(self) -> int:
        """K*H, the only width `Drafter.extend` accepts."""
        return self.num_states * self.target_hidden_size

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that RoPE turns."""
        if self.mla is not None:
            return self.mla.rope_head_dim
        return self.head_dim if self.rope.rotary_dim is None else self.rope.rotary_dim

    @property
    def attention_scale(self) -> float:
        """What q.k is multiplied with before the softmax."""
        return (self.mla.mscale**2 if self.mla else 1.0) / math.sqrt(self.head_dim)

    @property
    def cache_width(self) -> int:
        """Numbers a row occupies in the drafter's cache, all layers together."""
        latent = self.mla.kv_lora_rank + self.mla.rope_head_dim if self.mla else 0
        return len(self.layers) * (latent or 2 * self.num_kv_heads * self.head_dim)


def expected_shapes(config: DrafterConfig) -> dict[str, Shape]:
    """Canonical name -> shape of every tensor that a checkpoint of this config holds (d2t is `target_ids` [Vd])."""
    h = config.hidden_size
    shapes = _fusion_shapes(config)
    for i, layer in enumerate(config.layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer_shapes(config, layer).items()}
    if config.has_final_norm:
        shapes["norm.weight"] = (h,)
    if config.own_head:
        shapes["lm_head.weight"] = (config.draft_vocab_size, h)
    if config.own_embedding:
        shapes["embed_tokens.weight"] = (config.vocab_size, h)
    if config.draft_vocab_size < config.vocab_size:
        shapes["target_ids"] = (config.draft_vocab_size,)
    return shapes


def _fusion_shapes(config: DrafterConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    if config.fusion == "fc":
        shapes["fc.weight"] = (config.hidden_size, config.features_width)
        if config.fc_bias:
            shapes["fc.bias"] = (config.hidden_size,)
    if config.feature_norm == "whole":
        shapes["input_norm.weight"] = (config.features_width,)
    elif config.feature_norm == "per_state":
        shapes |= {f"fc_norm.{j}.weight": (config.target_hidden_size,) for j in range(config.num_states)}
    return shapes


def _layer_shapes(config: DrafterConfig, layer: Layer) -> dict[str, Shape]:
    h, i = config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {"input_layernorm.weight": (h,)}
    if layer.joins_embedding and config.has_hidden_norm:
        shapes["hidden_norm.weight"] = (h,)
    shapes["post_attention_layernorm.weight"] = (h,)
    projections = _mla_shapes if config.mla else _gqa_shapes
    shapes |= {f"self_attn.{name}": s for name, s in projections(config, 2 * h if layer.joins_embedding else h).items()}
    for name, shape in (("gate_proj", (i, h)), ("up_proj", (i, h)), ("down_proj", (h, i))):
        shapes[f"mlp.{name}.weight"] = shape
        if config.mlp_bias:
            shapes[f"mlp.{name}.bias"] = shape[:1]
    return shapes


def _gqa_shapes(config: DrafterConfig, width: int) -> dict[str, Shape]:
    d = config.head_dim
    rows = {"q": config.num_q_heads * d, "k": config.num_kv_heads * d, "v": config.num_kv_heads * d}
    shapes: dict[str, Shape] = {f"{name}_proj.weight": (count, width) for name, count in rows.items()}
    shapes["o_proj.weight"] = (config.hidden_size, rows["q"])
    if config.qkv_bias:
        shapes |= {f"{name}_proj.bias": (count,) for name, count in rows.items()}
    if config.o_bias:
        shapes["o_proj.bias"] = (config.hidden_size,)
    if config.qk_norm:
        shapes |= {"q_norm.weight": (d,), "k_norm.weight": (d,)}
    return shapes


def _mla_shapes(config: DrafterConfig, width: int) -> dict[str, Shape]:
    mla, heads = config.mla, config.num_q_heads
    assert mla is not None
    q_rows, latent = heads * config.head_dim, mla.kv_lora_rank + mla.rope_head_dim
    if mla.q_lora_rank is None:
        shapes: dict[str, Shape] = {"q_proj.weight": (q_rows, width)}
    else:
        shapes = {"q_a_proj.weight": (mla.q_lora_rank, width), "q_a_layernorm.weight": (mla.q_lora_rank,),
                  "q_b_proj.weight": (q_rows, mla.q_lora_rank)}
    shapes |= {
        "kv_a_proj_with_mqa.weight": (latent, width),
        "kv_a_layernorm.weight": (mla.kv_lora_rank,),
        "kv_b_proj.weight": (heads * (mla.nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        "o_proj.weight": (config.hidden_size, heads * mla.v_head_dim),
    }
    if config.qkv_bias:
        first = "q_proj" if mla.q_lora_rank is None else "q_a_proj"
        shapes |= {f"{first}.bias": (mla.q_lora_rank or q_rows,), "kv_a_proj_with_mqa.bias": (latent,)}
    if config.o_bias:
        shapes["o_proj.bias"] = (config.hidden_size,)
    return shapes
