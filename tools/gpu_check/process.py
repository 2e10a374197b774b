"""Runs a command with what it starts, passes its output on as it comes, and ends all of it on time."""

from __future__ import annotations

import codecs
import contextlib
import os
import shlex
import signal
import subprocess
import threading
from pathlib import Path
from typing import BinaryIO, TextIO

ROOT = Path(__file__).parents[2]


def run(line: list[str], environment: dict[str, str], seconds: float, log: TextIO) -> tuple[int | None, list[str]]:
    """Exit status, None if time ran out, and the lines printed; these reach the terminal and `log` as they come."""
    _print(f"\n== {shlex.join(line)}\n", log)
    process = subprocess.Popen(
        line,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    printed: list[str] = []
    # A thread waits for output: here a silent process must be stopped on time.
    reader = threading.Thread(target=_pass_on, args=(process.stdout, log, printed), daemon=True)
    reader.start()
    try:
        status = process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        status = None
    finally:  # also when this process is interrupted, which a session of its own hears nothing of
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all it started: a compiler or a test would hold the GPU
        process.wait()
        reader.join(5)  # not for ever: what made a session of its own may live on, and holds the pipe
    return status, [text for text in "".join(printed).splitlines() if text.strip()]


def _pass_on(pipe: BinaryIO, log: TextIO, printed: list[str]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := os.read(pipe.fileno(), 1 << 16):
        printed.append(decoder.decode(data))
        _print(printed[-1], log)


def _print(text: str, log: TextIO) -> None:
    print(text, end="", flush=True)
    log.write(text)
    log.flush()
