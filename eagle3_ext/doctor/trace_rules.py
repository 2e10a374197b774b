"""Rules over traces. Each takes a `Trace` and gives findings; `diagnose_trace` runs them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from .content_rules import contents
from .drafter_rules import acceptance, drafter
from .events import Event, Trace, affected, key_of, rows_of
from .findings import Finding, found


def diagnose_trace(events: Trace | Iterable[Event], source: str = "trace") -> list[Finding]:
    """All findings about one run's events."""
    trace = events if isinstance(events, Trace) else Trace(events)
    findings = (
        widths(trace)
        + not_finite(trace)
        + repeats(trace)
        + kept_guesses(trace)
        + lengths(trace)
        + drafter(trace)
        + given_boundaries(trace)
    )
    stale = any(finding.id == "stale-features" for finding in findings)
    findings += [one for one in contents(trace) if not (stale and one.id == "stale-features")]
    findings += acceptance(trace, clean=not any(finding.severity != "note" for finding in findings))
    return [replace(finding, source=source) for finding in findings]


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
        affected(bad, trace.extends),
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
        capture = trace.captures.get(key_of(event))
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
        rows = trace.witness.get(key_of(event), {})
        for row, norms, first5 in zip(rows_of(trace, event), event["norms"], event["first5"]):
            if row in rows:
                names.update(rows[row].state_names(norms[0], first5[0], event["width"])[:1] or ["unknown"])
    return names


# ---- numbers, repetitions, lengths


def not_finite(trace: Trace) -> list[Finding]:
    bad = [event for event in trace.extends if event.get("finite") is False]
    cut = [event for event in trace.drafts if event.get("finite") is False]
    if not bad and not cut:
        return []
    cut_line = f"{len(cut)} of {len(trace.drafts)} drafts were cut short by NaN logits"
    if not bad:
        return [found("not-finite", f"{cut_line}; all extends are finite: look at the drafter's weights")]
    slots = Counter(slot for event in bad for row in event["norms"] for slot, norm in enumerate(row) if norm is None)
    names = trace.state_names
    states = ", ".join(f"state {names[slot] if slot < len(names) else slot} in {n} rows" for slot, n in slots.items())
    first = f"first in text {bad[0]['text']}, round {bad[0]['round']}"
    evidence = [affected(bad, trace.extends), first]
    evidence += [f"sampled rows: {states}"] if states else []
    return [found("not-finite", *evidence, *([cut_line] if cut else []))]


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
        elif _not_zero(event) and _not_zero(event) <= set(last["fingerprints"]):
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
        findings.append(found("stale-features", affected(stale, trace.extends), example))
    return findings + _stale_steps(trace)


def _not_zero(event: Event) -> set[str]:
    """The fingerprints of rows that hold anything: two rows of zeros are alike without being each other's copy."""
    return {print_ for print_, norms in zip(event["fingerprints"], event["norms"]) if any(norm != 0 for norm in norms)}


def _stale_steps(trace: Trace) -> list[Finding]:
    """Draft steps of other engines that hand on the same hidden state for different tokens."""
    steps = [event for event in trace.events if event["phase"] == "draft step" and event.get("fingerprints")]
    bad = [
        (a, b)
        for a, b in pairwise(steps)
        if key_of(a) == key_of(b) and a.get("step") != b.get("step") and a["fingerprints"] == b["fingerprints"]
    ]
    if len(bad) < 2:
        return []
    line = f"{len(bad)} draft steps got the same hidden state as the step before, in other steps of the same round"
    return [found("identical-steps", line, severity="fault")]


def kept_guesses(trace: Trace) -> list[Finding]:
    few, ahead, judged = [], [], 0
    for event in trace.extends:
        settled = trace.accepted.get(key_of(event))
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


def given_boundaries(trace: Trace) -> list[Finding]:
    """Boundaries given by hand instead of the file's. A note: files that number layers otherwise call for that."""
    given, filed = trace.plan.get("boundaries"), trace.plan.get("file_boundaries")
    if not filed or given == filed:
        return []
    shifts = {a - b for a, b in zip(given, filed)}
    line = f"the drafter was built with boundaries {given}; its file says {filed}"
    return [found("shifted-boundary" if shifts in ({1}, {-1}) else "other-boundary", line, severity="note")]
