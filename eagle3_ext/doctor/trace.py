"""The trace: what reached the drafter, event by event, as JSON lines.

`with recording("run.jsonl"):` or the environment variable EAGLE3_TRACE=FILE switches it on; `active` is None otherwise,
and that one check is all a run pays. The decode loop, the capture hooks and the drafter feed it; another engine feeds
it through `record`, one call per tensor.

An event is one dict. `phase` says what it is about:

    plan            the drafter: widths, boundaries, norm switches, trained length
    prefill/verify  the features one target forward delivered, [rows, K*H]
    witness         the same forward's states at every boundary, seen by hooks of their own; the judge of the features
    prefill extend  the features that reached the drafter for a prompt's rows
    extend          the same for the a + 1 settled rows of a round
    draft step      one step of the draft loop (`step` from 1); its width is h, which is right there
    draft           the drafted tokens (`finite` is false where NaN logits cut them), and what the drafter's witness
                    would have drafted
    round           drafted, accepted and emitted tokens of a round
    cut last line   a file's last line that is no whole event; only `read_trace` makes it

Events with data hold `rows`, `width`, `expected_width`, `finite`, and per sampled row the L2 norm and the first five
values of each state of width H and a fingerprint of the row's bytes. At most SAMPLED_ROWS rows are sampled, so that the
size of an event does not depend on the prompt. prefill, verify and witness events stop coming every round after
WITNESSED_ROUNDS.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch

from ..errors import BoundaryError
from ..turns import Turn
from .text_files import open_text

if TYPE_CHECKING:
    from ..drafter import Drafter, DraftTokens
    from ..features import Features
    from .witness import DrafterWitness

SAMPLED_ROWS = 8  # the first and the last four
CUT = "cut last line"
WITNESSED_ROUNDS = 8  # a text's first rounds have a witness each, later ones every eighth: that keeps tracing cheap


def sampled_rows(rows: int) -> list[int]:
    """Which of `rows` rows an event describes."""
    if rows <= SAMPLED_ROWS:
        return list(range(rows))
    half = SAMPLED_ROWS // 2
    return [*range(half), *range(rows - half, rows)]


def _numbers(values: torch.Tensor) -> list:
    """Nested lists with six digits; None for NaN and infinities, which JSON has no word for."""
    values = values.double()
    scale = 10 ** (5 - values.abs().clamp(min=1e-30).log10().floor())
    finite = values.isfinite()
    rounded = torch.where(finite, (values * scale).round() / scale, values)
    return rounded.tolist() if finite.all() else _without_nan(rounded.tolist())


def _without_nan(values: Any) -> Any:
    if isinstance(values, list):
        return [_without_nan(value) for value in values]
    return values if math.isfinite(values) else None


def describe(states: torch.Tensor) -> dict[str, list]:
    """Norms [rows][states] and first five values [rows][states][5] of `states` [rows, states, H]."""
    states = states.float()
    return {"norms": _numbers(states.norm(dim=-1)), "first5": _numbers(states[..., :5])}


def fingerprints(sample: torch.Tensor) -> list[str]:
    """One checksum per row of its bytes."""
    rows = sample.cpu().contiguous().view(torch.uint8).numpy() if sample.numel() else []
    return [f"{zlib.crc32(row):08x}" for row in rows]


class Recorder:
    """Writes events to a file, or keeps them in `events`.

    Attributes:
        events: the events so far, when there is no file.
        text, round, sequence: stamped on every event. `sequence` is the slot a target forward is for; a loop that runs
            one forward per sequence sets it, the drafter's events name their own. Texts and rounds are counted from
            what passes: a drafter's reset, then a forward, begin a text; a draft begins a round, and so does a second
            forward for one sequence. A loop that knows better calls `begin_text` and `begin_round` before them.
        turn: held by decoders for a whole text, or threads would mix the events of theirs.
    """

    def __init__(self, path: str | Path | None = None, drafter_witness: DrafterWitness | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.text = self.round = self.sequence = 0
        self.turn = Turn("trace")
        self._forwarded: set[int] = set()  # sequences with a forward in this round
        self._extended = self._reset = False  # in this round; since the last forward or extend
        self._most_drafts: list[int] = []  # for each of the last extend's sequences: none without rows, few when nearly full
        self._drafter_witness = drafter_witness
        self._described: Drafter | None = None
        self._file: TextIO | None = None
        if path is not None:
            own_path = str(path).replace("{pid}", str(os.getpid()))  # keeps the workers of one engine apart
            self._file = open(own_path, "w", buffering=1, encoding="utf-8")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def begin_text(self) -> None:
        """A new prompt: rounds count from 0, which is its prefill."""
        self.text += 1
        self._begin(0)

    def begin_round(self) -> None:
        self._begin(self.round + 1)

    def _begin(self, round_: int) -> None:
        self.round = round_
        self._forwarded.clear()
        self._extended = self._reset = False

    def record(
        self,
        phase: str,
        hidden: torch.Tensor | None = None,
        *,
        state_width: int | None = None,
        expected_width: int | None = None,
        first_row: int = 0,
        **facts: Any,
    ) -> None:
        """One event. The one door for other engines (`doctor.trace.record`).

        Args:
            phase: see the module's text.
            hidden: [rows, width], described by its sampled rows.
            state_width: H, the width of one state; `hidden`'s own width if absent.
            expected_width: what the drafter's fusion (or draft step) calls for.
            first_row: the number of `hidden`'s first row in what the round's extend gets: not 0 in later chunks of a
                prefill.
            facts: further entries; `sequence`, `round`, `positions`, `tokens` and `rank` are understood by the rules.
        """
        event = {"phase": phase, "text": self.text, "round": self.round, "sequence": self.sequence, **facts}
        if expected_width is not None:
            event["expected_width"] = expected_width
        if hidden is not None:
            rows, width = hidden.shape
            event |= {"rows": rows, "width": width}
            if state_width is not None:
                event["state_width"] = state_width
            sampled = sampled_rows(rows)
            event["sampled"] = [first_row + row for row in sampled]
            event["finite"] = bool(hidden.isfinite().all())
            sample = hidden[sampled].detach()
            # A width that holds no whole number of states is described as one.
            whole = state_width if state_width is not None and width % state_width == 0 else width
            event |= {**describe(sample.unflatten(-1, (-1, whole))), "fingerprints": fingerprints(sample)}
        self._write(event)

    # ---- what the drafter and the capture feed

    def reset(self) -> None:
        """A `Drafter.reset`: the next forward is a prefill, unless an extend takes the features of the one before."""
        self._reset = True

    def plan(self, drafter: Drafter) -> None:
        """The drafter's plan, once per drafter."""
        if self._described is drafter:
            return
        self._described = drafter
        config, plan = drafter.config, drafter.plan
        self.record(
            "plan",
            boundaries=list(plan.boundaries),
            file_boundaries=None if config.boundaries is None else sorted(config.boundaries),
            hidden_size=plan.hidden_size,
            features_width=plan.width,
            drafter_width=config.hidden_size,
            final_norm=plan.final_norm,
            trained_length=config.max_position_embeddings,
            description=str(plan),
        )

    def extend(
        self,
        drafter: Drafter,
        features: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        row_offsets: torch.Tensor,
        sequences: torch.Tensor | None,
    ) -> None:
        """One event per sequence of a `Drafter.extend` call."""
        self._extended, self._reset = True, False
        self._most_drafts.clear()
        offsets, lengths = row_offsets.tolist(), drafter.lengths.tolist()
        if features.dim() != 2 or not 0 <= offsets[-1] <= min(len(features), tokens.numel(), positions.shape[-1]):
            return  # the drafter refuses it by name
        self.plan(drafter)
        slots = range(len(offsets) - 1) if sequences is None else sequences.tolist()
        for slot, begin, end in zip(slots, offsets, offsets[1:]):
            # The newest drafted token needs no row of its own.
            rows_left = drafter.max_length - lengths[slot] - (end - begin)
            self._most_drafts.append(0 if begin == end else max(0, rows_left) + 1)
            if begin == end:
                continue
            sampled = [begin + row for row in sampled_rows(end - begin)]
            self.record(
                "extend" if lengths[slot] else "prefill extend",
                features[begin:end],
                state_width=drafter.plan.hidden_size,
                expected_width=drafter.config.features_width,
                sequence=slot,
                cached=lengths[slot],
                positions=[int(positions[..., row].flatten()[0]) for row in sampled],
                tokens=[int(tokens[row]) for row in sampled],
            )
        if self._drafter_witness is not None:
            self._drafter_witness.extend(features, tokens, positions)

    def draft(self, drafter: Drafter, drafts: DraftTokens) -> None:
        """The draft steps of a `Drafter.draft` call, and its tokens next to the witness's."""
        if self._extended or self._forwarded:
            self.begin_round()
        batch, count = drafts.tokens.shape
        for step in range(1, count):
            width = drafter.config.hidden_size
            self.record("draft step", step=step, rows=batch, width=width, expected_width=width)
        for slot in range(batch):
            tokens = drafts.tokens[slot].tolist()
            facts = {"tokens": tokens, "log_probs": _numbers(drafts.log_probs[slot])}
            # Fewer tokens than asked for, and not for want of something to draft from or of room: the logits were NaN.
            most = min([count, *self._most_drafts[slot : slot + 1]])
            facts["finite"] = int(drafts.lengths[slot]) >= most
            if self._drafter_witness is not None:
                facts["witness"] = self._drafter_witness.draft(tokens)
            self.record("draft", sequence=slot, **facts)

    @contextmanager
    def watch(self, decoder: torch.nn.Module, layers: torch.nn.ModuleList, features: Features) -> Iterator[None]:
        """Records a forward's features, and as witness its states, by hooks that share nothing with the capture."""
        from .witness import watch_states

        base = 0  # the features' rows before this round's, in append mode

        def started() -> bool:
            nonlocal base
            again = self.sequence in self._forwarded
            # A chunk of a prefill whose extend will take all chunks together.
            if again and features.rows and not self._extended and not self._reset:
                return True
            base = features.rows
            if self._reset:
                self.begin_text()
            elif again:
                self.begin_round()
            self._forwarded.add(self.sequence)
            return self.round <= WITNESSED_ROUNDS or self.round % WITNESSED_ROUNDS == 0

        def finished(names: list[str], states: torch.Tensor, rows: int) -> None:
            kind = "verify" if self.round else "prefill"
            plan, first_row = features.plan, features.rows - rows - base
            try:
                self.record(
                    kind,
                    features.tensor[-rows:],
                    state_width=plan.hidden_size,
                    expected_width=plan.width,
                    first_row=first_row,
                )
            except BoundaryError as error:
                self.record(kind, rows=rows, width=0, expected_width=plan.width, missing=str(error))
            sampled = [first_row + row for row in sampled_rows(rows)]
            self.record("witness", rows=rows, states=names, sampled=sampled, layers=len(layers), **describe(states))

        with watch_states(decoder, layers, features.plan.boundaries, finished, started):
            yield

    def _write(self, event: dict[str, Any]) -> None:
        if self._file is None:
            self.events.append(event)
        else:
            self._file.write(json.dumps(event, separators=(",", ":")) + "\n")


