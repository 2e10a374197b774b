"""The specification: every native op, and the whole drafter, in plain PyTorch.

Native code is right when it agrees with this file. Functions take the arguments of `eagle3_ext.ops` and work on any
device in any float dtype; given float64 inputs they are the exact result that the tests hold the kernels' bounds to.

Rounding, the same everywhere: statistics, rotations, activations and sums are computed in `wide(dtype)`; a result is
rounded to the dtype where the formula names a tensor. Residual sums are rounded *before* they are normed, RMSNorm
rounds before its gain, and matrix products are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from .errors import FeatureWidthError
from .rope import rope_table

if TYPE_CHECKING:
    from .checkpoint import DrafterConfig

PAD = -1  # the one index that stands for "nothing": a zero row when read, no write when written


def wide(dtype: torch.dtype) -> torch.dtype:
    """What intermediate values of `dtype` are computed in: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS(x; weight) over the last dimension: cast to the dtype before the gain, as transformers does."""
    z = x.to(wide(x.dtype))
    return (z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def capture_(features: Tensor, slot: int, hidden: Tensor, residual: Tensor | None = None) -> None:
    """features[:, slot*H : (slot+1)*H] = hidden (+ residual)."""
    width = hidden.shape[1]
    features[:, slot * width : (slot + 1) * width] = hidden if residual is None else hidden + residual


def add_rms_norm_(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual += hidden; hidden = RMS(residual; weight)."""
    residual.add_(hidden)
    hidden.copy_(rms_norm(residual, weight, eps))


def add_rms_norm_capture_(
    hidden: Tensor, residual: Tensor, weight: Tensor, eps: float, features: Tensor, slot: int
) -> None:
    """`add_rms_norm_`, then the updated residual into a slot of the features."""
    add_rms_norm_(hidden, residual, weight, eps)
    capture_(features, slot, residual)


def gather_concat(
    states: Tensor | Sequence[Tensor],
    rows: Tensor,
    norm_weights: Sequence[Tensor] = (),
    eps: float = 1e-6,
    *,
    out: Tensor | None = None,
    check: bool = True,
) -> Tensor:
    """out[m] = the states' rows rows[m] side by side, normed as a whole (one weight) or chunk by chunk (K weights)."""
    packed = states if isinstance(states, Tensor) else torch.cat(list(states), dim=-1)
    outside = (rows < 0) | (rows >= packed.shape[0])
    if check and (outside & (rows != PAD)).any():
        raise IndexError(f"rows must be {PAD} or in [0, {packed.shape[0]}), got {rows.tolist()}")
    with_zeros = torch.cat([packed.new_zeros(1, packed.shape[1]), packed])
    gathered = with_zeros[rows.long().masked_fill(outside, -1) + 1]
    if norm_weights:
        chunks = gathered.chunk(len(norm_weights), dim=-1)
        normed = [rms_norm(chunk, weight, eps) for chunk, weight in zip(chunks, norm_weights, strict=True)]
        gathered = torch.cat(normed, dim=-1).masked_fill(outside[:, None], 0)
    return gathered if out is None else out.copy_(gathered)


def accepted_rows(accept_lengths: Tensor, width: int, block_front: bool = False) -> tuple[Tensor, Tensor]:
    """Which rows of a [B*width, ...] buffer were accepted, padded with -1, and where each sequence's begin."""
    lengths = accept_lengths.tolist()
    blocks = [[b * width + i for i in range(length)] for b, length in enumerate(lengths)]
    if block_front:
        rows = [row for block in blocks for row in block + [PAD] * (width - len(block))]
        offsets = [b * width for b in range(len(lengths) + 1)]
    else:
        rows = [row for block in blocks for row in block]
        rows += [PAD] * (len(lengths) * width - len(rows))
        offsets = [sum(lengths[:b]) for b in range(len(lengths) + 1)]
    options = {"dtype": torch.int64, "device": accept_lengths.device}
    return torch.tensor(rows, **options), torch.tensor(offsets, **options)


def draft_input(
    tokens: Tensor,
    hidden: Tensor,
    embed_weight: Tensor | None,
    embed_norm: Tensor,
    hidden_norm: Tensor | None,
    eps: float,
    token_embeddings: Tensor | None = None,
) -> Tensor:
    """x = [RMS(E[token]; embed_norm) | RMS(hidden; hidden_norm)], embedding first; zeros where the token is -1."""
    padding = tokens == PAD
    if token_embeddings is None:
        assert embed_weight is not None, "embed_weight or token_embeddings"
        token_embeddings = embed_weight[tokens.long().masked_fill(padding, 0)]
    embedding = rms_norm(token_embeddings, embed_norm, eps)
    normed = hidden if hidden_norm is None else rms_norm(hidden, hidden_norm, eps)
    return torch.cat([embedding, normed], dim=-1).masked_fill(padding[:, None], 0)


