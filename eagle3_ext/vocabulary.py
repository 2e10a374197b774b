"""One vocabulary for a target and its drafter: embedding and head in place, and ids that only one of them knows.

The target's vocabulary V is what it can read, the rows of its embedding. Further columns of its head are padding, from
which no text can go on, and are never chosen.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

import torch

from .checkpoint import Checkpoint, DrafterConfig
from .errors import CheckpointError
from .sharing import shared_table
from .text_config import text_config_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


def vocab_size_of(model: PreTrainedModel) -> int:
    """V: the rows of the model's embedding, whatever form its weights have."""
    embedding, config = model.get_input_embeddings(), text_config_of(model)
    said = getattr(embedding, "num_embeddings", None) or getattr(config, "vocab_size", None)
    return _rows(embedding) or said or embedding.weight.shape[0]


def fit_vocabulary(
    checkpoint: Checkpoint, model: PreTrainedModel
) -> tuple[DrafterConfig, dict[str, torch.Tensor]]:
    """The checkpoint's config and weights over the target's vocabulary, with the embedding [V, h] and head [Vd, h] that
    the drafter uses; the target's own where the file has none.

    Ids that only the target has are never drafted. As input they have the target's embedding; zeros where that is
    quantised or of another width, so that such a row drafts from its features alone. Ids that only the drafter has
    leave its draft vocabulary. Either is told by a warning. Raises CheckpointError where nothing is left to draft, and what
    `sharing.shared_table` raises.
    """
    config, weights = checkpoint.config, dict(checkpoint.weights)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    size, known_rows = vocab_size_of(model), _rows(head)
    said = getattr(text_config_of(model), "vocab_size", None)
    # A table shorter than its own config says is a part of one, and no smaller vocabulary.
    is_whole = said is not None and said <= size
    if not config.own_embedding:
        rows = size if is_whole else max(size, config.vocab_size)
        weights[EMBEDDING] = shared_table(embedding, EMBEDDING, rows, config.hidden_size)
    elif config.vocab_size != size:
        weights[EMBEDDING] = _resized(weights[EMBEDDING], embedding, size)
    if config.tied_head:
        weights[HEAD] = weights[EMBEDDING][: config.draft_vocab_size]
    elif not config.own_head:
        rows = min(config.draft_vocab_size, known_rows or size) if is_whole else config.draft_vocab_size
        weights[HEAD] = shared_table(head, HEAD, rows, config.hidden_size)
    return _narrowed(config, weights, size, min(size, known_rows or size))


def _narrowed(
    config: DrafterConfig, weights: dict[str, torch.Tensor], size: int, speakable: int
) -> tuple[DrafterConfig, dict[str, torch.Tensor]]:
    """Without the draft ids from `speakable` on."""
    ids = weights.get("target_ids")
    if ids is None and config.draft_vocab_size < config.vocab_size:
        return config, weights  # refused by name when the drafter is built
    if ids is None:
        ids = torch.arange(config.draft_vocab_size)
    kept = ids < speakable
    count = int(kept.sum())
    if count == config.draft_vocab_size and size == config.vocab_size:
        return config, weights
    if not count:
        raise CheckpointError(
            f"the drafter drafts ids from {int(ids.min())} on, the target's vocabulary is [0, {speakable}): this "
            "drafter belongs to another target"
        )
    _tell(config, size, speakable, len(ids) - count)
    if count < len(ids):
        weights[HEAD] = weights[HEAD][kept[: len(weights[HEAD])].to(weights[HEAD].device)]
        ids = ids[kept]
    if count < size:
        weights["target_ids"] = ids
    own_head = config.own_head or config.tied_head
    sizes = {"vocab_size": size, "draft_vocab_size": count, "own_head": own_head, "tied_head": False}
    return dataclasses.replace(config, **sizes), weights


def _tell(config: DrafterConfig, size: int, speakable: int, dropped: int) -> None:
    found = f"the target's vocabulary is [0, {size}), the drafter's [0, {config.vocab_size})"
    if dropped:
        found += f": {dropped} of its draft ids are from {speakable} on, which the target lacks, and are left out"
    else:
        found += ": ids that only one of them has are never drafted"
    warnings.warn(f"{found}. Many such ids mean a drafter of another target", stacklevel=5)


def _rows(module: torch.nn.Module | None) -> int | None:
    """The rows of a module's table; None where it has none that is plain numbers (quantised, packed)."""
    weight = getattr(module, "weight", None)
    is_plain = isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.dim() == 2
    return weight.shape[0] if is_plain else None


def _resized(table: torch.Tensor, embedding: torch.nn.Module, size: int) -> torch.Tensor:
    """The drafter's own embedding, cut to `size` rows or continued by the target's."""
    if size <= len(table):
        return table[:size]
    weight = getattr(embedding, "weight", None)
    is_plain = type(weight) in (torch.Tensor, torch.nn.Parameter) and weight.device.type != "meta"
    if is_plain and _rows(embedding) == size and weight.shape[1] == table.shape[1]:
        return torch.cat([table, weight.detach()[len(table) :].to(table)])
    return torch.cat([table, table.new_zeros(size - len(table), table.shape[1])])
