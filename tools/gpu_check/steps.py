"""The steps: the commands each is made of, how they are run, and how their end is read."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

from . import process
from .process import ROOT

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
SKIP_STATUS = 77  # a step's process that had nothing to do says why in its last line and exits with this

SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclasses.dataclass
class Command:
    """A command line with what it needs of the environment; `report` is a JSON file that it writes.

    One with a `planted` fault must fail and print this text, as what it runs does on seeing the fault.
    """

    line: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    report: Path | None = None
    planted: str = ""


@dataclasses.dataclass
class Result:
    step: str
    result: str
    seconds: float
    note: str = ""
    details: list[object] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self) | {"seconds": round(self.seconds, 1)}


class CannotRun(Exception):
    """Something that a step needs is not there; the message says what."""


def build(options: argparse.Namespace, folder: Path) -> list[Command]:
    """The module for the card that is there; the emulator, for simt."""
    environment = {"CMAKE_ARGS": "-DEAGLE3_BUILD_TESTS=ON"}
    if options.backend == "cuda":
        environment = {"EAGLE3_CUDA": "ON", "TORCH_CUDA_ARCH_LIST": compute_capability()}
    return [Command([sys.executable, "setup.py", "build_ext", "--inplace"], environment)]


def compute_capability() -> str:
    """That of the card, such as "9.0", from torch in a process of its own: this one must not hold the GPU."""
    question = "import torch; print('%d.%d' % torch.cuda.get_device_capability(0))"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    if answer.returncode != 0:
        last = answer.stderr.strip().splitlines()[-1:] or ["no message"]
        raise CannotRun(f"torch finds no CUDA device: {last[0]}")
    return answer.stdout.strip()


def tests(options: argparse.Namespace, folder: Path) -> list[Command]:
    """pytest over the files that know of backends, this backend's tests alone."""
    files = [str(path) for path in sorted((ROOT / "tests").glob("test_*.py")) if _knows_backends(path)]
    names = f"{options.backend} or graphs" if options.backend == "cuda" else options.backend
    expression = f"({names}) and ({options.tests})" if options.tests else names
    line = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-k", expression]
    return [Command([*line, f"--junitxml={folder / 'tests.xml'}", *files])]


def _knows_backends(path: Path) -> bool:
    return re.search(r"^(import|from) backends\b", path.read_text(), re.MULTILINE) is not None


