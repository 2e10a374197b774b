"""Rules over traces. Each takes a `Trace` and gives findings; `diagnose_trace` runs them all."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from .findings import Finding, found
from .matching import Key, WitnessRow, witness_rows
from .witness import AS_FILED

Event = dict[str, Any]

MOST_EVENTS = 200_000  # what a diagnosis keeps in memory; more events of one run say nothing new
EXTENDS = ("prefill extend", "extend")
JUDGED = (*EXTENDS, "draft step", "draft", "round", "prefill", "verify")  # phases that rules look at
NEAR_TIE = 0.1  # two tokens whose log-probabilities under one drafter are closer than this may change places in bf16


def _key(event: Event) -> Key:
    return event.get("text", 0), event.get("round", 0), event.get("sequence", 0)


class Trace:
    """The events of a run, sorted by what they are about.

    Attributes:
        plan: the last plan event, {} without one.
        extends, rounds, drafts: events in order.
        captures: prefill and verify events by (text, round, sequence).
        witness: rows of the target's forwards by (text, round, sequence), each by row number.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(islice(events, MOST_EVENTS))
        by_phase: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            by_phase[event["phase"]].append(event)
        self.plan: Event = by_phase["plan"][-1] if by_phase["plan"] else {}
        self.extends = [event for event in self.events if event["phase"] in EXTENDS]
        self.rounds, self.drafts = by_phase["round"], by_phase["draft"]
        self.accepted = {_key(event): event["accepted"] for event in self.rounds}
        self.captures = {_key(event): event for event in by_phase["prefill"] + by_phase["verify"]}
        self.witness: dict[Key, dict[int, WitnessRow]] = defaultdict(dict)
        self.block_rows: dict[Key, int] = {}
        self.extended_rows = {_key(event): event["rows"] for event in self.extends}
        self.layers = 0
        for event in by_phase["witness"]:
            self.layers = event["layers"]
            self.block_rows[_key(event)] = event["rows"]
            for row in witness_rows(event):
                self.witness[row.key][row.row] = row

    @property
    def state_names(self) -> list[str]:
        """The witness's names of the plan's states, in slot order."""
        prefix = "norm " if self.plan.get("final_norm") else ""
        return [f"{prefix}{boundary}" for boundary in self.plan.get("boundaries", [])]

    def words(self) -> list[str]:
        """What was read, and which questions this trace can answer."""
        counts = Counter(event["phase"] for event in self.events)
        words = [", ".join(f"{count} x {phase}" for phase, count in counts.items()) or "no events"]
        if self.plan:
            words.append(f"the drafter {self.plan['description']}")
        rounds = [event for event in self.rounds if event["drafted"]]
        if rounds:
            length = 1 + sum(event["accepted"] for event in rounds) / len(rounds)
            words.append(f"accept length {length:.2f} over {len(rounds)} rounds")
        if not self.witness:
            words.append("no witness of the target's states: order, layers and rows of the features stay unchecked")
        if not any("witness" in event for event in self.drafts):
            words.append(
                "no witness of the drafter: its own arithmetic stays unchecked "
                "(trace.recording(drafter_witness=DrafterWitness(checkpoint, model)))"
            )
        return words

    def unrecognised(self) -> str:
        """What was looked for in vain and what to do next, "" where some event can be judged."""
        if any(event["phase"] in JUDGED for event in self.events):
            return ""
        return (
            f"none of its {len(self.events)} events is a {', '.join(JUDGED[:-1])} or {JUDGED[-1]}: the run stopped before its "
            "first forward, or its recorder names phases otherwise. Record it again: EAGLE3_TRACE=run.jsonl COMMAND"
        )


def _rows_of(trace: Trace, event: Event) -> list[int]:
    """The rows of the round's forward that an extend's sampled rows should be, by position: the last one is row a."""
    accepted = trace.accepted.get(_key(event))
    if event["phase"] != "extend" or accepted is None or not event.get("positions"):
        return event["sampled"]
    return [accepted + position - event["positions"][-1] for position in event["positions"]]


