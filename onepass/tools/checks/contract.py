"""Runs the checks on one method, in a fixed order, and collects the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from onepass.base.errors import UnknownNameError
from onepass.learning.closed_form import ClosedForm
from onepass.learning.learner import Learner
from onepass.learning.network_learner import NetworkLearner
from onepass.tools.checks import helpers, names
from onepass.tools.checks.failure_location import locate_failure

Check = Callable[[Any], None]  # of a method's class
NEEDS_GPU = (
    *("devices_agree", "a_graph_gives_the_same_bits", "the_step_never_waits"),
    "devices_give_the_same_sums",
)

CHECKS: dict[str, Check] = {
    name: getattr(import_module(f"{names.HOME}.{module}"), name)
    for module in names.MODULES
    for name in names.checks_in_module(module)
}
OF_SUMS = names.checks_in_module("sums")
# checks of what holds whether a method trains a network or not
OF_ANY_METHOD = (
    *("predict_before_learning_is_refused", "predict_leaves_no_trace", "predict_in_parts_agrees"),
    *("scores_have_a_column_for_each_class", "a_snapshot_stays", "learn_leaves_its_inputs_alone"),
    *("odd_batches_are_learned", "extreme_inputs_stay_finite", "bad_batches_change_nothing"),
    *("labels_are_only_names", "nobody_tells_the_future", "boundaries_are_inferred"),
    *("same_seed_same_bits", "global_generators_are_left_alone", "a_saved_learner_goes_on_exactly"),
    *("a_state_is_a_snapshot", "the_constructor_is_the_configuration", "a_clone_is_independent"),
    *("memory_is_bounded", "the_memory_holds_raw_samples", "the_file_explains_itself"),
)


@dataclass
class Outcome:
    """The names of a method's checks by outcome.

    `failed` maps a name to what was expected, what was found and where to look. `exempt` maps a
    name to the reason.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    exempt: dict[str, str] = field(default_factory=dict)


def checks_for(method: type[Learner]) -> dict[str, Check]:
    """Returns the checks for a method, by name: those of methods that train a network, or else
    those that need none, with those of sums for a closed-form method."""
    if issubclass(method, NetworkLearner):
        return {name: check for name, check in CHECKS.items() if name not in OF_SUMS}
    own = OF_SUMS if issubclass(method, ClosedForm) else ()
    return {name: CHECKS[name] for name in (*OF_ANY_METHOD, *own)}


def exemptions(method: type[Learner], only: Iterable[str] = ()) -> dict[str, str]:
    """Returns the checks that a method is exempt from, with the reasons; only those in `only`, if
    it has any names.

    On a machine without a GPU these include the checks that need one. Raises UnknownNameError if
    the method's traits or `only` name a check that does not exist.
    """
    checks = checks_for(method)
    for name in method.traits.exempt:
        if name not in checks:
            raise UnknownNameError(f"check in {method.__name__}.exempt", name, checks)
    exempt = dict(method.traits.exempt)
    if not torch.cuda.is_available():
        exempt = {**dict.fromkeys(NEEDS_GPU, "this machine has no GPU"), **exempt}
    selected = names.select_names(only, checks)
    return {name: why for name, why in exempt.items() if name in selected}


def check_method(method: type[Learner], device: str = "cpu", only: Iterable[str] = ()) -> Outcome:
    """Runs every check that applies, or only those in `only`, and returns the outcome of each.

    Learners are made on `device`, except in checks that need another one.
    """
    only = list(only)
    outcome = Outcome(exempt=exemptions(method, only))
    for name, problem in run_checks(method, device, only):
        if problem:
            outcome.failed[name] = problem
        else:
            outcome.passed.append(name)
    return outcome


def run_checks(
    method: type[Learner], device: str = "cpu", only: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Runs the checks that apply; yields the name of each and its failure ("" if it passed)."""
    exempt, checks = exemptions(method), checks_for(method)
    for name in names.select_names(only, checks):
        if name in exempt:
            continue
        before = helpers.device_of_checks.set(device)
        problem = ""
        try:
            checks[name](method)
        except Exception as failure:  # the method is a user's code and may raise anything
            problem = _describe_failure(failure, method)
        finally:
            helpers.device_of_checks.reset(before)
        yield name, problem


def _describe_failure(failure: Exception, method: type[Learner]) -> str:
    """Returns what was expected, what was found, and the line of the method to look at."""
    if isinstance(failure, helpers.ExpectationError):
        return f"{failure} ({locate_failure(failure, method, failure.at)})"
    found = f"expected no error; found {type(failure).__name__}: {failure}"
    return f"{found} ({locate_failure(failure, method)})"
