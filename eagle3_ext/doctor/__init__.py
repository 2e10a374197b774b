"""The doctor: why is acceptance low? Traces, logs and checkpoints in, findings out, worst first.

`diagnose(paths)` reads files; `trace_rules.diagnose_trace(events)` judges a run in memory. `trace` records one, `logs`
reads engines' lines, `findings.CATALOGUE` lists everything that can be found.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .findings import Finding


@dataclass(frozen=True)
class Diagnosis:
    """What was found in some files.

    Attributes:
        findings: over all files, worst first.
        read: per file what was read, what it proves and what it cannot.
        unrecognised: per file in which nothing was recognised, what was looked for and what to do next. Such a file
            shows nothing, neither that something is wrong nor that nothing is.
    """

    findings: list[Finding]
    read: dict[str, list[str]]
    unrecognised: dict[str, str]

    @property
    def healthy(self) -> bool:
        """Every file was recognised, and there is no finding but notes."""
        return not self.unrecognised and all(finding.severity == "note" for finding in self.findings)

    @property
    def exit_status(self) -> int:
        """1 when something is wrong, else 2 when a file was not recognised, else 0."""
        if any(finding.severity != "note" for finding in self.findings):
            return 1
        return 2 if self.unrecognised else 0

    def to_dict(self) -> dict[str, Any]:
        findings = [finding.to_dict() for finding in self.findings]
        return {"healthy": self.healthy, "findings": findings, "read": self.read, "unrecognised": self.unrecognised}


def diagnose(paths: Iterable[str | Path]) -> Diagnosis:
    """Diagnoses any mix of checkpoint folders, traces and logs; a checkpoint tells what widths the logs should show.

    Traces and logs may be gzipped. Raises FileNotFoundError for a path that is not there, ValueError for a pipe or a
    device, a trace with a broken line, and a gzip file that is cut off or damaged.
    """
    from .findings import worst_first

    paths = [Path(path) for path in paths]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; expected a trace, a log or a checkpoint folder")
        if not path.is_file() and not path.is_dir():  # each is read more than once, and a pipe may never end
            kind = "pipe" if path.is_fifo() else "device"
            raise ValueError(f"{path} is a {kind}; save it to a file first")
    findings: list[Finding] = []
    read: dict[str, list[str]] = {}
    unrecognised: dict[str, str] = {}
    features_width = None
    for path in sorted(paths, key=lambda path: not path.is_dir()):  # checkpoints first: they say what to expect
        source = str(path)
        if path.is_dir():
            some, read[source], unknown, width = _read_folder(path)
            features_width = width or features_width
        else:
            some, read[source], unknown = _read_file(path, features_width)
        findings += some
        if unknown:
            unrecognised[source] = unknown
    return Diagnosis(worst_first(findings), read, unrecognised)


def _read_folder(path: Path) -> tuple[list[Finding], list[str], str, int | None]:
    from .checkpoint_rules import diagnose_checkpoint, unrecognised_folder

    unknown = unrecognised_folder(path)
    if unknown:
        return [], [], unknown, None
    findings, words, width = diagnose_checkpoint(path)
    return findings, words, "", width


def _read_file(path: Path, features_width: int | None) -> tuple[list[Finding], list[str], str]:
    try:
        return _read_trace(path) if _is_trace(path) else _read_log(path, features_width)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}); unpack what is left of it: zcat FILE") from error


def _read_trace(path: Path) -> tuple[list[Finding], list[str], str]:
    from .trace import read_trace
    from .trace_rules import Trace, diagnose_trace

    trace = Trace(read_trace(path))
    return diagnose_trace(trace, str(path)), trace.words(), trace.unrecognised()


def _read_log(path: Path, features_width: int | None) -> tuple[list[Finding], list[str], str]:
    from .log_rules import LogSummary
    from .logs import read_log

    summary = LogSummary()
    for number, line in read_log(path, summary.counts):
        summary.add(number, line)
    return summary.findings(str(path), features_width), summary.words(), summary.unrecognised()


def _is_trace(path: Path) -> bool:
    from .text_files import open_text

    with open_text(path) as file:
        return file.read(12).replace(" ", "").startswith('{"phase":')
