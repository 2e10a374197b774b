"""Every notebook: its text and .ipynb agree, kept outputs are complete and without errors, and it runs from a clean kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedded import needs_target

jupytext = pytest.importorskip("jupytext", reason="needs the test extra")
nbformat = pytest.importorskip("nbformat", reason="needs the test extra")
nbclient = pytest.importorskip("nbclient", reason="needs the test extra")

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("0*.py"))
SMALL = {"EAGLE3_NB_PROMPTS": "3", "EAGLE3_NB_TOKENS": "24", "EAGLE3_NB_CASES": "9"}
SMALL |= {"MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_text_and_ipynb_agree(path: Path):
    kept = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    text = jupytext.read(path)
    assert [(c.cell_type, c.source) for c in kept.cells] == [(c.cell_type, c.source) for c in text.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_outputs_are_whole(path: Path):
    for cell in code_cells(nbformat.read(path.with_suffix(".ipynb"), as_version=4)):
        assert cell.execution_count is not None, f"never executed: {cell.source[:60]!r}"
        assert not [output for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@needs_target
def test_runs_from_a_clean_kernel(path: Path, monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)
    notebook = jupytext.read(path)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": os.fspath(path.parent)}}).execute()
    assert "assert" in code_cells(notebook)[-1].source
