"""The examples run as they stand."""

import runpy
import sys
from pathlib import Path

import pytest
from registries import put_back

from onepass.learning.registry import METHODS
from onepass.nets import NETWORKS
from onepass.streams import STREAMS
from onepass.tools.checks import CHECKS, NEEDS_GPU, check_method

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_says_something(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    put_back(monkeypatch, METHODS, NETWORKS, STREAMS)
    runpy.run_path(str(path), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


@pytest.fixture
def lwf(monkeypatch):
    """Imported anew, since what it registers goes with each test."""
    put_back(monkeypatch, METHODS)
    monkeypatch.delitem(sys.modules, "lwf", raising=False)
    monkeypatch.syspath_prepend(EXAMPLES[0].parent)
    import lwf

    return lwf.LwF


OF_A_TEACHER = (
    "a_saved_learner_goes_on_exactly",
    "declared_images_are_counted",
    "kept_bytes_are_declared",
    "the_head_grows",
)


@pytest.mark.parametrize("name", OF_A_TEACHER)
def test_a_teacher_is_saved_counted_declared_and_grown(name, lwf):
    CHECKS[name](lwf)


@pytest.mark.slow
def test_a_method_with_a_teacher_keeps_the_contract(lwf):
    """Nothing but what needs a GPU or a memory is exempt: passes and bytes of the previous network
    are counted and declared like any other."""
    outcome = check_method(lwf)
    assert not outcome.failed
    assert set(outcome.exempt) - set(NEEDS_GPU) == {"memory_reaches_the_gradient"}
