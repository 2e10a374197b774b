"""Row-invariant attention for a CPU target in half precision: `draft_attention` over the target's own cache.

torch's bf16 scaled_dot_product_attention rounds a row differently when other rows share the call (seen on an AVX2
processor: most layers agree, some differ in the last bit), and in bf16 a last bit decides the exact ties between logits.
`draft_attention` computes every query row alone, sees the cache in place, and reads no further than the text is long.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator, NamedTuple

import torch

from .native_linear import MAX_INVARIANT_ROWS
from .text_config import text_config_of

NAME = "eagle3_row_invariant"


class _Span(NamedTuple):
    """The cache rows that a forward's last row sees, as draft_attention takes them; made once for all layers."""

    row_offsets: torch.Tensor
    cache_starts: torch.Tensor
    cache_lengths: torch.Tensor


_span: ContextVar[_Span | None] = ContextVar("eagle3_row_invariant_span", default=None)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **options,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, nq, rows, d], key and value [1, nkv, >= keys, d or dv] -> [1, rows, nq, dv].
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    span = _span.get()
    if span is None:  # a prefill, which plain and speculative decoding run with identical shapes
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    _, heads, rows, dim = query.shape
    value_dim = value.shape[-1]  # less than dim where keys carry a RoPE part of their own (DeepSeek)
    scale = dim**-0.5 if scaling is None else scaling
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    out = torch.ops.eagle3_ext.draft_attention(q, k, v, *span, scale)
    return out.view(1, rows, heads, value_dim), None


class RowInvariantAttention:
    """`with attention.over(length, rows): model(...)`; reversible, and nothing else changes."""

    def __init__(self, model: torch.nn.Module, max_length: int):
        """Raises ValueError for a model whose layers are not all plain causal attention through transformers' sdpa."""
        self._config = text_config_of(model)
        used = self._config._attn_implementation
        advice = "; row-invariant attention cannot stand in for it. Use fp32, or row_invariant=False"
        if used not in ("sdpa", NAME):
            raise ValueError(f'{type(model).__name__} uses attention "{used}", expected "sdpa"{advice}')
        if others := _kinds_of_attention(self._config, max_length) - {"full_attention"}:
            raise ValueError(f"{type(model).__name__} has layers with {', '.join(sorted(others))}{advice}")
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(NAME, _attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)

    @contextmanager
    def over(self, length: int, rows: int) -> Iterator[None]:
        """For one forward of `rows` new tokens, after which the cache holds `length`. Batch 1."""
        span = None
        if rows <= MAX_INVARIANT_ROWS:
            span = _Span(torch.tensor([0, rows]), torch.zeros(1, dtype=torch.int64), torch.tensor([length]))
        saved, token = self._config._attn_implementation, _span.set(span)
        self._config._attn_implementation = NAME
        try:
            yield
        finally:
            self._config._attn_implementation = saved
            _span.reset(token)


def _kinds_of_attention(config, max_length: int) -> set[str]:
    """The kinds of the model's layers; a window that no text of max_length outgrows is full attention."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    return {"full_attention" if kind == "sliding_attention" and max_length <= window else kind for kind in kinds}
