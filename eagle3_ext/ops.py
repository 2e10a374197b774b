"""The native ops, typed: `torch.ops.eagle3_ext.*` with names, defaults and documentation.

What holds for all of them:

* Floating dtypes are float32, bfloat16 and float16, the same for all floating arguments of a call (`cos_sin` is always
  float32); indices are int32 or int64. Results are on the inputs' device.
* Zero rows are legal, rows may be strided. A read-only tensor with gaps in a row is copied, a mutated one refused.
* A wrong rank, size, dtype or device raises ValueError, an index out of range IndexError; the message reads
  "<op>: <tensor> has <value>, expected <value>". Nothing has been written by then.
* The meaning, with its rounding, is the function of the same name in `eagle3_ext/reference/ops.py`; the code begins in
  `csrc/ops/<op>.cpp`. Nothing here is differentiable.
* They work under torch.compile: the fakes at the end of this file tell it the results' shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_native = torch.ops.eagle3_ext


def capture_(features: Tensor, slot: int, hidden: Tensor, residual: Tensor | None = None) -> None:
    """Writes one hidden state into its place: features[:, slot*H : (slot+1)*H] = hidden (+ residual, rounded once).

    Without a residual the copy is bit-exact.

    Args:
        features: [rows, >= (slot+1)*H], mutated in that slot only.
        hidden: [rows, H].
        residual: [rows, H], for engines that keep the residual stream in two tensors.

    Raises:
        ValueError: mismatched shapes, dtypes or devices; features whose rows are not contiguous.
        IndexError: the slot does not lie inside features.

    Source: csrc/ops/capture.cpp
    """
    _native.capture_(features, slot, hidden, residual)


def add_rms_norm_(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual = round(hidden + residual), then hidden = RMS(residual; weight); both in place.

    Args:
        hidden, residual: [rows, H], mutated; they must not share memory.
        weight: [H].

    Raises:
        ValueError: mismatched shapes, dtypes or devices; a mutated tensor whose rows are not contiguous.

    Source: csrc/ops/add_rms_norm.cpp
    """
    _native.add_rms_norm_(hidden, residual, weight, eps)


def add_rms_norm_capture_(
    hidden: Tensor, residual: Tensor, weight: Tensor, eps: float, features: Tensor, slot: int
) -> None:
    """`add_rms_norm_` that also writes the updated residual to features[:, slot*H : (slot+1)*H]: capture in passing.

    Args:
        hidden, residual: [rows, H], mutated; they must not share memory.
        weight: [H].
        features: [rows, >= (slot+1)*H], mutated in that slot only.

    Raises:
        ValueError: mismatched shapes, dtypes or devices; a mutated tensor whose rows are not contiguous.
        IndexError: the slot does not lie inside features.

    Source: csrc/ops/add_rms_norm.cpp
    """
    _native.add_rms_norm_capture_(hidden, residual, weight, eps, features, slot)


def gather_concat(
    states: Tensor | Sequence[Tensor],
    rows: Tensor,
    norm_weights: Sequence[Tensor] = (),
    eps: float = 1e-6,
    *,
    out: Tensor | None = None,
    check: bool | None = None,
) -> Tensor:
    """out[m] = [states[0][rows[m]] | ... | states[K-1][rows[m]]], optionally normed; row -1 gives zeros.

    Without norms the copy is bit-exact. Which rows the last forward wrote is not known here: `Features.gather` knows.

    Args:
        states: K tensors [n, H], 1 to 16 of them, or one packed tensor [n, K*H].
        rows: [m], each -1 (padding) or in [0, n).
        norm_weights: none; one of [K*H], which norms the whole row; or K of [H], which norm each state by itself (a
            packed tensor is then split into K).
        out: [m, K*H] to write to instead of allocating.
        check: whether rows are checked, which reads them; by default on the CPU, where that costs no synchronisation.
            Unchecked rows outside [0, n) give zeros.

    Returns:
        [m, K*H]; `out` if it was given.

    Raises:
        ValueError: mismatched shapes, dtypes or devices; no states, or more than 16; another number of norm weights.
        IndexError: a row is out of range, and check is on.

    Source: csrc/ops/gather_concat.cpp
    """
    if isinstance(states, Tensor):
        states = (states,)
    if out is None:
        return _native.gather_concat.default(states, rows, norm_weights, eps, check)
    _native.gather_concat.out(states, rows, norm_weights, eps, check, out=out)
    return out


