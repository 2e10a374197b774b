"""What an engine's log says about acceptance: SGLang, vLLM (three generations and the one between), llama.cpp, and the
`EAGLE3_DEBUG` lines of a print statement inside the drafter.

A number is only taken from a line that is whole: each one must be followed by what the engine prints next, so that a
line cut after "0.5" never becomes 0.5. Lines that carry an engine's mark but are not whole are counted as damaged,
whole ones whose numbers cannot all be true as contradictory, all others as foreign. Files are read line by line: a
gigabyte needs no more memory than a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .identities import ROUNDING_OF_SUMS, Printed, contradiction
from .text_files import read_raw_lines

Source = Literal["sglang", "vllm", "llama.cpp"]

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_COUNT = r"\d{1,15}"
_RATES = r"\d\.\d{1,9}(?:, \d\.\d{1,9})*"


@dataclass(frozen=True)
class Acceptance:
    """The acceptance numbers of one line, as printed; None where the line has none.

    Attributes:
        source: the engine that wrote the line.
        label: the process that wrote it ("EngineCore_DP1 pid=7", "DP0 TP0"), "" when the line does not say.
        accept_length: tokens per round, bonus included (all four engines count it).
        rate: accepted drafts / proposed drafts, except for SGLang, whose older releases print
            (accepted + 1) / draft tokens under the same name: `findings` tells them apart over many lines.
        accepted, drafted, emitted: token counts.
        per_position: cumulative acceptance per draft position.
        graph: whether the forward was replayed from a graph.
        tokens_per_s: generation throughput.
        contradiction: which of these numbers cannot be true together, "" when all can. See `identities`.
    """

    source: Source
    label: str = ""
    accept_length: float | None = None
    rate: float | None = None
    accepted: int | None = None
    drafted: int | None = None
    emitted: int | None = None
    per_position: tuple[float, ...] = ()
    graph: bool | None = None
    tokens_per_s: float | None = None
    contradiction: str = ""

    @property
    def accepted_per_round(self) -> float | None:
        """accept_length - 1: accepted drafts per round, without the bonus."""
        return None if self.accept_length is None else self.accept_length - 1

    @property
    def rounds(self) -> int | None:
        """accepted / (accept_length - 1), rounded; None where the line does not determine it."""
        if self.accepted and self.accept_length is not None and self.accept_length > 1:
            return round(self.accepted / (self.accept_length - 1))
        return None


@dataclass(frozen=True)
class DrafterInput:
    """One `EAGLE3_DEBUG[...] input:` line: what reached the drafter's forward. The line does not say in which phase."""

    label: str
    rows: int
    width: int
    embedding_width: int
    norm: float
    first5: tuple[float, ...]
    embedding_norm: float

    @property
    def finite(self) -> bool:
        return all(abs(value) < float("inf") for value in (self.norm, *self.first5, self.embedding_norm))


@dataclass(frozen=True)
class ServerArguments:
    """How the engine was started, as far as speculation goes."""

    algorithm: str
    draft_model: str | None


LogLine = Acceptance | DrafterInput | ServerArguments


class DamagedLine(ValueError):
    """A line with an engine's mark that is cut off or altered."""


