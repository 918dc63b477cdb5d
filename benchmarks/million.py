"""Learns a million samples of a generator through `evaluate`, and measures RAM meanwhile.

    python benchmarks/million.py > benchmarks/million-cpu.jsonl

Twenty classes of small vectors arrive one after another, a new one every twentieth of the stream.
About 70 % of a batch are of the newest class, the rest of any class so far. Each line of output is
a point: how many samples have been learned, the resident size of the process, the accuracy on test
samples of the classes seen so far, and that of predicting each batch before it was learned. The
last line says by how much the resident size has grown since the first tenth of the stream. (Linux
only: the size is read from /proc.)
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch

import onepass
from onepass.learning import registry
from onepass.runs.environment import describe_environment

CLASSES, FEATURES = 20, 16
RETURNING = 0.3  # the fraction of a batch that is drawn from all classes so far


def batches(samples, size, rng, centres):
    """Yields pairs (x, y), each made on demand and not kept."""
    for first in range(0, samples, size):
        newest = first * CLASSES // samples
        y = np.where(rng.random(size) < RETURNING, rng.integers(0, newest + 1, size), newest)
        yield centres[y] + rng.normal(size=(size, FEATURES)), y


def resident():
    """Returns the resident size of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="er")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--points", type=int, default=50)
    arguments = parser.parse_args()
    least = arguments.batch * arguments.points  # one batch between two points
    if arguments.samples < least:
        parser.error(f"--samples must be at least --batch x --points = {least}")
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(CLASSES, FEATURES))
    truth = np.repeat(np.arange(CLASSES), 100)
    test = centres[truth] + rng.normal(size=(len(truth), FEATURES)), truth
    learner = registry.get(arguments.method).learner(memory=1000, device="cpu", seed=0)
    stream = batches(arguments.samples, arguments.batch, rng, centres)
    every = arguments.samples // arguments.batch // arguments.points
    sizes, about = [], describe_environment()  # the tree may change meanwhile
    for point in onepass.evaluate(learner, stream, test=test, every=every, prequential=True):
        sizes.append(resident())
        line = {
            "samples": point.step * arguments.batch,
            "resident_mb": sizes[-1],
            "classes": len(learner.classes),
            "accuracy": round(point.accuracy, 2),
            "prequential": round(point.prequential, 2),
            "seconds": round(point.seconds, 1),
        }
        print(json.dumps(line), flush=True)
    early = max(sizes[: max(1, len(sizes) // 10)])
    print(json.dumps({"grown_mb": round(sizes[-1] - early, 1), **vars(arguments), **about}))


if __name__ == "__main__":
    main()
