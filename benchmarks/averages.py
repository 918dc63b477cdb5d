"""Which average of the network predicts best, at the end and on the way?

    python benchmarks/averages.py gsa --preset tuned --dataset cifar100 --memory 1000 >> FILE.jsonl

Averaging changes nothing about training, so one run carries many averages and scores each, on a
held-out tenth of the training data. Prints one JSON object: for each kind of average its final
accuracy, the mean over all points (any-time), and the accuracy at every point.

    student        the network itself
    0.99           an exponential average with this decay, which begins as a plain mean
    growing 16     the rate is 17 / (t + 16): the horizon grows with the stream
    since task 0.99   as 0.99, but the rate begins anew at every boundary: max(0.01, 1 / (s + 1))
                   with s the steps since then
    half 0.99      the mean of the student's weights and those of the average 0.99
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onepass import registry
from onepass.copies import Average
from onepass.devices import computing
from onepass.evaluate import evaluate
from onepass.job import Job
from onepass.listeners import Listener
from onepass.record import surroundings
from onepass.supplies import Supplies

DECAYS = (0.98, 0.99, 0.995, 0.998, 0.999)
TRIED_FURTHER = (0.99, 0.995, 0.998)  # restarted, and half-way to the student
GROWING = (4, 16, 64)


class Growing(Average):
    """(g + 1) / (t + g)."""

    def rate(self) -> Tensor:
        return (self.decay + 1) / (self.updates + self.decay)


class SinceTask(Average):
    """Begins anew at every boundary, from where it is."""

    def new_task(self) -> None:
        self.updates.zero_()


def with_averages(kind: type) -> type:
    """The method, with averages as parts; the trainer finds them by themselves."""

    class Averaged(kind):  # type: ignore[misc, valid-type]
        def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
            super().build(shape, dtype)
            self.averages: dict[str, Average] = {}
            for decay in DECAYS:
                self.averages[str(decay)] = Average(self.trainer, decay)
            for decay in TRIED_FURTHER:
                self.averages[f"since task {decay}"] = SinceTask(self.trainer, decay)
            for grow in GROWING:
                self.averages[f"growing {grow}"] = Growing(self.trainer, grow)
            for number, one in enumerate(self.averages.values()):
                setattr(self, f"average_{number}", one)

    return Averaged


def between(student: Any, average: Any) -> Any:
    """A network half-way between two."""
    half, theirs = copy.deepcopy(average), student.state_dict()
    for name, value in half.state_dict().items():
        if value.is_floating_point():
            value.lerp_(theirs[name], 0.5)
    return half


class Scores(Listener):
    """At every point, the accuracy of every average on the classes seen so far."""

    essential = True

    def __init__(self, dataset: Any) -> None:
        self.x, self.y = dataset.test_x, dataset.test_y
        self.points: list[dict[str, Any]] = []

    def started(self, run: Any) -> None:
        self.learner = run.learner

    def scored(self, point: Any) -> None:
        learner = self.learner
        known = torch.isin(self.y, torch.tensor(learner.classes))
        x, y, base = self.x[known], self.y[known], learner.snapshot()

        def accuracy(model: Any) -> float:
            right = replace(base, scorer=model).predict(x).cpu() == y
            return 100 * float(right.float().mean())

        found = {"student": accuracy(learner.evaluator)}
        for name, average in learner.averages.items():
            found[name] = accuracy(average.model)
            if name in map(str, TRIED_FURTHER):
                found[f"half {name}"] = accuracy(between(learner.model, average.model))
        self.points.append({"step": point.step, "task": point.task, "accuracy": found})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("method")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--memory", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default=Job.preset)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--validation", type=float, default=0.1)
    parser.add_argument("--set", dest="pairs", nargs="*", default=[], metavar="KEY=VALUE")
    given = vars(parser.parse_args())
    settings = dict(pair.split("=", 1) for pair in given.pop("pairs"))
    job = Job(settings=settings, **given)
    supplies = Supplies()
    stream, plain = job.make(supplies.dataset(job))
    learner = with_averages(registry.get(job.method).learner)(**plain.get_params())
    scores = Scores(stream.dataset)
    with computing(job.threads, job.deterministic):
        for _ in evaluate(learner, stream, every=job.score_every(stream), listeners=[scores]):
            pass
    names = scores.points[0]["accuracy"]
    summary = {
        name: {
            "final": scores.points[-1]["accuracy"][name],
            "any-time": sum(p["accuracy"][name] for p in scores.points) / len(scores.points),
        }
        for name in names
    }
    whole = {**given, "settings": settings, "summary": summary, "points": scores.points}
    print(json.dumps({**whole, **surroundings()}), flush=True)


if __name__ == "__main__":
    main()
