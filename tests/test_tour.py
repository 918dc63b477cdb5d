"""The notebook of the examples runs from its first cell to its last."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples/tour.ipynb"


@pytest.mark.slow
def test_every_cell_runs_and_leaves_the_kinds_of_output_that_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    committed = nbformat.read(NOTEBOOK, 4)
    run = nbformat.read(NOTEBOOK, 4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(run, timeout=300, kernel_name="python3", resources=where).execute()
    assert shown(run) == shown(committed)
    assert NOTEBOOK.stat().st_size < 300_000


def shown(notebook: Any) -> list[set[str]]:
    """Text, tables or pictures, of each cell; not what is in them."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [{kind for one in outputs for kind in one.get("data", ["text"])} for outputs in cells]
