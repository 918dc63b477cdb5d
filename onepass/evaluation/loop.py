"""The loop: learn a batch, and score the learner on the test set from time to time.

It has two variants: `_ticks_of_stream` for a `Stream`, whose length and tasks are known, and
`_ticks_of_batches` for any iterable of batches. Both are generators that yield a tick per batch,
and call a listener at every event. Callers can print, record or draw between two batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from onepass.base.devices import naming_large_settings
from onepass.base.errors import InputError
from onepass.data.iterables import Test, describe_type, xy_pairs
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.callbacks.audience import Audience
from onepass.evaluation.points import BEGINNING, Point, Tick
from onepass.evaluation.scoring import (
    StreamTestSet,
    UserTestSet,
    expect_untrained_scores,
    first_scorable_step,
    predicted_rows,
    rows_of,
)
from onepass.learning.learner import Learner
from onepass.streams import Stream

NO_LISTENER = Listener()


def evaluate(
    learner: Learner,
    stream: Stream | Iterable[Any],
    *,
    test: Test | None = None,
    every: int | None = None,
    prequential: bool = False,
    listeners: Sequence[Listener] = (),
) -> Iterator[Point]:
    """Learns the stream, and yields a point at the end of each task and after each `every` batches.
    A method that has to train before it is scored is scored at the end of the stream only, unless
    `every` is given. Listeners receive every event; a listener that fails is dropped, with a
    warning, unless it is essential. With `prequential`, each batch is also predicted before it is
    learned; methods that train before they are scored raise an InputError.

    The stream may also be any iterable of batches: pairs (x, y), or dictionaries with a column
    image, img or x and a column label, fine_label or y. Then `test` is the test set: a pair (x, y),
    a `Dataset`, or batches that can be iterated more than once. The length of the iterable is
    unknown, so points come after each `every` batches and at the end. Its tasks are those that the
    learner infers, unless your code calls `learner.new_task()` between two batches. In that case
    the last task ends with the batches. A method that trains at the end of a task is then scored
    once more, even if it was scored after the last batch. The loop keeps no batch after it was
    learned; only the learner's memory keeps samples.

    >>> import onepass
    >>> stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    >>> for point in onepass.evaluate(onepass.ER(memory=100, seed=0), stream):
    ...     print(point.task, point.step, len([n for n in point.total if n]))
    0 29 2
    1 58 4
    2 88 6
    3 117 8
    4 146 10

    >>> batches = (([[float(i % 3)]] * 4, [i % 3] * 4) for i in range(300))  # a stream of vectors
    >>> learner = onepass.ER(memory=30, seed=0)
    >>> [*_, last] = onepass.evaluate(learner, batches, test=([[0.0], [1.0], [2.0]], [0, 1, 2]))
    >>> last.step, last.accuracy
    (300, 100.0)
    """
    audience = Audience(listeners)
    if isinstance(stream, Stream):
        if test is not None:
            raise InputError("a Stream has its own test set: give test only with your own batches")
        prepare_for_stream(learner, stream)
        audience.started(Run(learner, stream))
        ticks = learn_and_score(
            learner, stream, every=every, prequential=prequential, listener=audience
        )
    else:
        ticks = _ticks_of_batches(learner, stream, test, every, prequential, audience)
    for tick in ticks:
        if isinstance(tick, Point):
            yield tick
    audience.finished(None)


def prepare_for_stream(learner: Learner, stream: Stream) -> None:
    """Prepares a learner for the shape and type of a stream's samples, unless it is prepared
    already. Raises an InputError if an argument is something else, or if the learner has learned
    text labels."""
    if not isinstance(learner, Learner) or not isinstance(stream, Stream):
        given = f"a {type(learner).__name__} and a {type(stream).__name__}"
        raise InputError(f"evaluate takes a learner, then a stream; it was given {given}")
    if any(isinstance(label, str) for label in learner.classes[:1]):
        raise InputError(
            "a stream's labels are numbers, but this learner has text labels: use a new learner"
        )
    if not learner._prepared:
        first, _ = stream.batch(0)
        learner.prepare(tuple(first.shape[1:]), first.dtype)


def learn_and_score(
    learner: Learner,
    stream: Stream,
    *,
    every: int | None = None,
    prequential: bool = False,
    start: Tick = BEGINNING,
    listener: Listener = NO_LISTENER,
) -> Iterator[Tick]:
    """Learns a stream and scores the learner as `evaluate` does, but yields a tick after every
    batch. It continues after the tick `start`, up to which the learner must have learned. It calls
    the listener's hooks for steps, points and tasks; the caller has to call `started` and
    `finished`."""
    prepare_for_stream(learner, stream)
    if prequential:
        expect_untrained_scores(learner)
    if every is not None and every < (least := first_scorable_step(stream)):
        lacking = "" if least == 1 else ": no class of earlier batches has test samples"
        raise InputError(f"every must be at least {least}, not {every}{lacking}")
    with naming_large_settings(learner.get_params):
        yield from _ticks_of_stream(learner, stream, every, prequential, start, listener)


def _ticks_of_stream(
    learner: Learner,
    stream: Stream,
    every: int | None,
    prequential: bool,
    start: Tick,
    listener: Listener,
) -> Iterator[Tick]:
    stream = stream.on(learner.torch_device)
    test = StreamTestSet(stream)
    clock = _Clock(start, learner)
    hits, tried = start.hits, start.tried
    for index in range(start.step, len(stream)):
        with clock.training:
            x, y = stream.batch(index)
        if prequential:
            with clock.scoring:
                hits += _count_correct(learner, x, y) if learner.steps else 0
            tried += len(y)
        done, boundary = index + 1, stream.ends_task(index)
        due = is_scored(learner, stream, every, done)
        with clock.training:
            if stream.boundaries and stream.starts_task(index):
                learner.new_task()
            step = learner.learn(x, y)
            # The call is timed as training. A listener queues GPU work behind the step, and on a
            # busy device it then waits for the step, which is training time.
            listener.stepped(learner, step)
            if stream.boundaries and boundary:
                learner.end_task()
            if due or prequential:
                loss = float(step.loss)  # waits for the device, so that its time counts as training
        tick = Tick(done, stream.task_of(index), hits=hits, tried=tried, **clock.read())
        if due:
            tick = _score(tick, learner, test, clock, loss, boundary)
            listener.scored(tick)
        if boundary:
            listener.task_ended(tick.task)
        yield tick


def _ticks_of_batches(
    learner: Learner,
    batches: Iterable[Any],
    test: Test | None,
    every: int | None,
    prequential: bool,
    listener: Listener,
) -> Iterator[Tick]:
    """Does what `_ticks_of_stream` does for batches whose number and tasks are not known ahead.
    Also prepares the learner and calls `started`, because both need the first batch."""
    _expect_scorable_batches(learner, batches, test, every, prequential)
    tested = UserTestSet(() if test is None else test)
    upcoming = xy_pairs(batches)
    if (first := next(upcoming, None)) is None:
        raise InputError("the stream has no batches: give at least one")
    if not learner._prepared:
        sample = learner.sampler(first[0])[0]
        learner.prepare(tuple(sample.shape), sample.dtype)
    listener.started(Run(learner, None))
    clock, tick, task = _Clock(BEGINNING, learner), BEGINNING, learner.task
    for x, y in chain([first], upcoming):
        if prequential:
            tick = _predict_first(tick, learner, x, y, clock)
        with clock.training:
            step = learner.learn(x, y)
            # The last batch of a task is known to be the last only when the next task begins.
            if learner.task != task and tick.step:
                listener.task_ended(task)
            task = learner.task
            listener.stepped(learner, step)
        done = tick.step + 1
        due = every is not None and done % every == 0
        if due:
            with clock.training:
                float(step.loss)  # waits for the device, so that its time counts as training
        tick = Tick(done, learner.task, hits=tick.hits, tried=tick.tried, **clock.read())
        if due:
            tick = _score(tick, learner, tested, clock, float(step.loss), False)
            listener.scored(tick)
        yield tick
    trained = False  # whether the learner trained after the last batch, which changes its scores
    if learner.class_index.told:  # the caller announced the tasks, so the last one ends here
        with clock.training:
            trained = learner.end_task()
    if trained or not isinstance(tick, Point):
        tick = _score(tick, learner, tested, clock, float(step.loss), False)
        listener.scored(tick)
        yield tick
    listener.task_ended(task)


def _expect_scorable_batches(
    learner: Learner,
    batches: Iterable[Any],
    test: Test | None,
    every: int | None,
    prequential: bool,
) -> None:
    if not isinstance(learner, Learner) or not isinstance(batches, Iterable):
        given = f"a {type(learner).__name__} and {describe_type(batches)}"
        raise InputError(
            f"evaluate takes a learner, then a stream or batches; it was given {given}"
        )
    if test is None and not prequential:
        raise InputError("batches have no test set: give test=(x, y), or prequential=True")
    if prequential:
        expect_untrained_scores(learner)
    if every is not None and every < 1:
        raise InputError(f"every must be at least 1, not {every}")


def _predict_first(tick: Tick, learner: Learner, x: Any, y: Any, clock: _Clock) -> Tick:
    """Predicts a batch before it is learned. Returns the tick with the batch's samples added to
    `tried`, and the correct predictions to `hits`. A learner that has learned nothing yet counts as
    wrong on every sample."""
    samples = learner.sampler(x)
    truth = rows_of(learner, y, len(samples))
    with clock.scoring:
        hits = int((predicted_rows(learner, samples) == truth).sum()) if learner.steps else 0
    return Tick(tick.step, tick.task, tick.seconds, tick.hits + hits, tick.tried + len(truth))


def _count_correct(learner: Learner, x: Tensor, y: Tensor) -> int:
    return int((torch.as_tensor(learner.predict(x)).cpu() == y).sum())


def is_scored(learner: Learner, stream: Stream, every: int | None, done: int) -> bool:
    """Returns whether a learner is scored once it has learned `done` batches. It is scored after
    each `every` batches (None: never), at the end of the stream, and at the end of each task. A
    method that has to train before it is scored skips the ends of earlier tasks, unless `every` is
    given."""
    if every is not None and done % every == 0:
        return True
    at_task_ends = every is not None or not learner.traits.trains_to_score
    return stream.ends_task(done - 1) and (at_task_ends or done == len(stream))


def _score(
    tick: Tick,
    learner: Learner,
    test: StreamTestSet | UserTestSet,
    clock: _Clock,
    loss: float,
    boundary: bool,
) -> Point:
    """Scores the learner, and returns the tick as a point. Raises a TrainingError if learning has
    diverged."""
    learner.expect_healthy()
    with clock.scoring:
        scores = test.score(learner, boundary=boundary)
    found = {"boundary": boundary, "loss": loss, **scores._asdict()}
    return Point(**{**vars(tick), **clock.read(), **found})


class _Clock:
    """The seconds that training, scoring and CUDA graph capture have taken so far."""

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
    """Adds up the time spent inside its `with` blocks. One object serves all steps, because a new
    one for each would cost too much beside a short step."""

    def __init__(self, taken: float) -> None:
        self.taken = taken

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.taken += time.perf_counter() - self.began


class _TrainingStopwatch(_Stopwatch):
    """A stopwatch that counts the capture of CUDA graphs apart: it happens during training steps,
    but is not training time."""

    def __init__(self, before: Tick, learner: Learner) -> None:
        super().__init__(before.seconds)
        self.captured, self.learner = before.capture, learner

    def __enter__(self) -> None:
        self.before = self.learner.capture_seconds
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        capture = self.learner.capture_seconds - self.before
        self.taken -= capture
        self.captured += capture
