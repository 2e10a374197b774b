"""Runs the chosen steps, one after the other and whatever the ones before gave, and writes what they found."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from . import steps


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/gpu_check.sh", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="step", help=f"of {', '.join(steps.STEPS)}; all without one")
    parser.add_argument("--backend", choices=("cuda", "simt"), default="cuda")
    parser.add_argument("--out", type=Path, default=steps.ROOT / "build" / "gpu_check", help="folder of the results")
    parser.add_argument("--tests", default="", metavar="EXPRESSION", help="narrows the tests step, as pytest's -k")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.steps if name not in steps.STEPS]
    if unknown:
        parser.error(f"no step named {', '.join(unknown)}; there are {', '.join(steps.STEPS)}")
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
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    with (options.out / "log.txt").open("w") as log:
        for name in options.steps:
            results.append(steps.run(name, options, log))
            summary = {
                "backend": options.backend,
                "date": time.strftime("%Y-%m-%d"),
                "steps": [result.to_dict() for result in results],
            }  # after every step: what comes after may be killed
            (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\n{table(results)}")
    return int(any(result.result == steps.FAILED for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
