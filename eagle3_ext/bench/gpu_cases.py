"""What is timed on a GPU, op by op, with its peer: PyTorch as a user would write it without this package.

Peers never wait for the host where there is a usual way without, so that torch.compile and CUDA graphs take them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from ..rope import rope_table
from .measure import Call

EPS = 1e-6


@dataclass(frozen=True)
class Sizes:
    """Kimi-K2.5's widths; `draft_context` is the cache a draft step attends to."""

    hidden: int = 7168
    states: int = 3
    intermediate: int = 18432
    heads: int = 64
    kv_heads: int = 64
    head_dim: int = 128
    latent: int = 512
    latent_rope: int = 64
    draft_vocab: int = 32000
    vocab: int = 163840
    few: int = 8
    many: int = 8192
    draft_context: int = 2048
    draft_length: int = 4
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, device=self.device)


DRY = {
    "hidden": 32,
    "intermediate": 48,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "latent": 24,
    "latent_rope": 8,
    "draft_vocab": 64,
    "vocab": 96,
}
DRY |= {"few": 2, "many": 5, "draft_context": 24, "device": "cpu"}


@dataclass(frozen=True)
class OpCase:
    """Ours and the peer on the same tensors.

    Attributes:
        moved: bytes that must be read and written at least.
        large: bandwidth is the point, not launches: compared with a copy, and not put into a graph.
        compiles: torch.compile takes the peer.
        waits: the peer waits for the host, so no graph takes it.
    """

    name: str
    case: str
    ours: Call
    peer: Call
    moved: int
    large: bool = False
    compiles: bool = True
    waits: bool = False


def nbytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def for_few_and_many(cases_of: Callable[[Sizes, int, bool], OpCase]) -> Callable[[Sizes], list[OpCase]]:
    return lambda s: [cases_of(s, s.few, False), cases_of(s, s.many, True)]


def gather_concat(s: Sizes, rows: int, large: bool) -> OpCase:
    source = max(rows, 64)
    states = [s.floats(source, s.hidden) for _ in range(s.states)]
    index = torch.randperm(source, device=s.device)[:rows]
    out = s.floats(rows, s.states * s.hidden)
    return OpCase(
        "gather_concat",
        f"{rows} rows x {s.states} x {s.hidden}, into a buffer",
        lambda: ops.gather_concat(states, index, out=out),
        lambda: out.copy_(torch.cat([state.index_select(0, index) for state in states], -1)),
        2 * nbytes(out),
        large,
    )


def capture(s: Sizes, rows: int, large: bool) -> OpCase:
    states = [s.floats(rows, s.hidden) for _ in range(s.states)]
    features = s.floats(rows, s.states * s.hidden)

    def ours() -> Tensor:
        for slot, state in enumerate(states):
            ops.capture_(features, slot, state)
        return features

    def peer() -> Tensor:
        for slot, state in enumerate(states):
            features[:, slot * s.hidden : (slot + 1) * s.hidden].copy_(state)
        return features

    case = f"{rows} rows x {s.states} x {s.hidden}, {s.states} calls"
    return OpCase("capture_", case, ours, peer, 2 * nbytes(features), large)


def add_rms_norm_capture(s: Sizes, rows: int, large: bool) -> OpCase:
    hidden, residual, weight = s.floats(rows, s.hidden), s.floats(rows, s.hidden), s.floats(s.hidden)
    features = s.floats(rows, s.states * s.hidden)

    def ours() -> tuple[Tensor, ...]:
        ops.add_rms_norm_capture_(hidden, residual, weight, EPS, features, 0)
        return hidden, residual, features

    def peer() -> tuple[Tensor, ...]:
        residual.add_(hidden)
        hidden.copy_(F.rms_norm(residual, (s.hidden,), weight, EPS))
        features[:, : s.hidden].copy_(residual)
        return hidden, residual, features

    moved = 5 * nbytes(hidden) + nbytes(weight)
    return OpCase("add_rms_norm_capture_", f"{rows} rows x {s.hidden}", ours, peer, moved, large)


def add_rms_norm(s: Sizes, rows: int, large: bool) -> OpCase:
    hidden, residual, weight = s.floats(rows, s.hidden), s.floats(rows, s.hidden), s.floats(s.hidden)

    def ours() -> tuple[Tensor, ...]:
        ops.add_rms_norm_(hidden, residual, weight, EPS)
        return hidden, residual

    def peer() -> tuple[Tensor, ...]:
        residual.add_(hidden)
        hidden.copy_(F.rms_norm(residual, (s.hidden,), weight, EPS))
        return hidden, residual

    moved = 4 * nbytes(hidden) + nbytes(weight)
    return OpCase("add_rms_norm_", f"{rows} rows x {s.hidden}", ours, peer, moved, large)


def silu_mul(s: Sizes, rows: int, large: bool) -> OpCase:
    gate_up = s.floats(rows, 2 * s.intermediate)

    def peer() -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    moved = 3 * nbytes(gate_up) // 2
    return OpCase("silu_mul", f"{rows} rows x {s.intermediate}", lambda: ops.silu_mul(gate_up), peer, moved, large)


