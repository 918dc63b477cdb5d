"""Estimates how long a run will take, from the runs that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from onepass import streams
from onepass.base.settings import construct
from onepass.learning import registry
from onepass.runs.result import Result
from onepass.runs.spec import Job

RECENT = 3  # only the last measurements count: the GPU or its load may have changed before them
# Stream settings that do not change how many samples a stream has
CUTS = ("tasks", "batch", "class_order", "boundaries")
RunKind = tuple[object, ...]


class Durations:
    """Estimates the seconds of a run from finished runs: the mean of the last three that fit.

    Runs of the same kind, which differ only in their seeds, fit best. Without any, the seconds for
    each image through the network are taken from runs on the same data and device, those of the
    same method if there are any. A stream that no finished run had is taken to be as long as the
    longest one of its data.

    >>> durations = Durations([])
    >>> durations.expected(Job("er", device="cpu")) is None
    True
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._seconds: dict[RunKind, list[float]] = {}
        self._samples: dict[RunKind, int] = {}
        self._rates: dict[RunKind, list[float]] = {}
        for result in results:
            self.learn(result)

    def learn(self, result: Result) -> None:
        """Adds a finished run."""
        from onepass.base.parts import FORWARDS

        where = (result.dataset_identity, result.device)
        took = result.seconds + result.scoring_seconds + result.capture_seconds
        kind = (*where, result.method, result.memory, str(result.variant))
        self._seconds.setdefault(kind, []).append(took)
        trained, scored = result.trained_per_sample, result.scored_per_sample
        if not (result.steps and result.batch) or trained is None or scored is None:
            return  # early versions did not record these values
        samples = result.steps * result.batch
        forwards = samples * (FORWARDS * trained + scored)
        # The most samples of any stream on these data, and of this stream
        for key in (where, (*where, *_stream(result.validation, result.stream_settings))):
            self._samples[key] = max(samples, self._samples.get(key, 0))
        if forwards:
            # Seconds per forward pass of all methods on these data, and of this method
            for rate_key in (where, (*where, result.method)):
                self._rates.setdefault(rate_key, []).append(took / forwards)

    def expected(self, job: Job) -> float | None:
        """Returns the expected seconds of a job; None if no finished run was on its data and
        device."""
        if measured := self._seconds.get(run_kind(job)):
            return _recent(measured)
        where = (job.dataset_identity, job.device_kind)
        rates = self._rates.get((*where, job.method)) or self._rates.get(where)
        forwards = _forwards_per_sample(job)
        if not rates or not forwards:
            return None
        chosen = job.chosen_stream()
        usual = streams.STREAMS[chosen["stream"]].defaults
        key = (*where, *_stream(job.validation, usual | chosen))
        return self._samples.get(key, self._samples[where]) * forwards * _recent(rates)


def run_kind(job: Job) -> RunKind:
    """Returns the kind of a job. Jobs of one kind differ only in their seeds, and are expected to
    take equally long."""
    memory = job.memory if job.uses_memory else 0
    return (job.dataset_identity, job.device_kind, job.method, memory, str(job.variant))


def _stream(validation: float, settings: Mapping[str, object]) -> RunKind:
    """Returns the choices that, besides the data, decide how many samples a run learns from: the
    held-out fraction and the stream's settings without `CUTS`. 50 and 50.0 count as equal."""
    chosen = [(name, value) for name, value in settings.items() if name not in CUTS]
    return (validation, *sorted((name, str(value).removesuffix(".0")) for name, value in chosen))


def _forwards_per_sample(job: Job) -> float:
    """Returns the cost of training for each sample of the stream, in forward passes."""

    memory = {"memory": job.memory} if job.uses_memory else {}
    learner = construct(registry.get(job.method).learner, **memory, **job.chosen_settings())
    batch = int(job.chosen_stream().get("batch", Job.batch))
    return learner.images_per_batch(batch).forwards / batch


def _recent(values: Sequence[float]) -> float:
    return mean(values[-RECENT:])
