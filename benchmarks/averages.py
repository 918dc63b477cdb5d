"""Which moving average of the weights predicts best, at the end and at any time?

    python benchmarks/averages.py gsa --preset tuned --dataset cifar100 --memory 1000 >> FILE.jsonl

An average changes nothing about training. So one run carries many averages and scores each, on a
held-out tenth of the training data (or, with `--validation 0`, on the test set). With
`--set average=0.99 distil=1` one more average is the teacher, which does change training.
The script prints one JSON object. It has, for each average, the final accuracy, the mean over
equally spaced points (any-time), and the accuracy at each of these points and at the end.

    student        the network itself
    teacher        the average that teaches, if there is one
    0.99           an exponential average with this decay, which begins as a plain mean
    growing 16     the rate is 17 / (t + 16): the horizon grows with the stream
    growing 16 to 200   the same until the horizon is 200 steps
    arrivals 0.25  the horizon is a quarter of the steps since a class last arrived, at most 1000
    arrivals 0.25, softly 10   the same, but if k of n classes are new, the count of steps does not
                               drop to 0: it loses only the fraction 10 k / n
    0.98 & 0.998   the mean of the logits of two averages
    arrivals 0.25, memory's norms   BatchNorm uses statistics of the memory, in which all classes
                                    have their shares, and not its running statistics
    arrivals 0.25, 0.5 new    the same, with half of the weight on the newest task's classes
    arrivals 0.25, capped     two thirds, but no class weighs more than 18 others
    arrivals 0.25, mirrored   the mean of the logits of an image and of its mirror image
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from onepass.base.devices import threads_and_determinism
from onepass.evaluation.callbacks import Listener
from onepass.evaluation.loop import evaluate
from onepass.learning import registry
from onepass.learning.network_copies import LONGEST, WeightAverage
from onepass.learning.replay import (
    NORMALISED_BY,
    WithMemory,
    evenly_spaced,
    mix_newest,
    newest_share,
)
from onepass.nets import has_training_norms, recalibrated_copy
from onepass.runs.environment import describe_environment
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job

DECAYS = (0.98, 0.99, 0.995, 0.998)
GROWING = (16,)
LIMITS = (100,)  # of the horizon of `growing 16`, in steps
FRACTIONS = (0.25, 1.0)  # of the time since a class arrived
SOFTLY = (10, 20)
PAIRS = (("0.98", "0.998"),)
REFINED = (  # scored by other statistics and by mirror images too
    "growing 16",
    "arrivals 0.25",
    "arrivals 0.25, softly 10",
    "arrivals 0.25, softly 20",
)
NEW_SHARES = (0.33, 0.5, 0.67)  # of the newest task's classes in the memory's statistics


class Growing(WeightAverage):
    """An average with the rate (g + 1) / (t + g) at update t, but at least 1 / limit.

    g is the argument `grow`.
    """

    def __init__(self, trainer: Any, grow: float, limit: float = LONGEST) -> None:
        super().__init__(trainer, 0.0)
        self.growth, self.limit = grow, limit

    def rate(self) -> Tensor:
        return ((self.growth + 1) / (self.updates + self.growth)).clamp(min=1 / self.limit)


class SinceArrivals(WeightAverage):
    """An average whose horizon is a fraction of the steps since a class last arrived.

    If k of n classes are new, the count of steps is multiplied by 1 - softly k / n, but not by less
    than 0. By default any new class sets it to 0.
    """

    def __init__(self, trainer: Any, fraction: float, softly: float = math.inf) -> None:
        super().__init__(trainer, 0.0)
        self.fraction, self.softly, self.known = fraction, softly, 0

    def rate(self) -> Tensor:
        return (1 / (1 + self.fraction * self.updates)).clamp(min=1 / LONGEST)

    def classes_are(self, seen: Tensor, new: Tensor) -> None:
        if int(seen.sum()) > self.known:
            self.known = int(seen.sum())
            self.updates *= max(0.0, 1 - self.softly * int(new.sum()) / self.known)


class Both(nn.Module):
    """A network whose logits are the mean of two networks' logits."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x) + self.second(x)) / 2


