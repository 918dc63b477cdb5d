"""Steps a second of two versions of the tree on one GPU, in alternating rounds.

    python benchmarks/versions.py OLD NEW --rounds 4

prints one JSON object per round, version and case, and at the end the ratios of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from statistics import median

CASES = {
    "er": ("er", {}),
    "gsa": ("gsa", {}),
    "gsa, 192 images": ("gsa", {"current": "22", "mirror": "true"}),
}
MEASURE = """
import json, sys, torch
from onepass.tools.bench import Case, measure
torch.set_num_threads(1)
for name, (method, settings) in json.loads(sys.argv[1]).items():
    chosen = {**settings, "precision": "bf16"}
    found = measure(Case(method, settings=chosen, device="cuda", steps=800))
    print(json.dumps({"case": name, **found}), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("old", help="the folder that holds the package onepass")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    rates = defaultdict(list)
    for number in range(given.rounds):
        for version in ("old", "new") if number % 2 == 0 else ("new", "old"):
            environment = {**os.environ, "PYTHONPATH": getattr(given, version)}
            command = [sys.executable, "-c", MEASURE, json.dumps(CASES)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            for line in done.stdout.splitlines():
                found = json.loads(line)
                rates[found["case"], version].append(found["steps_per_second"])
                print(json.dumps({"round": number, "version": version, **found}), flush=True)
    for case in CASES:
        old, new = (median(rates[case, version]) for version in ("old", "new"))
        print(json.dumps({"case": case, "old": old, "new": new, "ratio": new / old}), flush=True)


if __name__ == "__main__":
    main()