_VLLM_NOW = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: (?P<length>{_NUMBER}|nan), "
    rf"Accepted throughput: {_NUMBER} tokens/s, Drafted throughput: {_NUMBER} tokens/s, "
    rf"Accepted: (?P<accepted>{_COUNT}) tokens, Drafted: (?P<drafted>{_COUNT}) tokens, "
    rf"Per-position acceptance rate: (?P<positions>{_RATES}|nan(?:, nan)*), "
    rf"Avg Draft acceptance rate: (?P<percent>{_NUMBER}|nan)%"
)
# Between the two: the list ends the line, so a line cut inside the list can only be known by its own sum. Releases
# before 0.9 print the mean without the bonus here; it is left out then.
_VLLM_BETWEEN = re.compile(
    rf"SpecDecoding metrics: Draft acceptance rate: (?P<percent>{_NUMBER}|nan)%, "
    rf"Mean acceptance length: (?P<length>{_NUMBER}|nan), "
    rf"Accepted: (?P<accepted>{_COUNT}) tokens, Drafted: (?P<drafted>{_COUNT}) tokens, "
    rf"Per-position acceptance rate: (?P<positions>{_RATES})\s*$"
)
_VLLM_EARLIER = re.compile(
    rf"SpecDecoding metrics: Draft acceptance rate: (?P<percent>{_NUMBER}|nan)%, "
    rf"Accepted: (?P<accepted>{_COUNT}) tokens, Drafted: (?P<drafted>{_COUNT}) tokens\s*$"
)
_VLLM_FIRST = re.compile(
    rf"Speculative metrics: Draft acceptance rate: (?P<rate>{_NUMBER}|nan), System efficiency: (?:{_NUMBER}|nan), "
    rf"Number of speculative tokens: {_COUNT}, Number of accepted tokens: (?P<accepted>{_COUNT}), "
    rf"Number of draft tokens: (?P<drafted>{_COUNT}), Number of emitted tokens: (?P<emitted>{_COUNT})\."
)
_LLAMA_COUNTS = rf"(?P<rate>{_NUMBER}|nan) \( *(?P<accepted>{_COUNT}) accepted / *(?P<drafted>{_COUNT}) generated\)"
_LLAMA = re.compile(
    rf"draft acceptance = {_LLAMA_COUNTS}, "
    rf"mean acceptance length = *(?P<length>{_NUMBER}|nan), acceptance rate per position = \((?P<positions>{_RATES})\)"
)
# The newest prints the rates per position on a line of their own, at trace level.
_LLAMA_NEWEST = re.compile(rf"draft acceptance = {_LLAMA_COUNTS}, mean len = *(?P<length>\d{{1,15}}\.\d\d)\s*$")
_LLAMA_EARLIER = re.compile(rf"draft acceptance rate = {_LLAMA_COUNTS}")
_SGLANG_LENGTH = re.compile(rf"[ ,]accept len: (?P<length>{_NUMBER}),")
_SGLANG_RATE = re.compile(rf"[ ,]accept rate: (?P<rate>{_NUMBER}),")
_SGLANG_THROUGHPUT = re.compile(rf"[ ,]gen throughput \(token/s\): (?P<value>{_NUMBER}),")
_SGLANG_GRAPH = re.compile(r"[ ,](?:cuda|cpu|npu) graph: (?P<graph>True|False)\b")
_SHAPE = r"torch\.Size\(\[(?:\d{1,9}, )?(\d{1,12}), (\d{1,12})\]\)"
_VALUE = r"-?(?:\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?|inf|nan)"
_DEBUG = re.compile(
    rf"EAGLE3_DEBUG\[\w+\] input: hs_shape={_SHAPE}, embed_shape={_SHAPE}, hs_norm=({_VALUE}), "
    rf"hs_first5=\[({_VALUE}(?:, {_VALUE})*)\], embed_norm=({_VALUE})\s*$"
)
_WHOLE_DEBUG = re.compile(rb"hs_norm=\d+\.\d{4}, .*embed_norm=\d+\.\d{4}$")
_ALGORITHM = re.compile(
    r"(?:speculative_algorithm=['\"]|--speculative-algo(?:rithm)?[= ])(?P<algorithm>[A-Za-z0-9_]+)\b"
)
_DRAFT_MODEL = re.compile(
    r"(?:speculative_draft_model_path=['\"]|--speculative-draft-model(?:-path)?[= ])(?P<path>[^'\",\s]+)"
)
_VLLM_LABEL = re.compile(r"\((\w+ pid=\d+)\)")
_RANKS = re.compile(r"\b(?:DP|TP|PP|EP)\d+(?: (?:DP|TP|PP|EP)\d+)*\b")

# Marks are looked for in bytes before anything is decoded: nearly all lines of a log have none.
_MARKS = re.compile(
    rb"SpecDecoding metrics|Speculative metrics|Decode batch|draft acceptance|EAGLE3_DEBUG|"
    rb"speculative_algorithm=['\"]|--speculative-algo"
)


def _value(printed: Printed | None) -> float | None:
    return None if printed is None else printed.value


def _label(line: str) -> str:
    found = _VLLM_LABEL.search(line)
    if found:
        return found[1]
    found = _RANKS.search(line)
    return found[0] if found else ""


def _counts(source: Source, match: re.Match, label: str) -> Acceptance:
    """A line that prints its counts."""
    groups = match.groupdict()
    if groups.get("percent") is not None:
        rate = Printed.parse(groups["percent"], divisor=100)
    else:
        rate = Printed.parse(groups.get("rate"))
    length = Printed.parse(groups.get("length"))
    listed = groups.get("positions")
    positions = tuple(map(Printed.parse, listed.split(", "))) if listed and "nan" not in listed else ()
    accepted, drafted, emitted = int(groups["accepted"]), int(groups["drafted"]), groups.get("emitted")
    if match.re is _VLLM_BETWEEN:
        length = _with_bonus(length, positions)
    return Acceptance(
        source,
        label,
        accept_length=_value(length),
        rate=_value(rate),
        accepted=accepted,
        drafted=drafted,
        emitted=None if emitted is None else int(emitted),
        per_position=tuple(position.value for position in positions),
        contradiction=contradiction(length, rate, accepted, drafted, positions),
    )


