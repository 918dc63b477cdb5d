"""Runs a search in its folder. It can be stopped at any moment, and resumes there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from onepass.base import fileio, toml
from onepass.base.errors import RunError
from onepass.base.text import shortened
from onepass.evaluation.callbacks import Progress
from onepass.executors import Executor
from onepass.runs.net_inputs import describe_inputs
from onepass.runs.rerun_command import job_command
from onepass.runs.resources import RunResources
from onepass.tuning.pruning import TrialRunOptions
from onepass.tuning.spec import SearchSpec
from onepass.tuning.study import Study
from onepass.tuning.trial_queue import TrialQueue

log = logging.getLogger("onepass")
Watch = Callable[[int, int, Progress], None]  # called with trial, seed and progress of a run


@dataclass(frozen=True)
class SearchState:
    """The state of a search: how many trials have `ended`, how many of those were `stopped` early,
    and the `problems` of those that failed.

    `best`, `value` and `settings` are the number, value and settings of the best complete trial;
    without one, `best` and `settings` are None. The settings include those that all trials share.
    `best_file` holds them too. `run` is the trial and seed of the run that has just ended, None at
    the start.
    """

    run: tuple[int, int] | None
    ended: int
    stopped: int
    problems: list[str]
    best_file: Path
    best: int | None = None
    value: float = 0.0
    settings: dict[str, str] | None = None

    @property
    def summary(self) -> str:
        counts = f"{self.ended} trials, {self.stopped} stopped early"
        if not self.problems:
            return counts
        return f"{counts}, {len(self.problems)} could not be run: {shortened(self.problems[0])}"


class Search:
    """A search in a folder: `study.db` holds the trials, `runs/` their run folders, `best.toml` the
    best settings so far."""

    def __init__(self, spec: SearchSpec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.file = folder / "study.db"
        self.best_file = folder / "best.toml"

    def run(
        self, executor: Executor, trials: int, watch: Watch = lambda trial, seed, progress: None
    ) -> Generator[SearchState, None, None]:
        """Searches until there are `trials` trials, those of earlier calls included. Yields the
        state of the search at the start and whenever a run has ended. Raises an error if the
        specification is not valid, or if the folder holds another search."""
        resources = RunResources()
        self.spec = replace(self.spec, job=resources.with_fingerprint(self.spec.job))
        self.spec.check(resources)
        with self._locked():
            study = Study(self.file)
            study.expect_same_search(self.spec.description(), self.folder)
            if remark := describe_inputs(executor.check(self.spec.job)):
                log.warning("%s", remark)
            queue = TrialQueue(self.spec, study, trials)
            yield self._state(study, None)
            if queue.has_runs():
                options = TrialRunOptions(
                    self.folder / "runs",
                    resume=True,
                    study=self.file,
                    searched=tuple(self.spec.space.settings),
                    first_seed=self.spec.job.seed,
                )

                def tell(index: int, progress: Progress) -> None:
                    watch(queue.trial_of[index].number, queue.jobs[index].seed, progress)

                with closing(executor.outcomes(queue.jobs, queue, options, tell)) as outcomes:
                    for index, outcome in outcomes:
                        queue.end(index, outcome)
                        run = queue.trial_of[index].number, queue.jobs[index].seed
                        yield self._state(study, run)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Makes the folder and locks it for one process; raises a RunError if that fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RunError(f"cannot make the folder {self.folder}: {problem.strerror}") from None
        with ExitStack() as held:
            try:
                held.enter_context(fileio.locked_file(self.folder / ".lock", wait=False))
            except BlockingIOError:
                raise RunError(
                    f"another process is searching in {self.folder}: wait for it, or use --out to "
                    "put this search elsewhere"
                ) from None
            yield

    def _state(self, study: Study, run: tuple[int, int] | None) -> SearchState:
        """Returns the state of the search. Writes best.toml if its content has changed."""
        ended = [trial for trial in study.trials() if trial.state.is_finished()]
        complete = [trial for trial in ended if trial.state == study.states.COMPLETE]
        problems = [trial.user_attrs["problem"] for trial in ended if "problem" in trial.user_attrs]
        stopped = len(ended) - len(complete) - len(problems)
        state = SearchState(run, len(ended), stopped, problems, self.best_file)
        if not complete:
            return state
        # Among equal values the first trial is the best.
        best = max(complete, key=lambda trial: (trial.value, -trial.number))
        settings = {**self.spec.job.settings, **best.user_attrs["settings"]}
        state = replace(state, best=best.number, value=best.value, settings=settings)
        text = self._toml(state).encode()
        if not self.best_file.is_file() or self.best_file.read_bytes() != text:
            fileio.write_atomically(self.best_file, lambda file: file.write(text))
        return state

    def _toml(self, state: SearchState) -> str:
        """Returns best.toml: the best settings, below comments with their value and the command
        that runs them on all training data."""
        best = replace(self.spec.job, settings=state.settings or {}, validation=0.0)
        description = {
            "mean": "mean of final and any-time accuracy",
            "accuracy": "final accuracy",
            "anytime": "any-time accuracy",
        }[self.spec.objective]
        return (
            f"# {description} on held-out data: {state.value:.2f} (trial {state.best})\n"
            f"# {job_command(best, self.spec.seeds)}\n"
            f"{toml.settings_as_toml(best.settings)}"
        )
