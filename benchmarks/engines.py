"""Times the captured step in bf16 against the eager step in fp32, on a GPU, in one process.

    python benchmarks/engines.py er gsa --rounds 5
    python benchmarks/engines.py gsa --set current=22 mirror=true

Eager steps wait for the host, whose speed changes from second to second. So each round runs eager,
captured and eager steps in turn. Each line of output is one round: steps per second of each block,
and the ratio of captured to eager steps.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from onepass.runs.environment import describe_environment
from onepass.tools.bench import WARM_UP_STEPS, BenchCase, RandomBatches

CAPTURED = 3  # captured steps per eager step, so that both blocks take about the same time


def steps_of(case):
    """Returns a function that takes steps with a full memory and returns the steps per second."""
    learner, batches = case.learner(), RandomBatches(case)
    learner.prepare(case.shape, batches.x.dtype)
    batches.introduce(learner)

    def rate(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            batches.learn(learner)
        torch.cuda.synchronize()
        return steps / (time.perf_counter() - began)

    rate(WARM_UP_STEPS)
    return rate


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="eager steps of a block")
    parser.add_argument("--set", dest="pairs", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = dict(pair.split("=", 1) for pair in given.pairs)
    for method in given.methods:
        eager, graph = (
            steps_of(BenchCase(method, settings={**chosen, **how}, device="cuda"))
            for how in (
                {"engine": "eager", "precision": "fp32"},
                {"engine": "graph", "precision": "bf16"},
            )
        )
        for number in range(given.rounds):
            before = eager(given.steps)
            found = graph(CAPTURED * given.steps)
            after = eager(given.steps)
            line = {"method": method, "settings": chosen, "round": number}
            line |= {"eager_before": before, "graph": found, "eager_after": after}
            line["ratio"] = 2 * found / (before + after)
            print(json.dumps({**line, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
