"""Rules over logs: sums in constant memory while lines stream by, findings at the end, and what a log cannot say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from .findings import Finding, found
from .logs import Acceptance, DrafterInput, LineCounts, LogLine, ServerArguments, Source

MOST_DRAFTS = 64  # draft tokens per round that a rate's denominator is searched up to
ENOUGH_LINES = 3  # lines before no whole draft count decides a rate's meaning: the count may change between rounds
ENOUGH_NARROW = 3  # lines of the embedding's width that make a reader suspicious
MANY_NARROW = 8  # more than the draft steps of one round: some of them should have been an extend
MOST_WIDTHS = 64  # different widths that are kept apart
FEW_CONTRADICTIONS = 0.1
USELESS_FIRST_DRAFT, LOW_RATE, LOW_LENGTH = 0.1, 0.25, 1.1
LOOKED_FOR = (
    "an acceptance line of SGLang (Decode batch ... accept len), vLLM (SpecDecoding metrics) or llama.cpp (draft "
    "acceptance), an EAGLE3_DEBUG input, or a start line with the speculative algorithm"
)
RECORD = "EAGLE3_TRACE=run.jsonl COMMAND, then eagle3-ext doctor run.jsonl"


@dataclass
class AcceptanceSums:
    """One engine's acceptance lines added up. SGLang prints averages, so its lines count alike; others print counts.

    Contradictory lines are counted and shown, and add nothing to any sum.
    """

    lines: int = 0
    lengths: float = 0.0
    with_length: int = 0
    rates: float = 0.0
    with_rate: int = 0
    accepted: int = 0
    drafted: int = 0
    first_position: float = 0.0
    with_positions: int = 0
    contradictory: int = 0
    first_contradiction: str = ""
    above_one_draft: int = 0  # lines whose rate is above accept length - 1, that of one draft per round
    # Draft counts under which every line so far reads as accepted/proposed, or as (accepted + 1)/draft tokens.
    proposed: set[int] = field(default_factory=lambda: set(range(1, MOST_DRAFTS)))
    with_bonus: set[int] = field(default_factory=lambda: set(range(2, MOST_DRAFTS + 1)))

    def add(self, number: int, line: Acceptance) -> None:
        if line.contradiction:
            self.contradictory += 1
            self.first_contradiction = self.first_contradiction or f"line {number}: {line.contradiction}"
            return
        self.lines += 1
        if line.accept_length is not None:
            self.lengths += line.accept_length
            self.with_length += 1
        if line.rate is not None:
            self.rates += line.rate
            self.with_rate += 1
        if line.accepted is not None and line.drafted is not None:
            self.accepted += line.accepted
            self.drafted += line.drafted
        if line.per_position:
            self.first_position += line.per_position[0]
            self.with_positions += 1
        if line.source == "sglang" and line.rate is not None:
            self._narrow(line.accept_length, line.rate)

    def _narrow(self, length: float, rate: float) -> None:
        """Keeps the draft counts that explain this line, too. Both numbers are rounded to two digits."""

        def fits(exact: float, count: int) -> bool:
            return abs(exact / count - rate) <= 0.005 + 0.005 / count + 1e-9

        self.above_one_draft += length - 1 < rate and not fits(length - 1, 1)
        self.proposed = {count for count in self.proposed if fits(length - 1, count)}
        self.with_bonus = {count for count in self.with_bonus if fits(length, count)}

    @property
    def accept_length(self) -> float | None:
        return self.lengths / self.with_length if self.with_length else None

    @property
    def rate(self) -> float | None:
        """Accepted / drafted over all lines where counts are printed, else the mean of the printed rates."""
        if self.drafted:
            return self.accepted / self.drafted
        return self.rates / self.with_rate if self.with_rate else None

    @property
    def counts_bonus(self) -> bool:
        """Only (accepted + 1)/draft tokens explains the rates."""
        decided = self.above_one_draft > 0 or self.with_rate >= ENOUGH_LINES
        return decided and bool(self.with_bonus) and not self.proposed

    @property
    def rate_without_bonus(self) -> float | None:
        """`rate`, computed anew where the printed one counts the bonus; None where either stays open."""
        if self.drafted or (self.proposed and not self.with_bonus):
            return self.rate
        if not self.counts_bonus:
            return None
        return (self.accept_length - 1) / (min(self.with_bonus) - 1) if len(self.with_bonus) == 1 else None


@dataclass
class DrafterInputs:
    """What `EAGLE3_DEBUG` lines showed, without keeping them."""

    lines: int = 0
    narrow: int = 0  # as wide as the embedding
    wide: int = 0
    wide_before_narrow: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    not_finite: int = 0
    twins: int = 0  # equal to the line before, embedding included
    stale: int = 0  # same hidden state as the line before, another embedding
    most_wide_rows: int = 0
    labels: set[str] = field(default_factory=set)
    last: DrafterInput | None = None
    repetitions: Counter[int] = field(default_factory=Counter)  # lengths of finished runs of equal lines
    run: int = 0

    def add(self, line: DrafterInput) -> None:
        self.lines += 1
        if line.width in self.widths or len(self.widths) < MOST_WIDTHS:
            self.widths[line.width] += 1
        if len(self.labels) < MOST_WIDTHS:
            self.labels.add(line.label)
        self.not_finite += not line.finite
        if line.width == line.embedding_width:
            self.narrow += 1
        else:
            self.wide_before_narrow += not self.narrow
            self.wide += 1
            self.most_wide_rows = max(self.most_wide_rows, line.rows)
        self._compare(line)

    @property
    def only_in_prefill(self) -> bool:
        """All lines of the full width come before enough others."""
        return self.narrow >= ENOUGH_NARROW and 0 < self.wide == self.wide_before_narrow

    @property
    def ranks_explain_twins(self) -> bool:
        """Tensor-parallel ranks print each value once each: no run is longer than there are ranks, and where the lines
        name no rank, the same number of times again and again."""
        longest = max([self.run, *self.repetitions])
        if len(self.labels) > 1:
            return longest <= len(self.labels)
        return sum(self.repetitions.values()) >= 2 and set(self.repetitions) == {longest}

    def _compare(self, line: DrafterInput) -> None:
        last, self.last = self.last, line
        hidden = last is not None and (last.rows, last.width, last.norm, last.first5) == (
            line.rows, line.width, line.norm, line.first5
        )  # fmt: skip
        if hidden and last.embedding_norm == line.embedding_norm:
            self.twins += 1
            self.run += 1
            return
        self.stale += hidden
        if self.run:
            self.repetitions[min(self.run, MOST_WIDTHS)] += 1
        self.run = 1


@dataclass
class LogSummary:
    """Everything a log said, in constant memory."""

    counts: LineCounts = field(default_factory=LineCounts)
    acceptance: dict[Source, AcceptanceSums] = field(default_factory=dict)
    inputs: DrafterInputs = field(default_factory=DrafterInputs)
    arguments: ServerArguments | None = None

    def add(self, number: int, line: LogLine) -> None:
        if isinstance(line, Acceptance):
            self.acceptance.setdefault(line.source, AcceptanceSums()).add(number, line)
        elif isinstance(line, DrafterInput):
            self.inputs.add(line)
        else:
            self.arguments = line

    def findings(self, source: str = "log", features_width: int | None = None) -> list[Finding]:
        """What is wrong. `features_width` is K*H of the drafter that ran, where its checkpoint is known."""
        findings = _algorithm(self, features_width) + _inputs(self.inputs, features_width) + _known_width(self.inputs, features_width)
        for engine, sums in self.acceptance.items():
            findings += _acceptance(engine, sums)
        return [replace(finding, source=source) for finding in findings]

    def words(self) -> list[str]:
        """What was read, what it proves and what it cannot prove."""
        counts = self.counts
        lines = [
            f"{counts.total} lines: {counts.read} understood, {counts.contradictory} contradictory, {counts.damaged} "
            f"damaged, {counts.foreign} foreign"
        ]
        if self.arguments is not None:
            lines.append(f"started with algorithm {self.arguments.algorithm}, drafter {_drafter_name(self.arguments)}")
        believed = {engine: sums for engine, sums in self.acceptance.items() if sums.lines}
        for engine, sums in believed.items():
            parts = [f"{engine}: {sums.lines} lines"]
            if sums.accept_length is not None:
                parts.append(f"accept length {sums.accept_length:.2f} (bonus included)")
            if sums.rate is not None:
                parts.append(f"accept rate {sums.rate:.3f}{_rate_meaning(engine, sums)}")
            if sums.with_positions:
                parts.append(f"first draft {sums.first_position / sums.with_positions:.2f}")
            lines.append(", ".join(parts))
        if believed:
            lines.append(
                "proves: how much was accepted. Cannot prove: why. A weak drafter, text it was not trained on, wrong "
                f"layers and wrong rows give the same lines; a trace tells them apart: {RECORD}"
            )
        elif self.arguments is not None:
            lines.append("no acceptance line: nothing was decoded yet, or the log level hides it")
        lines += _input_words(self.inputs)
        return lines

    def unrecognised(self) -> str:
        """What was looked for in vain and what to do next, "" where some line said something."""
        counts = self.counts
        if counts.read or counts.contradictory:
            return ""
        if not counts.total:
            return f"the file is empty. Record a run: {RECORD}"
        damaged = f" ({counts.damaged} would be, but cut off or altered)" if counts.damaged else ""
        return (
            f"none of its {counts.total} lines is {LOOKED_FOR}{damaged}. Name the server's own log (at INFO level), or "
            f"record a run: {RECORD}"
        )


def _rate_meaning(engine: Source, sums: AcceptanceSums) -> str:
    if engine != "sglang":
        return ""
    if sums.counts_bonus:
        return f", as (accepted + 1) / {_one_of(sums.with_bonus, 'draft tokens')}"
    if sums.proposed and not sums.with_bonus:
        return f", as accepted / {_one_of(sums.proposed, 'drafts')}"
    return ", whether it counts the bonus stays open" if sums.with_rate else ""


def _one_of(counts: set[int], unit: str) -> str:
    """The one draft count that explains all lines, or the unit where several do."""
    return str(min(counts)) if len(counts) == 1 else unit


def _algorithm(summary: LogSummary, features_width: int | None) -> list[Finding]:
    arguments = summary.arguments
    if arguments is None or arguments.algorithm.upper() not in ("EAGLE", "NEXTN"):
        return []
    evidence = [f"started with algorithm {arguments.algorithm}, drafter {_drafter_name(arguments)}"]
    named = "eagle3" in (arguments.draft_model or "").lower().replace("-", "").replace("_", "")
    if features_width is not None:
        evidence.append(f"the drafter's checkpoint fuses features of width {features_width}")
    return [found("eagle-algorithm", *evidence)] if named or features_width is not None else []


def _drafter_name(arguments: ServerArguments) -> str:
    return arguments.draft_model or "not named"


def _known_width(inputs: DrafterInputs, features_width: int | None) -> list[Finding]:
    if features_width is None or not inputs.wide:
        return []
    others = {width: count for width, count in inputs.widths.items() if width != features_width}
    narrow = inputs.last.embedding_width
    others.pop(narrow, None)
    if not others:
        return []
    shown = ", ".join(f"{width} in {count} lines" for width, count in others.items())
    line = f"width {shown}; the named checkpoint fuses {features_width}, unless it is another drafter's than the log"
    return [found("width-mismatch", line)]


def _acceptance(engine: Source, sums: AcceptanceSums) -> list[Finding]:
    findings = []
    if sums.contradictory:
        lines = sums.lines + sums.contradictory
        line = f"{engine}: {sums.contradictory} of {lines} lines; the first is {sums.first_contradiction}"
        # Two processes that write into one file spoil a line now and then; an engine that counts wrongly spoils most.
        few = sums.contradictory < FEW_CONTRADICTIONS * lines
        findings.append(found("impossible-numbers", line, severity="note" if few else None))
    if not sums.lines:
        return findings
    if sums.counts_bonus:
        count = _one_of(sums.with_bonus, "draft tokens")
        line = (
            f"{sums.with_rate} lines fit accept length / {count}; no number of drafts fits (accept length - 1) / drafts"
        )
        findings.append(
            found("bonus-counted", line, f"a round that accepts nothing prints {1 / max(sums.with_bonus):.2f}")
        )
    length, rate = sums.accept_length, sums.rate_without_bonus
    rate_name = "rate without the bonus"
    if rate is None:  # with the bonus a rate is never lower than without: a low one is low under either meaning
        rate, rate_name = sums.rate, "printed rate"
    first = sums.first_position / sums.with_positions if sums.with_positions else None
    numbers = f"{engine}, {sums.lines} lines: " + ", ".join(
        f"{name} {value:.3f}"
        for name, value in (("accept length", length), (rate_name, rate), ("first draft", first))
        if value is not None
    )
    # The most telling number decides: the first draft's, then the length, then the rate over all positions.
    if first is not None:
        useless, low = first < USELESS_FIRST_DRAFT, first < LOW_RATE
    elif length is not None:
        useless, low = length < LOW_LENGTH, rate is not None and rate < LOW_RATE
    else:
        useless, low = rate is not None and rate < 0.03, rate is not None and rate < LOW_RATE
    if useless:
        findings.append(found("drafts-useless", numbers))
    elif low:
        findings.append(found("low-acceptance", numbers))
    return findings


def _narrow_words(inputs: DrafterInputs, features_width: int | None) -> list[str]:
    """What a width as narrow as the embedding's is, and what to log next to tell right from wrong."""
    narrow, full = inputs.last.embedding_width, features_width or max(inputs.widths)
    share = ""
    if full > narrow and full % narrow == 0:
        share = f", a third of {full}" if full == 3 * narrow else f", one of the {full // narrow} in {full}"
    words = [
        f"{narrow} is the width of one hidden state{share}: right in a draft step (recurrent hidden), wrong in extend"
    ]
    if inputs.narrow < MANY_NARROW:
        words.append(
            f"{inputs.narrow} lines may all be draft steps of one round: log the phase (forward_mode) and the rows with "
            "each line, over at least three rounds"
        )
    return words


