"""The benchmark's GPU rows; on the emulator a dry run."""

from __future__ import annotations

from rich.console import Console

from eagle3_ext import bench

from .devices import Findings, main


def run(backend: str, device: str) -> Findings:
    dry = backend == "simt"
    report = bench.run(device="cuda", dry=dry, repeats=3 if dry else 15)
    bench.print_report(report, Console(width=200))
    print(f"{len(report['rows'])} rows{', a dry run' if dry else ''}")
    return report


if __name__ == "__main__":
    main(run, __doc__)
