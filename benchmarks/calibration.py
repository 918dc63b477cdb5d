"""Measures how far the probabilities of closed-form methods can be believed.

    python benchmarks/calibration.py digits mnist

Each method learns the training set once, and the softmax of its scores on the test set is compared
with what is true: accuracy, mean confidence, expected calibration error (15 bins of equal width, in
percent) and mean negative log-likelihood (nats). One JSON line each.
"""

from __future__ import annotations

import argparse
import json

import torch

import onepass
from onepass.runs.environment import describe_environment

METHODS = (onepass.NCM, onepass.SLDA, onepass.Ridge, onepass.KernelLDA, onepass.RanPAC)
BINS, BATCH = 15, 1000


def calibration(probabilities, truth):
    """Returns the measures, for probabilities (n, C) and rows of the true classes (n)."""
    confidence, chosen = probabilities.max(dim=1)
    right = (chosen == truth).double()
    bins = (confidence * BINS).ceil().long().clamp(1, BINS)
    gaps = [abs(float((right - confidence)[bins == b].sum())) for b in range(1, BINS + 1)]
    likelihood = probabilities[torch.arange(len(truth)), truth].clamp(min=1e-300)
    return {
        "accuracy": 100 * float(right.mean()),
        "confidence": 100 * float(confidence.mean()),
        "ece": 100 * sum(gaps) / len(truth),
        "nll": float(-likelihood.log().mean()),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("datasets", nargs="+")
    torch.set_num_threads(1)
    for name in parser.parse_args().datasets:
        data = onepass.load(name)
        for method in METHODS:
            learner = method(mean=data.mean, std=data.std, seed=0)
            for start in range(0, len(data.train_x), BATCH):
                part = slice(start, start + BATCH)
                learner.learn(data.train_x[part], data.train_y[part])
            probabilities = learner.scores(data.test_x).double().softmax(dim=1)
            line = {
                "dataset": name,
                "method": learner.key,
                **calibration(probabilities, data.test_y),
            }
            print(json.dumps({**line, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
