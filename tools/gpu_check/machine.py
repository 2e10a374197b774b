"""Prints what the steps ran on as a line of JSON: the package's own description, in a process that ends.

`describe` runs it. The process that runs the steps must not hold the GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from .process import ROOT

PATIENCE = 120  # seconds; a busy machine takes its time to load torch


def here() -> dict[str, object]:
    """What needs neither package nor GPU."""
    return {"date": time.strftime("%Y-%m-%d %H:%M"), "commit": commit()}


def describe(backend: str) -> dict[str, object]:
    """Also chip, driver and versions, if the package is built; `error` says why these are not there."""
    facts = here()
    line = [sys.executable, "-m", "gpu_check.machine", backend]
    try:
        answer = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return facts | {"error": f"no answer in {PATIENCE} s"}
    if answer.returncode != 0:
        return facts | {"error": (answer.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(answer.stdout.splitlines()[-1]) | facts


def commit() -> str | None:
    """The source's commit, ending in -dirty with changes on top of it; None outside a repository of its own."""
    if not (ROOT / ".git").exists():
        return None
    line = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        answer = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    except OSError:  # no git
        return None
    return answer.stdout.strip() or None


def main(backend: str) -> None:
    import torch

    from eagle3_ext import bench
    from eagle3_ext.bench import gpu

    # What build_info() calls torch is what the module was built for.
    facts = bench.machine() | {"torch": torch.__version__, "gpu": gpu.card() if backend == "cuda" else None}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
