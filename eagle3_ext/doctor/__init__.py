"""The doctor: why is acceptance low? Traces, logs and checkpoints in, findings out, worst first.

`diagnose(paths)` reads files; `trace_rules.diagnose_trace(events)` judges a run in memory. `trace` records one, `logs`
reads engines' lines, `findings.CATALOGUE` lists everything that can be found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .findings import Finding


@dataclass(frozen=True)
class Diagnosis:
    """Findings over all files, worst first, and per file what was read, what it proves and what it cannot."""

    findings: list[Finding]
    read: dict[str, list[str]]

    @property
    def healthy(self) -> bool:
        """No finding but notes."""
        return all(finding.severity == "note" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        findings = [finding.to_dict() for finding in self.findings]
        return {"healthy": self.healthy, "findings": findings, "read": self.read}


def diagnose(paths: Iterable[str | Path]) -> Diagnosis:
    """Diagnoses any mix of checkpoint folders, traces and logs; a checkpoint tells what widths the logs should show.

    Raises FileNotFoundError for a path that is not there and ValueError for a trace with a broken line.
    """
    from .checkpoint_rules import diagnose_checkpoint
    from .findings import worst_first
    from .log_rules import LogSummary
    from .logs import read_log
    from .trace import read_trace
    from .trace_rules import Trace, diagnose_trace

    paths = [Path(path) for path in paths]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; expected a trace, a log or a checkpoint folder")
    findings: list[Finding] = []
    read: dict[str, list[str]] = {}
    features_width = None
    for path in sorted(paths, key=lambda path: not path.is_dir()):  # checkpoints first: they say what to expect
        source = str(path)
        if path.is_dir():
            some, read[source], features_width = diagnose_checkpoint(path)
        elif _is_trace(path):
            trace = Trace(read_trace(path))
            some, read[source] = diagnose_trace(trace, source), trace.words()
        else:
            summary = LogSummary()
            for number, line in read_log(path, summary.counts):
                summary.add(number, line)
            some, read[source] = summary.findings(source, features_width), summary.words()
        findings += some
    return Diagnosis(worst_first(findings), read)


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(12)
    return start.startswith((b'{"phase":', b'{"phase" :', b'{ "phase":'))
