"""What runs need: datasets, loaded once in a process, and learners, prepared once."""

from __future__ import annotations

from onepass.base.devices import threads_and_determinism
from onepass.data import Dataset
from onepass.evaluation.loop import prepare_for_stream
from onepass.learning.learner import Learner
from onepass.runs.spec import Job
from onepass.streams import Stream


class RunResources:
    """Whoever carries out several jobs keeps one, and they share what they can.

    >>> resources, jobs = RunResources(), [Job("er", seed=0), Job("gsa", seed=1)]
    >>> resources.dataset(jobs[0]) is resources.dataset(jobs[1])
    True
    """

    def __init__(self) -> None:
        self._datasets: dict[tuple[object, ...], Dataset] = {}
        self._ready: dict[str, tuple[Stream, Learner]] = {}

    def dataset(self, job: Job) -> Dataset:
        whole = self._full_dataset(job)
        return whole.hold_out(job.validation, job.seed) if job.validation else whole

    def with_fingerprint(self, job: Job) -> Job:
        """The job with the fingerprint of its data, which are loaded for that."""
        return job.with_data(self._full_dataset(job))

    def _full_dataset(self, job: Job) -> Dataset:
        own = (job.image_size, job.test_fraction, job.mirror_is_same_class, job.label, job.test)
        which = (job.dataset_identity, job.data_root, *own)
        if which not in self._datasets:
            self._datasets[which] = job.load_dataset()
        return self._datasets[which]

    def prepare(self, job: Job) -> None:
        """Makes a job's stream and learner, so that what can be refused is refused now; the run
        takes them from here."""
        self._ready[self.with_fingerprint(job).identity] = self._make(job)

    def take(self, job: Job) -> tuple[Stream, Learner]:
        """The stream of a job, and its learner, prepared."""
        return self._ready.pop(self.with_fingerprint(job).identity, None) or self._make(job)

    def _make(self, job: Job) -> tuple[Stream, Learner]:
        with threads_and_determinism(job.threads, job.deterministic):
            stream, learner = job.make(self.dataset(job))
            prepare_for_stream(learner, stream)
        return stream, learner
