"""A trace's events, sorted by what they are about."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Any

from .matching import Key, WitnessRow, witness_rows
from .trace import CUT

Event = dict[str, Any]

MOST_EVENTS = 200_000  # what a diagnosis keeps in memory; more events of one run say nothing new
EXTENDS = ("prefill extend", "extend")
JUDGED = (*EXTENDS, "draft step", "draft", "round", "prefill", "verify")  # phases that rules look at


def key_of(event: Event) -> Key:
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
        self.accepted = {key_of(event): event["accepted"] for event in self.rounds}
        self.captures = {key_of(event): event for event in by_phase["prefill"] + by_phase["verify"]}
        self.witness: dict[Key, dict[int, WitnessRow]] = defaultdict(dict)
        self.block_rows: dict[Key, int] = {}
        self.extended_rows = {key_of(event): event["rows"] for event in self.extends}
        self.layers = 0
        for event in by_phase["witness"]:
            self.layers = event["layers"]
            self.block_rows[key_of(event)] = event["rows"]
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
        for event in self.events[-1:]:
            if event["phase"] == CUT:
                words.append(
                    f"line {event['line']}, the last, is cut off and left out: the run was ended while it wrote"
                )
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
            f"none of its {len(self.events)} events is a {', '.join(JUDGED[:-1])} or {JUDGED[-1]}: the run stopped "
            "before its first forward, or its recorder names phases otherwise. Record it again: EAGLE3_TRACE=run.jsonl COMMAND"
        )


def rows_of(trace: Trace, event: Event) -> list[int]:
    """The rows of the round's forward that an extend's sampled rows should be, by position: the last one is row a."""
    accepted = trace.accepted.get(key_of(event))
    if event["phase"] != "extend" or accepted is None or not event.get("positions"):
        return event["sampled"]
    return [accepted + position - event["positions"][-1] for position in event["positions"]]


def affected(bad: Iterable[Event], all_events: list[Event]) -> str:
    """ "prefill extend 0 of 4, extend 31 of 31": which phases are affected."""
    bad_of, all_of = Counter(event["phase"] for event in bad), Counter(event["phase"] for event in all_events)
    return "affected: " + ", ".join(f"{phase} {bad_of[phase]} of {all_of[phase]}" for phase in EXTENDS if all_of[phase])
