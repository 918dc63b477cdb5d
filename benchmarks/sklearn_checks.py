"""Runs scikit-learn's own checks of an estimator on each method.

    SCIPY_ARRAY_API=1 python benchmarks/sklearn_checks.py > benchmarks/sklearn-checks.txt
    SCIPY_ARRAY_API=1 python benchmarks/sklearn_checks.py er gsa

It prints how many checks ran and passed for each method, and each that did not pass, with the
reason if that was expected. It exits with 1 if a check failed unexpectedly. Without the variable
scikit-learn leaves one check out.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import sklearn
import torch
from sklearn.utils.estimator_checks import check_estimator

from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.sklearn import EXPECTED_TO_FAIL, OnePassClassifier


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("methods", nargs="*", help="names of methods (default: all)")
    keys = parser.parse_args().methods or [info.key for info in registry.methods()]
    torch.set_num_threads(1)
    print(f"scikit-learn {sklearn.__version__}, torch {torch.__version__}, one thread of a CPU")
    failed = 0
    for key in keys:
        found = checked(key)
        ran = [check for check in found if check["status"] != "skipped"]
        passed = [check for check in ran if check["status"] == "passed"]
        print(f"{key:14}{len(ran)} run, {len(passed)} passed", flush=True)
        for check in found:
            if check["status"] != "passed":
                print(f"    {check['check_name']}: {said(check)}", flush=True)
        failed += sum(check["status"] == "failed" for check in found)
    sys.exit(failed > 0)


def said(of: dict[str, object]) -> str:
    """Returns why a check did not pass."""
    if of["status"] == "xfail":
        return f"expected to fail: {of['expected_to_fail_reason']}"
    return f"{of['status']}: {' '.join(str(of['exception']).split())}"


def checked(key: str) -> list[dict[str, object]]:
    """Returns the outcome of each check, with a small memory and the method's quick settings."""
    learner = registry.get(key).learner
    memory = {"memory": 100} if "memory" in setting_names(learner) else {}
    model = OnePassClassifier(key, device="cpu", **memory, **learner.traits.quick)
    with warnings.catch_warnings(action="ignore"):
        return check_estimator(
            model, expected_failed_checks=EXPECTED_TO_FAIL, on_fail=None, on_skip=None
        )


if __name__ == "__main__":
    main()