def accepted_rows(accept_lengths: Tensor, width: int, block_front: bool = False) -> tuple[Tensor, Tensor]:
    """Turns accept lengths into the rows of a [B*width, ...] buffer that were accepted, without leaving the device.

    Args:
        accept_lengths: [B], each in [0, width]; a+1 after a round that accepted a drafts, 0 for a finished sequence.
        width: rows per sequence in the buffer, D+1.
        block_front: False packs all accepted rows to the front (vLLM's layout); True keeps every sequence's block and
            pads its end (SGLang's).

    Returns:
        rows: int64 [B*width], -1 where nothing was accepted.
        row_offsets: int64 [B+1]; sequence b begins at rows[row_offsets[b]]. Packed: the running sum of accept_lengths.
            Block-front: multiples of width.

    Raises:
        ValueError: width below 1, an accept length outside [0, width], a wrong rank or dtype.

    Source: csrc/ops/accepted_rows.cpp
    """
    return _native.accepted_rows(accept_lengths, width, block_front)


def draft_input(
    tokens: Tensor,
    hidden: Tensor,
    embed_weight: Tensor | None,
    embed_norm: Tensor,
    hidden_norm: Tensor | None,
    eps: float,
    token_embeddings: Tensor | None = None,
) -> Tensor:
    """The drafter layer's input: x = [RMS(E[token]; embed_norm) | RMS(hidden; hidden_norm)]; token -1 gives zeros.

    Args:
        tokens: [n], each -1 (padding) or in [0, V).
        hidden: [n, h], fused features or the recurrent hidden.
        embed_weight: [V, h]; may be None with token_embeddings.
        embed_norm: [h].
        hidden_norm: [h]; None copies hidden as it is.
        token_embeddings: [n, h], used instead of the lookup (multimodal rows).

    Returns:
        [n, 2h], embedding first.

    Raises:
        ValueError: mismatched shapes, dtypes or devices; neither embed_weight nor token_embeddings.
        IndexError: a token is out of range and would be looked up.

    Source: csrc/ops/draft_input.cpp
    """
    return _native.draft_input(tokens, hidden, embed_weight, embed_norm, hidden_norm, eps, token_embeddings)


