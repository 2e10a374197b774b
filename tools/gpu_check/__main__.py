"""Runs the chosen steps, one after the other and whatever the ones before gave, and writes what they found."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from pathlib import Path

from . import steps
from .machine import describe, here

DESCRIPTION = """\
Everything that only a GPU can tell, in one run. Ends with a table; exit status 1 if anything failed, was stopped or
was not run. The folder of the results gets summary.json, log.txt and, from the step bench, bench.json."""

ALWAYS = (
    "torch 2.11 or newer, numpy, safetensors, rich, pytest; for cuda a CUDA build of torch and a GPU",
    "without a network: `pip download` elsewhere, here `pip install --no-index --find-links FOLDER`",
)


def steps_and_needs() -> str:
    """The part of --help that says what the steps do and what must be installed."""
    limits = sum(step.limit for step in steps.STEPS.values())
    does = [f"  {name:<10}{step.limit:>4} s  {step.does}" for name, step in steps.STEPS.items()]
    needs = [f"  {name:<10}{step.needs}" for name, step in steps.STEPS.items() if step.needs]
    return "\n".join(
        [
            "steps, in the order they run, with the time after which each is stopped:",
            *does,
            f"The limits add up to {limits / 60:g} minutes. About 8 are expected, by an estimate: no run was timed on a GPU.",
            f"On the emulator each limit is {steps.EMULATOR_PATIENCE} times as long.",
            "",
            "what the machine must have, and PYTHON (default python3) must see; nothing is downloaded:",
            *(f"  {name:<10}{text}" for name, text in zip(("always", ""), ALWAYS)),
            *needs,
            "What a step lacks is said in its line of the table, and counts as a failure of that step alone.",
        ]
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/gpu_check.sh",
        description=DESCRIPTION,
        epilog=steps_and_needs(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("steps", nargs="*", metavar="step", help=f"of {', '.join(steps.STEPS)}; all without one")
    parser.add_argument(
        "--backend",
        choices=("cuda", "simt"),
        default="cuda",
        help="simt: the emulator of tests/simt instead of a GPU, at small sizes; its numbers mean nothing",
    )
    parser.add_argument("--out", type=Path, default=steps.ROOT / "build" / "gpu_check", help="folder of the results")
    parser.add_argument("--tests", default="", metavar="EXPRESSION", help="narrows the tests step, as pytest's -k")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        metavar="M",
        help="for the whole run: then the step that runs is stopped, those after it are not run, and all these FAILED",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.steps if name not in steps.STEPS]
    if unknown:
        parser.error(f"no step named {', '.join(unknown)}; there are {', '.join(steps.STEPS)}")
    if not options.minutes > 0:
        parser.error(f"--minutes is {options.minutes:g}; it must be above 0")
    options.steps = [name for name in steps.STEPS if name in options.steps or not options.steps]
    options.out = options.out.resolve()  # steps run in the repository's folder
    return options


def table(results: list[steps.Result]) -> str:
    lines = [("step", "result", "seconds", "note")]
    lines += [(result.step, result.result, f"{result.seconds:.0f}", result.note) for result in results]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {note}".rstrip() for a, b, c, note in lines
    )


def main(arguments: list[str]) -> int:
    end = time.monotonic()
    options = parse(arguments)
    end += 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    results: list[steps.Result] = []
    machine = here() | {"error": "nothing ran after the build"}
    with (options.out / "log.txt").open("w", encoding="utf-8") as log:
        for name in options.steps:
            if name != "build" and "error" in machine and time.monotonic() < end:  # it takes the module that is built
                machine = describe(options.backend)
            left = end - time.monotonic()
            if left > 0:
                results.append(steps.run(name, options, log, left))
            else:
                note = f"not run: the {options.minutes:g} minutes of the whole run were over"
                results.append(steps.Result(name, steps.FAILED, 0.0, note))
            summary = {
                "backend": options.backend,
                "machine": machine,
                "steps": [result.to_dict() for result in results],
            }  # after every step: what comes after may be killed
            (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\n{table(results)}")
    return int(any(result.result == steps.FAILED for result in results))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # a step may print what the terminal cannot
    for number in (signal.SIGTERM, signal.SIGHUP):  # by an exception, on whose way the running step is ended
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
