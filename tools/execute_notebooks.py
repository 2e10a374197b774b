"""Runs the notebooks at full size from their py:percent text and keeps the outputs in the paired .ipynb files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import jupytext
import nbclient

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="number or part of a name; all notebooks without one")
    names = parser.parse_args().names
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for path in sorted(NOTEBOOKS.glob("0*.py")):
        if names and not any(name in path.stem for name in names):
            continue
        print(f"{path.stem} ...", flush=True)
        notebook = jupytext.read(path)
        nbclient.NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            cell.metadata.pop("execution", None)  # timestamps would make every run a diff
            # Warnings of other packages carry paths of the machine that ran them.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        jupytext.write(notebook, path.with_suffix(".ipynb"))


if __name__ == "__main__":
    main()