def _where(bad: Iterable[Event], all_events: list[Event]) -> str:
    """ "prefill extend 0 of 4, extend 31 of 31": which phases are affected."""
    bad_of, all_of = Counter(event["phase"] for event in bad), Counter(event["phase"] for event in all_events)
    return "affected: " + ", ".join(f"{phase} {bad_of[phase]} of {all_of[phase]}" for phase in EXTENDS if all_of[phase])


def diagnose_trace(events: Trace | Iterable[Event], source: str = "trace") -> list[Finding]:
    """All findings about one run's events."""
    trace = events if isinstance(events, Trace) else Trace(events)
    findings = (
        widths(trace) + not_finite(trace) + repeats(trace) + kept_guesses(trace) + lengths(trace) + drafter(trace)
    )
    stale = any(finding.id == "stale-features" for finding in findings)
    findings += [one for one in contents(trace) if not (stale and one.id == "stale-features")]
    findings += acceptance(trace, clean=not any(finding.severity != "note" for finding in findings))
    return [found(one.id, *one.evidence, source=source, severity=one.severity, **one.details) for one in findings]


# ---- widths


def widths(trace: Trace) -> list[Finding]:
    """Extend events of another width than the fusion's. Width h in a draft step is right and never looked at here."""
    bad = [event for event in trace.extends if event["width"] != event.get("expected_width", event["width"])]
    if not bad:
        return []
    example = bad[0]
    width, expected = example["width"], example["expected_width"]
    state = trace.plan.get("hidden_size", example.get("state_width"))
    evidence = [
        f"{example['phase']} of round {example['round']}: [{example['rows']}, {width}], the fusion takes {expected}"
        + (f"; the drafter {trace.plan['description']}" if trace.plan else ""),
        _where(bad, trace.extends),
    ]
    divides = all(event["rows"] * event["width"] % event["expected_width"] == 0 for event in bad)
    if width != state:
        if divides:
            evidence.append(
                f"rows * width is a multiple of {expected} in all {len(bad)} of them: a linear that reshapes takes "
                f"{example['rows']} rows as {example['rows'] * width // expected}, without an error"
            )
        return [found("reshaping-linear" if divides else "width-mismatch", *evidence)]
    names = _narrow_states(trace, bad)
    for event in bad:
        capture = trace.captures.get(_key(event))
        if capture is not None:
            evidence.append(f"the target's forward of that round delivered width {capture['width']}")
            break
    if not names:
        return [found("one-state-in-extend", *evidence, "no witness: which state it is stays open")]
    (name, count), total = names.most_common(1)[0], sum(names.values())
    evidence.append(f"it is the state {name!r} in {count} of {total} compared rows")
    if name == f"norm {trace.layers}":
        return [found("eagle-algorithm", *evidence)]
    return [found("sliced-features" if name == trace.state_names[0] else "one-state-in-extend", *evidence)]


def _narrow_states(trace: Trace, bad: list[Event]) -> Counter[str]:
    """Which of the target's states the single states of extend are."""
    names: Counter[str] = Counter()
    for event in bad:
        rows = trace.witness.get(_key(event), {})
        for row, norms, first5 in zip(_rows_of(trace, event), event["norms"], event["first5"]):
            if row in rows:
                names.update(rows[row].state_names(norms[0], first5[0], event["width"])[:1] or ["unknown"])
    return names


# ---- numbers, repetitions, lengths


def not_finite(trace: Trace) -> list[Finding]:
    bad = [event for event in trace.extends if event.get("finite") is False]
    if not bad:
        return []
    slots = Counter(slot for event in bad for row in event["norms"] for slot, norm in enumerate(row) if norm is None)
    names = trace.state_names
    states = ", ".join(f"state {names[slot] if slot < len(names) else slot} in {n} rows" for slot, n in slots.items())
    first = f"first in text {bad[0]['text']}, round {bad[0]['round']}"
    return [found("not-finite", _where(bad, trace.extends), first, *([f"sampled rows: {states}"] if states else []))]


