"""The examples run as they stand."""

import runpy
from pathlib import Path

import pytest
from registries import put_back

from onepass.checks import NEEDS_GPU, check_method
from onepass.nets import NETWORKS
from onepass.registry import METHODS
from onepass.streams import STREAMS

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_something(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    put_back(monkeypatch, METHODS, NETWORKS, STREAMS)
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


def test_a_method_with_a_teacher_keeps_the_contract(monkeypatch):
    """Nothing but what needs a GPU or a memory is exempt: passes and bytes of the previous network
    are counted and declared like any other."""
    put_back(monkeypatch, METHODS)
    monkeypatch.syspath_prepend(EXAMPLES[0].parent)
    import lwf

    outcome = check_method(lwf.LwF)
    assert not outcome.failed
    assert set(outcome.exempt) - set(NEEDS_GPU) == {"memory_reaches_the_gradient"}
