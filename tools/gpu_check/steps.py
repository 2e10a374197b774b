"""The steps: the commands each is made of, how they are run, and how their end is read."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[2]
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
SKIP_STATUS = 77  # a step's process that had nothing to do says why in its last line and exits with this

SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclasses.dataclass
class Command:
    """A command line with what it needs of the environment; `report` is a JSON file that it writes.

    One that `must_fail` carries a planted fault: if it ends well, what should have seen the fault is blind.
    """

    line: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    report: Path | None = None
    must_fail: bool = False


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
    # torch's pool would hide an access beside a tensor; other people's kernels are not what is checked here.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    flags = ["--error-exitcode=1", "--kernel-name", "kns=eagle3", "--target-processes=application-only"]
    planted = [sys.executable, "-m", "gpu_check.workload", "plant"]
    return [
        Command([program, "--tool=memcheck", *flags, *planted], environment, must_fail=True),
        *(Command([program, f"--tool={tool}", *flags, *workload], environment) for tool in SANITIZER_TOOLS),
    ]


def _module(name: str, options: argparse.Namespace, *more: str) -> list[str]:
    return [sys.executable, "-m", f"gpu_check.{name}", "--backend", options.backend, *more]


def _reporting(name: str) -> Callable[[argparse.Namespace, Path], list[Command]]:
    def commands(options: argparse.Namespace, folder: Path) -> list[Command]:
        report = options.out / "bench.json" if name == "bench" else folder / f"{name}.json"
        return [Command(_module(name, options, "--json", str(report)), report=report)]

    return commands


# Name -> its commands and the most seconds that all of them may take on a GPU.
STEPS: dict[str, tuple[Callable[[argparse.Namespace, Path], list[Command]], int]] = {
    "build": (build, 240),
    "tests": (tests, 150),
    "cupy": (_reporting("cupy"), 60),
    "sanitizer": (sanitizer, 180),
    "graphs": (_reporting("graphs"), 60),
    "large": (_reporting("large"), 60),
    "bench": (_reporting("bench"), 180),
}
EMULATOR_PATIENCE = 20


def run(name: str, options: argparse.Namespace, log: TextIO) -> Result:
    """Runs a step's commands until one fails. What they print goes to the terminal and to `log`."""
    make_commands, limit = STEPS[name]
    limit *= EMULATOR_PATIENCE if options.backend == "simt" else 1
    start = time.monotonic()
    result = Result(name, PASSED, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            for command in make_commands(options, Path(folder)):
                left = limit - (time.monotonic() - start)
                status, lines = _run(command, left, log)
                result.note = lines[-1] if lines else ""
                if command.report and command.report.is_file() and name != "bench":
                    result.details.append(json.loads(command.report.read_text()))
                result.result = {0: PASSED, SKIP_STATUS: SKIPPED}.get(status, FAILED)
                if command.must_fail and status is not None:
                    result.result = FAILED if status == 0 else PASSED
                    result.note = "a planted fault was not seen" if status == 0 else ""
                if status is None:
                    result.note = f"stopped after its {limit} s"
                if result.result == FAILED:
                    break
        except CannotRun as error:
            result.result, result.note = FAILED, str(error)
            log.write(f"\n== {name}: {error}\n")
        if name == "tests":
            _count_tests(result, Path(folder) / "tests.xml")
    result.seconds = time.monotonic() - start
    return result


def _run(command: Command, seconds: float, log: TextIO) -> tuple[int | None, list[str]]:
    """Exit status, None if time ran out, and what was printed."""
    header = f"\n== {shlex.join(command.line)}\n"
    print(header, end="", flush=True)
    log.write(header)
    log.flush()
    environment = os.environ | command.environment
    # A file takes the output and is read as it grows, so that a silent process can be stopped on time.
    start, lines = time.monotonic(), []
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command.line, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None and time.monotonic() - start < seconds:
            time.sleep(0.1)
        stopped = process.poll() is None
        if stopped:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read()
    print(text, end="", flush=True)
    log.write(text)
    lines = [line for line in text.splitlines() if line.strip()]
    return (None if stopped else process.returncode), lines


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