def rope_append_(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    k_cache: Tensor,
    v_cache: Tensor,
) -> None:
    """Rotates q and k of qkv in place and appends k, v to the cache rows `slots`; slot -1 writes nothing."""
    heads = qkv.unflatten(1, (num_q_heads + 2 * num_kv_heads, -1))
    half = cos_sin.shape[1] // 2
    known = (positions >= 0) & (positions < cos_sin.shape[0])  # only padding may lack angles; it stays unrotated
    angles = cos_sin[positions.long()[known]].to(wide(qkv.dtype))[:, None, :]
    cos, sin = angles[..., :half], angles[..., half:]
    rotated = heads[known, : num_q_heads + num_kv_heads].to(cos.dtype)
    first, second = rotated[..., :half].clone(), rotated[..., half : 2 * half].clone()
    rotated[..., :half] = first * cos - second * sin
    rotated[..., half : 2 * half] = second * cos + first * sin
    heads[known, : num_q_heads + num_kv_heads] = rotated.to(qkv.dtype)

    _, k, v = heads.split([num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    written = slots != PAD
    k_cache[slots.long()[written]] = k[written]
    v_cache[slots.long()[written]] = v[written]


def head_rms_norm_(
    qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, num_q_heads: int, num_kv_heads: int
) -> None:
    """RMS norm of each q head and each k head of qkv in place."""
    heads = qkv.unflatten(1, (num_q_heads + 2 * num_kv_heads, q_weight.shape[0]))
    q, k, _ = heads.split([num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    q.copy_(rms_norm(q, q_weight, eps))
    k.copy_(rms_norm(k, k_weight, eps))


def mla_append_(
    q_pe: Tensor,
    kv: Tensor,
    kv_weight: Tensor,
    eps: float,
    positions: Tensor,
    slots: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
) -> None:
    """Rotates q_pe in place; cache[slots] = [RMS(kv[:, :latent]) | rotated kv[:, latent:]]; slot -1 writes nothing."""
    known = (positions >= 0) & (positions < cos_sin.shape[0])  # only padding may lack angles; it stays unrotated
    cos, sin = cos_sin[positions.long()[known]].to(wide(kv.dtype))[:, None, :].chunk(2, dim=-1)

    def rotated(x: Tensor) -> Tensor:
        first, second = x.to(cos.dtype).chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

    latent, k_pe = kv.split([kv_weight.shape[0], q_pe.shape[2]], dim=-1)
    k_pe = k_pe[:, None, :].clone()
    q_pe[known], k_pe[known] = rotated(q_pe[known]), rotated(k_pe[known])
    written = slots != PAD
    cache[slots.long()[written]] = torch.cat([rms_norm(latent, kv_weight, eps), k_pe[:, 0]], dim=-1)[written]


def draft_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    row_offsets: Tensor,
    cache_starts: Tensor,
    cache_lengths: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Causal grouped-query attention of each sequence's rows to its own cache rows, of which they are the last.

    With a window a row sees the last `window` of them, its own included.
    """
    out = q.new_zeros(*q.shape[:2], v_cache.shape[-1])
    group = q.shape[1] // k_cache.shape[1]
    offsets = row_offsets.tolist()
    for b, (start, length) in enumerate(zip(cache_starts.tolist(), cache_lengths.tolist(), strict=True)):
        rows = offsets[b + 1] - offsets[b]
        keys, values = (
            cache[start : start + length].to(wide(q.dtype)).repeat_interleave(group, dim=1)
            for cache in (k_cache, v_cache)
        )
        for j in range(rows):
            last = length - rows + j + 1
            seen = slice(0 if window is None else max(0, last - window), last)
            query = q[offsets[b] + j].to(wide(q.dtype))
            probabilities = (torch.einsum("hd,lhd->hl", query, keys[seen]) * scale).softmax(-1)
            out[offsets[b] + j] = torch.einsum("hl,lhd->hd", probabilities, values[seen]).to(q.dtype)
    return out.flatten(1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up; silu is rounded to the dtype before the product."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate.to(wide(gate.dtype))).to(gate.dtype) * up


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T (+ bias)."""
    return linear(x, weight, bias)


def argmax_tokens(
    logits: Tensor, target_ids: Tensor | None = None, with_log_probs: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's best token: NaN counts as -inf, ties go to the lowest index, a row of NaN is index 0 and not valid."""
    keys = logits.masked_fill(logits.isnan(), -torch.inf).to(wide(logits.dtype))
    best = keys.max(dim=-1, keepdim=True).values
    indices = torch.arange(logits.shape[1], device=logits.device)
    winners = torch.where(keys == best, indices, logits.shape[1]).min(dim=-1).values
    tokens = winners if target_ids is None else target_ids[winners]
    log_probs = keys.log_softmax(-1).gather(1, winners[:, None])[:, 0] if with_log_probs else keys.new_empty(0)
    return tokens, ~logits.isnan().all(dim=-1), log_probs


def accept(draft: Sequence[int], target: Sequence[int]) -> tuple[int, int]:
    """One sequence's round: (accept length, bonus token).

    `target[i]` is the target's choice after the tokens before it and draft[:i], so that it holds one token more than
    `draft`. The accepted prefix ends before the first disagreement; a draft token of -1 is padding and never accepted.
    """
    accepted = 0
    while accepted < len(draft) and draft[accepted] != PAD and draft[accepted] == target[accepted]:
        accepted += 1
    return accepted + 1, target[accepted]


def verify_greedy(draft_tokens: Tensor, target_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """`accept` for each row of draft_tokens [B, D] and target_tokens [B, D + 1]."""
    rounds = [accept(d, t) for d, t in zip(draft_tokens.tolist(), target_tokens.tolist(), strict=True)]
    lengths, bonus = ([pair[column] for pair in rounds] for column in (0, 1))
    options = {"dtype": torch.int64, "device": draft_tokens.device}
    return torch.tensor(lengths, **options), torch.tensor(bonus, **options)


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
        if head_weight is not None:
            self.weights.setdefault("lm_head.weight", head_weight.detach()[: config.draft_vocab_size])
        for name in ("embed_tokens.weight", "lm_head.weight"):
            if name not in self.weights:
                raise ValueError(f"the drafter's weights hold no {name}; pass the target's")
        self.dtype = self.weights["embed_tokens.weight"].dtype
        self.device = self.weights["embed_tokens.weight"].device
        self._cos_sin = self._table(config.max_position_embeddings)
        self.reset()

    def to(self, dtype: torch.dtype) -> Drafter:
        """The same drafter in another float dtype, with an empty cache."""
        cast = {name: w.to(dtype) if w.is_floating_point() else w for name, w in self.weights.items()}
        return Drafter(self.config, cast)

    def reset(self) -> None:
        """Forgets the sequence."""
        shape = (0, self.config.num_kv_heads, self.config.head_dim)
        self._k = self._v = torch.empty(shape, dtype=self.dtype, device=self.device)
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
        """Commits rows: features [m, K*H] (cast to the drafter's dtype), tokens [m], positions [m]."""
        width = self.config.num_states * self.config.target_hidden_size
        if features.shape[-1] != width:
            raise FeatureWidthError(f"features have width {features.shape[-1]}; this drafter fuses {width}")
        self._k, self._v = self._k[: self.length], self._v[: self.length]
        positions = torch.as_tensor(positions, device=self.device)
        self._layer(self.fuse(features.to(self.dtype)), torch.as_tensor(tokens), positions, token_embeddings)
        self.length = len(self._k)
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
                self._layer(recurrent[-1:], torch.tensor(tokens[-1:]), position)
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
        return linear(features, weights["fc.weight"], weights.get("fc.bias")) if config.fusion == "fc" else features

    def head(self, y: Tensor) -> Tensor:
        """y [m, h] -> logits [m, Vd]."""
        logits = linear(y, self.weights["lm_head.weight"])
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale

    def _layer(self, u: Tensor, tokens: Tensor, positions: Tensor, token_embeddings: Tensor | None = None) -> None:
        """u [m, h] (fused features or recurrent hidden) -> s, y; appends m rows to the cache."""
        config, weights = self.config, self.weights
        norm = {name: weights.get(f"layers.0.{name}.weight") for name in ("input_layernorm", "hidden_norm")}
        x = draft_input(
            tokens.to(self.device),
            u,
            weights["embed_tokens.weight"],
            norm["input_layernorm"],
            norm["hidden_norm"],
            config.eps,
            token_embeddings,
        )
        residual = x[:, config.hidden_size :] if config.norm_before_residual else u
        s1 = residual + linear(self._attention(x, positions), weights["layers.0.self_attn.o_proj.weight"])
        z = rms_norm(s1, weights["layers.0.post_attention_layernorm.weight"], config.eps)
        gate_up = [linear(z, weights[f"layers.0.mlp.{name}_proj.weight"]) for name in ("gate", "up")]
        self.s = s1 + linear(silu_mul(torch.cat(gate_up, dim=-1)), weights["layers.0.mlp.down_proj.weight"])
        self.y = rms_norm(self.s, weights["norm.weight"], config.eps) if config.has_final_norm else self.s

    def _attention(self, x: Tensor, positions: Tensor) -> Tensor:
        config, past, rows = self.config, len(self._k), len(x)
        qkv = torch.cat([linear(x, self.weights[f"layers.0.self_attn.{p}_proj.weight"]) for p in "qkv"], dim=-1)
        room = self._k.new_zeros(rows, config.num_kv_heads, config.head_dim)
        self._k, self._v = torch.cat([self._k, room]), torch.cat([self._v, room])
        slots = torch.arange(past, past + rows, device=self.device)
        if rows and int(positions.max()) >= len(self._cos_sin):
            self._cos_sin = self._table(2 * int(positions.max()))
        rope_append_(qkv, positions, slots, self._cos_sin, config.num_q_heads, config.num_kv_heads, self._k, self._v)
        q = qkv[:, : config.num_q_heads * config.head_dim].unflatten(1, (config.num_q_heads, config.head_dim))
        start, length, offsets = (torch.tensor(value) for value in ([0], [past + rows], [0, rows]))
        return draft_attention(q, self._k, self._v, offsets, start, length, config.head_dim**-0.5)

    def _table(self, length: int) -> Tensor:
        return rope_table(self.config.rope_theta, self.config.head_dim, length, wide(self.dtype)).to(self.device)
