"""Measures how the cost of a step grows with the memory, the classes and the stream.

    python benchmarks/scaling.py er gsa -o benchmarks/scaling-cpu.png > benchmarks/scaling-cpu.jsonl
    python benchmarks/scaling.py er gsa --device cuda --set precision=bf16 -o scaling.png

It prints one JSON object per point (milliseconds of a step and of the bare network step) and draws
them. It measures the memory sizes several times, in rising and falling order, and keeps the fastest
block of each, so that other load on the machine does not look like a slope.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from onepass.runs.environment import describe_environment
from onepass.tools.bench import BenchCase, RandomBatches, measure

MEMORIES = (100, 1000, 10_000, 100_000)
CLASSES = (10, 100, 1000, 10_000)
WINDOWS = 10


def over(case, name, values, rounds):
    """Returns a point for each value of a field of the case: the fastest of several rounds."""
    fastest = {}
    for number in range(rounds):
        for value in values if number % 2 == 0 else values[::-1]:
            found = measure(replace(case, **{name: value}))
            before = fastest.get(value)
            if before is None or found["steps_per_second"] > before["steps_per_second"]:
                fastest[value] = found
    return [{"axis": name, "value": value, **fastest[value]} for value in values]


def along(case, steps):
    """Returns a point for each window of one long stream."""
    learner, batches = case.learner(), RandomBatches(case)
    learner.prepare(case.shape, batches.x.dtype)
    batches.introduce(learner)
    points, window = [], steps // WINDOWS
    for number in range(WINDOWS):
        began = time.perf_counter()
        for _ in range(window):
            batches.learn(learner)
        if case.device == "cuda":
            torch.cuda.synchronize()
        rate = window / (time.perf_counter() - began)
        points.append(
            {
                "axis": "steps",
                "value": (number + 1) * window,
                "method": case.method,
                "steps_per_second": rate,
            }
        )
    return points


def draw(points, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = {"memory": "samples kept", "classes": "classes known", "steps": "steps so far"}
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.2), sharey=False)
    for panel, (axis, label) in zip(panels, axes.items(), strict=True):
        for method in dict.fromkeys(point["method"] for point in points):
            here = [p for p in points if p["axis"] == axis and p["method"] == method]
            milliseconds = [1000 / point["steps_per_second"] for point in here]
            panel.plot([point["value"] for point in here], milliseconds, "o-", label=method)
            if axis == "classes":
                bare = [1000 / point["bare_steps_per_second"] for point in here]
                panel.plot(
                    [p["value"] for p in here], bare, ":", color="grey", label=f"{method}, bare net"
                )
        panel.set_xlabel(label)
        panel.set_xscale("linear" if axis == "steps" else "log")
        panel.set_ylim(0, 1.1 * panel.get_ylim()[1])
    panels[0].set_ylabel("milliseconds a step")
    panels[1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("methods", nargs="+")
    parser.add_argument("-o", type=Path, required=True, metavar="PICTURE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", dest="pairs", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=300, help="steps timed for each point")
    parser.add_argument("--length", type=int, default=10_000, help="steps of the long stream")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape, classes = ((3, 32, 32), 100) if given.device == "cuda" else ((1, 28, 28), 10)
    points = []
    for method in given.methods:
        case = BenchCase(
            method,
            memory=1000 if given.device == "cuda" else 500,
            classes=classes,
            shape=shape,
            settings=dict(pair.split("=", 1) for pair in given.pairs),
            device=given.device,
            steps=given.steps,
        )
        found = over(case, "memory", MEMORIES, given.rounds)
        found += over(case, "classes", CLASSES, 1)
        for point in found + along(case, given.length):
            print(json.dumps({**point, **describe_environment()}), flush=True)
            points.append(point)
    draw(points, given.o)


if __name__ == "__main__":
    main()
