"""How tests read and show what the doctor found."""

from __future__ import annotations


def ids(findings) -> list[str]:
    return [finding.id for finding in findings]


def accusations(findings) -> list[str]:
    return [finding.id for finding in findings if finding.severity != "note"]


def print_table(rows: list[tuple[str, str, str]]) -> None:
    """The confusion table: visible with pytest -s, and in the report of a failing test."""
    print()
    for fault, expected, given in rows:
        print(f"{'ok ' if expected == given else 'BAD'}  {fault:<42} {expected:<24} {given}")
