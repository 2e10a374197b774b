"""What the doctor's trace costs the demo's decode loop: off, a few checks per round; on, everything written to a file.

Off cannot be measured as a difference: nanoseconds in a round of tens of milliseconds. So the checks that a round makes
are counted while it runs, one check is timed by itself, and the product stands against the round's time.
"""

from __future__ import annotations

import statistics
import tempfile
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from ..doctor import trace
from .measure import HOST, row

DRAFTS, NEW_TOKENS, MOST_PROMPTS = 3, 32, 4  # the demo's settings, on as many prompts as take some seconds
CHECKS_TIMED = 200_000


class _CountsReads:
    """Stands in for the module `trace` where it is switched off, and counts how often a run asks."""

    reads = 0

    @property
    def active(self) -> None:
        self.reads += 1


@contextmanager
def counted_checks() -> Iterator[_CountsReads]:
    """Counts the checks for an active trace in everything that feeds one."""
    from .. import decoder, drafter, features

    counter = _CountsReads()
    with mock.patch.object(decoder, "trace", counter), mock.patch.object(drafter, "trace", counter):
        with mock.patch.object(features, "trace", counter):
            yield counter


def check_seconds() -> float:
    """One check of a trace that is off, in seconds: the median of five loops, less the empty loop."""
    loops = [
        timeit.repeat(statement, number=CHECKS_TIMED, repeat=5, globals={"trace": trace})
        for statement in ("if trace.active is not None: pass", "pass")
    ]
    with_check, empty = (statistics.median(times) for times in loops)
    return max(with_check - empty, 0.0) / CHECKS_TIMED


def trace_rows(repeats: int) -> list[dict[str, object]]:
    """Per round of the demo: with its checks against without them, and a traced round against an untraced one."""
    from .. import demo
    from ..decoder import SpeculativeDecoder

    setup = demo.EmbeddedSetup.load()
    torch.set_num_threads(demo.choose_threads(setup))
    prompts = [setup.encode(prompt) for prompt in demo.PROMPTS[: min(MOST_PROMPTS, max(3, repeats))]]
    length = max(ids.shape[1] for ids in prompts) + NEW_TOKENS + DRAFTS + 1
    decoder = SpeculativeDecoder(setup.target(length, setup.drafter.plan), setup.drafter, DRAFTS)
    off: list[float] = []
    on: list[float] = []

    def decode(ids: torch.Tensor, times: list[float]) -> None:
        seconds = HOST.seconds(lambda: decoder.generate(ids, max_new_tokens=NEW_TOKENS))
        times.append(seconds / decoder.stats.rounds)

    with counted_checks() as counter:
        decode(prompts[0], [])  # which also warms up
    checks = counter.reads / decoder.stats.rounds
    with tempfile.TemporaryDirectory() as folder:
        for index, ids in enumerate(prompts):
            for traced in (False, True) if index % 2 else (True, False):
                if traced:
                    with trace.recording(Path(folder) / "run.jsonl"):
                        decode(ids, on)
                else:
                    decode(ids, off)
    round_us, checks_us = statistics.median(off) * 1e6, checks * check_seconds() * 1e6
    ratio = statistics.median(a / b for a, b in zip(off, on))
    case = f"D={DRAFTS}, {len(prompts)} prompts x {NEW_TOKENS} tokens, per round, prefill included"
    threads = torch.get_num_threads()
    without = round_us - checks_us
    return [
        row("trace", f"off: {checks:.1f} checks of {1e3 * checks_us / checks:.0f} ns, {case}", "bfloat16",
            (round_us, without, without / round_us), "less the checks",
            percent_added=float(f"{100 * checks_us / without:.1g}"), checks_us=round(checks_us, 3), threads=threads),
        row("trace", f"on: into a file, {case}", "bfloat16", (statistics.median(on) * 1e6, round_us, ratio), "off",
            percent_added=round(100 * (1 / ratio - 1), 1), threads=threads),
    ]  # fmt: skip
