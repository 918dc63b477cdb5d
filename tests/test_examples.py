"""The examples run as they stand."""

import runpy
from pathlib import Path

import pytest
from registries import put_back

from onepass.nets import NETWORKS
from onepass.streams import STREAMS

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_something(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    put_back(monkeypatch, NETWORKS, STREAMS)
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out