def draft_input(s: Sizes) -> list[OpCase]:
    table, tokens, hidden = s.floats(s.vocab, s.hidden), s.integers(s.vocab, s.few), s.floats(s.few, s.hidden)
    embed_norm, hidden_norm = s.floats(s.hidden), s.floats(s.hidden)

    def peer() -> Tensor:
        embedding = F.rms_norm(F.embedding(tokens, table), (s.hidden,), embed_norm, EPS)
        return torch.cat([embedding, F.rms_norm(hidden, (s.hidden,), hidden_norm, EPS)], -1)

    def ours() -> Tensor:
        return ops.draft_input(tokens, hidden, table, embed_norm, hidden_norm, EPS)

    moved = 4 * nbytes(hidden) + nbytes(embed_norm, hidden_norm)
    return [OpCase("draft_input", f"{s.few} rows x 2 x {s.hidden}", ours, peer, moved)]


def head_rms_norm(s: Sizes) -> list[OpCase]:
    qkv = s.floats(s.few, (s.heads + 2 * s.kv_heads) * s.head_dim)
    q_weight, k_weight = s.floats(s.head_dim), s.floats(s.head_dim)

    def peer() -> Tensor:
        q, k, _ = qkv.view(s.few, -1, s.head_dim).split([s.heads, s.kv_heads, s.kv_heads], 1)
        for part, weight in ((q, q_weight), (k, k_weight)):
            part.copy_(F.rms_norm(part, (s.head_dim,), weight, EPS))
        return qkv

    def ours() -> Tensor:
        ops.head_rms_norm_(qkv, q_weight, k_weight, EPS, s.heads, s.kv_heads)
        return qkv

    case = f"{s.few} rows, {s.heads} q and {s.kv_heads} kv heads x {s.head_dim}"
    return [
        OpCase("head_rms_norm_", case, ours, peer, 2 * s.few * (s.heads + s.kv_heads) * s.head_dim * qkv.element_size())
    ]


def rotated(x: Tensor, cos_sin: Tensor) -> Tensor:
    """RoPE in halves of x [n, heads, d] by its rows' cos_sin [n, d], as transformers writes it."""
    cos, sin = (part[:, None].repeat(1, 1, 2).to(x.dtype) for part in cos_sin.chunk(2, -1))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def rope_append(s: Sizes) -> list[OpCase]:
    rows, width = s.few, (s.heads + 2 * s.kv_heads) * s.head_dim
    qkv, positions, slots = (
        s.floats(rows, width),
        s.integers(s.draft_context, rows),
        torch.arange(rows, device=s.device),
    )
    k_cache, v_cache = (s.floats(s.draft_context, s.kv_heads, s.head_dim) for _ in range(2))
    cos_sin = rope_table(10000.0, s.head_dim, s.draft_context).to(s.device)

    def peer() -> tuple[Tensor, ...]:
        heads = qkv.view(rows, -1, s.head_dim)
        q_and_k, v = heads[:, : s.heads + s.kv_heads], heads[:, s.heads + s.kv_heads :]
        q_and_k.copy_(rotated(q_and_k, cos_sin[positions]))
        k_cache.index_copy_(0, slots, q_and_k[:, s.heads :])
        v_cache.index_copy_(0, slots, v)
        return qkv, k_cache, v_cache

    def ours() -> tuple[Tensor, ...]:
        ops.rope_append_(qkv, positions, slots, cos_sin, s.heads, s.kv_heads, k_cache, v_cache)
        return qkv, k_cache, v_cache

    case = f"{rows} rows, {s.heads} q and {s.kv_heads} kv heads x {s.head_dim}"
    return [OpCase("rope_append_", case, ours, peer, 3 * nbytes(qkv))]


def mla_append(s: Sizes) -> list[OpCase]:
    """Latent attention at DeepSeek-V3's sizes."""
    rows, latent, rope = s.few, s.latent, s.latent_rope
    q_pe, kv, weight = s.floats(rows, s.heads, rope), s.floats(rows, latent + rope), s.floats(latent)
    positions, slots = s.integers(s.draft_context, rows), torch.arange(rows, device=s.device)
    cache = s.floats(s.draft_context, latent + rope)
    cos_sin = rope_table(10000.0, rope, s.draft_context).to(s.device)

    def peer() -> tuple[Tensor, Tensor]:
        angles = cos_sin[positions]
        q_pe.copy_(rotated(q_pe, angles))
        key = rotated(kv[:, None, latent:], angles)[:, 0]
        cache.index_copy_(0, slots, torch.cat([F.rms_norm(kv[:, :latent], (latent,), weight, EPS), key], -1))
        return q_pe, cache

    def ours() -> tuple[Tensor, Tensor]:
        ops.mla_append_(q_pe, kv, weight, EPS, positions, slots, cos_sin, cache)
        return q_pe, cache

    case = f"{rows} rows, {s.heads} heads x {rope}, latent {latent}"
    return [OpCase("mla_append_", case, ours, peer, 2 * nbytes(q_pe, kv) + nbytes(weight))]


def draft_attention(s: Sizes) -> list[OpCase]:
    """One query per sequence and caches of one length: what scaled_dot_product_attention can do, too."""
    batch, length = s.few, s.draft_context
    q = s.floats(batch, s.heads, s.head_dim)
    k_cache, v_cache = (s.floats(batch * length, s.kv_heads, s.head_dim) for _ in range(2))
    offsets, starts = (torch.arange(count, device=s.device) for count in (batch + 1, batch))
    starts, lengths, scale = starts * length, torch.full_like(starts, length), s.head_dim**-0.5

    def peer() -> Tensor:
        keys, values = (c.view(batch, length, s.kv_heads, s.head_dim).transpose(1, 2) for c in (k_cache, v_cache))
        grouped = s.heads != s.kv_heads
        return F.scaled_dot_product_attention(q[:, :, None], keys, values, scale=scale, enable_gqa=grouped)

    def ours() -> Tensor:
        return ops.draft_attention(q, k_cache, v_cache, offsets, starts, lengths, scale)

    case = f"{batch} sequences x {length} cache rows, {s.heads} q and {s.kv_heads} kv heads x {s.head_dim}"
    return [OpCase("draft_attention", case, ours, peer, nbytes(k_cache, v_cache) + 2 * nbytes(q), large=True)]


def skinny_linear(s: Sizes) -> list[OpCase]:
    weight = s.floats(s.hidden, s.states * s.hidden).mul_(0.02)

    def case(rows: int) -> OpCase:
        x = s.floats(rows, s.states * s.hidden)
        moved = nbytes(weight, x) + rows * s.hidden * x.element_size()
        name = f"{rows} rows, weight [{s.hidden}, {s.states * s.hidden}]"
        ours, peer = (lambda: ops.skinny_linear(x, weight)), (lambda: F.linear(x, weight))
        return OpCase("skinny_linear", name, ours, peer, moved, large=True)

    return [case(rows) for rows in (1, 4, 8)]


def argmax_tokens(s: Sizes) -> list[OpCase]:
    logits, target_ids = s.floats(s.few, s.draft_vocab), torch.randperm(s.vocab, device=s.device)[: s.draft_vocab]

    def peer() -> tuple[Tensor, Tensor]:
        best, index = logits.max(-1)
        return target_ids[index], best.float() - logits.float().logsumexp(-1)

    def ours() -> tuple[Tensor, Tensor]:
        tokens, _, log_probs = ops.argmax_tokens(logits, target_ids, with_log_probs=True)
        return tokens, log_probs

    return [OpCase("argmax_tokens", f"{s.few} rows x {s.draft_vocab}, log-probabilities", ours, peer, nbytes(logits))]


def verify_greedy(s: Sizes) -> list[OpCase]:
    draft, target = s.integers(2, s.few, s.draft_length), s.integers(2, s.few, s.draft_length + 1)

    def peer() -> tuple[Tensor, Tensor]:
        lengths = 1 + (draft == target[:, :-1]).cumprod(1).sum(1)
        return lengths, target.gather(1, lengths[:, None] - 1)[:, 0]

    case = f"{s.few} sequences, D={s.draft_length}"
    return [OpCase("verify_greedy", case, lambda: ops.verify_greedy(draft, target), peer, nbytes(draft, target))]


def hidden_path(s: Sizes) -> list[OpCase]:
    """What a round does between verification and extend: accept lengths -> rows -> features of the accepted rows."""
    width = s.draft_length + 1
    lengths = 1 + s.integers(width, s.few)
    states = [s.floats(s.few * width, s.hidden) for _ in range(s.states)]
    out = s.floats(s.few * width, s.states * s.hidden)

    def ours() -> Tensor:
        rows, _ = ops.accepted_rows(lengths, width)
        return ops.gather_concat(states, rows, out=out)

    def peer() -> Tensor:
        rows = (torch.arange(width, device=s.device) < lengths[:, None]).flatten().nonzero()[:, 0]
        return torch.cat([state.index_select(0, rows) for state in states], -1)

    case = f"accepted_rows + gather_concat, {s.few} sequences, D={s.draft_length}"
    return [OpCase("hidden_path", case, ours, peer, 2 * nbytes(out), compiles=False, waits=True)]


CASES: dict[str, Callable[[Sizes], list[OpCase]]] = {
    "gather_concat": for_few_and_many(gather_concat),
    "capture_": for_few_and_many(capture),
    "add_rms_norm_capture_": for_few_and_many(add_rms_norm_capture),
    "add_rms_norm_": for_few_and_many(add_rms_norm),
    "silu_mul": for_few_and_many(silu_mul),
    "draft_input": draft_input,
    "head_rms_norm_": head_rms_norm,
    "rope_append_": rope_append,
    "mla_append_": mla_append,
    "draft_attention": draft_attention,
    "skinny_linear": skinny_linear,
    "argmax_tokens": argmax_tokens,
    "verify_greedy": verify_greedy,
    "hidden_path": hidden_path,
}
