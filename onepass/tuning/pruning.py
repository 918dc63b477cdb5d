"""Runs the jobs of trials, and stops a trial early if its scores so far are worse than those of
most others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from onepass.base.errors import InputError, OnepassError, TrainingError
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.callbacks.audience import Audience
from onepass.evaluation.points import Point
from onepass.executors import RunOptions
from onepass.runs.resources import RunResources
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.tuning.study import Study

SPARED = 0.25  # the fraction of a run before which it is never stopped


class StoppedEarlyError(OnepassError):
    """Raised inside the run of a trial to stop it: its scores are worse than those of most."""


@dataclass(frozen=True)
class TrialRunOptions(RunOptions):
    """Options for jobs that are runs of trials. `study` is the file with the trials, and `searched`
    names the settings that a trial chooses.

    The run with `first_seed` reports its scores and may be stopped early. If a run fails by the
    trial's settings, the study gets the error.
    """

    study: Path = Path()
    searched: tuple[str, ...] = ()
    first_seed: int = 0

    def run(self, job: Job, listener: Listener, resources: RunResources) -> Result:
        own = {name: job.settings[name] for name in self.searched}
        study = Study(self.study)
        number = study.first_trial_with(own)
        reporter = [Reporter(study, number)] if job.seed == self.first_seed else []
        try:
            return super().run(job, Audience([listener, *reporter]), resources)
        except (InputError, TrainingError) as problem:
            # The job was checked before, so the trial's settings have caused it.
            study.mark_stopped(number, str(problem))
            raise


class Reporter(Listener):
    """Reports to the study, at each evaluation point, the mean of all scores so far. Raises a
    StoppedEarlyError if that is worse than most trials, but not in the first quarter of the run.

    The mean is reported because a single score says little: early scores, on few classes, are the
    highest.
    """

    key: ClassVar[str] = "reporter"
    essential: ClassVar[bool] = True

    def __init__(self, study: Study, trial: int) -> None:
        self.study, self.trial = study, trial
        self.scores: list[float] = []

    def started(self, run: Run) -> None:
        self.spared = SPARED * len(run.stream or ())

    def scored(self, point: Point) -> None:
        self.scores.append(point.accuracy)
        promising = self.study.report(self.trial, point.step, mean(self.scores))
        if not promising and point.step > self.spared:
            self.study.mark_stopped(self.trial)
            raise StoppedEarlyError(f"stopped after {point.step} steps: most others were better")

    def state_dict(self) -> dict[str, Any]:
        return {"scores": list(self.scores)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores = list(state["scores"])
