"""Every native op in plain PyTorch, with the arguments of `eagle3_ext.ops`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

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


def rotate(x: Tensor, cos_sin: Tensor, interleaved: bool = False) -> Tensor:
    """RoPE: turns x [n, heads, d] by its rows' cos_sin [n, rotary]; dimensions past `rotary` pass through.

    Pairs are (i, i + rotary/2), or (2i, 2i + 1) if interleaved.
    """
    rotary = cos_sin.shape[1]
    cos, sin = cos_sin.to(wide(x.dtype))[:, None, :].chunk(2, dim=-1)
    turned = x[..., :rotary].to(cos.dtype)
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned.to(x.dtype), x[..., rotary:]], dim=-1)


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
    known = (positions >= 0) & (positions < cos_sin.shape[0])  # only padding may lack angles; it stays unrotated
    turned = num_q_heads + num_kv_heads
    heads[known, :turned] = rotate(heads[known, :turned], cos_sin[positions.long()[known]])

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
    latent, k_pe = kv.split([kv_weight.shape[0], q_pe.shape[2]], dim=-1)
    k_pe = k_pe[:, None, :].clone()
    known = (positions >= 0) & (positions < cos_sin.shape[0])  # only padding may lack angles; it stays unrotated
    angles = cos_sin[positions.long()[known]]
    q_pe[known], k_pe[known] = rotate(q_pe[known], angles), rotate(k_pe[known], angles)
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
    """Each row's best token: NaN counts as -inf, ties go to the lowest index; a row whose best is -inf, one of NaN among
    them, gives index 0 and is not valid."""
    keys = logits.masked_fill(logits.isnan(), -torch.inf).to(wide(logits.dtype))
    best = keys.max(dim=-1, keepdim=True).values
    indices = torch.arange(logits.shape[1], device=logits.device)
    winners = torch.where(keys == best, indices, logits.shape[1]).min(dim=-1).values
    tokens = winners if target_ids is None else target_ids[winners]
    log_probs = keys.log_softmax(-1).gather(1, winners[:, None])[:, 0] if with_log_probs else keys.new_empty(0)
    return tokens, best[:, 0] > -torch.inf, log_probs


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