def repeats(trace: Trace) -> list[Finding]:
    """Bytes that come again: from rank to rank (harmless), or from round to round."""
    twice, stale = [], []
    before: dict[tuple[int, int], Event] = {}
    for event in trace.extends:
        slot = (event["text"], event["sequence"])
        last = before.get(slot)
        before[slot] = event
        if last is None or not event.get("fingerprints"):
            continue
        if last["round"] == event["round"] and last.get("positions") == event.get("positions"):
            if last["fingerprints"] == event["fingerprints"]:
                twice.append(event)
        elif set(event["fingerprints"]) <= set(last["fingerprints"]):
            stale.append(event)
    findings = []
    if twice:
        ranks = sorted({str(event["rank"]) for event in trace.extends if "rank" in event})
        who = f"ranks {', '.join(ranks)}" if ranks else "no rank is given"
        line = f"{len(twice)} of {len(trace.extends)} extend events repeat one of the same round and bytes ({who})"
        findings.append(found("identical-steps", line))
    if len(stale) >= 2:  # one alone can be a text of one repeated token
        example = (
            f"text {stale[0]['text']}, round {stale[0]['round']}: positions {stale[0].get('positions')} with bytes "
        )
        example += f"{stale[0]['fingerprints']} of the extend before"
        findings.append(found("stale-features", _where(stale, trace.extends), example))
    return findings + _stale_steps(trace)


def _stale_steps(trace: Trace) -> list[Finding]:
    """Draft steps of other engines that hand on the same hidden state for different tokens."""
    steps = [event for event in trace.events if event["phase"] == "draft step" and event.get("fingerprints")]
    bad = [
        (a, b)
        for a, b in pairwise(steps)
        if _key(a) == _key(b) and a.get("step") != b.get("step") and a["fingerprints"] == b["fingerprints"]
    ]
    if len(bad) < 2:
        return []
    line = f"{len(bad)} draft steps got the same hidden state as the step before, in other steps of the same round"
    return [found("identical-steps", line, severity="fault")]


def kept_guesses(trace: Trace) -> list[Finding]:
    few, ahead, judged = [], [], 0
    for event in trace.extends:
        settled = trace.accepted.get(_key(event))
        if event["phase"] == "extend" and settled is not None:
            judged += settled > 0
            if event["rows"] < settled + 1:
                few.append((event, settled))
        if event.get("positions") and event.get("cached", 0) > event["positions"][0]:
            ahead.append(event)
    evidence = []
    if few:
        event, settled = few[0]
        evidence.append(
            f"{len(few)} of {judged} rounds that accepted a draft extend fewer rows than a + 1; round {event['round']} "
            f"of text {event['text']} accepted {settled} and extends {event['rows']}"
        )
    if ahead:
        evidence.append(
            f"{len(ahead)} extends start past their position: {ahead[0]['cached']} rows are cached, the first row's "
            f"position is {ahead[0]['positions'][0]}"
        )
    return [found("kept-guesses", *evidence)] if evidence else []


def lengths(trace: Trace) -> list[Finding]:
    limit = trace.plan.get("trained_length")
    past = [event for event in trace.extends if limit and event.get("positions") and max(event["positions"]) >= limit]
    if not past:
        return []
    furthest = max(max(event["positions"]) for event in past)
    return [found("past-trained-length", f"trained for {limit} positions; extends reach position {furthest}")]


# ---- contents


