"""Which state of which row is this? Norm and first five values against the witness's states of the same run.

The expected state is tried first, and a row that matches it is right: alternatives are only searched for rows that do
not. So a healthy run cannot be talked into a fault by two states that happen to be alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Key = tuple[int, int, int]  # text, round, sequence

# One rounding to bf16 between the two sides is 2^-9 of a value; values far below the state's own size carry no more.
RELATIVE, OF_RMS = 8e-3, 2e-3


def same(norm: float | None, first5: list, other_norm: float | None, other_first5: list, width: int) -> bool:
    """Whether two states are equal up to a rounding. `width` is H; a norm of None is not finite and equals nothing."""
    if norm is None or other_norm is None or abs(norm - other_norm) > RELATIVE / 2 * max(norm, other_norm):
        return False
    return _same_values(first5, other_first5, OF_RMS * max(norm, other_norm) / width**0.5)


def _same_values(values: list, others: list, absolute: float) -> bool:
    return all(
        a is not None and b is not None and abs(a - b) <= absolute + RELATIVE * max(abs(a), abs(b))
        for a, b in zip(values, others)
    )


@dataclass(frozen=True)
class WitnessRow:
    """One row of one forward as the witness saw it."""

    key: Key
    row: int
    norms: dict[str, float | None]
    first5: dict[str, list]

    def is_state(self, name: str, norm: float | None, first5: list, width: int) -> bool:
        return name in self.norms and same(norm, first5, self.norms[name], self.first5[name], width)

    def state_names(self, norm: float | None, first5: list, width: int) -> list[str]:
        """Every name under which the witness saw this state in this row; "rest b" is the stream without its update."""
        names = [name for name in self.norms if self.is_state(name, norm, first5, width)]
        for name in self.norms:
            boundary = name.removeprefix("update ")
            if boundary == name or norm is None or None in (*self.first5[boundary], *self.first5[name]):
                continue
            rest = [whole - part for whole, part in zip(self.first5[boundary], self.first5[name])]
            scale = OF_RMS * (self.norms[boundary] or 0.0) / width**0.5
            # A norm cannot be subtracted, so five values decide; five are many against this tolerance.
            if _same_values(first5, rest, 2 * scale):
                names.append(f"rest {boundary}")
        return names


def witness_rows(event: dict[str, Any]) -> Iterator[WitnessRow]:
    """The rows of a witness event."""
    key = (event["text"], event["round"], event["sequence"])
    for row, norms, first5 in zip(event["sampled"], event["norms"], event["first5"]):
        yield WitnessRow(key, row, dict(zip(event["states"], norms)), dict(zip(event["states"], first5)))
