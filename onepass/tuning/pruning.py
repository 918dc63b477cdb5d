"""Stops a trial early if its scores so far are worse than those of most others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
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
    """Stops a trial that is worse than most."""


@dataclass(frozen=True)
class TrialOptions(RunOptions):
    """Options for jobs that are runs of trials. The run of a trial's first seed reports its scores
    and may be stopped early; the other seeds run only if it was not."""

    study: Path = Path()
    searched: tuple[str, ...] = ()
    first_seed: int = 0

    def run(self, job: Job, listener: Listener, resources: RunResources) -> Result:
        own = {name: job.settings[name] for name in self.searched}
        study = _study(self.study)
        number = study.first_trial_with(own)
        reporter = [Reporter(study, number)] if job.seed == self.first_seed else []
        try:
            return super().run(job, Audience([listener, *reporter]), resources)
        except (InputError, TrainingError) as problem:  # caused by the trial's settings
            study.mark_stopped(number, str(problem))
            raise


class Reporter(Listener):
    """Reports the any-time accuracy so far, the mean of all scores up to each evaluation point. (A
    single score says little: early scores, on few classes, are the highest.)"""

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


@cache
def _study(file: Path) -> Study:
    """Returns the study of a file: one connection for all the trials that a process runs."""
    return Study(file)