def contents(trace: Trace) -> list[Finding]:
    """What the full-width features hold: zero or repeated states, and every state compared with the witness's."""
    full = [event for event in trace.extends if event["width"] == event.get("expected_width") and "norms" in event]
    findings = _undelivered(trace)
    slots = len(trace.state_names)
    zero = Counter(
        slot
        for event in full
        for norms in event["norms"]
        for slot, norm in enumerate(norms)
        if norm == 0 and len(norms) > 1
    )
    rows = sum(len(event["norms"]) for event in full)
    always = [slot for slot, count in zero.items() if count > rows // 2]
    if always:
        names = ", ".join(trace.state_names[slot] if slot < slots else str(slot) for slot in sorted(always))
        return findings + [found("missing-states", f"all zero in more than half of {rows} rows: state {names}")]
    same = sum(_repeated(norms, first5) for event in full for norms, first5 in zip(event["norms"], event["first5"]))
    if same > rows // 2:
        return findings + [found("repeated-state", f"two slots or more hold equal values in {same} of {rows} rows")]
    return findings + _compared(trace, full)


def _undelivered(trace: Trace) -> list[Finding]:
    missing = [event for event in trace.captures.values() if "missing" in event]
    return [found("missing-states", f"{len(missing)} forwards: {missing[0]['missing']}")] if missing else []


def _repeated(norms: list, first5: list) -> bool:
    states = [(norm, *values) for norm, values in zip(norms, first5) if norm]
    return len(set(states)) < len(states)


def _compared(trace: Trace, full: list[Event]) -> list[Finding]:
    """One finding per kind of mistake that explains at least a tenth of the rows that are not as expected."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, str] = {}
    bad_events, compared, capture_wrong = [], 0, 0
    for event in full:
        rows = trace.witness.get(_key(event), {})
        wrong = False
        for index, row in enumerate(_rows_of(trace, event)):
            if row not in rows or event["finite"] is False:
                continue
            compared += 1
            states = list(zip(event["norms"][index], event["first5"][index]))
            if _is_row(rows[row], states, trace):
                continue
            kind, words, example = _explain(trace, event, row, states)
            kinds[kind][words] += 1
            examples.setdefault(words, example)
            wrong = True
        if wrong:
            bad_events.append(event)
            capture_wrong += _capture_is_wrong(trace, event)
    total = sum(count for words in kinds.values() for count in words.values())
    findings = []
    for kind, words in sorted(kinds.items(), key=lambda item: -sum(item[1].values())):
        count = sum(words.values())
        if count < max(2, total / 10):
            continue
        pattern = words.most_common(1)[0][0]
        evidence = [f"{count} of {compared} compared rows: {pattern}"]
        evidence += [f"for example {examples[pattern]}"] if examples[pattern] else []
        evidence.append(_where(bad_events, trace.extends))
        origin = (
            "is wrong already: look at the capture"
            if 2 * capture_wrong > len(bad_events)
            else "is right: look after it"
        )
        evidence.append(f"what the target's forward delivered {origin}")
        findings.append(found(kind, *evidence))
    return findings


def _is_row(row: WitnessRow, states: list, trace: Trace) -> bool:
    """Whether these states are the plan's states of this row."""
    width = trace.plan["hidden_size"]
    return all(row.is_state(name, *state, width) for name, state in zip(trace.state_names, states))


def _capture_is_wrong(trace: Trace, event: Event) -> bool:
    capture = trace.captures.get(_key(event), {})
    rows = trace.witness.get(_key(event), {})
    described = zip(capture.get("sampled", []), capture.get("norms", []), capture.get("first5", []))
    return any(row in rows and not _is_row(rows[row], list(zip(*states)), trace) for row, *states in described)


def _explain(trace: Trace, event: Event, row: int, states: list) -> tuple[str, str, str]:
    """(finding id, pattern, example) for one row whose features are not the expected ones."""
    text, round_, sequence = key = _key(event)
    for other, rows in trace.witness.items():
        if other[:2] != (text, round_):
            continue
        for candidate in rows.values():
            if _is_row(candidate, states, trace):
                was = f"row {candidate.row} of sequence {candidate.key[2]}"
                return (
                    "wrong-rows",
                    _row_pattern(trace, event, row, candidate),
                    f"{was} for row {row} of sequence {sequence}",
                )
    for earlier in range(round_ - 1, -1, -1):
        for candidate in trace.witness.get((text, earlier, sequence), {}).values():
            if _is_row(candidate, states, trace):
                return "stale-features", "rows of an earlier round's forward", f"round {earlier} in round {round_}"
    width = trace.plan["hidden_size"]
    names = [trace.witness[key][row].state_names(*state, width) for state in states]
    return *_state_kind(trace, [found_names[0] if found_names else "unknown" for found_names in names]), ""


def _state_kind(trace: Trace, names: list[str]) -> tuple[str, str]:
    plan = trace.state_names
    words = f"the slots hold the states {', '.join(names)}; the plan's are {', '.join(plan)}"
    boundaries = trace.plan["boundaries"]
    shifts = {int(name) - boundary for name, boundary in zip(names, boundaries) if name.isdigit()}
    if "unknown" in names:
        return "unknown-states", words
    if any(name.startswith(("update ", "rest ")) for name in names):
        return "residual-not-added", words
    if trace.plan["final_norm"] and names == [str(boundaries[0])]:
        return "unnormed-state", words
    if any(name.startswith("norm ") for name in names):
        return "normed-states", words
    if sorted(names) == sorted(plan):
        return "wrong-order", words
    if len(shifts) == 1 and abs(min(shifts)) == 1:
        return "shifted-boundary", f"{words}: {'one late' if shifts == {1} else 'one early'}"
    return "other-boundary", words


def _row_pattern(trace: Trace, event: Event, row: int, candidate: WitnessRow) -> str:
    """How the rows were mixed up. Blocks lie one after the other in batch order, `width` rows each."""
    text, round_, sequence = _key(event)
    slots = sorted(slot for t, r, slot in trace.block_rows if (t, r) == (text, round_))
    width = trace.block_rows[candidate.key]
    was = candidate.key[2]
    before = sum(trace.extended_rows.get((text, round_, slot), 0) for slot in slots if slot < sequence)
    if sequence != slots[0] and slots.index(was) * width + candidate.row == before + row:
        return "blocks of a fixed width are read as if rows were packed: row i goes to request i"
    if was == sequence:
        return f"other rows of the same block, by {candidate.row - row:+d}"
    as_text = sorted(slots, key=str)
    if as_text != slots and candidate.row == row and as_text[slots.index(sequence)] == was:
        return "requests in text order (0, 1, 10, 11, 2, ...)"
    if candidate.row == row and was == slots[0]:
        return "row numbers within the block, without the block's offset"
    if candidate.row == row:
        return f"off by {slots.index(was) - slots.index(sequence):+d} block"
    return "rows of another sequence"


# ---- the drafter itself


@dataclass
class Agreement:
    """How one variant of the drafter's witness compares with what was drafted, up to each round's first difference."""

    compared: int = 0
    right: int = 0
    near_ties: int = 0
    gaps: list[float] = field(default_factory=list)  # of the log-probabilities of the two best tokens

    def add(self, event: Event, draft: dict[str, list]) -> None:
        for i, (token, other) in enumerate(zip(event["tokens"], draft["tokens"])):
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


# ---- acceptance


def acceptance(trace: Trace, clean: bool) -> list[Finding]:
    """Notes only: acceptance never proves where a fault is."""
    rounds = [event for event in trace.rounds if event["drafted"]]
    if len(rounds) < 20:
        return []
    findings = []
    first = sum(event["accepted"] > 0 for event in rounds) / len(rounds)
    if first < 0.1 and clean:
        findings.append(found("weak-drafter", f"the first draft was accepted in {first:.1%} of {len(rounds)} rounds"))
    opening = [event for event in rounds if event["round"] == 1]
    later = [event for event in rounds if event["round"] > 1]
    if len(opening) >= 8 and len(later) >= 40:
        rates = [sum(event["accepted"] > 0 for event in part) / len(part) for part in (opening, later)]
        if rates[0] > 3 * rates[1] + 0.1:
            line = f"first draft accepted in {rates[0]:.0%} of first rounds, in {rates[1]:.0%} of later ones"
            findings.append(found("falls-after-first-round", line))
    return findings
