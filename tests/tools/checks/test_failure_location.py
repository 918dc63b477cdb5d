"""A failed check names the right line of the method's own file."""

import inspect
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from onepass import ER
from onepass.base.parts import ImageCount
from onepass.tools.checks import check_method
from onepass.tools.checks.failure_location import locate_failure

HERE = Path(__file__)


@dataclass(kw_only=True, eq=False)
class Unlucky(ER):
    """A method that raises where a test wants it to."""

    def step(self, x, y):
        return self.deeper(x, y)

    def deeper(self, x, y):
        raise ValueError("in a step")

    def make_head(self, features, rng):
        raise RuntimeError("in a head")

    @property
    def classes(self):
        return []

    @classmethod
    def made(cls):
        return cls()


@dataclass(kw_only=True, eq=False)
class CountsTooLittle(ER):
    def cost(self, batch):  # one that declares too little
        return ImageCount(trained=batch)


@dataclass(kw_only=True, eq=False)
class PicksRowsByAMask(ER):
    def step(self, x, y):
        done = super().step(x, y)
        own = done.outputs[0]
        worst = own.logits[own.weight > 0].min()
        return done if worst.ndim == 0 else None


def line_of(text):
    """Returns the number of the one line of this file that begins with a text."""
    lines = enumerate(HERE.read_text().splitlines(), 1)
    (number,) = (number for number, line in lines if line.strip().startswith(text))
    return number


def caught(function, *arguments):
    try:
        function(*arguments)
    except Exception as failure:
        return failure
    raise AssertionError("nothing was raised")


def of_a_check():
    """Returns a failure whose traceback passes through no line of this file."""
    module = types.ModuleType("elsewhere")
    exec("def check():\n    raise AssertionError", vars(module))
    failure = caught(module.check)
    return failure.with_traceback(failure.__traceback__.tb_next)


@pytest.fixture(autouse=True)
def in_this_folder(monkeypatch):
    monkeypatch.chdir(HERE.parent)


def test_an_error_is_at_the_innermost_line_of_the_methods_file():
    failure = caught(Unlucky.step, Unlucky(), None, None)
    at = line_of('raise ValueError("in a step")')
    assert (
        locate_failure(failure, Unlucky, "make_head")
        == f"test_failure_location.py:{at}, in Unlucky.deeper"
    )


def test_an_error_that_was_told_in_other_words_is_where_it_first_was():
    """The trainer replaces any error of a head by one that names the samples."""
    outcome = check_method(Unlucky, only=["same_seed_same_bits"])
    at = line_of('raise RuntimeError("in a head")')
    assert outcome.failed["same_seed_same_bits"] == (
        "expected no error; found InputError: the net cannot take samples of (3, 8, 8): "
        f"in a head (test_failure_location.py:{at}, in Unlucky.make_head)"
    )


@pytest.mark.parametrize(
    ("at", "line", "name"),
    [
        ("make_head", "def make_head", "Unlucky.make_head"),
        ("cost make_head", "def make_head", "Unlucky.make_head"),  # `cost` is not its own
        ("classes", "def classes", "Unlucky.classes"),  # not the decorator's line
        ("made", "def made", "Unlucky.made"),
        ("cost", "class Unlucky", "Unlucky"),
        ("", "class Unlucky", "Unlucky"),
    ],
)
def test_what_passed_no_line_of_its_own_is_at_the_function_that_decides(at, line, name):
    found = locate_failure(of_a_check(), Unlucky, at)
    assert found == f"test_failure_location.py:{line_of(line)}, in {name}"


def test_a_file_elsewhere_is_named_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate_failure(of_a_check(), Unlucky).startswith(f"{HERE}:")


def test_a_method_of_ours_is_looked_for_in_its_own_file():
    first = inspect.getsourcelines(ER.step)[1]
    assert locate_failure(of_a_check(), ER, "step").endswith(f"er.py:{first}, in ER.step")


def test_what_was_typed_at_a_prompt_has_a_name_and_no_line(monkeypatch):
    module = types.ModuleType("prompt")
    monkeypatch.setitem(sys.modules, "prompt", module)
    exec("from onepass import ER\nclass Typed(ER):\n    pass", vars(module))
    assert locate_failure(of_a_check(), module.Typed, "step") == "in Typed"


def test_a_check_says_what_it_expected_what_it_found_and_where():
    outcome = check_method(CountsTooLittle, only=["declared_images_are_counted"])
    assert outcome.failed == {
        "declared_images_are_counted": f"expected the declared {ImageCount(10)} of a step; "
        f"found {ImageCount(74)} counted "
        f"(test_failure_location.py:{line_of('def cost')}, in CountsTooLittle.cost)"
    }


def test_a_shape_that_depends_on_data_is_at_its_line():
    outcome = check_method(PicksRowsByAMask, only=["the-step-stays-on-the-device"])
    at = line_of("worst = own.logits[own.weight > 0]")
    assert outcome.failed == {
        "the_step_stays_on_the_device": "expected a step without a shape, or a value on the host, "
        "that depends on data; found aten.nonzero.default "
        f"(test_failure_location.py:{at}, in PicksRowsByAMask.step)"
    }
