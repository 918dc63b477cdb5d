"""Measures whether captured and eager steps compute the same, on a GPU with ResNet18.

    python benchmarks/exactness.py er gsa --steps 100
    python benchmarks/exactness.py er gsa --steps 100 --set precision=bf16

For each method it prints the largest difference of a parameter after the same steps, with PyTorch's
deterministic algorithms and without, and for comparison that between two eager runs.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from onepass.runs.environment import describe_environment
from onepass.tools.bench import BenchCase, RandomBatches


def learned(method, settings, steps):
    case = BenchCase(method, settings={"net": "resnet18", **settings}, device="cuda")
    learner, batches = case.learner(), RandomBatches(case)
    learner.prepare(case.shape, batches.x.dtype)
    for _ in range(steps):
        batches.learn(learner)
    return learner


def difference(first, second):
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--set", dest="pairs", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    chosen = dict(pair.split("=", 1) for pair in given.pairs)
    for method in given.methods:
        for deterministic in (True, False):
            torch.use_deterministic_algorithms(deterministic)
            eager, again, graph = (
                learned(method, {**chosen, "engine": engine}, given.steps)
                for engine in ("eager", "eager", "graph")
            )
            found = {
                "method": method,
                "settings": chosen,
                "steps": given.steps,
                "deterministic": deterministic,
                "graph_to_eager": difference(eager, graph),
                "eager_to_eager": difference(eager, again),
                "same_state": eager.state_sha256() == graph.state_sha256(),
            }
            print(json.dumps({**found, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
