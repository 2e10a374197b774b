"""The benchmark's GPU rows; on the emulator a dry run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console

from eagle3_ext import bench

from .devices import Findings, main, parse, write


def run(backend: str, device: str, file: Path | None = None) -> Findings:
    """The report, which is in `file` after every group: a run that is stopped leaves what it measured."""
    dry = backend == "simt"

    def keep(report: Findings) -> None:
        print(f"{len(report['rows'])} rows, then {', '.join(report['not_measured']) or 'no more'}")
        if file is not None:
            write(report, file)

    report = bench.run(device="cuda", dry=dry, repeats=3 if dry else 15, keep=keep)
    bench.print_report(report, Console(width=200))
    print(f"{len(report['rows'])} rows{', a dry run' if dry else ''}")
    return report


if __name__ == "__main__":
    main(partial(run, file=parse(__doc__).json), __doc__)
