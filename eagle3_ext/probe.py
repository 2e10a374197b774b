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
from .text_config import text_config_of
from .vocabulary import fit_vocabulary, vocab_size_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHIFTS = (-1, 0, 1)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class BoundaryProbe:
    """How often the drafter's first draft is the target's own next token, per shift of all boundaries.

    Attributes:
        plan: the plan that was shifted.
        agreement: shift -> share of rows that agree, top 1. Shifts that leave the target's layers are not in it.
        rows: how many rows were compared.
        errors: shift -> standard error of its distance from `best`, as a share of rows, from the rows where only one
            of the two agrees (McNemar: were both equally good, their difference would have this deviation).
    """

    plan: CapturePlan
    agreement: dict[int, float]
    rows: int
    errors: dict[int, float]

    @property
    def best(self) -> int:
        """The shift with the highest agreement, the smallest move among equals; by chance, where `winner` is None."""
        return _best(self.agreement)

    @property
    def winner(self) -> int | None:
        """`best` where it leads every other shift by more than two standard errors; None: these rows cannot tell."""
        return None if len(self.agreement) < 2 or self._rivals() else self.best

    def _rivals(self) -> list[int]:
        """The shifts that `best` cannot be told apart from, the closest first."""
        lead = {shift: self.agreement[self.best] - share for shift, share in self.agreement.items()
                if shift != self.best}
        # Far below one row of any probe: a lead of exactly two errors must not win by rounding.
        close = [shift for shift in lead if lead[shift] <= 2 * self.errors[shift] + 1e-9]
        return sorted(close, key=lambda shift: lead[shift])

    def boundaries(self, shift: int) -> tuple[int, ...]:
        """The plan's boundaries, all moved by `shift`."""
        return tuple(boundary + shift for boundary in self.plan.boundaries)

    def __str__(self) -> str:
        lines = [f"top-1 agreement with the target over {self.rows} rows"]
        top = self.agreement[self.best]
        for shift, share in sorted(self.agreement.items()):
            behind = f", {top - share:.1%} behind (standard error {self.errors[shift]:.1%})"
            lines.append(f"shift {shift:+d}, {boundaries_in_words(self.boundaries(shift))}: {share:.1%}"
                         f"{'' if shift == self.best else behind}")
        if self.winner is not None:
            return "\n".join([*lines, f"trained on {boundaries_in_words(self.boundaries(self.winner))}"])
        if len(self.agreement) < 2:
            return "\n".join([*lines, "cannot tell: no other shift fits the target"])
        rivals = " and ".join(f"{shift:+d}" for shift in self._rivals())
        verdict = (f"cannot tell: shift {self.best:+d} leads {rivals} by no more than two standard errors; compare more "
                   "text, best written by the target")
        return "\n".join([*lines, verdict])


def probe_boundaries(
    model: PreTrainedModel,
    checkpoint: Checkpoint,
    texts: Iterable[Sequence[int] | torch.Tensor],
    *,
    boundaries: Sequence[int] | None = None,
    shifts: Sequence[int] = SHIFTS,
) -> BoundaryProbe:
    """Runs the drafter over `texts` with its boundaries moved by each of `shifts`, and compares its first drafts.

    `texts` are token ids as the target sees them, sequences or tensors of integers, a thousand in all or more; text the
    target itself wrote is best.
    One target forward per text gives the states of all shifts and the target's own choices. A drafter with a wrong
    shift loses from a few to most of its agreements. `boundaries` replaces the plan to shift, and is needed where the
    file's layer ids are ambiguous.

    Raises:
        BoundaryError: no shift fits the target, or a text has fewer than 3 tokens; and what `resolve_plan` raises.
        TypeError: a text is no sequence of integers.
        ValueError: a token id is outside the target's vocabulary.
    """
    target = text_config_of(model)
    layers = target.num_hidden_layers
    plan = resolve_plan(checkpoint.config, layers, target.hidden_size, boundaries, checkpoint.provenance)
    if plan.final_norm:
        raise BoundaryError(f"a drafter without fc has one reading, there is nothing to shift: it {plan.describe()}")
    fitting = [shift for shift in shifts if plan.boundaries[0] + shift >= 0 and plan.boundaries[-1] + shift <= layers]
    if not fitting:
        raise BoundaryError(f"no shift of {tuple(shifts)} keeps {plan.boundaries} within [0, {layers}]")
    ids = _token_ids(texts, vocab_size_of(model))
    drafter = _reference_drafter(model, checkpoint)
    union = sorted({boundary + shift for boundary in plan.boundaries for shift in fitting})
    agrees: dict[int, list[torch.Tensor]] = {shift: [] for shift in fitting}
    for tokens in ids:
        with capture(model, CapturePlan(tuple(union), plan.hidden_size)) as features, torch.no_grad():
            choices = model(input_ids=tokens[None].to(next(model.parameters()).device)).logits[0].argmax(-1).cpu()
        states = features.tensor.cpu().unflatten(1, (len(union), plan.hidden_size))
        for shift in fitting:
            picked = [union.index(boundary + shift) for boundary in plan.boundaries]
            agrees[shift].append(_agreements(drafter, states[:, picked].flatten(1), tokens, choices))
    return _compare(plan, {shift: torch.cat(parts) for shift, parts in agrees.items()})