def _inputs(inputs: DrafterInputs, features_width: int | None) -> list[Finding]:
    findings = []
    shown = ", ".join(f"{width}: {count} lines" for width, count in sorted(inputs.widths.items(), reverse=True))
    if inputs.not_finite:
        findings.append(found("not-finite", f"{inputs.not_finite} of {inputs.lines} drafter inputs"))
    if inputs.only_in_prefill:
        line = f"widths {shown}; all wide lines (up to {inputs.most_wide_rows} rows) come before the first narrow one"
        findings.append(found("features-only-in-prefill", line, *_narrow_words(inputs, features_width)))
    elif inputs.narrow >= ENOUGH_NARROW and not inputs.wide:
        line = f"widths {shown}: as wide as the embedding in every line"
        findings.append(found("no-features-seen", line, *_narrow_words(inputs, features_width)))
    if inputs.stale >= 2:
        line = (
            f"{inputs.stale} of {inputs.lines} lines repeat the hidden state of the line before under another embedding"
        )
        findings.append(found("identical-steps", f"{line}: a buffer that is not refilled", severity="suspect"))
    elif inputs.twins >= 2:
        lengths = (inputs.repetitions + Counter([inputs.run])).most_common(3)
        ranks = f"{len(inputs.labels)} labels" if len(inputs.labels) > 1 else "no rank in the lines"
        runs = ", ".join(f"{count} runs of {length}" for length, count in lengths)
        line = f"{inputs.twins} of {inputs.lines} lines equal the line before to the last digit, embedding included"
        line += f" ({runs}; {ranks})"
        if inputs.ranks_explain_twins:
            findings.append(found("identical-steps", f"{line}: one line per tensor-parallel rank"))
        else:
            line += ": one line per tensor-parallel rank, or a step that repeats"
            findings.append(found("identical-steps", line, severity="suspect"))
    return findings


def _input_words(inputs: DrafterInputs) -> list[str]:
    if not inputs.lines:
        return []
    widths = ", ".join(f"{width} in {count}" for width, count in sorted(inputs.widths.items(), reverse=True))
    words = [f"drafter inputs: {inputs.lines} lines, width {widths}"]
    if inputs.narrow:
        words.append(
            "a line as wide as the embedding proves nothing by itself: it is right in a draft step (recurrent hidden) "
            "and wrong in extend, and the line does not say which it is"
        )
    if inputs.wide > inputs.wide_before_narrow:
        words.append(
            "proves: full-width features reach the drafter after decoding began, so extend gets them at least once"
        )
    elif inputs.only_in_prefill:
        words.append(
            "proves: prefill's capture and join work. Cannot prove: that decode's do not; see the finding's check"
        )
    elif inputs.wide:
        words.append(
            f"proves: prefill's capture and join work. Says nothing about decode: {inputs.narrow} lines after the last "
            f"full-width one are too few ({ENOUGH_NARROW} would be a suspicion); log a longer answer"
        )
    return words
