"""Progress display, and the lock that makes background training step aside for measurements."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / ".benchmark.lock"
POLL_SECONDS = 2.0


def is_held(lock: Path) -> bool:
    """Whether a live process has locked the file; one that was left behind does not count."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def wait_for_benchmarks(console: Console) -> None:
    """Returns once no benchmark holds the lock."""
    if not is_held(LOCK):
        return
    console.print(f"paused: something holds {LOCK.name}")
    while is_held(LOCK):
        time.sleep(POLL_SECONDS)
    console.print("resumed")


@contextlib.contextmanager
def working(console: Console, title: str, total: float, unit: str) -> Iterator[Callable[[float], None]]:
    """A progress bar; yields `advance(amount)`. Off a terminal only the lines printed to `console` appear."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda amount: progress.advance(task, amount)


@contextlib.contextmanager
def working_politely(console: Console, title: str, total: float, unit: str) -> Iterator[Callable[[float], None]]:
    """`working` in the background: `advance` returns once no benchmark holds the lock."""
    with working(console, title, total, unit) as advance:

        def advance_and_wait(amount: float) -> None:
            advance(amount)
            wait_for_benchmarks(console)

        yield advance_and_wait
