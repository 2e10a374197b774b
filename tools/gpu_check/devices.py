"""Where a step's tensors live and which kernels its ops run, and what its process prints and writes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import backends
import torch

from .steps import SKIP_STATUS

Findings = dict[str, object]


class Skip(Exception):
    """There is nothing for this step to do here; the message says why."""


@contextmanager
def on(backend: str) -> Iterator[str]:
    """The device for tensors: "cuda", or "cpu" with the emulated CUDA kernels behind ops and drafter."""
    if backend == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("no CUDA device")
        yield "cuda"
    else:
        torch.set_num_threads(1)
        with backends.emulated_ops(), backends.emulated_drafter():
            yield "cpu"


def parse(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", choices=("cuda", "simt"), required=True)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def write(findings: Findings, file: Path) -> None:
    """As a whole or not at all: the process may be killed meanwhile."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(findings, indent=2) + "\n")
    part.replace(file)


def main(step: Callable[[str, str], Findings], description: str | None) -> None:
    """Runs step(backend, device), prints what of its findings fits a line and writes all; exits 1 on a failed check."""
    options = parse(description)
    torch.manual_seed(0)
    try:
        with on(options.backend) as device:
            findings = step(options.backend, device)
    except Skip as reason:
        print(f"skipped: {reason}")
        sys.exit(SKIP_STATUS)
    for name, finding in findings.items():
        if isinstance(finding, (str, int)):
            print(f"{name}: {finding}")
    if options.json is not None:
        write(findings, options.json)


def require(condition: bool, what: str) -> None:
    """A check of a step: unlike assert it stays under python -O."""
    if not condition:
        raise SystemExit(f"FAILED: {what}")