def head_rms_norm_(
    qkv: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, num_q_heads: int, num_kv_heads: int
) -> None:
    """RMS norm of each q head and each k head of qkv, in place: the q_norm and k_norm of Qwen3, which come before RoPE.

    Args:
        qkv: [n, (num_q_heads + 2*num_kv_heads) * d], mutated: q heads, then k heads, then v heads, which stay.
        q_weight, k_weight: [d], the gain of every q head and of every k head.

    Raises:
        ValueError: mismatched shapes, dtypes or devices; a negative number of heads; qkv whose rows are not contiguous.

    Source: csrc/ops/head_rms_norm.cpp
    """
    _native.head_rms_norm_(qkv, q_weight, k_weight, eps, num_q_heads, num_kv_heads)


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
    """Rotates q and k of qkv in place (float32 arithmetic, rounded once) and appends k, v to the cache rows `slots`.

    Args:
        qkv: [n, (num_q_heads + 2*num_kv_heads) * d], mutated: q heads, then k heads, then v heads.
        positions: [n], in [0, max_position); any value where the slot is -1.
        slots: [n], each -1 (writes nothing) or in [0, num_slots).
        cos_sin: float32 [max_position, rotary_dim] from `rope.rope_table`; later dimensions of a head pass through.
        k_cache, v_cache: [num_slots, num_kv_heads, d], contiguous, mutated in the rows `slots`.

    Raises:
        ValueError: mismatched shapes, dtypes or devices; an odd rotary_dim; a mutated tensor with gaps.
        IndexError: a slot, or the position of a row with a slot, is out of range.

    Source: csrc/ops/rope_append.cpp
    """
    _native.rope_append_(qkv, positions, slots, cos_sin, num_q_heads, num_kv_heads, k_cache, v_cache)


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
    """The rows of latent attention (MLA): rotates q_pe in place and writes [latent | rotated key] to the cache.

    cache[slots[i]] = [RMS(kv[i, :latent]; kv_weight) | rope(kv[i, latent:])]. Pairs are (i, i + r/2), rotated in
    float32 and rounded once. The cache serves `draft_attention` as keys, and its first `latent` columns as values.

    Args:
        q_pe: [n, heads, r], r even, mutated: the part of each query head that is rotated. Any strides between rows and
            between heads, as those of the last r columns of wider heads.
        kv: [n, latent + r], what kv_a_proj_with_mqa gives.
        kv_weight: [latent], the gain of kv_a_layernorm.
        positions: [n], in [0, max_position); any value where the slot is -1.
        slots: [n], each -1 (writes nothing) or in [0, num_slots).
        cos_sin: float32 [max_position, r] from `rope.rope_table`.
        cache: [num_slots, latent + r], contiguous, mutated in the rows `slots`.

    Raises:
        ValueError: mismatched shapes, dtypes or devices; an odd r; a mutated tensor with gaps or overlapping heads.
        IndexError: a slot, or the position of a row with a slot, is out of range.

    Source: csrc/ops/mla_append.cpp
    """
    _native.mla_append_(q_pe, kv, kv_weight, eps, positions, slots, cos_sin, cache)


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
    """Causal grouped-query attention of a few rows per sequence to the cache; float32 accumulation, rounded once.

    The rows of a sequence are the last of its cache rows: row j of m sees the first cache_lengths[b] - m + j + 1. A row
    of the result does not depend, by a single bit, on what else is in the call.

    Args:
        q: [n, num_q_heads, d], rotated.
        k_cache: [num_slots, num_kv_heads, d], any strides between slots and between heads; num_q_heads is a multiple of
            num_kv_heads. On CUDA d is at most 768.
        v_cache: [num_slots, num_kv_heads, d_v], likewise; on CUDA d_v is at most 512. It may be a view of k_cache:
            k_cache[..., :d_v] are the latents of absorbed MLA.
        row_offsets: [B+1], from 0 and never falling; sequence b owns query rows row_offsets[b] .. row_offsets[b+1].
        cache_starts, cache_lengths: [B], the cache rows of each sequence, its own rows included.
        window: most keys that a row sees, its own and those before it; None: all of them.

    Returns:
        [n, num_q_heads * d_v]; zeros in rows past row_offsets[B].

    Raises:
        ValueError: mismatched shapes, dtypes or devices; a head count that does not divide; a window below 1.
        IndexError: a sequence's query or cache rows lie outside q or the cache.

    Source: csrc/ops/draft_attention.cpp
    """
    return _native.draft_attention(q, k_cache, v_cache, row_offsets, cache_starts, cache_lengths, scale, window)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up = [gate | up]: [n, 2i] -> [n, i]. silu is rounded before the product, as in eager.

    Raises ValueError for another rank, an odd width or another dtype.

    Source: csrc/ops/silu_mul.cpp
    """
    return _native.silu_mul(gate_up)


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T (+ bias), made for 1 to 8 rows; float32 accumulation, rounded once.

    Up to 8 rows it is row-invariant: a row of y depends on that row of x alone, bit for bit, whatever the other rows or
    the number of threads. More rows go to a GEMM, without that promise.

    Args:
        x: [m, k].
        weight: [n, k].
        bias: [n].

    Returns:
        [m, n].

    Raises:
        ValueError: mismatched shapes, dtypes or devices.

    Source: csrc/ops/skinny_linear.cpp
    """
    return _native.skinny_linear(x, weight, bias)


