"""Measures the cost of probes: steps of a learner with and without probes, in turns.

    python benchmarks/probes.py er gsa derpp >> FILE.jsonl
    python benchmarks/probes.py er gsa derpp --data cifar100 --device cuda >> FILE.jsonl

It prints one JSON line for each method, kind of data and choice of probes: the milliseconds of a
step without probes, and the fraction that probes add to it. Every other step has probes; both times
are medians.
On a CPU the time is that of this thread, so that other processes are not counted. On a GPU it is
wall time until the device has finished the step, so that nothing hides behind the next one.
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
        probe.started(Run(learner, None))  # moves the probe's sums to the learner's device
    batches.introduce(learner)
    choices: tuple[list[Listener], ...] = ([], probes)
    pairs = [[seconds(batches, learner, who) for who in choices] for _ in range(WARM + case.steps)]
    plain, watched = map(median, zip(*pairs[WARM:], strict=True))
    what = {"method": case.method, "device": case.device, "probes": names}
    return {**what, "step_ms": 1000 * plain, "added": watched / plain - 1}


def seconds(batches: RandomBatches, learner: Learner, probes: list[Listener]) -> float:
    """Returns the seconds of one step, including the calls of these probes."""
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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for data in arguments.data:
        shape, classes = SHAPES[data]
        for method in arguments.methods:
            case = BenchCase(
                method, 1000, classes, shape, device=arguments.device, steps=arguments.steps
            )
            for names in (PROBES.names(), *([name] for name in PROBES.names())):
                print(json.dumps({"data": data, **measured(case, names)}), flush=True)


if __name__ == "__main__":
    main()
