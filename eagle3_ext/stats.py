"""What a decoding run counted. Every rate is computed from counts, so that runs can be added before dividing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def shown(rate: float | None) -> str:
    """A rate for people: two decimals, `-` where there was nothing to divide by."""
    return "-" if rate is None else f"{rate:.2f}"


def _added(left: Iterable[int], right: Iterable[int]) -> list[int]:
    return [a + b for a, b in zip_longest(left, right, fillvalue=0)]


@dataclass
class DecodeStats:
    """Counts of one or more greedy runs.

    Acceptance is counted before eos or `max_new_tokens` cut the accepted run, so that it measures the drafter and not
    the length of the answer. The prefill is not a round. Plain decoding has one forward per round, drafts nothing, and
    therefore has accept_length 1.0 and empty lists.

    Attributes:
        rounds: target forwards after the prefill.
        drafted: draft tokens offered to the target, sum of D over rounds.
        accepted: draft tokens the target agreed with, sum of a over rounds.
        emitted: tokens kept after truncation, the prefill's token included.
        seconds: wall-clock time, prefill included, the consumer of a stream excluded.
        reached_at: reached_at[i] = rounds that had a draft i + 1 and accepted every draft before it.
        accepted_at: accepted_at[i] = rounds that accepted at least i + 1 drafts.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    seconds: float = 0.0
    reached_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def record_round(self, drafted: int, accepted: int) -> None:
        """Counts one target forward that checked `drafted` tokens and accepted the first `accepted` of them."""
        if not 0 <= accepted <= drafted:
            raise ValueError(f"a round accepted {accepted} of {drafted} drafts; 0 <= accepted <= drafted must hold")
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.reached_at = _added(self.reached_at, [int(accepted >= i) for i in range(drafted)])
        self.accepted_at = _added(self.accepted_at, [int(accepted > i) for i in range(drafted)])

    @property
    def accept_length(self) -> float | None:
        """1 + accepted / rounds: tokens per target forward, the bonus token included. None before the first round."""
        acceptance = _ratio(self.accepted, self.rounds)
        return None if acceptance is None else 1.0 + acceptance

    @property
    def acceptance_per_position(self) -> list[float | None]:
        """Cumulative: [i] = rounds that accepted at least i + 1 drafts / rounds. Sums to accept_length - 1."""
        return [_ratio(accepted, self.rounds) for accepted in self.accepted_at]

    @property
    def conditional_acceptance_per_position(self) -> list[float | None]:
        """[i] = rounds that accepted draft i + 1 / rounds that had one and accepted all before it. 0/0 is None."""
        return [_ratio(accepted, reached) for accepted, reached in zip(self.accepted_at, self.reached_at, strict=True)]

    @property
    def tokens_per_s(self) -> float | None:
        """emitted / seconds, the prefill included in both. None when no time passed."""
        return _ratio(self.emitted, self.seconds)

    def __add__(self, other: DecodeStats) -> DecodeStats:
        """The stats of both runs together; `sum(runs, DecodeStats())` merges many."""
        if not isinstance(other, DecodeStats):
            return NotImplemented
        return DecodeStats(
            rounds=self.rounds + other.rounds,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            emitted=self.emitted + other.emitted,
            seconds=self.seconds + other.seconds,
            reached_at=_added(self.reached_at, other.reached_at),
            accepted_at=_added(self.accepted_at, other.accepted_at),
        )

    def to_dict(self) -> dict[str, int | float | None | list[float | None]]:
        """The reported numbers, ready for JSON."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "emitted": self.emitted,
            "accept_length": self.accept_length,
            "acceptance_per_position": self.acceptance_per_position,
            "conditional_acceptance_per_position": self.conditional_acceptance_per_position,
            "tokens_per_s": self.tokens_per_s,
        }
