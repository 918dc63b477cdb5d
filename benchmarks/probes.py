"""What probes cost: steps of a learner as they are, and watched by probes, in turns.

    python benchmarks/probes.py er gsa derpp >> FILE.jsonl
    python benchmarks/probes.py er gsa derpp --data cifar100 --device cuda >> FILE.jsonl

One JSON line for each method, kind of data and choice of probes: milliseconds of a step, and the
share of it that watching adds. Every other step is watched; both numbers are medians. On a CPU the
time is that of this thread, so that other processes are not counted; on a GPU it goes by the clock
until the device is done, step by step, which hides nothing behind the next step.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import torch

from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.probes import PROBES
from onepass.learning.learner import Learner
from onepass.tools.bench import BenchCase, RandomBatches

WARM = 20
SHAPES = {"mnist": ((1, 28, 28), 10), "cifar100": ((3, 32, 32), 100)}


def measured(case: BenchCase, names: list[str]) -> dict[str, object]:
    learner, batches = case.learner(), RandomBatches(case)
    probes = [PROBES[name]() for name in names]
    learner.prepare(case.shape, batches.x.dtype)
    for probe in probes:
        probe.started(Run(learner, None))  # which puts their sums where the learner is
    batches.introduce(learner)
    told: tuple[list[Listener], ...] = ([], probes)
    pairs = [[seconds(batches, learner, who) for who in told] for _ in range(WARM + case.steps)]
    plain, watched = map(median, zip(*pairs[WARM:], strict=True))
    what = {"method": case.method, "device": case.device, "probes": names}
    return {**what, "step_ms": 1000 * plain, "added": watched / plain - 1}


def seconds(batches: RandomBatches, learner: Learner, probes: list[Listener]) -> float:
    """What one step takes, and telling these probes."""
    gpu = batches.case.device == "cuda"
    clock = time.perf_counter if gpu else time.thread_time
    began = clock()
    step = batches.learn(learner)
    for probe in probes:
        probe.stepped(learner, step)
    if gpu:
        torch.cuda.synchronize()
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--data", choices=SHAPES, nargs="+", default=list(SHAPES))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for data in asked.data:
        shape, classes = SHAPES[data]
        for method in asked.methods:
            case = BenchCase(method, 1000, classes, shape, device=asked.device, steps=asked.steps)
            for names in (PROBES.names(), *([name] for name in PROBES.names())):
                print(json.dumps({"data": data, **measured(case, names)}), flush=True)


if __name__ == "__main__":
    main()
