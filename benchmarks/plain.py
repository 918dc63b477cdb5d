"""Times experience replay written by hand in plain PyTorch against ours, in the same process.

    python benchmarks/plain.py --rounds 5                    # Split-MNIST's shape on the CPU
    python benchmarks/plain.py --device cuda --net resnet18  # CIFAR100's shape on a GPU
    python benchmarks/plain.py --stream --rounds 1           # Split-MNIST itself, all 6000 steps

The plain loop does the same arithmetic as `er` without augmentation: the network on 10 new and 64
replayed samples, two mean cross-entropies, Adam, and a reservoir in Python. It runs twice: with
PyTorch's default Adam, and with its fused Adam, which ours uses too. The loops take turns, a few
steps at a time, so that other load on the machine slows all of them. Each line of output is one
round: steps per second from the median turn of each loop, and their ratios.

On the real stream (`--stream`) the loops begin with an empty memory, and each line has the rates
over all steps, because the speed changes along the stream. The loop with fused Adam then runs a
second time with torch's `set_flush_denormal`, which ours sets in its steps.

If avalanche-lib is installed, its replay runs afterwards: the same number of new and replayed
samples, on the plain loop's network and optimiser, with the library's own loader, reservoir and
strategy. It changes its memory once, at the end of the timed experience, not at every step.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import onepass
from onepass.nets import ResNet18
from onepass.runs.environment import describe_environment
from onepass.tools.bench import BenchCase, RandomBatches

WARM_UP = 50
TURN = 20
REPLAYED = 64


class Plain:
    """A minimal replay loop: no growing head, no padding, no resume, no generators of its own."""

    def __init__(self, case, fused=False):
        self.memory, self.where = case.memory, torch.device(case.device)
        if case.settings.get("net") == "resnet18":
            body, features = ResNet18(case.shape[0]), 512
        else:
            inputs = torch.Size(case.shape).numel()
            body = nn.Sequential(
                nn.Flatten(), nn.Linear(inputs, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU()
            )
            features = 400
        self.net = nn.Sequential(body, nn.Linear(features, case.classes)).to(self.where)
        self.optimizer = torch.optim.Adam(
            self.net.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-4, fused=fused
        )
        self.x = torch.zeros(case.memory, *case.shape, dtype=torch.uint8, device=self.where)
        self.y = torch.zeros(case.memory, dtype=torch.int64, device=self.where)
        self.seen = 0

    def learn(self, x, y):
        x, y = x.to(self.where), y.to(self.where)
        both, labels, new = x, y, len(y)
        if self.seen:
            drawn = torch.randperm(min(self.seen, self.memory), device=self.where)[:REPLAYED]
            both, labels = torch.cat([x, self.x[drawn]]), torch.cat([y, self.y[drawn]])
        logits = self.net(both.float() / 255)
        loss = F.cross_entropy(logits[:new], labels[:new])
        if self.seen:
            loss = loss + F.cross_entropy(logits[new:], labels[new:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for sample, label in zip(x, y, strict=True):
            place = self.seen if self.seen < self.memory else random.randrange(self.seen + 1)
            if place < self.memory:
                self.x[place], self.y[place] = sample, label
            self.seen += 1


def seconds(learn, count, case):
    """Returns the seconds of `count` steps."""
    began = time.perf_counter()
    for _ in range(count):
        learn()
    if case.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def rates(loops, case):
    """Returns the steps per second of each loop over the case's batches, timed in turns."""
    for learn in loops.values():
        seconds(learn, WARM_UP, case)
    turns = range(max(1, case.steps // TURN))
    taken = [[seconds(learn, TURN, case) for learn in loops.values()] for _ in turns]
    found = (TURN / statistics.median(times) for times in zip(*taken, strict=True))
    return dict(zip(loops, found, strict=True))


def plain(case, fused):
    """Returns a function that takes a step of the plain loop on the next random batch."""
    loop, batches = Plain(case, fused), RandomBatches(case)

    def learn():
        chosen = slice(batches.next, batches.next + case.batch)
        loop.learn(batches.x[chosen], batches.y[chosen])
        batches.next = (batches.next + case.batch) % len(batches.y)

    return learn


def ours(case):
    """Returns a function that takes a step of our learner on the next random batch."""
    learner, batches = case.learner(), RandomBatches(case)
    learner.prepare(case.shape, batches.x.dtype)
    batches.introduce(learner)
    return lambda: batches.learn(learner)


def split_mnist(case):
    """Returns the batches of Split-MNIST in order, and whether each begins a task."""
    data = onepass.load("mnist")
    for task in range(case.classes // 2):
        chosen = torch.nonzero(data.train_y // 2 == task).flatten()
        for number, part in enumerate(torch.split(chosen, case.batch)):
            yield data.train_x[part], data.train_y[part], number == 0


def plain_along(stream, case, flushed):
    """Returns a function that teaches the plain loop the next batch of the stream."""
    loop = Plain(case, fused=True)

    def learn():
        x, y, _ = next(stream)
        torch.set_flush_denormal(flushed)
        loop.learn(x, y)
        torch.set_flush_denormal(False)

    return learn


def ours_along(stream, case):
    """Returns a function that teaches our learner the next batch of the stream."""
    learner = case.learner()

    def learn():
        x, y, begins = next(stream)
        if begins:
            learner.new_task()
        learner.learn(x, y)

    return learn


def rates_along(er, gsa):
    """Returns the steps per second over the whole of Split-MNIST, timed in turns."""
    loops = {
        "plain_fused": plain_along(split_mnist(er), er, flushed=False),
        "plain_fused_flushed": plain_along(split_mnist(er), er, flushed=True),
        "er": ours_along(split_mnist(er), er),
        "gsa": ours_along(split_mnist(gsa), gsa),
    }
    turns = sum(1 for _ in split_mnist(er)) // TURN
    taken = [[seconds(learn, TURN, er) for learn in loops.values()] for _ in range(turns)]
    found = (TURN * turns / sum(times) for times in zip(*taken, strict=True))
    return dict(zip(loops, found, strict=True))


def avalanche_installed():
    try:
        import avalanche  # noqa: F401
    except ImportError as reason:
        print(f"avalanche-lib is not installed and is left out: {reason}", file=sys.stderr)
        return False
    return True


def avalanche_replay(case):
    """Returns the steps per second of Avalanche's replay in one experience.

    An experience before it fills the memory, and another warms up.
    """
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.plugins import ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import Naive

    loop, batches = Plain(case), RandomBatches(case)
    x, y = batches.x.cpu().float() / 255, batches.y

    def experience(count):
        chosen = torch.arange(count) % len(y)
        samples = TensorDataset(x[chosen], y[chosen])
        samples.targets = y[chosen].tolist()
        return as_classification_dataset(samples)

    counts = (case.memory, WARM_UP * case.batch, case.steps * case.batch)
    stream = benchmark_from_datasets(train=[experience(count) for count in counts]).train_stream
    replay = ReplayPlugin(
        mem_size=case.memory,
        batch_size=case.batch,
        batch_size_mem=REPLAYED,
        storage_policy=ReservoirSamplingBuffer(case.memory),
    )
    strategy = Naive(
        model=loop.net,
        optimizer=loop.optimizer,
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=case.batch,
        device=loop.where,
        plugins=[replay],
        evaluator=None,
    )
    for part in stream:
        began = time.perf_counter()
        strategy.train(part, drop_last=case.memory >= REPLAYED)  # only whole batches are timed
        if case.device == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - began
    return case.steps / taken


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--memory", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--net", default="mlp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    image = {"mlp": ((1, 28, 28), 10), "resnet18": ((3, 32, 32), 100)}[given.net]
    sizes = {"memory": given.memory, "shape": image[0], "classes": image[1]}
    settings = {"augment": "none", "net": given.net}
    common = {**sizes, "settings": settings, "device": given.device, "steps": given.steps}
    er, gsa = BenchCase("er", **common), BenchCase("gsa", **common)
    for number in range(given.rounds if given.stream else 0):
        found = rates_along(er, gsa)
        line = {
            "round": number,
            "stream": "split-mnist",
            **found,
            "er_to_plain_fused": found["er"] / found["plain_fused"],
            "er_to_plain_fused_flushed": found["er"] / found["plain_fused_flushed"],
            "gsa_time_to_er": found["er"] / found["gsa"],
        }
        print(json.dumps({**line, "threads": given.threads, **describe_environment()}), flush=True)
    if given.stream:
        return
    third = avalanche_installed()
    for number in range(given.rounds):
        loops = {
            "plain": plain(er, fused=False),
            "plain_fused": plain(er, fused=True),
            "er": ours(er),
            "gsa": ours(gsa),
        }
        found = rates(loops, er)
        line = {
            "round": number,
            **found,
            "er_to_plain": found["er"] / found["plain"],
            "er_to_plain_fused": found["er"] / found["plain_fused"],
            "gsa_time_to_er": found["er"] / found["gsa"],
        }
        if third:
            theirs = avalanche_replay(er)
            line |= {"avalanche": theirs, "avalanche_to_plain": theirs / found["plain"]}
        print(json.dumps({**line, "threads": given.threads, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
