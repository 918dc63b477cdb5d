"""Measures closed-form methods: learning, one prediction, and solving.

    python benchmarks/closed_form.py learn
    python benchmarks/closed_form.py learn --device cuda --width 10000 --rounds 50
    python benchmarks/closed_form.py solve --width 2048 5120 10000

`learn` alternates `ranpac` in batches of 1000, the same in batches of 10, and the products alone
(projection and Gram matrix) by torch in float64, so that all three meet the same load. It prints
the median and the best vectors a second, and the medians of the ratios within a round. On a GPU the
sums' hash is compared with the CPU's. `solve` prints seconds with cross-validation and with a given
strength, and milliseconds for a prediction of one sample after it. Each prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from statistics import median

import torch

import onepass
from onepass.runs.environment import describe_environment

BATCH, SMALL, CLASSES = 1000, 10, 100
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def samples(dims, seed=0):
    """Returns vectors as an encoder gives them, positive, of classes that differ in their mean."""
    drawn = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (BATCH,), generator=drawn)
    centres = torch.randn(CLASSES, dims, generator=drawn)
    return (centres[y] + torch.randn(BATCH, dims, generator=drawn)).relu(), y


def products(x, projection, gram):
    """Adds the products of one batch in float64."""
    h = (x @ projection).relu_()
    gram += h.T @ h


def timed(given, work):
    """Returns the seconds that `work` takes: of the clock, or of the processor alone."""
    wait = torch.cuda.synchronize if given.device == "cuda" else int
    wait()
    began = CLOCKS[given.clock]()
    work()
    wait()
    return CLOCKS[given.clock]() - began


def measure_learning(given, width):
    device, dims = given.device, given.dims
    x, y = (tensor.to(device) for tensor in samples(dims))
    large, small = (
        onepass.RanPAC(width=width, strength=1.0, seed=0, device=device) for _ in range(2)
    )
    exact = x.double()
    projection = torch.randn(dims, width, dtype=torch.float64, device=device)
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)
    pieces = [(x[i : i + SMALL], y[i : i + SMALL]) for i in range(0, BATCH, SMALL)]

    def learn_pieces():
        for batch in pieces:
            small.learn(*batch)

    ways = {
        "batches of 1000": lambda: large.learn(x, y),
        "batches of 10": learn_pieces,
        "products in float64": lambda: products(exact, projection, gram),
    }
    seconds = {name: [] for name in ways}
    for index in range(given.rounds + 1):
        for name, work in ways.items():
            taken = timed(given, work)
            if index:  # the first round makes projections and warms up
                seconds[name].append(taken)
    line = {"what": "learn", "dims": dims, "width": width, "device": device}
    for name, taken in seconds.items():
        line[name] = {
            "median": round(BATCH / median(taken)),
            "best": round(BATCH / min(taken)),
        }
    for ratio, (over, under) in {
        "over float64": ("products in float64", "batches of 1000"),
        "of 10 over 1000": ("batches of 1000", "batches of 10"),
    }.items():
        pairs = zip(seconds[over], seconds[under], strict=True)
        line[ratio] = {
            "median": round(median(a / b for a, b in pairs), 2),
            "of best": round(min(seconds[over]) / min(seconds[under]), 2),
        }
    line["sums_sha256"] = [large.sums_sha256()[:12], small.sums_sha256()[:12]]
    if device == "cuda":
        again = onepass.RanPAC(width=width, strength=1.0, seed=0, device="cpu")
        for _ in range(given.rounds + 1):
            again.learn(*samples(dims))
        line["sums_sha256"].append(again.sums_sha256()[:12])
    return line


def solve(learner, x):
    learner._scorer = None  # as after learning
    learner.predict(x)


def measure_solving(given, width):
    x = samples(given.dims)[0][:1]
    line = {"what": "solve", "dims": given.dims, "width": width, "device": given.device}
    for name, strength in (("given", 1.0), ("cross-validated", "auto")):
        learner = onepass.RanPAC(width=width, strength=strength, seed=0, device=given.device)
        for seed in range(given.samples // BATCH):
            learner.learn(*samples(given.dims, seed))
        learner.sums_sha256()  # so that what waits is added
        taken = [timed(given, partial(solve, learner, x)) for _ in range(given.rounds)]
        line[name] = {"median": round(median(taken), 3), "best": round(min(taken), 3)}
    single = [1000 * timed(given, partial(learner.predict, x)) for _ in range(200)]
    line["one prediction, ms"] = {"median": round(median(single), 3), "best": round(min(single), 3)}
    return line


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["learn", "solve"])
    parser.add_argument("--dims", type=int, default=1280)
    parser.add_argument("--width", type=int, nargs="+", default=[2048])
    parser.add_argument("--samples", type=int, default=4000, help="solve: samples learned before")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="processor: with --threads 1 on a busy machine; time of other processes is left out",
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    measure = measure_learning if given.what == "learn" else measure_solving
    for width in given.width:
        how = {name: getattr(given, name) for name in ("rounds", "threads", "clock")}
        line = {**measure(given, width), **how}
        print(json.dumps({**line, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