def _with_bonus(length: Printed | None, positions: tuple[Printed, ...]) -> Printed | None:
    """The mean of a `_VLLM_BETWEEN` line, None where it leaves the bonus out. Raises DamagedLine for a cut list."""
    if length is None:
        return None
    missing = length.value - sum(position.value for position in positions)
    tolerance = length.half + sum(position.half for position in positions) + ROUNDING_OF_SUMS
    if abs(missing - 1) <= tolerance:
        return length
    if abs(missing) <= tolerance:
        return None
    raise DamagedLine("a vLLM metrics line whose positions do not add up to its mean")


def _sglang(line: str) -> Acceptance | None:
    throughput = _SGLANG_THROUGHPUT.search(line)
    if throughput is None:
        raise DamagedLine("a decode line without its throughput")
    length, rate, graph = (pattern.search(line) for pattern in (_SGLANG_LENGTH, _SGLANG_RATE, _SGLANG_GRAPH))
    if length is None:
        if "accept" in line:
            raise DamagedLine("a decode line with half an accept length")
        return None  # decoding without speculation
    if rate is None and "accept rate" in line:
        raise DamagedLine("a decode line with half an accept rate")
    accept_length, accept_rate = Printed.parse(length["length"]), Printed.parse(rate and rate["rate"])
    if not accept_length.value:
        return None  # no speculative round since the line before
    return Acceptance(
        "sglang",
        _label(line),
        accept_length=accept_length.value,
        rate=_value(accept_rate),
        graph=None if graph is None else graph["graph"] == "True",
        tokens_per_s=float(throughput["value"]),
        contradiction=contradiction(accept_length, accept_rate),
    )


def _vllm(line: str) -> Acceptance:
    for pattern in (_VLLM_NOW, _VLLM_BETWEEN, _VLLM_EARLIER, _VLLM_FIRST):
        match = pattern.search(line)
        if match is not None:
            return _counts("vllm", match, _label(line))
    raise DamagedLine("a vLLM metrics line that is cut off or altered")


def _drafter_input(line: str) -> DrafterInput:
    match = _DEBUG.search(line)
    if match is None:
        raise DamagedLine("an EAGLE3_DEBUG line that is cut off or altered")
    rows, width, _, embedding_width, norm, first5, embedding_norm = match.groups()
    values = tuple(float(value) for value in first5.split(", "))
    return DrafterInput(
        _label(line), int(rows), int(width), int(embedding_width), float(norm), values, float(embedding_norm)
    )


def parse_line(line: str) -> LogLine | None:
    """What one line says, or None for a foreign line. Raises DamagedLine for a marked line that is not whole."""
    if "EAGLE3_DEBUG" in line:
        return _drafter_input(line)
    if "SpecDecoding metrics" in line or "Speculative metrics" in line:
        return _vllm(line)
    if "Decode batch" in line:
        return _sglang(line)
    if "draft acceptance" in line:
        match = _LLAMA.search(line) or _LLAMA_NEWEST.search(line) or _LLAMA_EARLIER.search(line)
        if match is None:
            raise DamagedLine("a llama.cpp acceptance line that is cut off or altered")
        return _counts("llama.cpp", match, _label(line))
    algorithm = _ALGORITHM.search(line)
    if algorithm is None:
        return None
    model = _DRAFT_MODEL.search(line)
    return ServerArguments(algorithm["algorithm"], None if model is None else model["path"])


@dataclass
class LineCounts:
    """How many lines a reader met: read ones, contradictory ones (whole, but their numbers cannot all be true), damaged
    ones (marked, but cut off or altered) and foreign ones."""

    read: int = 0
    contradictory: int = 0
    damaged: int = 0
    foreign: int = 0

    @property
    def total(self) -> int:
        return self.read + self.contradictory + self.damaged + self.foreign


def read_lines(lines: Iterable[bytes], counts: LineCounts) -> Iterator[tuple[int, LogLine]]:
    """(line number from 1, what it says) for every line that says something; `counts` is kept along the way.

    Contradictory lines are among them: look at `Acceptance.contradiction` before using a number.
    """
    for number, raw in enumerate(lines, 1):
        if _MARKS.search(raw) is None:
            counts.foreign += 1
            continue
        # Without its newline a last line may end inside a number, and only this one ends in an open number. Four digits
        # behind the point, as its other norm has, are all there are: pasted excerpts lack the newline.
        if b"EAGLE3_DEBUG" in raw and not raw.endswith(b"\n") and _WHOLE_DEBUG.search(raw) is None:
            counts.damaged += 1
            continue
        try:
            found = parse_line(raw.decode("utf-8", errors="replace"))
        except DamagedLine:
            counts.damaged += 1
            continue
        if found is None:
            counts.foreign += 1
            continue
        if isinstance(found, Acceptance) and found.contradiction:
            counts.contradictory += 1
        else:
            counts.read += 1
        yield number, found


def read_log(path: Path, counts: LineCounts) -> Iterator[tuple[int, LogLine]]:
    """`read_lines` of a file, in constant memory, with a progress bar on the terminal for large ones."""
    return read_lines(read_raw_lines(path), counts)
