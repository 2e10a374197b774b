"""A diagnosis on the terminal: findings first, worst on top, then what each file can and cannot say."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from . import Diagnosis

COLOURS = {"fault": "bold white on red", "suspect": "bold yellow", "note": "cyan"}


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Colours appear where the console is a terminal."""
    for finding in diagnosis.findings:
        title = f"[{COLOURS[finding.severity]}] {finding.severity.upper()} [/] [bold]{escape(finding.title)}[/]"
        console.print(f"{title}  ({finding.id}; {escape(finding.source)})", soft_wrap=True)
        for line in finding.evidence:
            console.print(f"    evidence  {escape(line)}", soft_wrap=True, highlight=False)
        for name in ("meaning", "check", "action"):
            console.print(f"    {name:<8}  {escape(getattr(finding, name))}", soft_wrap=True, highlight=False)
        console.print()
    for source, words in diagnosis.read.items():
        console.print(f"[bold]{escape(source)}[/]", soft_wrap=True)
        for line in words:
            console.print(f"    {escape(line)}", soft_wrap=True, highlight=False)
        if source in diagnosis.unrecognised:
            words = f"[bold yellow]nothing was recognised:[/] {escape(diagnosis.unrecognised[source])}"
            console.print(f"    {words}", soft_wrap=True, highlight=False)
    if diagnosis.healthy:
        console.print("[bold green]Nothing is wrong in what these files show.[/]")
