"""What the features of a trace hold: zero or repeated states, and every state compared with the witness's."""

from __future__ import annotations

from collections import Counter, defaultdict

from .events import EXTENDS, Event, Trace, affected, key_of, rows_of
from .findings import Finding, found
from .matching import WitnessRow


def contents(trace: Trace) -> list[Finding]:
    """What the full-width features hold: zero or repeated states, and every state compared with the witness's."""
    full = [event for event in trace.extends if event["width"] == event.get("expected_width") and "norms" in event]
    findings = _undelivered(trace)
    rows = sum(len(event["norms"]) for event in full)
    zero = [line for phase in EXTENDS for line in _zero([event for event in full if event["phase"] == phase], trace)]
    if zero:
        return findings + [found("missing-states", *zero)]
    same = sum(_repeated(norms, first5) for event in full for norms, first5 in zip(event["norms"], event["first5"]))
    if same > rows // 2:
        return findings + [found("repeated-state", f"two slots or more hold equal values in {same} of {rows} rows")]
    return findings + _compared(trace, full)


_UNDECIDED = "states of no forward, in a round after one that has no witness"


def _zero(events: list[Event], trace: Trace) -> list[str]:
    """Which states are zero in most rows of one phase's events: a long prompt must not outvote a decode of zeros."""
    all_norms = [norms for event in events for norms in event["norms"] if len(norms) > 1]
    zero = Counter(slot for norms in all_norms for slot, norm in enumerate(norms) if norm == 0)
    always = sorted(slot for slot, count in zero.items() if count > len(all_norms) // 2)
    if not always:
        return []
    names = dict(enumerate(trace.state_names))
    states = ", ".join(names.get(slot, str(slot)) for slot in always)
    return [f"{events[0]['phase']}: all zero in more than half of {len(all_norms)} rows: state {states}"]


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
    bad_events, compared_events, compared, capture_wrong = [], [], 0, 0
    for event in full:
        rows = trace.witness.get(key_of(event), {})
        wrong, before = False, compared
        for index, row in enumerate(rows_of(trace, event)):
            if row not in rows or event["finite"] is False:
                continue
            compared += 1
            states = list(zip(event["norms"][index], event["first5"][index]))
            if _is_row(rows[row], states, trace):
                continue
            kind, words, example = _explain(trace, event, row, states)
            text, round_, sequence = key_of(event)
            if kind == "unknown-states" and (text, round_ - 1, sequence) not in trace.witness:
                kind = _UNDECIDED
            kinds[kind][words] += 1
            examples.setdefault(words, example)
            wrong = True
        if compared > before:
            compared_events.append(event)
        if wrong:
            bad_events.append(event)
            capture_wrong += _capture_is_wrong(trace, event)
    # Later rounds have a witness each eighth only: where other rows are stale, these are of the round before.
    undecided = kinds.pop(_UNDECIDED, Counter())
    if undecided:
        kinds["stale-features" if "stale-features" in kinds else "unknown-states"] += undecided
    total = sum(count for words in kinds.values() for count in words.values())
    findings = []
    for kind, words in sorted(kinds.items(), key=lambda item: -sum(item[1].values())):
        count = sum(words.values())
        if count < max(2, total / 10):
            continue
        pattern = words.most_common(1)[0][0]
        evidence = [f"{count} of {compared} compared rows: {pattern}"]
        evidence += [f"for example {examples[pattern]}"] if examples[pattern] else []
        evidence.append(f"{affected(bad_events, compared_events)} of those with a witness")
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
    capture = trace.captures.get(key_of(event), {})
    rows = trace.witness.get(key_of(event), {})
    described = zip(capture.get("sampled", []), capture.get("norms", []), capture.get("first5", []))
    return any(row in rows and not _is_row(rows[row], list(zip(*states)), trace) for row, *states in described)


def _explain(trace: Trace, event: Event, row: int, states: list) -> tuple[str, str, str]:
    """(finding id, pattern, example) for one row whose features are not the expected ones."""
    text, round_, sequence = key_of(event)
    if all(norm == 0 for norm, _ in states):
        return "missing-states", "all states of the row are zero, as a padding row's are", ""
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
    names = [trace.witness[key_of(event)][row].state_names(*state, width) for state in states]
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
    text, round_, sequence = key_of(event)
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
