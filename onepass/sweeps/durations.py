"""How long a run will take, from those that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from onepass import streams
from onepass.base.settings import construct
from onepass.learning import registry
from onepass.runs.result import Result
from onepass.runs.spec import Job

RECENT = 3  # measurements that count: a card, or who shares it, may have changed since the others
SCORED = 1 / 3  # of what a trained image costs, which is also passed back
CUTS = ("tasks", "batch", "class_order", "boundaries")  # leave a stream its samples
RunKind = tuple[object, ...]


class Durations:
    """Seconds of finished runs: of the same kind (all but the seed) if there are any, or else of
    runs on the same data, in proportion to the images that pass through the network; those of the
    same method first. A stream that nobody has measured is taken for the longest of its data.

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
        """A run has been measured."""
        place = (result.dataset_identity, result.device)
        took = result.seconds + result.scoring_seconds + result.capture_seconds
        kind = (*place, result.method, result.memory, str(result.variant))
        self._seconds.setdefault(kind, []).append(took)
        trained, scored = result.trained_per_sample, result.scored_per_sample
        if not (result.steps and result.batch) or trained is None or scored is None:
            return  # of an earlier version, that did not record it
        samples = result.steps * result.batch
        images = samples * (trained + SCORED * scored)
        for which in (place, (*place, *_stream(result.validation, result.stream_settings))):
            self._samples[which] = max(samples, self._samples.get(which, 0))
        if images:
            for whose in (place, (*place, result.method)):
                self._rates.setdefault(whose, []).append(took / images)

    def expected(self, job: Job) -> float | None:
        """Seconds of the whole run; None if nothing like it was measured."""
        if measured := self._seconds.get(run_kind(job)):
            return _recent(measured)
        place = (job.dataset_identity, job.device_kind)
        rates = self._rates.get((*place, job.method)) or self._rates.get(place)
        images = _images_per_sample(job)
        if not rates or not images:
            return None
        asked = job.chosen_stream()
        usual = streams.STREAMS[asked["stream"]].defaults
        which = (*place, *_stream(job.validation, usual | asked))
        return self._samples.get(which, self._samples[place]) * images * _recent(rates)


def run_kind(job: Job) -> RunKind:
    """Jobs of one kind differ in their seeds only, and take equally long."""
    memory = job.memory if job.uses_memory else 0
    return (job.dataset_identity, job.device_kind, job.method, memory, str(job.variant))


def _stream(validation: float, settings: Mapping[str, object]) -> RunKind:
    """What decides how many samples a run learns from, besides its data; 50 and 50.0 are one."""
    chosen = [(name, value) for name, value in settings.items() if name not in CUTS]
    return (validation, *sorted((name, str(value).removesuffix(".0")) for name, value in chosen))


def _images_per_sample(job: Job) -> float:
    from onepass.learning.image_counts import images_per_batch

    memory = {"memory": job.memory} if job.uses_memory else {}
    learner = construct(registry.get(job.method).learner, **memory, **job.chosen_settings())
    batch = int(job.chosen_stream().get("batch", Job.batch))
    images = images_per_batch(learner, batch)
    return (images.trained + SCORED * images.scored) / batch


def _recent(values: Sequence[float]) -> float:
    return mean(values[-RECENT:])