active: Recorder | None = Recorder(os.environ["EAGLE3_TRACE"]) if os.environ.get("EAGLE3_TRACE") else None


def record(phase: str, hidden: torch.Tensor | None = None, **facts: Any) -> None:
    """`Recorder.record` of the active recorder, nothing without one. Other engines call this where a tensor passes."""
    if active is not None:
        active.record(phase, hidden, **facts)


@contextmanager
def recording(path: str | Path | None = None, drafter_witness: DrafterWitness | None = None) -> Iterator[Recorder]:
    """Records everything inside the block; into `recorder.events` without a path.

    `drafter_witness` runs the drafter a second time in plain PyTorch: for a diagnosis, not for a speed measurement.
    """
    global active
    before, active = active, Recorder(path, drafter_witness)
    try:
        yield active
    finally:
        active.close()
        active = before


def read_trace(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a trace file; for a last line that is cut off, as a killed process leaves it, one of phase CUT.

    Raises ValueError naming the first line that is no event.
    """
    with open_text(Path(path)) as file:
        for number, line in enumerate(file, 1):
            try:
                event = json.loads(line)
                if not isinstance(event, dict) or "phase" not in event:
                    raise ValueError("no event")
            except ValueError as error:
                if not line.endswith("\n"):  # only the last line has none
                    yield {"phase": CUT, "line": number}
                    return
                raise ValueError(f"{path}, line {number} is no trace event ({error}): {line[:60]!r}") from error
            yield event
