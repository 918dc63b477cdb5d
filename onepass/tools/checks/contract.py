"""Runs the checks on one method, in a fixed order, and collects the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module

import torch

from onepass.base.errors import UnknownNameError
from onepass.learning.learner import Learner
from onepass.tools.checks import helpers, names
from onepass.tools.checks.failure_location import locate_failure

Check = Callable[[type[Learner]], None]
NEEDS_GPU = ("devices_agree", "a_graph_gives_the_same_bits", "the_step_never_waits")

CHECKS: dict[str, Check] = {
    name: getattr(import_module(f"{names.HOME}.{module}"), name)
    for module in names.MODULES
    for name in names.checks_in_module(module)
}


@dataclass
class Outcome:
    """The names of a method's checks by outcome.

    `failed` maps a name to what was expected, what was found and where to look. `exempt` maps a
    name to the reason.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    exempt: dict[str, str] = field(default_factory=dict)


def exemptions(method: type[Learner], only: Iterable[str] = ()) -> dict[str, str]:
    """Returns the checks that a method is exempt from, with the reasons; only those in `only`, if
    it has any names.

    On a machine without a GPU these include the checks that need one. Raises UnknownNameError if
    the method's traits or `only` name a check that does not exist.
    """
    for name in method.traits.exempt:
        if name not in CHECKS:
            raise UnknownNameError(f"check in {method.__name__}.exempt", name, CHECKS)
    exempt = dict(method.traits.exempt)
    if not torch.cuda.is_available():
        exempt = {**dict.fromkeys(NEEDS_GPU, "this machine has no GPU"), **exempt}
    selected = names.select_names(only, CHECKS)
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
    exempt = exemptions(method)
    for name in names.select_names(only, CHECKS):
        if name in exempt:
            continue
        before = helpers.device_of_checks.set(device)
        problem = ""
        try:
            CHECKS[name](method)
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
