"""One harness for every speed this project claims: ours and a peer side by side in one run.

Each row alternates ours and the peer, so that a machine that changes its speed changes it for both; medians are
reported and `ratio` is the median of the pairwise peer/ours. Peers are what a user would write without this package.
`cpu.py` holds the CPU's rows, `trace_cost.py` those of the doctor's trace, `gpu.py` the GPU's.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import build_info
from .measure import paired, row

__all__ = ["machine", "paired", "print_report", "row", "run"]

DEVICES = ("cpu", "cuda")


def machine() -> dict[str, object]:
    """What the numbers were measured on, and how busy it was."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"),
        **build_info(),
    }


def run(
    only: str = "",
    repeats: int = 15,
    device: str = "cpu",
    dry: bool = False,
    keep: Callable[[dict[str, object]], object] | None = None,
) -> dict[str, object]:
    """Runs the groups whose name contains `only`; leaves the thread count as it found it.

    `keep` is called after every group with the report so far, for a run that may be stopped, and in it under
    `not_measured` the groups still to come. `dry` runs the GPU's groups at tiny sizes on the CPU, to try the code: its
    numbers mean nothing.

    Raises ValueError for another device, for a GPU that is not there, for a dry run of the CPU's groups and when no
    group is named like `only`.
    """
    chosen = {name: group for name, group in _groups(device, dry).items() if only in name}
    if not chosen:
        raise ValueError(f"no benchmark named like {only!r}; there are {', '.join(_groups(device, dry))}")
    from ..demo import benchmark_lock

    threads, rows = torch.get_num_threads(), []
    torch.manual_seed(0)
    report = {"machine": machine(), "rows": rows}
    try:
        with benchmark_lock(), Progress(console=Console(stderr=True), transient=True) as progress:
            if device == "cuda":
                from . import gpu

                report["machine"] |= {"gpu": gpu.card(), "dry": dry}
            task = progress.add_task("benchmarks", total=len(chosen))
            for done, (name, group) in enumerate(chosen.items(), 1):
                progress.update(task, description=name)
                rows.extend(group(repeats))
                if keep is not None:
                    keep(report | {"not_measured": list(chosen)[done:]})
                progress.advance(task)
    finally:
        torch.set_num_threads(threads)
    return report


def _groups(device: str, dry: bool) -> dict:
    if device not in DEVICES:
        raise ValueError(f"device is {device!r}; expected {' or '.join(DEVICES)}")
    if device == "cpu":
        if dry:
            raise ValueError("dry is for device cuda: the CPU's benchmarks can simply be run")
        from . import cpu

        return cpu.GROUPS
    if not dry and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device; a dry run tries the code on the CPU")
    from . import gpu

    return gpu.groups(dry)


# Title and key of the report's columns; a column that no row has is left out.
COLUMNS = {
    "what": "what",
    "ours us": "ours_us",
    "peer": "peer",
    "peer us": "peer_us",
    "ratio": "ratio",
    "against a limit": "limit",
    "launches": "launches",
    "peer's": "peer_launches",
}


def print_report(report: dict[str, object], console: Console) -> None:
    facts = report["machine"]
    title = f"{facts['cpu']}, {facts['cores']} cores"
    if facts.get("dry"):
        title = f"DRY RUN on {title}: the numbers mean nothing"
    elif facts.get("gpu"):
        title = f"{facts['gpu']['chip']}, driver {facts['gpu']['driver']}, CUDA {facts['gpu']['torch_cuda']}"
    rows = [line | {"what": f"{line['name']}: {line['case']}", "limit": _limit(line)} for line in report["rows"]]
    shown = {head: key for head, key in COLUMNS.items() if any(line.get(key) is not None for line in rows)}
    table = Table(title=title, box=SIMPLE_HEAD)
    for head, key in shown.items():
        is_number = key not in ("what", "peer", "limit")
        table.add_column(head, justify="right" if is_number else "left", no_wrap=is_number)
    for line in rows:
        values = [line.get(key) for key in shown.values()]
        table.add_row(*("-" if value is None else str(value) for value in values))
    console.print(table)


def _limit(line: dict[str, object]) -> str | None:
    """The one percentage that a row is judged by."""
    told = {"percent_of_copy": "of copy", "percent_of_read": "of read", "percent_of_floor": "of floor",
            "percent_added": "added"}
    return next((f"{line[key]} % {word}" for key, word in told.items() if line.get(key) is not None), None)
