"""Times steps of two versions of the tree, in turns.

    python benchmarks/versions.py OLD NEW                   # on the CPU
    python benchmarks/versions.py OLD NEW --device cuda     # on a GPU, in bf16

Each version runs in a process of its own that waits while the other is timed. A line for each case
gives the median of the rates' ratio, new to old, over all turns, and an interval that holds the
true median with at least 95 % (the sixth smallest and sixth largest of twenty ratios: order
statistics, whatever the distribution).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from statistics import median

MNIST, SLIM = {"shape": (1, 28, 28), "classes": 10, "memory": 500}, {"memory": 500}
ON_THE_CPU = {  # the arguments of `onepass.tools.bench.BenchCase`, and the steps of a turn
    "er, MNIST's shape": ({"method": "er", **MNIST}, 200),
    "gsa, MNIST's shape": ({"method": "gsa", **MNIST}, 150),
    "scr, MNIST's shape": ({"method": "scr", **MNIST}, 40),
    "er, slim ResNet": ({"method": "er", **SLIM, "settings": {"net": "resnet18-slim"}}, 5),
}
ON_A_GPU = {
    "er": ({"method": "er"}, 400),
    "gsa": ({"method": "gsa"}, 400),
    "gsa, 192 images": ({"method": "gsa", "settings": {"current": "22", "mirror": "true"}}, 400),
    "scr": ({"method": "scr"}, 200),
    "ocm": ({"method": "ocm"}, 50),
}
# reads requests from standard input and prints the seconds of each; also runs in older versions
WORKER = """
import json, sys, time, torch
try:
    from onepass.tools import bench
except ImportError:  # before the modules moved into packages
    from onepass import bench

def renamed(new, old):  # what an earlier version calls `old`
    return getattr(bench, new, None) or getattr(bench, old)

Case, Batches = renamed("BenchCase", "Case"), renamed("RandomBatches", "Batches")
seconds_of = renamed("_seconds_of", "_time")
torch.set_num_threads(1)
ready = {}
for line in sys.stdin:
    name, chosen, device, steps = json.loads(line)
    if name not in ready:
        settings = chosen.pop("settings", {}) | ({"precision": "bf16"} if device != "cpu" else {})
        chosen["shape"] = tuple(chosen.get("shape", (3, 32, 32)))
        case = Case(**chosen, settings=settings, device=device)
        learner, batches = case.learner(), Batches(case)
        learner.prepare(case.shape, batches.x.dtype)
        batches.introduce(learner)
        ready = {name: (learner, batches)}
        seconds_of(lambda: batches.learn(learner), max(5, steps // 4), device)
    learner, batches = ready[name]
    print(seconds_of(lambda: batches.learn(learner), steps, device), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("old", help="the folder that holds the package onepass")
    parser.add_argument("new")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=20)
    given = parser.parse_args()
    cases = ON_THE_CPU if given.device == "cpu" else ON_A_GPU
    workers = {version: worker(getattr(given, version)) for version in ("old", "new")}
    for name, (chosen, steps) in cases.items():
        request = json.dumps([name, chosen, given.device, steps])
        for process in workers.values():  # prepares the case, and warms it up
            seconds(process, request)
        ratios, rates = [], {"old": [], "new": []}
        for turn in range(given.turns):
            for version in ("old", "new") if turn % 2 == 0 else ("new", "old"):
                rates[version].append(steps / seconds(workers[version], request))
            ratios.append(rates["new"][-1] / rates["old"][-1])
        found = {
            "case": name,
            **{version: round(median(values), 1) for version, values in rates.items()},
            "ratio": round(median(ratios), 3),
            "interval": [round(end, 3) for end in interval(ratios)],
            "turns": given.turns,
        }
        print(json.dumps(found), flush=True)


def worker(tree: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env={**os.environ, "PYTHONPATH": tree},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def seconds(process: subprocess.Popen[str], request: str) -> float:
    """Sends a request to a worker; returns the seconds that its steps took."""
    process.stdin.write(f"{request}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def interval(values: list[float]) -> tuple[float, float]:
    """Returns the ends of a 95 % interval for the median, from order statistics.

    >>> interval(list(range(1, 21)))
    (6, 15)
    """
    ordered, n = sorted(values), len(values)
    below, rank = 0.0, 0
    while below + (chance := math.comb(n, rank) / 2**n) <= 0.025:
        below, rank = below + chance, rank + 1
    return ordered[max(rank - 1, 0)], ordered[min(n - rank, n - 1)]


if __name__ == "__main__":
    main()
