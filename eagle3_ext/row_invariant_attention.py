"""Row-invariant attention for a CPU target in half precision: a verification computes each query row in a call of its own.

torch's bf16 scaled_dot_product_attention rounds a row differently when other rows share the call (seen on an AVX2
processor: most layers agree, some differ in the last bit), and in bf16 a last bit decides the exact ties between logits.
Row by row, the four rows of a verification are the very calls that plain decoding makes one after the other.
"""

from __future__ import annotations

from types import TracebackType

import torch

from .native_linear import MAX_INVARIANT_ROWS

NAME = "eagle3_row_invariant_sdpa"


def _row_by_row(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options,
) -> tuple[torch.Tensor, None]:
    """transformers' sdpa interface: query [B, nq, rows, d], mask [B or 1, 1, rows, keys] -> [B, rows, nq, d]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rows = query.shape[2]
    # More rows are a prefill, and both ways of decoding run the same one. Without a mask a row's keys are implied by its
    # place among the rows, so it cannot be cut out.
    if rows > MAX_INVARIANT_ROWS or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    parts = [
        sdpa_attention_forward(
            module, query[:, :, row : row + 1], key, value, attention_mask[:, :, row : row + 1], **options
        )[0]
        for row in range(rows)
    ]
    return torch.cat(parts, dim=1), None


class RowInvariantAttention:
    """`with attention: model(...)` runs the model's sdpa attention row by row. Reversible; nothing else changes."""

    def __init__(self, model: torch.nn.Module):
        """Raises ValueError for a model whose attention is not transformers' sdpa."""
        self._config = model.config.get_text_config(decoder=True)
        used = self._config._attn_implementation
        if used not in ("sdpa", NAME):
            raise ValueError(
                f'{type(model).__name__} uses attention "{used}"; row-invariant attention wraps "sdpa" only. Load the model '
                'with attn_implementation="sdpa", or use fp32'
            )
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(NAME, _row_by_row)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        self._saved: list[str] = []

    def __enter__(self) -> RowInvariantAttention:
        self._saved.append(self._config._attn_implementation)
        self._config._attn_implementation = NAME
        return self

    def __exit__(self, _type: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._config._attn_implementation = self._saved.pop()
