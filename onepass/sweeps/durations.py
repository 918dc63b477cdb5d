"""Estimates how long a run will take, from the runs that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from onepass import streams
from onepass.base.settings import construct
from onepass.learning import registry
from onepass.runs.result import Result
from onepass.runs.spec import Job

RECENT = 3  # only this many measurements count: the GPU, or its load, may have changed since others
SCORED = 1 / 3  # the cost of a scored image beside a trained one, which also has a backward pass
CUTS = ("tasks", "batch", "class_order", "boundaries")  # settings that keep a stream's samples
RunKind = tuple[object, ...]


class Durations:
    """Estimates the seconds of a run from finished runs.

    Runs of the same kind, which differ only in their seeds, give the estimate directly. Otherwise
    runs on the same data and device do, in proportion to the images through the network; runs of
    the same method take precedence. An unmeasured stream counts as the longest one of its data.

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
        where = (result.dataset_identity, result.device)
        took = result.seconds + result.scoring_seconds + result.capture_seconds
        kind = (*where, result.method, result.memory, str(result.variant))
        self._seconds.setdefault(kind, []).append(took)
        trained, scored = result.trained_per_sample, result.scored_per_sample
        if not (result.steps and result.batch) or trained is None or scored is None:
            return  # early versions did not record these values
        samples = result.steps * result.batch
        images = samples * (trained + SCORED * scored)
        # The samples of the longest stream on these data, and of this stream
        for key in (where, (*where, *_stream(result.validation, result.stream_settings))):
            self._samples[key] = max(samples, self._samples.get(key, 0))
        if images:
            # Seconds per image of all methods on these data, and of this method
            for rate_key in (where, (*where, result.method)):
                self._rates.setdefault(rate_key, []).append(took / images)

    def expected(self, job: Job) -> float | None:
        """Returns the expected seconds of a job; None if no run on its data was measured."""
        if measured := self._seconds.get(run_kind(job)):
            return _recent(measured)
        where = (job.dataset_identity, job.device_kind)
        rates = self._rates.get((*where, job.method)) or self._rates.get(where)
        images = _images_per_sample(job)
        if not rates or not images:
            return None
        chosen = job.chosen_stream()
        usual = streams.STREAMS[chosen["stream"]].defaults
        key = (*where, *_stream(job.validation, usual | chosen))
        return self._samples.get(key, self._samples[where]) * images * _recent(rates)


def run_kind(job: Job) -> RunKind:
    """Returns the kind of a job. Jobs of one kind differ only in their seeds, and are expected to
    take equally long."""
    memory = job.memory if job.uses_memory else 0
    return (job.dataset_identity, job.device_kind, job.method, memory, str(job.variant))


def _stream(validation: float, settings: Mapping[str, object]) -> RunKind:
    """Returns what decides how many samples a run learns from, besides its data. The values 50 and
    50.0 count as equal."""
    chosen = [(name, value) for name, value in settings.items() if name not in CUTS]
    return (validation, *sorted((name, str(value).removesuffix(".0")) for name, value in chosen))


def _images_per_sample(job: Job) -> float:
    """Returns the images through the network for each sample of the stream, weighted by cost."""
    from onepass.learning.image_counts import images_per_batch

    memory = {"memory": job.memory} if job.uses_memory else {}
    learner = construct(registry.get(job.method).learner, **memory, **job.chosen_settings())
    batch = int(job.chosen_stream().get("batch", Job.batch))
    images = images_per_batch(learner, batch)
    return (images.trained + SCORED * images.scored) / batch


def _recent(values: Sequence[float]) -> float:
    return mean(values[-RECENT:])
