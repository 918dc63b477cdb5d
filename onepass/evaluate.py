"""The only loop: learn a batch, and from time to time score the learner on the test set.

It is a generator; printing, recording and drawing are its customers, and listeners are told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from onepass.devices import room_for
from onepass.errors import InputError
from onepass.learner import Learner
from onepass.listeners import Audience, Listener, Run
from onepass.scoring import BEGINNING, Point, TestSet, Tick
from onepass.streams import Stream

NOBODY = Listener()


def evaluate(
    learner: Learner,
    stream: Stream,
    *,
    every: int | None = None,
    prequential: bool = False,
    listeners: Sequence[Listener] = (),
) -> Iterator[Point]:
    """Learns the stream, yielding a point at the end of each task and after `every` batches. A
    method that trains when scores are asked for is scored at the end only, unless `every` is given.
    Listeners are told of every step; one that fails is dropped, with a warning.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> for point in onepass.evaluate(onepass.ER(memory=100, seed=0), stream):
    ...     print(point.task, point.step, len([n for n in point.total if n]))
    0 29 2
    1 58 4
    2 88 6
    3 117 8
    4 146 10
    """
    audience = Audience(listeners)
    make_ready(learner, stream)
    audience.started(Run(learner, stream))
    for tick in walk(learner, stream, every=every, prequential=prequential, listener=audience):
        if isinstance(tick, Point):
            yield tick
    audience.finished(None)


def make_ready(learner: Learner, stream: Stream) -> None:
    """Prepares a learner for a stream's samples, unless it is prepared already."""
    if not isinstance(learner, Learner) or not isinstance(stream, Stream):
        given = f"a {type(learner).__name__} and a {type(stream).__name__}"
        raise InputError(f"evaluate takes a learner, then a stream; it was given {given}")
    if any(isinstance(label, str) for label in learner.classes[:1]):
        raise InputError("this learner's labels are text, and those of a stream are numbers")
    if not learner.prepared:
        first, _ = stream.batch(0)
        with room_for(_numbers(learner, stream)):
            learner.prepare(tuple(first.shape[1:]), first.dtype)


def _numbers(learner: Learner, stream: Stream) -> dict[str, object]:
    """What decides how much memory is needed."""
    first, _ = stream.batch(0)
    return {**learner.get_params(), "values in a sample": first[0].numel(), "batch": len(first)}


def walk(
    learner: Learner,
    stream: Stream,
    *,
    every: int | None = None,
    prequential: bool = False,
    start: Tick = BEGINNING,
    listener: Listener = NOBODY,
) -> Iterator[Tick]:
    """As `evaluate`, but yields after every batch, and can go on after the tick `start`. `listener`
    is told of steps, points and tasks; of start and end it has to be told by the caller."""
    make_ready(learner, stream)
    if every is not None and every < 1:
        raise InputError(f"every must be at least 1, not {every}")
    with room_for(_numbers(learner, stream)):
        yield from _walk(learner, stream, every, prequential, start, listener)


def _walk(
    learner: Learner,
    stream: Stream,
    every: int | None,
    prequential: bool,
    start: Tick,
    listener: Listener,
) -> Iterator[Tick]:
    stream = stream.on(learner.where)
    test = TestSet(stream)
    clock = _Clock(start, learner)
    hits, tried = start.hits, start.tried
    for index in range(start.step, len(stream)):
        with clock.training:
            x, y = stream.batch(index)
        if prequential:
            with clock.scoring:
                hits += _right(learner, x, y) if learner.steps else 0
            tried += len(y)
        done, boundary = index + 1, stream.ends_task(index)
        due = is_scored(learner, stream, every, done)
        with clock.training:
            if stream.boundaries and stream.starts_task(index):
                learner.new_task()
            step = learner.learn(x, y)
        listener.stepped(learner, step)
        with clock.training:
            if stream.boundaries and boundary:
                learner.end_task()
            if due or prequential:
                loss = float(step.loss)  # waits for the device, so that its time counts here
        tick = Tick(done, stream.task_of(index), hits=hits, tried=tried, **clock.read())
        if due:
            tick = _scored(tick, learner, test, clock, loss, boundary)
            listener.scored(tick)
        if boundary:
            listener.task_ended(tick.task)
        yield tick


def _right(learner: Learner, x: Tensor, y: Tensor) -> int:
    return int((torch.as_tensor(learner.predict(x)).cpu() == y).sum())


def is_scored(learner: Learner, stream: Stream, every: int | None, done: int) -> bool:
    """Whether a learner is scored when it has learned so many batches: at the end, at the end of
    each task unless it has to train for it and nobody asked, and after each `every`."""
    if every is not None and done % every == 0:
        return True
    at_task_ends = every is not None or not learner.trains_to_score
    return stream.ends_task(done - 1) and (at_task_ends or done == len(stream))


def _scored(
    tick: Tick, learner: Learner, test: TestSet, clock: _Clock, loss: float, boundary: bool
) -> Point:
    learner.check_finite()
    with clock.scoring:
        correct, total = test.score(learner)
    found = {"boundary": boundary, "loss": loss, "correct": correct, "total": total}
    return Point(**{**vars(tick), **clock.read(), **found})


class _Clock:
    """What training, scoring and capturing have taken so far."""

    def __init__(self, before: Tick, learner: Learner) -> None:
        self.scoring = _Stopwatch(before.scoring)
        self.training = _TrainingStopwatch(before, learner)

    def read(self) -> dict[str, float]:
        training = self.training
        return {
            "seconds": training.taken,
            "scoring": self.scoring.taken,
            "capture": training.captured,
        }


class _Stopwatch:
    """Adds up what is done inside of it. It is made once and entered at every step: looking at the
    clock must cost little beside a short step."""

    def __init__(self, taken: float) -> None:
        self.taken = taken

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.taken += time.perf_counter() - self.began


class _TrainingStopwatch(_Stopwatch):
    """A step is captured while it trains; that time is not training's."""

    def __init__(self, before: Tick, learner: Learner) -> None:
        super().__init__(before.seconds)
        self.captured, self.trainer = before.capture, learner.trainer

    def __enter__(self) -> None:
        self.before = self.trainer.capture_seconds
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        capture = self.trainer.capture_seconds - self.before
        self.taken -= capture
        self.captured += capture