def with_averages(kind: type) -> type:
    """Returns a subclass of the method with all averages as attributes.

    The trainer updates every part that is an attribute of the learner, so nothing else is needed.
    """

    class Averaged(kind):  # type: ignore[misc, valid-type]
        def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
            super().build(shape, dtype)
            trainer = self.trainer
            self.averages: dict[str, WeightAverage] = {
                **{str(decay): WeightAverage(trainer, decay) for decay in DECAYS},
                **{f"growing {grow}": Growing(trainer, grow) for grow in GROWING},
                **{f"growing 16 to {most}": Growing(trainer, 16, most) for most in LIMITS},
                **{f"arrivals {part}": SinceArrivals(trainer, part) for part in FRACTIONS},
                **{
                    f"arrivals 0.25, softly {times}": SinceArrivals(trainer, 0.25, times)
                    for times in SOFTLY
                },
            }
            for number, average in enumerate(self.averages.values()):
                setattr(self, f"average_{number}", average)

    return Averaged


def renormalised_ones(nets: dict[str, nn.Module], learner: Any) -> dict[str, nn.Module]:
    """Returns copies of the networks whose BatchNorm uses statistics of the memory, by name.

    There is one copy of each for the memory as it is, and one for each share of the newest classes.
    """
    held = int(learner.store.size)
    is_new = learner.new[learner.store.y[:held]]
    slots = {
        "memory's norms": evenly_spaced(
            torch.arange(held, device=learner.trainer.torch_device), NORMALISED_BY
        )
    }
    slots |= {f"{share} new": mix_newest(is_new, share) for share in NEW_SHARES}
    known = len(learner.classes)
    slots["capped"] = mix_newest(is_new, newest_share(known - int(learner.new.sum()), known))
    made = {}
    for what, which in slots.items():
        inputs = learner.views.normalise(learner.store.x[which])
        for name, net in nets.items():
            made[f"{name}, {what}"] = recalibrated_copy(net, learner.model, inputs)
    return made


class Scores(Listener):
    """Scores every average on the classes seen so far, at equally spaced points and at the end.

    Ends of tasks between these points are left out, because there may be many.
    """

    essential = True  # an error here stops the script

    def __init__(self, stream: Any, every: int) -> None:
        self.x, self.y = stream.dataset.test_x, stream.dataset.test_y
        self.steps, self.every = len(stream), every
        self.points: list[dict[str, Any]] = []

    def started(self, run: Any) -> None:
        self.learner = run.learner

    def scored(self, point: Any) -> None:
        if point.step % self.every and point.step < self.steps:
            return
        learner = self.learner
        known = torch.isin(self.y, torch.tensor(learner.classes))
        x, y, base = self.x[known], self.y[known], learner.snapshot()
        nets = {"student": learner.trainer.eval_model}
        nets |= {name: average.model for name, average in learner.averages.items()}
        if learner.trainer.distillation.teaching is not None:
            nets["teacher"] = learner.trainer.distillation.teaching.model
        nets |= {f"{a} & {b}": Both(nets[a], nets[b]) for a, b in PAIRS}
        refined = {name: nets[name] for name in REFINED}
        if isinstance(learner, WithMemory) and has_training_norms(learner.model):
            nets |= renormalised_ones(refined, learner)

        def accuracy(model: nn.Module, mirrored: bool = False) -> float:
            right = replace(base, scorer=model, mirrored=mirrored).predict(x).cpu() == y
            return 100 * float(right.float().mean())

        found = {name: accuracy(net) for name, net in nets.items()}
        if learner.mirror:  # training sees mirror images too
            found |= {f"{name}, mirrored": accuracy(net, True) for name, net in refined.items()}
        self.points.append({"step": point.step, "task": point.task, "accuracy": found})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("method")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--memory", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--class-order", default="natural")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--preset", default=Job.preset)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--validation", type=float, default=0.1)
    parser.add_argument("--every", type=int)
    parser.add_argument("--set", dest="pairs", nargs="*", default=[], metavar="KEY=VALUE")
    given = vars(parser.parse_args())
    settings = dict(pair.split("=", 1) for pair in given.pop("pairs"))
    job = Job(settings=settings, **given)
    resources = RunResources()
    stream, plain = job.make(resources.dataset(job))
    learner = with_averages(registry.get(job.method).learner)(**plain.get_params())
    every = job.score_every(stream) or len(stream)
    scores = Scores(stream, every)
    with threads_and_determinism(job.threads, job.deterministic):
        for tick in evaluate(learner, stream, every=every, listeners=[scores]):
            last = tick
    spaced = [point for point in scores.points if point["step"] % every == 0]
    names = scores.points[0]["accuracy"]
    summary = {
        name: {
            "final": scores.points[-1]["accuracy"][name],
            "any-time": mean(point["accuracy"][name] for point in spaced),
        }
        for name in names
    }
    costs = {"images": learner.images_per_batch(job.batch), "seconds": last.seconds}
    whole = {**given, "settings": settings, **costs, "summary": summary, "points": scores.points}
    print(json.dumps({**whole, **describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
