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
        method = registry.get(key).learner
        for name in NEEDS_GPU:
            began, found = time.perf_counter(), {"problem": None}
            if name in method.exempt:
                found = {"exempt": method.exempt[name]}
            else:
                try:
                    CHECKS[name](method)
                except Exception as failed:
                    # what fails while a step is captured is told behind what the capture says of it
                    cause = failed.__context__ or failed
                    found = {"problem": f"{type(cause).__name__}: {cause}"[:600]}
            taken = round(time.perf_counter() - began, 1)
            print(json.dumps({"method": key, "check": name, **found, "s": taken}))


if __name__ == "__main__":
    main()
