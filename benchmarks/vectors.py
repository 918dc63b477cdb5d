"""Compares `gsa` and `er` with river's softmax regression and scikit-learn's linear SGD.

The stream is MNIST as 64 principal components, with the digits' names as labels.

    python benchmarks/vectors.py --memory 200

Two digits at a time, in batches of 10, each sample seen once. The components are those of all
training images (computed without labels), divided by the standard deviation of the first component.
Every learner sees the same batches in the same order; accuracy is over all 10 000 test images at
the end. The script prints one JSON line for each. River (pip install river) is left out if it is
not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import SGDClassifier

import onepass
from onepass.runs.environment import describe_environment

NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
COMPONENTS, BATCH = 64, 10


def vectors(data):
    """Returns training and test features."""
    train, test = (x.flatten(1).numpy() / 255 for x in (data.train_x, data.test_x))
    pca = PCA(COMPONENTS, random_state=0).fit(train)
    scale = np.sqrt(pca.explained_variance_[0])
    return [(pca.transform(x) / scale).astype("float32") for x in (train, test)]


class River:
    """River's softmax regression, which learns sample by sample, scaled as in River's guide."""

    def __init__(self):
        from river import linear_model, preprocessing

        self.model = preprocessing.StandardScaler() | linear_model.SoftmaxRegression()

    def learn(self, x, y):
        for row, label in zip(x, y, strict=True):
            self.model.learn_one(dict(enumerate(row.tolist())), str(label))

    def predict(self, x):
        return np.array([self.model.predict_one(dict(enumerate(row.tolist()))) for row in x])


class LinearSGD:
    """scikit-learn's linear SGD, which needs all classes before the first sample."""

    def __init__(self, seed):
        self.model = SGDClassifier(loss="log_loss", random_state=seed)

    def learn(self, x, y):
        self.model.partial_fit(x, y, classes=np.sort(NAMES))

    def predict(self, x):
        return self.model.predict(x)


def learners(memory, seed):
    common = onepass.GSA.presets["common"].settings
    yield "gsa", onepass.GSA(**common, memory=memory, seed=seed)
    yield "er", onepass.ER(memory=memory, seed=seed)
    yield "scikit-learn SGDClassifier", LinearSGD(seed)
    try:
        yield "river StandardScaler | SoftmaxRegression", River()
    except ImportError as reason:
        print(f"river is left out: {reason}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--memory", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = onepass.load("mnist")
    train, test = vectors(data)
    truth = NAMES[data.test_y.numpy()]
    for seed in range(given.seeds):
        stream = onepass.ClassIncremental(data, tasks=5, batch=BATCH, seed=seed)
        order = [stream.indices(step) for step in range(len(stream))]
        for name, learner in learners(given.memory, seed):
            began = time.perf_counter()
            for chosen in order:
                learner.learn(train[chosen], NAMES[data.train_y[chosen].numpy()])
            taken = time.perf_counter() - began
            accuracy = float(np.mean(learner.predict(test) == truth))
            kept = given.memory if name in ("gsa", "er") else 0
            line = {"learner": name, "seed": seed, "kept": kept, "accuracy": accuracy}
            print(json.dumps({**line, "seconds": taken, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
