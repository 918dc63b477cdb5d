"""The contract's checks that need a GPU, for every method (or those named), one JSON line each.

python benchmarks/gpu_checks.py er gsa
"""

from __future__ import annotations

import json
import sys
import time

from onepass import registry
from onepass.checks import CHECKS, NEEDS_GPU


def main() -> None:
    import onepass  # noqa: F401 - registers the methods

    wanted = sys.argv[1:] or [info.key for info in registry.methods()]
    for key in wanted:
        for name in NEEDS_GPU:
            began, problem = time.perf_counter(), None
            try:
                CHECKS[name](registry.get(key).learner)
            except Exception as failed:
                problem = f"{type(failed).__name__}: {failed}"[:600]
            taken = round(time.perf_counter() - began, 1)
            print(json.dumps({"method": key, "check": name, "problem": problem, "s": taken}))


if __name__ == "__main__":
    main()
