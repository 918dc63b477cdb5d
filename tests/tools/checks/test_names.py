"""The names of the checks are known without torch."""

import subprocess
import sys

import pytest

from onepass import ER
from onepass.base.errors import UnknownNameError
from onepass.tools.checks import CHECKS, check_method
from onepass.tools.checks.names import check_summaries

FIRST, SECOND = "predict_before_learning_is_refused", "same_seed_same_bits"


def test_the_names_read_from_the_source_are_those_of_the_contract():
    assert list(check_summaries()) == list(CHECKS)
    assert all(check_summaries().values())


def test_torch_is_not_needed_to_name_them():
    code = (
        "import sys; sys.modules['torch'] = None; "
        "from onepass.tools.checks.names import check_summaries; print(*check_summaries())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(CHECKS)


def test_only_runs_what_is_asked_for_in_the_order_of_the_contract():
    outcome = check_method(ER, only=["same-seed-same-bits", FIRST])
    assert (outcome.passed, outcome.failed, outcome.exempt) == ([FIRST, SECOND], {}, {})


def test_an_unknown_name_is_refused_before_anything_runs():
    with pytest.raises(UnknownNameError, match="Did you mean 'same_seed_same_bits'"):
        check_method(ER, only=["same_seed"])