def sanitizer(options: argparse.Namespace, folder: Path) -> list[Command]:
    """A few cases of every op under each tool; on the emulator once, whose sanitizers are `make test-sanitize`."""
    workload = _module("workload", options)
    if options.backend == "simt":
        return [Command(workload)]
    path = os.pathsep.join([os.environ.get("PATH", ""), f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"])
    program = shutil.which("compute-sanitizer", path=path)
    if program is None:
        raise CannotRun("compute-sanitizer is neither in PATH nor in CUDA_HOME/bin")

    def under(tool: str, line: list[str], planted: str = "") -> Command:
        # Other people's kernels are not what is checked here. But initcheck has to see what they write, as a precaution:
        # with the filter it might take a tensor that torch or cuBLAS filled for one that nobody did.
        chosen = [] if tool == "initcheck" else ["--kernel-name", "kns=eagle3"]
        flags = [f"--tool={tool}", "--error-exitcode=1", *chosen, "--target-processes=application-only"]
        # torch's pool would hide an access beside a tensor.
        return Command([program, *flags, *line], {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, planted=planted)

    plant = [sys.executable, "-m", "gpu_check.workload", "plant"]
    return [
        under("memcheck", plant, planted="Invalid __global__ read"),
        *(under(tool, workload) for tool in SANITIZER_TOOLS),
    ]


def _module(name: str, options: argparse.Namespace, *more: str) -> list[str]:
    return [sys.executable, "-m", f"gpu_check.{name}", "--backend", options.backend, *more]


def _reporting(name: str) -> Callable[[argparse.Namespace, Path], list[Command]]:
    def commands(options: argparse.Namespace, folder: Path) -> list[Command]:
        report = options.out / "bench.json" if name == "bench" else folder / f"{name}.json"
        return [Command(_module(name, options, "--json", str(report)), report=report)]

    return commands


class Step(NamedTuple):
    """`limit`: the most seconds that all its commands may take on a GPU."""

    commands: Callable[[argparse.Namespace, Path], list[Command]]
    limit: int
    does: str = ""
    needs: str = ""


# In the order they run, which is also that of what is wanted first if time is short.
STEPS = {
    "build": Step(
        build,
        240,
        "builds the module for the card that is there, in the source folder (setup.py build_ext --inplace)",
        "nvcc of torch's CUDA version, a C++20 compiler, Python.h, cmake >= 3.26, ninja, pybind11, setuptools >= 77",
    ),
    "tests": Step(tests, 150, "pytest: every op and the drafter on the GPU"),
    "bench": Step(
        _reporting("bench"),
        180,
        "times every op and the draft step; what is measured is kept if it is stopped",
        "triton and a C compiler with Python.h, for the peers under torch.compile",
    ),
    "cupy": Step(
        _reporting("cupy"),
        60,
        "copies and argmax against a second array library",
        "cupy-cuda13x, or the one for the CUDA at hand",
    ),
    "graphs": Step(_reporting("graphs"), 60, "CUDA graphs and streams"),
    "large": Step(_reporting("large"), 60, "offsets past 2^31 elements; skipped under 20 GiB of free GPU memory"),
    "sanitizer": Step(
        sanitizer,
        180,
        f"a few cases of every op under {', '.join(SANITIZER_TOOLS)}, after a fault that memcheck must see",
        "compute-sanitizer of the CUDA toolkit, in PATH or CUDA_HOME/bin",
    ),
}
EMULATOR_PATIENCE = 20


def run(name: str, options: argparse.Namespace, log: TextIO, seconds_left: float = math.inf) -> Result:
    """Runs a step's commands until one fails. What they print goes to the terminal and to `log`.

    The step is stopped after its own limit, or after `seconds_left`, which are those of the whole run.
    """
    step = STEPS[name]
    limit = step.limit * (EMULATOR_PATIENCE if options.backend == "simt" else 1)
    stopped = f"stopped after its {limit} s"
    if seconds_left < limit:
        limit, stopped = seconds_left, f"stopped after {seconds_left:.0f} s: the minutes of the whole run were over"
    start = time.monotonic()
    result = Result(name, PASSED, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            for command in step.commands(options, Path(folder)):
                if command.report:
                    command.report.unlink(
                        missing_ok=True
                    )  # that of another run, which this one may not come to replace
                left = limit - (time.monotonic() - start)
                status, lines = process.run(command.line, command.environment, left, log) if left > 0 else (None, [])
                result.result, result.note = (FAILED, stopped) if status is None else _judged(command, status, lines)
                if command.report and command.report.is_file() and name != "bench":
                    result.details.append(json.loads(command.report.read_text()))
                if result.result == FAILED:
                    break
        except CannotRun as error:
            result.result, result.note = FAILED, str(error)
            log.write(f"\n== {name}: {error}\n")
        if name == "tests":
            _count_tests(result, Path(folder) / "tests.xml")
    result.seconds = time.monotonic() - start
    return result


def _judged(command: Command, status: int, lines: list[str]) -> tuple[str, str]:
    """Result and note of a command that ended by itself."""
    last = lines[-1] if lines else ""
    if not command.planted:
        return {0: PASSED, SKIP_STATUS: SKIPPED}.get(status, FAILED), last
    if status == 0:
        return FAILED, "a planted fault was not seen"
    if not any(command.planted in text for text in lines):
        return FAILED, f"failed before its planted fault was seen, without {command.planted!r}: {last}"
    return PASSED, ""


def _count_tests(result: Result, file: Path) -> None:
    """Skipped tests are no proof: says how many there were, and fails where none ran."""
    if not file.is_file():
        return
    suite = xml.etree.ElementTree.parse(file).getroot().find("testsuite")
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    result.details.append(counts)
    result.note = f"{passed} passed, {counts['failures'] + counts['errors']} failed, {counts['skipped']} skipped"
    if passed == 0:
        result.result = FAILED
