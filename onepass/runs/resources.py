"""Shares datasets and prepared learners among the runs of one process."""

from __future__ import annotations

from dataclasses import replace

from onepass.base.devices import threads_and_determinism
from onepass.data import Dataset
from onepass.evaluation.loop import prepare_for_stream
from onepass.learning.learner import Learner
from onepass.runs.spec import Fingerprint, Job
from onepass.streams import Stream


class RunResources:
    """Loads each dataset once, and keeps the streams and learners that `prepare` makes until `take`
    gives them to their runs.

    >>> resources, jobs = RunResources(), [Job("er", seed=0), Job("gsa", seed=1)]
    >>> resources.dataset(jobs[0]) is resources.dataset(jobs[1])
    True
    """

    def __init__(self) -> None:
        self._datasets: dict[tuple[object, ...], Dataset] = {}
        self._fingerprints: dict[tuple[object, ...], Fingerprint | None] = {}
        self._ready: dict[str, tuple[Stream, Learner]] = {}

    def dataset(self, job: Job) -> Dataset:
        """Returns the job's dataset, with its validation samples held out."""
        full = self._full_dataset(job)
        return full.hold_out(job.validation, job.seed) if job.validation else full

    def with_fingerprint(self, job: Job) -> Job:
        """Returns the job with the fingerprint of its data. They are loaded if they are not yet."""
        stream = (job.stream, job.tasks, job.batch, job.class_order, job.validation)
        settings = (job.preset, *sorted(job.settings.items()))  # they decide how long a solve takes
        key = (*_data_key(job), *stream, job.method, settings, job.every)
        if key not in self._fingerprints:
            self._fingerprints[key] = job.with_data(self._full_dataset(job)).fingerprint
        return replace(job, fingerprint=self._fingerprints[key])

    def _full_dataset(self, job: Job) -> Dataset:
        key = _data_key(job)
        if key not in self._datasets:
            self._datasets[key] = job.load_dataset()
        return self._datasets[key]

    def prepare(self, job: Job) -> Learner:
        """Makes and keeps a job's stream and learner; returns the learner. Errors that can be found
        without a run are raised here."""
        made = self._ready[self.with_fingerprint(job).identity] = self._make(job)
        return made[1]

    def take(self, job: Job) -> tuple[Stream, Learner]:
        """Returns the stream and the prepared learner of a job, and keeps them no longer. If there
        are none, makes them."""
        return self._ready.pop(self.with_fingerprint(job).identity, None) or self._make(job)

    def _make(self, job: Job) -> tuple[Stream, Learner]:
        with threads_and_determinism(job.threads, job.deterministic):
            stream, learner = job.make(self.dataset(job))
            prepare_for_stream(learner, stream)
        return stream, learner


def _data_key(job: Job) -> tuple[object, ...]:
    """Returns the choices that decide what data a job loads."""
    options = (job.image_size, job.test_fraction, job.mirror_is_same_class, job.label, job.test)
    encoded = (job.encoder, job.device) if job.encoder else ()
    return (job.dataset_identity, job.data_root, *options, *encoded)