def argmax_tokens(
    logits: Tensor, target_ids: Tensor | None = None, with_log_probs: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The best token of each row of logits; unlike torch.argmax, defined for ties and NaN.

    NaN counts as -inf, ties go to the lowest index, and a row of NaN alone gives draft index 0 and valid = False.

    Args:
        logits: [n, Vd], Vd at least 1.
        target_ids: int64 [Vd], the target's id of every draft token; None if they are the same. Not checked against V:
            the checkpoint loader did that.
        with_log_probs: whether log-probabilities are computed.

    Returns:
        tokens: int64 [n].
        valid: bool [n].
        log_probs: float32 [n], log softmax at the winner without the NaNs, meaningless where the best logit is not
            finite; [0] unless asked for.

    Raises:
        ValueError: a wrong rank, dtype or device; no columns; target_ids of another size than Vd.

    Source: csrc/ops/argmax_tokens.cpp
    """
    return _native.argmax_tokens(logits, target_ids, with_log_probs)


def verify_greedy(draft_tokens: Tensor, target_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Compares drafts with the target's greedy choices.

    Args:
        draft_tokens: [B, D]; -1 is padding and never accepted.
        target_tokens: [B, D+1]; column i is the target's choice after the first i drafts.

    Returns:
        accept_lengths: int64 [B], 1 + the length of the longest agreeing prefix.
        next_tokens: int64 [B], the bonus target_tokens[b, accept_lengths[b] - 1].

    Raises:
        ValueError: mismatched shapes, dtypes or devices.

    Source: csrc/ops/verify_greedy.cpp
    """
    return _native.verify_greedy(draft_tokens, target_tokens)


def _register_fake(overload: torch._ops.OpOverload, shapes: Callable[..., object]) -> None:
    """Registers `shapes` as the op's fake. One meta tensor among the arguments also brings a call here, where the
    kernels' check of devices is not reached: so it is made here as well."""
    arguments = [argument.name for argument in overload._schema.arguments]
    op = overload.name().removeprefix("eagle3_ext::").split(".")[0]

    @torch.library.register_fake(overload.name())
    def fake(*args: object, **kwargs: object) -> object:
        named = dict(zip(arguments, args), **kwargs)
        tensors = [(name, t) for name, v in named.items() for t in _tensors_of(v)]
        first_name, first = tensors[0]
        for name, tensor in tensors[1:]:
            if tensor.device != first.device:
                raise ValueError(f"{op}: {name} is on {tensor.device}, expected {first.device}, where {first_name} is")
        return shapes(*args, **kwargs)


def _tensors_of(value: object) -> list[Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in values if isinstance(item, Tensor)]


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


def _gather_concat(states, rows, norm_weights=None, eps=1e-6, check=None):
    return states[0].new_empty(rows.shape[0], len(states) * states[0].shape[1])


def _accepted_rows(accept_lengths, width, block_front=False):
    batch = accept_lengths.shape[0]
    return tuple(accept_lengths.new_empty(size, dtype=torch.int64) for size in (batch * width, batch + 1))


def _draft_input(tokens, hidden, embed_weight, embed_norm, hidden_norm, eps, token_embeddings=None):
    return hidden.new_empty(hidden.shape[0], 2 * hidden.shape[1])


def _draft_attention(q, k_cache, v_cache, row_offsets, cache_starts, cache_lengths, scale, window=None):
    return q.new_empty(q.shape[0], q.shape[1] * v_cache.shape[2])


def _silu_mul(gate_up):
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


def _skinny_linear(x, weight, bias=None):
    return x.new_empty(x.shape[0], weight.shape[0])


def _argmax_tokens(logits, target_ids=None, with_log_probs=False):
    rows = logits.shape[0]
    tokens = logits.new_empty(rows, dtype=torch.int64)
    valid = logits.new_empty(rows, dtype=torch.bool)
    return tokens, valid, logits.new_empty(rows if with_log_probs else 0, dtype=torch.float32)


def _verify_greedy(draft_tokens, target_tokens):
    batch = draft_tokens.shape[0]
    return tuple(draft_tokens.new_empty(batch, dtype=torch.int64) for _ in range(2))


_register_fake(_native.capture_.default, _nothing)
_register_fake(_native.add_rms_norm_.default, _nothing)
_register_fake(_native.add_rms_norm_capture_.default, _nothing)
_register_fake(_native.gather_concat.default, _gather_concat)
_register_fake(_native.gather_concat.out, _nothing)
_register_fake(_native.accepted_rows.default, _accepted_rows)
_register_fake(_native.draft_input.default, _draft_input)
_register_fake(_native.head_rms_norm_.default, _nothing)
_register_fake(_native.rope_append_.default, _nothing)
_register_fake(_native.mla_append_.default, _nothing)
_register_fake(_native.draft_attention.default, _draft_attention)
_register_fake(_native.silu_mul.default, _silu_mul)
_register_fake(_native.skinny_linear.default, _skinny_linear)
_register_fake(_native.argmax_tokens.default, _argmax_tokens)
_register_fake(_native.verify_greedy.default, _verify_greedy)
