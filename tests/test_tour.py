"""The notebook examples/tour.ipynb runs from its first cell to its last."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples/tour.ipynb"


@pytest.mark.slow
def test_every_cell_runs_with_the_kinds_of_output_that_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    committed = nbformat.read(NOTEBOOK, 4)
    run = nbformat.read(NOTEBOOK, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(run, timeout=300, kernel_name="python3", resources=resources).execute()
    assert kinds_of_output(run) == kinds_of_output(committed)
    assert NOTEBOOK.stat().st_size < 300_000


def kinds_of_output(notebook: Any) -> list[set[str]]:
    """Returns whether each cell prints text, tables or pictures, without their content."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [
        {kind for output in outputs for kind in output.get("data", ["text"])} for outputs in cells
    ]
