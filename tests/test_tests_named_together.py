"""Several folders of tests may be named in one call."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_two_folders_with_fixtures_of_their_own_are_collected_together(tmp_path):
    root = Path(__file__).parents[1]
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)
    for name in ("a", "b"):
        folder = tmp_path / "tests" / name
        folder.mkdir(parents=True)
        (folder / "conftest.py").touch()
        (folder / f"test_{name}.py").write_text("def test_it(): pass")
    asked = [sys.executable, "-m", "pytest", "-q", "tests/a", "tests/b"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout
