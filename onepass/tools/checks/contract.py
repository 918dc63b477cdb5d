"""The checks in the order in which they run, and what came of them for one method."""

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
    """What came of a method's checks: passed, failed (what was expected, what was found and where),
    exempt (why)."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    exempt: dict[str, str] = field(default_factory=dict)


def exemptions(method: type[Learner], only: Iterable[str] = ()) -> dict[str, str]:
    """Returns what a method is exempt from, and why; without a GPU also what needs one."""
    for name in method.traits.exempt:
        if name not in CHECKS:
            raise UnknownNameError(f"check in {method.__name__}.exempt", name, CHECKS)
    exempt = dict(method.traits.exempt)
    if not torch.cuda.is_available():
        exempt = {**dict.fromkeys(NEEDS_GPU, "this machine has no GPU"), **exempt}
    asked = names.select_names(only, CHECKS)
    return {name: why for name, why in exempt.items() if name in asked}


def check_method(method: type[Learner], device: str = "cpu", only: Iterable[str] = ()) -> Outcome:
    """Runs every check that applies, or `only` those of these names, on the host or on a GPU, and
    returns what came of each."""
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
    """Yields the name of each check that applies, once it has run, and why it failed, if it has."""
    exempt = exemptions(method)
    for name in names.select_names(only, CHECKS):
        if name in exempt:
            continue
        before = helpers.device_of_checks.set(device)
        problem = ""
        try:
            CHECKS[name](method)
        except Exception as failure:  # a check of a foreign method may fail in any way
            problem = _describe_failure(failure, method)
        finally:
            helpers.device_of_checks.reset(before)
        yield name, problem


def _describe_failure(failure: Exception, method: type[Learner]) -> str:
    """Returns what was expected, what was found, and where."""
    if isinstance(failure, helpers.ExpectationError):
        return f"{failure} ({locate_failure(failure, method, failure.at)})"
    found = f"expected no error; found {type(failure).__name__}: {failure}"
    return f"{found} ({locate_failure(failure, method)})"
