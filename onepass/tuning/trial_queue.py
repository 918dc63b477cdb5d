"""The queue of a search, which decides which run comes next and when a trial has ended."""

from __future__ import annotations

from statistics import mean

from onepass.base.errors import OnepassError
from onepass.executors.queue import Fits
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.tuning.spec import SearchSpec
from onepass.tuning.study import Ending, Study, Trial


class TrialQueue:
    """A queue that asks the study for new trials when an executor has room, up to `total` trials.

    The run of a trial's first seed comes first, and may be stopped early. If it finishes, the runs
    of the other seeds follow. A trial with the settings of an earlier one is not run; it ends as
    that one does. Trials that a stopped search left unfinished come before new ones.
    """

    def __init__(self, spec: SearchSpec, study: Study, total: int) -> None:
        self.spec, self.study, self.total = spec, study, total
        self.jobs: list[Job] = []
        self.trial_of: list[Trial] = []
        self.waiting: list[int] = []
        # Trials with the settings of an earlier one that has not ended, by that one's number
        self.duplicates: dict[int, list[Trial]] = {}
        for trial in study.unfinished():
            self._begin(trial)

    def has_runs(self) -> bool:
        """Returns whether a run is waiting. If none is, asks for new trials until one adds a run or
        there are `total`."""
        while not self.waiting and len(self.study.trials()) < self.total:
            self._begin(self.study.ask(self.spec.space, self.spec.seed))
        return bool(self.waiting)

    def take(self, fits: Fits) -> int | None:
        if self.has_runs() and fits(self.jobs[self.waiting[0]]):
            return self.waiting.pop(0)
        return None

    def put_back(self, index: int) -> None:
        self.waiting.insert(0, index)

    def end(self, index: int, outcome: Result | Exception) -> None:
        """Records the end of a run. Its trial ends when its last run has finished, or when one was
        stopped early or failed.

        An error that the user can correct and that the trial's settings did not cause is raised
        instead. The trial then stays open, and a resumed search runs it again.
        """
        job, trial = self.jobs[index], self.trial_of[index]
        if trial.ended:  # another run of the trial has failed meanwhile
            return
        if not isinstance(outcome, Result):
            ending = self.study.ending(
                trial.number
            )  # set if the run's process has marked the trial
            if ending is None and isinstance(outcome, OnepassError | OSError):
                raise outcome
            self._tell(trial, ending or Ending(problem=str(outcome)))
            return
        trial.scores[job.seed] = self.spec.value(outcome)
        if job.seed == self.spec.job.seed:
            for number in range(1, self.spec.seeds):
                self._add(trial, number)
        if len(trial.scores) == self.spec.seeds:
            self._tell(trial, Ending(mean(trial.scores[seed] for seed in sorted(trial.scores))))

    def _begin(self, trial: Trial) -> None:
        """Adds the first run of a trial. A trial with the settings of an earlier one ends like it,
        now or when that one ends."""
        first = self.study.first_trial_with(trial.settings)
        if first == trial.number:
            self._add(trial, 0)
        elif ending := self.study.ending(first):
            self.study.tell(trial, ending)
        else:
            self.duplicates.setdefault(first, []).append(trial)

    def _add(self, trial: Trial, number: int) -> None:
        self.waiting.append(len(self.jobs))
        self.jobs.append(self.spec.run_of(trial.settings, number))
        self.trial_of.append(trial)

    def _tell(self, trial: Trial, ending: Ending) -> None:
        """Records the end of a trial, and the same end of those that wait for it."""
        for same in (trial, *self.duplicates.pop(trial.number, ())):
            self.study.tell(same, ending)
