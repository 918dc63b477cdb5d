"""The contract as functions: every registered method is run against every check, and a method of
your own can be too. Modules here import what `tools` imports.

>>> from onepass.tools.checks import check_method
>>> import onepass
>>> outcome = check_method(onepass.ER)
>>> outcome.failed, len(outcome.passed) >= 20
({}, True)

A method that a check cannot apply to names the check and the reason in its `exempt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

import torch

from onepass.base.errors import UnknownNameError
from onepass.learning.learner import Learner
from onepass.tools.checks import costing, learning, predicting, repeating, tools

Check = Callable[[type[Learner]], None]
NEEDS_GPU = ("devices_agree", "a_graph_gives_the_same_bits", "the_step_never_waits")


def _checks(module: ModuleType) -> dict[str, Check]:
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and value.__module__ == module.__name__
    }


CHECKS: dict[str, Check] = {
    name: check
    for module in (predicting, learning, repeating, costing)
    for name, check in _checks(module).items()
}


@dataclass
class Outcome:
    """What came of a method's checks: passed, failed (why), exempt (why)."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    exempt: dict[str, str] = field(default_factory=dict)


def exemptions(method: type[Learner]) -> dict[str, str]:
    """What a method is exempt from, and why; without a GPU also what needs one."""
    for name in method.exempt:
        if name not in CHECKS:
            raise UnknownNameError(f"check in {method.__name__}.exempt", name, CHECKS)
    if torch.cuda.is_available():
        return dict(method.exempt)
    return {**dict.fromkeys(NEEDS_GPU, "this machine has no GPU"), **method.exempt}


def check_method(method: type[Learner], device: str = "cpu") -> Outcome:
    """Runs every check that applies, on the host or on a GPU, and tells what came of each."""
    outcome = Outcome(exempt=exemptions(method))
    for name, problem in one_by_one(method, device):
        if problem:
            outcome.failed[name] = problem
        else:
            outcome.passed.append(name)
    return outcome


def one_by_one(method: type[Learner], device: str = "cpu") -> Iterator[tuple[str, str]]:
    """The name of each check that applies, once it has run, and why it failed, if it has."""
    exempt = exemptions(method)
    for name, check in CHECKS.items():
        if name in exempt:
            continue
        before = tools.device.set(device)
        problem = ""
        try:
            check(method)
        except Exception as failure:  # a check of a foreign method may fail in any way
            problem = f"{type(failure).__name__}: {failure}"
        finally:
            tools.device.reset(before)
        yield name, problem


__all__ = ["CHECKS", "Outcome", "check_method", "exemptions", "one_by_one"]
