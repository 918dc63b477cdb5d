"""Runs the contract's checks that need a GPU, on every method or those named; a JSON line for each.

    python benchmarks/gpu_checks.py er gsa
    python benchmarks/gpu_checks.py --taught er gsa

With `--taught` each method learns from a moving average of its weights and repeats its steps, as
far as it supports that.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import make_dataclass

from onepass.learning import registry
from onepass.learning.network_learner import NetworkLearner
from onepass.tools.checks import CHECKS, NEEDS_GPU
from onepass.tools.checks.helpers import self_distillation_settings


def with_lessons(method: type[NetworkLearner]) -> type[NetworkLearner]:
    """Returns a subclass of the method with self-distillation settings as defaults."""
    fields = [(name, object, value) for name, value in self_distillation_settings(method).items()]
    return make_dataclass(method.__name__, fields, bases=(method,), kw_only=True, eq=False)


def main() -> None:
    import onepass  # noqa: F401 - registers the methods

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=[info.key for info in registry.methods()])
    parser.add_argument("--taught", action="store_true")
    given = parser.parse_args()
    for key in given.methods:
        method = registry.get(key).learner
        if given.taught:
            method = with_lessons(method)
        for name in NEEDS_GPU:
            began, found = time.perf_counter(), {"problem": None}
            if name in method.traits.exempt:
                found = {"exempt": method.traits.exempt[name]}
            else:
                try:
                    CHECKS[name](method)
                except Exception as failed:
                    # an error within a capture is the context of the error that the capture raises
                    cause = failed.__context__ or failed
                    found = {"problem": f"{type(cause).__name__}: {cause}"[:600]}
            taken = round(time.perf_counter() - began, 1)
            line = {"method": key, "taught": given.taught, "check": name, **found, "s": taken}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
