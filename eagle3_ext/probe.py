"""`probe_boundaries`: which reading of the layer ids a drafter was trained on, measured on its target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import reference
from .checkpoint import Checkpoint
from .errors import BoundaryError
from .features import capture
from .plan import CapturePlan, boundaries_in_words, resolve_plan
from .sharing import shared_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHIFTS = (-1, 0, 1)


@dataclass(frozen=True)
class BoundaryProbe:
    """How often the drafter's first draft is the target's own next token, per shift of all boundaries.

    Attributes:
        plan: the plan that was shifted.
        agreement: shift -> share of rows that agree, top 1. Shifts that leave the target's layers are not in it.
        rows: how many rows were compared.
    """

    plan: CapturePlan
    agreement: dict[int, float]
    rows: int

    @property
    def best(self) -> int:
        """The shift with the highest agreement; the smallest move among equals."""
        return min(self.agreement, key=lambda shift: (-self.agreement[shift], abs(shift)))

    def boundaries(self, shift: int) -> tuple[int, ...]:
        """The plan's boundaries, all moved by `shift`."""
        return tuple(boundary + shift for boundary in self.plan.boundaries)

    def __str__(self) -> str:
        lines = [f"shift {shift:+d}, {boundaries_in_words(self.boundaries(shift))}: {share:.1%}"
                 for shift, share in sorted(self.agreement.items())]
        words = boundaries_in_words(self.boundaries(self.best))
        return "\n".join([f"top-1 agreement with the target over {self.rows} rows", *lines, f"trained on {words}"])


def probe_boundaries(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    texts: Iterable[Sequence[int] | torch.Tensor],
    *,
    boundaries: Sequence[int] | None = None,
    shifts: Sequence[int] = SHIFTS,
) -> BoundaryProbe:
    """Runs the drafter over `texts` with its boundaries moved by each of `shifts`, and compares its first drafts.

    `texts` are token ids as the target sees them, a thousand in all or more; text the target itself wrote is best.
    One target forward per text gives the states of all shifts and the target's own choices. A drafter with a wrong
    shift loses from a few to most of its agreements. `boundaries` replaces the plan to shift, and is needed where the
    file's layer ids are ambiguous.

    Raises:
        BoundaryError: no shift fits the target, or a text has fewer than 3 tokens; and what `resolve_plan` raises.
    """
    target = model.config.get_text_config()
    layers = target.num_hidden_layers
    plan = resolve_plan(checkpoint.config, layers, target.hidden_size, boundaries, checkpoint.provenance)
    if plan.final_norm:
        raise BoundaryError(f"a drafter without fc has one reading, there is nothing to shift: it {plan.describe()}")
    fitting = [shift for shift in shifts if plan.boundaries[0] + shift >= 0 and plan.boundaries[-1] + shift <= layers]
    if not fitting:
        raise BoundaryError(f"no shift of {tuple(shifts)} keeps {plan.boundaries} within [0, {layers}]")
    drafter = _reference_drafter(model, checkpoint)
    union = sorted({boundary + shift for boundary in plan.boundaries for shift in fitting})
    hits, rows = dict.fromkeys(fitting, 0), 0
    for text in texts:
        tokens = torch.as_tensor(text, dtype=torch.int64).flatten()
        if len(tokens) < 3:
            raise BoundaryError(f"a text of {len(tokens)} tokens has no row to compare; it needs 3")
        with capture(model, CapturePlan(tuple(union), plan.hidden_size)) as features, torch.no_grad():
            choices = model(input_ids=tokens[None].to(next(model.parameters()).device)).logits[0].argmax(-1).cpu()
        states = features.tensor.cpu().unflatten(1, (len(union), plan.hidden_size))
        for shift in fitting:
            picked = [union.index(boundary + shift) for boundary in plan.boundaries]
            hits[shift] += _agreements(drafter, states[:, picked].flatten(1), tokens, choices)
        rows += len(tokens) - 2
    if not rows:
        raise BoundaryError("texts is empty; nothing was compared")
    return BoundaryProbe(plan, {shift: count / rows for shift, count in hits.items()}, rows)


def _agreements(drafter: reference.Drafter, features: torch.Tensor, tokens: torch.Tensor, choices: torch.Tensor) -> int:
    """Row t pairs the features of position t with token t + 1 and drafts t + 2, which the target chose at t + 1."""
    rows = len(tokens) - 2
    drafter.reset()
    drafter.extend(features[:rows], tokens[1 : rows + 1], torch.arange(rows))
    drafts, valid, _ = reference.argmax_tokens(drafter.head(drafter.y), drafter.weights.get("target_ids"))
    return int(((drafts == choices[1 : rows + 1]) & valid).sum())


def _reference_drafter(model: PreTrainedModel, checkpoint: Checkpoint) -> reference.Drafter:
    """In float32, whatever the weights are stored in: agreement is to measure the boundaries and nothing else."""
    config = checkpoint.config
    weights = dict(checkpoint.weights)
    h = config.hidden_size
    if not config.own_embedding:
        table = shared_table(model.get_input_embeddings(), "embed_tokens.weight", config.vocab_size, h)
        weights["embed_tokens.weight"] = table.cpu()
    if not config.own_head and not config.tied_head:
        table = shared_table(model.get_output_embeddings(), "lm_head.weight", config.draft_vocab_size, h)
        weights["lm_head.weight"] = table.cpu()
    weights = {name: w.float() if w.is_floating_point() else w for name, w in weights.items()}
    return reference.Drafter(config, weights)
