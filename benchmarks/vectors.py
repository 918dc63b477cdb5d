"""Compares `gsa` and `er` with river's softmax regression and scikit-learn's linear SGD.

The samples are MNIST as 64 principal components, with the digits' names as labels.

    python benchmarks/vectors.py --memory 200
    python benchmarks/vectors.py --write runs/mnist-pca64.npz
    python benchmarks/vectors.py --dataset digits --stream long-tail:rho=10 --learners river sklearn

Two digits at a time, in batches of 10, each sample seen once. The components are those of all
training images (computed without labels), divided by the standard deviation of the first component.
Every learner sees the same batches in the same order; accuracy is over all test images at the end.
The script prints one JSON line for each. `--dataset` takes the pixels of a dataset instead, from 0
to 1, `--stream` another stream, and `--write` only writes the features, for `onepass sweep`. River
(pip install river) is left out if it is not installed.
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
from onepass.streams.spec import make_stream, parse_stream

NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
COMPONENTS, BATCH = 64, 10


def vectors(data):
    """Returns training and test features."""
    train, test = (x.flatten(1).numpy() / 255 for x in (data.train_x, data.test_x))
    pca = PCA(COMPONENTS, random_state=0).fit(train)
    scale = np.sqrt(pca.explained_variance_[0])
    return [(pca.transform(x) / scale).astype("float32") for x in (train, test)]


def pixels(data):
    """Returns the images as vectors between 0 and 1."""
    return [(x.flatten(1).numpy() / 255).astype("float32") for x in (data.train_x, data.test_x)]


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
    return {
        "gsa": lambda: onepass.GSA(**common, memory=memory, seed=seed),
        "er": lambda: onepass.ER(memory=memory, seed=seed),
        "sklearn": lambda: LinearSGD(seed),
        "river": River,
    }


NAMED = {
    "sklearn": "scikit-learn SGDClassifier",
    "river": "river StandardScaler | SoftmaxRegression",
}


def measure(learner, stream, train, test):
    """Returns the accuracy over the test set after one pass, and the seconds of learning."""
    data = stream.dataset
    order = [stream.indices(step).numpy() for step in range(len(stream))]
    began = time.perf_counter()
    for chosen in order:
        learner.learn(train[chosen], NAMES[data.train_y[chosen].numpy()])
    taken = time.perf_counter() - began
    return float(np.mean(learner.predict(test) == NAMES[data.test_y.numpy()])), taken


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--memory", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dataset", help="digits or mnist, as pixels; default: the components")
    parser.add_argument("--stream", default="class-incremental")
    parser.add_argument("--learners", nargs="+", default=["gsa", "er", "sklearn", "river"])
    parser.add_argument("--write", metavar="FILE.npz")
    return parser.parse_args()


def main():
    given = parse()
    torch.set_num_threads(1)
    data = onepass.load(given.dataset or "mnist")
    features = pixels if given.dataset else vectors
    train, test = features(data)
    if given.write:
        labels = {"train_y": data.train_y.numpy(), "test_y": data.test_y.numpy()}
        np.savez(given.write, train_x=train, test_x=test, **labels)
        return
    what = {"dataset": given.dataset or "mnist-pca64", "stream": given.stream}
    for seed in range(given.seeds):
        stream = make_stream(data, parse_stream(given.stream), seed=seed)
        makers = learners(given.memory, seed)
        for name in given.learners:
            try:
                learner = makers[name]()
            except ImportError as reason:
                print(f"{name} is left out: {reason}", file=sys.stderr)
                continue
            accuracy, taken = measure(learner, stream, train, test)
            line = {"learner": NAMED.get(name, name), **what, "seed": seed, "accuracy": accuracy}
            line["kept"] = 0 if name in NAMED else given.memory
            print(json.dumps({**line, "seconds": taken, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
