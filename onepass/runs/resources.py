"""What runs need: datasets, loaded once in a process, and learners, prepared once."""

from __future__ import annotations

from onepass.base.devices import threads_and_determinism
from onepass.data import Dataset
from onepass.evaluation.loop import make_ready
from onepass.learning.learner import Learner
from onepass.runs.spec import Job
from onepass.streams import Stream


class Supplies:
    """Whoever carries out several jobs keeps one, and they share what they can.

    >>> supplies, jobs = Supplies(), [Job("er", seed=0), Job("gsa", seed=1)]
    >>> supplies.dataset(jobs[0]) is supplies.dataset(jobs[1])
    True
    """

    def __init__(self) -> None:
        self._datasets: dict[tuple[object, ...], Dataset] = {}
        self._ready: dict[str, tuple[Stream, Learner]] = {}

    def dataset(self, job: Job) -> Dataset:
        whole = self._whole(job)
        return whole.hold_out(job.validation, job.seed) if job.validation else whole

    def known(self, job: Job) -> Job:
        """The job with the fingerprint of its data, which are loaded for that."""
        return job.on(self._whole(job))

    def _whole(self, job: Job) -> Dataset:
        own = (job.image_size, job.test_fraction, job.mirror_is_same_class, job.label, job.test)
        which = (job.dataset_identity, job.data_root, *own)
        if which not in self._datasets:
            self._datasets[which] = job.load_dataset()
        return self._datasets[which]

    def check(self, job: Job) -> None:
        """Makes a job's stream and learner, so that what can be refused is refused now; the run
        takes them from here."""
        self._ready[self.known(job).identity] = self._made(job)

    def take(self, job: Job) -> tuple[Stream, Learner]:
        """The stream of a job, and its learner, prepared."""
        return self._ready.pop(self.known(job).identity, None) or self._made(job)

    def _made(self, job: Job) -> tuple[Stream, Learner]:
        with threads_and_determinism(job.threads, job.deterministic):
            stream, learner = job.make(self.dataset(job))
            make_ready(learner, stream)
        return stream, learner
