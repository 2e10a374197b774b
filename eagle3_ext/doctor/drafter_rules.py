"""The drafter itself: what it drafted against plain PyTorch, and how much of it was accepted."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field

from .events import Event, Trace, key_of
from .findings import Finding, found
from .witness import AS_FILED

WORST_PUBLISHED = 0.45  # first-position acceptance of the weakest published drafters
NEAR_TIE = 0.1  # two tokens whose log-probabilities under one drafter are closer than this may change places in bf16


@dataclass
class Agreement:
    """How one variant of the drafter's witness compares with what was drafted, up to each round's first difference."""

    compared: int = 0
    right: int = 0
    near_ties: int = 0
    gaps: list[float] = field(default_factory=list)  # of the log-probabilities of the two best tokens

    def add(self, event: Event, draft: dict[str, list]) -> None:
        for i, (token, other) in enumerate(zip(event["tokens"], draft["tokens"])):
            if token < 0:
                return  # padding: nothing was drafted
            self.compared += 1
            self.right += token == other
            if event["log_probs"][i] is not None:
                self.gaps.append(abs(event["log_probs"][i] - draft["log_probs"][i]))
            if token != other:
                drafted = draft["drafted_log_probs"][i]
                self.near_ties += drafted is not None and draft["log_probs"][i] - drafted < NEAR_TIE
                return  # what follows was drafted after different tokens

    @property
    def gap(self) -> float:
        return statistics.fmean(self.gaps or [0.0])

    @property
    def share(self) -> float:
        return self.right / self.compared

    @property
    def differs(self) -> bool:
        """Tokens that no rounding explains, or other probabilities for the same ones."""
        wrong = self.compared - self.right - self.near_ties
        return (wrong >= 3 and wrong > 0.1 * self.compared) or (self.compared >= 8 and self.gap > 0.2)


def drafter(trace: Trace) -> list[Finding]:
    """What was drafted against plain PyTorch: as filed, and with one thing changed."""
    agreements: dict[str, Agreement] = defaultdict(Agreement)
    for event in trace.drafts:
        for name, draft in event.get("witness", {}).items():
            agreements[name].add(event, draft)
    as_filed = agreements[AS_FILED]
    if not as_filed.differs:
        return []
    best = max(agreements, key=lambda name: (agreements[name].share, -agreements[name].gap))
    closest = agreements[best]
    line = f"plain PyTorch as filed drafts the same token in {as_filed.right} of {as_filed.compared} steps"
    line += f" (log-probabilities {as_filed.gap:.2f} apart on average)"
    closest_line = f"with {best}: {closest.right} of {closest.compared} ({closest.gap:.2f} apart)"
    if best == AS_FILED or closest.share < 0.9:
        return [found("drafter-differs", line, f"the closest: {closest_line}")]
    return [found("wrong-vocabulary-map" if best.startswith("d2t") else "norm-flag-ignored", line, closest_line)]


def acceptance(trace: Trace, clean: bool) -> list[Finding]:
    """What acceptance says where no other rule found anything (`clean`): it never proves where a fault is."""
    rounds = [event for event in trace.rounds if event["drafted"]]
    findings = []
    if clean and _useless(sum(event["accepted"] > 0 for event in rounds), len(rounds)):
        findings.append(_useless_drafts(trace, rounds))
    opening = [event for event in rounds if event["round"] == 1]
    later = [event for event in rounds if event["round"] > 1]
    if len(opening) >= 8 and len(later) >= 40:
        rates = [sum(event["accepted"] > 0 for event in part) / len(part) for part in (opening, later)]
        if rates[0] > 3 * rates[1] + 0.1:
            line = f"first draft accepted in {rates[0]:.0%} of first rounds, in {rates[1]:.0%} of later ones"
            findings.append(found("falls-after-first-round", line))
    return findings


def _useless(accepting: int, rounds: int) -> bool:
    """Less than a tenth of the first drafts accepted, over rounds enough that a published drafter would not do that by
    chance: none of 8, one of 12."""
    if not rounds or accepting >= 0.1 * rounds:
        return False
    ordinary = WORST_PUBLISHED
    by_chance = sum(
        math.comb(rounds, count) * ordinary**count * (1 - ordinary) ** (rounds - count) for count in range(accepting + 1)
    )
    return by_chance < 0.01


def _useless_drafts(trace: Trace, rounds: list[Event]) -> Finding:
    drafted, accepted = (sum(event[key] for event in rounds) for key in ("drafted", "accepted"))
    first = sum(event["accepted"] > 0 for event in rounds)
    line = (
        f"{accepted} of {drafted} drafts accepted, the first of a round in {first} of {len(rounds)} rounds; published "
        "drafters: 45 to 75 % at the first"
    )
    witnessed = sum(key_of(event) in trace.witness for event in trace.extends)
    if not witnessed:
        return found("drafts-useless", line, "no witness of the target's states: what the features hold is unchecked")
    capture = f"capture is right: the features are the plan's states in all {witnessed} extends with a witness"
    drafts = [event for event in trace.drafts if "witness" in event]
    arithmetic = (
        f"the drafter computes what its file says, by plain PyTorch in {len(drafts)} drafts: suspect its training, or the target"
        if drafts
        else "the drafter's own arithmetic is unchecked: trace.recording(drafter_witness=...) would check it"
    )
    return found("weak-drafter", line, capture, arithmetic)
