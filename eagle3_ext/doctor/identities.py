"""What must hold between the numbers of one acceptance line. A line that breaks it is not believed in anything.

    rate = accepted / drafted                          vLLM, llama.cpp
    accept length - 1 = accepted / rounds              vLLM, llama.cpp
    accept length - 1 = sum of the rates per position  vLLM, llama.cpp; rate i is of rounds that accept i + 1 or more
    rate = (accept length - 1) / drafts per round      SGLang; older releases accept length / draft tokens per round

Numbers are compared as far as they were printed: one with d decimals stands for everything within half a unit of the
last, and sums of such numbers for everything within the sum of their halves. Emitted tokens are left alone: vLLM's
first generation prints fewer of them than accepted ones in honest lines.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

MOST_DRAFT_TOKENS = 1000  # per round; no engine drafts more, whatever its tree
ROUNDING_OF_SUMS = 1e-6  # llama.cpp divides in float32; the decimals of printed numbers are no binary fractions


class Printed(NamedTuple):
    """A number as a line prints it; `half` is half a unit of its last decimal, all that rounding can hide."""

    value: float
    half: float

    @classmethod
    def parse(cls, text: str | None, divisor: float = 1.0) -> Printed | None:
        """None for a number that is absent or "nan"."""
        if text is None or text == "nan":
            return None
        return cls(float(text) / divisor, 0.5 * 10.0 ** -len(text.partition(".")[2]) / divisor)


def contradiction(
    length: Printed | None,
    rate: Printed | None,
    accepted: int | None = None,
    drafted: int | None = None,
    positions: tuple[Printed, ...] = (),
) -> str:
    """The first identity that these numbers break, in words; "" where they can all be true.

    `accepted` and `drafted` are None in SGLang's lines, whose rate has two meanings: a line is contradictory when it
    fits neither. Only bounds are asked there, no whole number of drafts, because it may change from round to round.
    """
    for name, number in (("accept rate", rate), *((f"rate of position {i + 1}", p) for i, p in enumerate(positions))):
        if number is not None and number.value > 1:
            return f"{name} is {number.value:g}, above 1"
    if length is not None and length.value < 1:
        return f"accept length is {length.value:g}, below 1: a round emits one token at least"
    if accepted is not None and drafted is not None:
        words = _counts(accepted, drafted, length, rate)
    else:
        words = _ratio(length, rate)
    return words or _positions(length, positions)


def _counts(accepted: int, drafted: int, length: Printed | None, rate: Printed | None) -> str:
    if accepted > drafted:
        return f"{accepted} accepted of {drafted} drafted"
    if rate is not None and not _close(rate.value, accepted / max(drafted, 1), rate.half):
        return f"accept rate {rate.value:g}, but {accepted} of {drafted} make {accepted / max(drafted, 1):.5g}"
    if length is None:
        return ""
    # There is one round at least, and every counted round drafts one token at least.
    if length.value - 1 > accepted + length.half + ROUNDING_OF_SUMS:
        return f"accept length {length.value:g}, but {accepted} accepted in all"
    if accepted > drafted * (length.value - 1 + length.half + ROUNDING_OF_SUMS):
        return f"accept length {length.value:g} takes more than {drafted} rounds for {accepted} accepted"
    return ""


def _ratio(length: Printed | None, rate: Printed | None) -> str:
    if length is None or rate is None:
        return ""
    # One draft per round is the least, under either meaning; with the bonus counted that is two draft tokens.
    most = max(length.value - 1 + length.half, (length.value + length.half) / 2)
    least = (length.value - 1 - length.half) / MOST_DRAFT_TOKENS
    if least - ROUNDING_OF_SUMS <= rate.value + rate.half and rate.value - rate.half <= most + ROUNDING_OF_SUMS:
        return ""
    return f"accept length {length.value:g} and accept rate {rate.value:g} fit no number of drafts per round"


def _positions(length: Printed | None, positions: tuple[Printed, ...]) -> str:
    for i, (earlier, later) in enumerate(pairwise(positions), 1):
        if later.value > earlier.value + earlier.half + later.half:
            return f"position {i + 1} is accepted more often ({later.value:g}) than position {i} ({earlier.value:g})"
    whole = 1 + sum(position.value for position in positions)
    if not positions or length is None:
        return ""
    if _close(length.value, whole, length.half + sum(position.half for position in positions)):
        return ""
    return f"accept length {length.value:g}, but the positions' rates sum to {whole - 1:.3g}"


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance + ROUNDING_OF_SUMS
