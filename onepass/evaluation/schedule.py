"""How often a run is scored unless the user says, and what scoring costs beside training.

Costs are counted in forward passes of samples and never measured in seconds, so that a run is
scored at the same steps on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onepass.base.parts import ImageCount
from onepass.base.text import format_bytes
from onepass.evaluation.metrics import FEWEST_POINTS
from onepass.learning.closed_form import ClosedForm
from onepass.learning.learner import Learner
from onepass.learning.replay import Replay
from onepass.streams import Stream

POINTS_PER_RUN = 20  # equally spaced evaluation points
SHARE = 5  # scoring may cost a fifth of training
# A run is long if so many values pass through the network: the pixels of 3000 colour images of
# 32x32, learned with replay. With a convolutional network that takes a CPU minutes.
LONG = 200_000_000
WIDE = 4096  # features of a closed-form method; a solve of more takes minutes
LONG_SOLVES = 10**11  # solves of so many cubed features take about a minute
LARGE_SUMS = 2**26  # bytes; larger ones are written when asked, and at the end


class ScoredSamples:
    """Counts the test samples that a run on a stream scores: those of all classes that have
    arrived, after each `every` steps and at the end of each task. A class counts from the beginning
    of its first task."""

    def __init__(self, stream: Stream) -> None:
        self.steps, steps = len(stream), range(len(stream))
        self.ends = {step for step in steps if stream.ends_task(step)}
        samples = stream.dataset.test_y.bincount(minlength=stream.dataset.classes)
        arrived = torch.zeros(len(samples), dtype=torch.bool)
        batches: dict[int, list[Tensor]] = {}  # of each task, indices of training samples
        for step in steps:
            batches.setdefault(stream.task_of(step), []).append(stream.indices(step))
        seen = {}  # of each task, the samples of all classes up to its end
        for task, indices in batches.items():
            arrived[stream.dataset.train_y[torch.cat(indices)]] = True
            seen[task] = int(samples[arrived].sum())
        self.after = [seen[stream.task_of(step)] for step in steps]
        self.at_task_ends = sum(self.after[step] for step in self.ends)

    def count(self, every: int) -> int:
        """Returns the number of samples that the whole run scores."""
        between = set(range(every - 1, self.steps, every)) - self.ends
        return self.at_task_ends + sum(self.after[step] for step in between)


def twentieth(stream: Stream) -> int:
    """Returns a twentieth of a stream's steps, at least 1."""
    return max(1, len(stream) // POINTS_PER_RUN)


def default_every(stream: Stream, learner: Learner | None = None) -> int | None:
    """Returns the number of steps between evaluation points of a run on this stream, unless the
    user chooses it. None stands for a twentieth of the steps.

    A closed-form learner that has to solve for more than 4096 features is scored at task ends only.
    If scoring would then cost more than a fifth of training, it is the smallest number at which it
    does not, or at which it costs no more than at task ends alone; and all steps, so that only task
    ends are left, if any-time accuracy would have too few points. Training is reckoned as plain
    replay in the common setting, so that all methods are scored at the same points. A short run
    keeps a twentieth."""
    if solved_features(learner, stream) > WIDE:
        return len(stream)
    scored, usual = ScoredSamples(stream), twentieth(stream)
    replayed = len(stream) * Replay.replay
    training = ImageCount(trained=samples_of(stream) + replayed).forwards
    if not _is_long(training + scored.count(usual), stream):
        return None
    most = max(training // SHARE, scored.at_task_ends)
    steps = len(stream)
    every = next(n for n in range(usual, steps + 1) if scored.count(n) <= most)
    if every == usual:
        return None
    return every if steps // every >= FEWEST_POINTS else steps


def scoring_cost(learner: Learner, stream: Stream, every: int, *, prequential: bool) -> str:
    """Returns what scoring will cost beside the training of this learner; "" for a short run, and
    for a method whose steps train nothing."""
    steps, scored = len(stream), ScoredSamples(stream)
    images = learner.images_per_batch(len(stream.indices(0)))
    views = 2 if getattr(learner, "mirror_scores", False) and stream.dataset.is_images else 1
    first = samples_of(stream) if prequential else 0
    chosen, fewest = (views * (scored.count(n) + first) for n in (every, steps))
    training = steps * images.forwards
    if not images.trained or not _is_long(training + chosen, stream):
        return ""
    text = (
        f"scores {chosen:,} test images beside {steps * images.trained:,} trained ones: about "
        f"{chosen / training:.2f} of the training's cost"
    )
    if chosen == fewest:
        return text
    return f"{text} ({fewest / training:.2f} at task ends only: --every {steps})"


def solving_cost(learner: Learner, stream: Stream, every: int, *, prequential: bool) -> str:
    """Returns what solving will cost a closed-form learner; "" for a short run."""
    features, steps = solved_features(learner, stream), len(stream)
    ends = {step for step in range(steps) if stream.ends_task(step)}
    points = len(ends | set(range(every - 1, steps, every)))
    solves = steps if prequential else points  # a prediction before each batch solves anew
    if solves * features**3 < LONG_SOLVES:
        return ""
    text = (
        f"solves {solves} times for {features:,} features, from "
        f"{format_bytes(sums_bytes(learner, stream))} of sums"
    )
    if solves == len(ends):
        return text
    return f"{text} ({len(ends)} times at task ends only: --every {steps})"


def solved_features(learner: Learner | None, stream: Stream) -> int:
    """Returns the number of features that a closed-form learner solves for; 0 for any other."""
    shape = tuple(stream.dataset.train_x.shape[1:])
    return learner.solved_features(shape) if isinstance(learner, ClosedForm) else 0


def sums_bytes(learner: Learner, stream: Stream) -> int:
    """Returns the bytes that a closed-form learner's products of features take, which are nearly
    all of its sums; 0 for any other learner."""
    return 8 * solved_features(learner, stream) ** 2


def has_large_sums(learner: Learner, stream: Stream) -> bool:
    """Returns whether a checkpoint of the learner is so large that it is written only when the user
    asks for it, and at the end."""
    return sums_bytes(learner, stream) > LARGE_SUMS


def samples_of(stream: Stream) -> int:
    """Returns the number of samples in a stream."""
    return sum(len(stream.indices(step)) for step in range(len(stream)))


def _is_long(forwards: int, stream: Stream) -> bool:
    """Returns whether a run of this many forward passes is long."""
    return forwards * stream.dataset.train_x[0].numel() >= LONG
