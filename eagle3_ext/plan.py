"""Which hidden states of the target make one features row: the plan, and the one rule that resolves it.

Boundary 0 is the embedding output, boundary i + 1 the output of decoder layer i, boundary n the last layer's output
before the final norm. Nothing else in this project numbers layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import BoundaryError, FeatureWidthError

if TYPE_CHECKING:
    from .checkpoint import DrafterConfig, LayerIds, Provenance


def boundary_name(boundary: int) -> str:
    """What lives at a boundary, in words: "the embedding output" or "the output of layer 30"."""
    return "the embedding output" if boundary == 0 else f"the output of layer {boundary - 1}"


def boundaries_in_words(boundaries: Sequence[int]) -> str:
    """ "the outputs of layers 2, 30, 58 (boundaries 3, 31, 59)"."""
    layers = [str(boundary - 1) for boundary in boundaries if boundary > 0]
    parts = ["the embedding output"] if 0 in boundaries else []
    if layers:
        parts.append(f"{'the outputs of layers' if len(layers) > 1 else 'the output of layer'} {', '.join(layers)}")
    numbers = ("boundaries " if len(boundaries) > 1 else "boundary ") + ", ".join(map(str, boundaries))
    return f"{' and '.join(parts)} ({numbers})"


def default_boundaries(num_layers: int) -> tuple[int, int, int]:
    """(2, n//2, n-3): what SafeAILab's code captures, and every stack's default in one spelling or the other."""
    return (2, num_layers // 2, num_layers - 3)


@dataclass(frozen=True)
class CapturePlan:
    """Which hidden states make one features row, in which order and width.

    Attributes:
        boundaries: ascending and distinct, one per captured state (K of them).
        hidden_size: H, the target's hidden size.
        final_norm: capture after the final norm instead; only with the single boundary n.
        decided_by: the rule that chose the boundaries, in words; "" for a plan made by hand.
        other_reading: what the file's layer ids would mean to those who read them the other way, in words.
    """

    boundaries: tuple[int, ...]
    hidden_size: int
    final_norm: bool = False
    decided_by: str = field(default="", compare=False)
    other_reading: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(int(boundary) for boundary in self.boundaries))
        if not self.boundaries or self.hidden_size < 1:
            raise BoundaryError(f"a plan needs boundaries and a hidden size, got {self.boundaries}, {self.hidden_size}")
        if self.boundaries[0] < 0 or any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:])):
            raise BoundaryError(f"boundaries must be >= 0, distinct and ascending, got {self.boundaries}")
        if self.final_norm and len(self.boundaries) != 1:
            raise BoundaryError(f"final_norm captures the one state after the last layer; got {self.boundaries}")

    @property
    def width(self) -> int:
        """K*H, the last dimension of features."""
        return len(self.boundaries) * self.hidden_size

    def describe(self) -> str:
        """One line: "captures the outputs of layers 2, 30, 58 (boundaries 3, 31, 59) -> 3 x 7168 = 21504"."""
        states = boundaries_in_words(self.boundaries)
        if self.final_norm:
            states = f"the final norm's output (boundary {self.boundaries[0]})"
        return f"captures {states} -> {len(self.boundaries)} x {self.hidden_size} = {self.width}"

    def __str__(self) -> str:
        """`describe`, then which rule decided and what the other reading would have been."""
        return "; ".join(part for part in (self.describe(), self.decided_by, self.other_reading) if part)