def _compare(plan: CapturePlan, agrees: dict[int, torch.Tensor]) -> BoundaryProbe:
    """`agrees`: shift -> bool [rows], the same rows for every shift."""
    rows = len(next(iter(agrees.values())))
    agreement = {shift: int(hits.sum()) / rows for shift, hits in agrees.items()}
    best = agrees[_best(agreement)]
    errors = {shift: int((hits ^ best).sum()) ** 0.5 / rows for shift, hits in agrees.items()}
    return BoundaryProbe(plan, agreement, rows, errors)


def _best(agreement: dict[int, float]) -> int:
    return min(agreement, key=lambda shift: (-agreement[shift], abs(shift)))


def _token_ids(texts: Iterable[Sequence[int] | torch.Tensor], vocab_size: int) -> list[torch.Tensor]:
    """Each text as int64 [tokens], checked: a conversion would cut floats, and models index out of their tables."""
    found = []
    for i, text in enumerate(texts):
        try:
            tokens = torch.as_tensor(text).flatten()
        except (TypeError, ValueError, RuntimeError):
            tokens = None
        if tokens is None or (tokens.numel() and tokens.dtype not in _INTEGERS):
            held = f"a {type(text).__name__}" if tokens is None else f"of {tokens.dtype}"
            raise TypeError(f"texts[{i}] is {held}: {str(text)[:60]!r}; expected a sequence or tensor of integer "
                            "token ids")
        if len(tokens) < 3:
            raise BoundaryError(f"texts[{i}] of {len(tokens)} tokens has no row to compare; it needs 3")
        tokens = tokens.long().cpu()
        outside = ((tokens < 0) | (tokens >= vocab_size)).nonzero().flatten()
        if len(outside):
            at = int(outside[0])
            raise ValueError(f"texts[{i}][{at}] is {int(tokens[at])}; expected token ids from 0 to {vocab_size - 1}")
        found.append(tokens)
    if not found:
        raise BoundaryError("texts is empty; there is nothing to compare")
    return found


def _agreements(
    drafter: reference.Drafter, features: torch.Tensor, tokens: torch.Tensor, choices: torch.Tensor
) -> torch.Tensor:
    """bool [rows]: row t pairs the features of position t with token t + 1, and drafts t + 2, which the target chose at
    t + 1."""
    rows = len(tokens) - 2
    drafter.reset()
    drafter.extend(features[:rows], tokens[1 : rows + 1], torch.arange(rows))
    drafts, valid, _ = reference.argmax_tokens(drafter.head(drafter.y), drafter.weights.get("target_ids"))
    return (drafts == choices[1 : rows + 1]) & valid


def _reference_drafter(model: PreTrainedModel, checkpoint: Checkpoint) -> reference.Drafter:
    """In float32, whatever the weights are stored in: agreement is to measure the boundaries and nothing else."""
    config, weights = fit_vocabulary(checkpoint, model)
    weights = {name: w.cpu().float() if w.is_floating_point() else w.cpu() for name, w in weights.items()}
    return reference.Drafter(config, weights)