def resolve_plan(
    config: DrafterConfig,
    num_layers: int,
    target_hidden_size: int,
    boundaries: Sequence[int] | None = None,
    provenance: Provenance | None = None,
) -> CapturePlan:
    """The capture plan of a drafter on a target of `num_layers` layers and hidden size `target_hidden_size`.

    The first that there is decides: `boundaries`; for a drafter without fc (fusion "none") the state after the final
    norm; the sidecar `eagle3_ext.json`; the file's layer ids, read as its training stack means them; the published
    default (2, n//2, n-3). Engines concatenate in ascending order whatever order a file lists, so another order is
    sorted with a warning.

    Raises:
        BoundaryError: a boundary is out of [0, n] or repeated, the number of states is not the drafter's, or the file's
            layer ids can be read two ways and nothing says which.
        FeatureWidthError: the drafter was trained on another hidden size than the target's.
    """
    chosen, decided_by, other = _chosen(config, num_layers, boundaries, provenance)
    chosen = [int(boundary) for boundary in chosen]
    outside = [boundary for boundary in chosen if not 0 <= boundary <= num_layers]
    if outside:
        raise BoundaryError(
            f"boundaries {outside} of {tuple(chosen)} are outside [0, {num_layers}]; the target has {num_layers} layers"
            f" (num_hidden_layers; {decided_by})"
        )
    if len(set(chosen)) != len(chosen):
        raise BoundaryError(
            f"boundaries {tuple(chosen)} repeat on a target of {num_layers} layers (num_hidden_layers; {decided_by}); "
            "pass distinct ones"
        )
    if chosen != sorted(chosen):
        warnings.warn(
            f"boundaries {tuple(chosen)} are not ascending; captured and fused as {tuple(sorted(chosen))}, "
            "as every engine does",
            stacklevel=2,
        )
    if len(chosen) != config.num_states:
        raise BoundaryError(
            f"{len(chosen)} boundaries {tuple(chosen)}, but the drafter fuses {config.num_states} states of width "
            f"{config.target_hidden_size} = {config.num_states * config.target_hidden_size}"
        )
    if config.target_hidden_size != target_hidden_size:
        raise FeatureWidthError(
            f"the drafter fuses {config.num_states} x {config.target_hidden_size} = "
            f"{config.num_states * config.target_hidden_size}, but the target's hidden size is {target_hidden_size}: "
            "this drafter belongs to another target"
        )
    final_norm = config.fusion == "none" and chosen == [num_layers]
    return CapturePlan(tuple(sorted(chosen)), target_hidden_size, final_norm, decided_by, other)


def _chosen(
    config: DrafterConfig, num_layers: int, boundaries: Sequence[int] | None, provenance: Provenance | None
) -> tuple[Sequence[int], str, str]:
    """Boundaries, the rule that chose them, and the other reading of the file's layer ids."""
    ids = provenance.layer_ids if provenance else None
    if boundaries is not None:
        return boundaries, "decided by the caller's boundaries", ""
    if config.fusion == "none":
        return (num_layers,), "a drafter without fc takes the state after the final norm", ""
    if provenance is not None and provenance.sidecar_boundaries is not None:
        return provenance.sidecar_boundaries, "decided by eagle3_ext.json", ""
    if ids is not None and config.boundaries == ids.boundaries:  # else someone replaced the config's boundaries
        return _from_ids(ids, num_layers)
    if config.boundaries is not None:
        return config.boundaries, "decided by the config's boundaries", ""
    if config.num_states != 3:
        raise BoundaryError(
            f"the drafter's file names no layers and fuses {config.num_states} states; "
            "the default (2, n//2, n-3) has 3. Pass boundaries=."
        )
    default = default_boundaries(num_layers)
    if not default[0] < default[1] < default[2]:
        raise BoundaryError(
            "the file names no layers, and the published default (2, n//2, n-3) is ascending only from n = 7 on, but the "
            f"target's num_hidden_layers is {num_layers}. Pass boundaries="
        )
    return default, "the file names no layers: decided by the published default (2, n//2, n-3)", ""


def _from_ids(ids: LayerIds, num_layers: int) -> tuple[Sequence[int], str, str]:
    listed = f"the file's layer ids {list(ids.listed)}"
    if max(ids.listed) == num_layers:  # no layer n has an output
        return ids.as_boundaries(), f"decided by {listed}: {num_layers} can only be the last boundary", ""
    if ids.reading == "ambiguous":
        raise BoundaryError(
            f"{listed} can be read two ways: {ids.because}. Pass boundaries={ids.as_boundaries()} for "
            f"{boundaries_in_words(ids.as_boundaries())}, or boundaries={ids.as_outputs()} for "
            f"{boundaries_in_words(ids.as_outputs())}; probe_boundaries measures which the weights were trained on"
        )
    chosen, other = ids.boundaries, ids.other_reading
    assert chosen is not None
    reading = "boundaries" if ids.reading == "outputs" else "layer outputs"
    text = f"read as {reading} they would be {boundaries_in_words(other)}" if min(other) >= 0 else ""
    if text and other == default_boundaries(num_layers):
        text += ", the published default: if drafts are poor, probe_boundaries tells which it is"
    return chosen, f"decided by {listed}: {ids.because}", text
