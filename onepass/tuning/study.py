"""The trials of a search, in Optuna's database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onepass.base.errors import InputError, RunError
from onepass.base.text import error_in_one_line, quoted
from onepass.tuning.space import Space

NAME = "onepass"
SETTINGS, STOPPED, PROBLEM = "settings", "stopped", "problem"  # attributes of a trial
FEWEST_COMPLETE = 5  # trials that must be complete before others are compared with them
WAIT = 60  # seconds to wait for another process that is writing to the database


@dataclass
class Trial:
    """One choice of settings, and the objectives of its runs so far, by seed."""

    number: int
    settings: dict[str, str]
    scores: dict[int, float] = field(default_factory=dict)
    ended: bool = False


@dataclass(frozen=True)
class Ending:
    """The end of a trial: its value if it is complete, the problem if it failed, neither if it was
    stopped early."""

    value: float | None = None
    problem: str | None = None


class Study:
    """The database of a search. Only the process that has locked the folder calls `ask` and `tell`;
    the processes that run trials report their scores."""

    def __init__(self, file: Path) -> None:
        self.optuna = optuna_module()
        self.states = self.optuna.trial.TrialState
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise RunError(f"{file} is not a file")
        self.file = file
        with self._damage_in_one_line():
            self.storage = _storage(self.optuna, file)
            self.study = self.optuna.create_study(
                storage=self.storage, study_name=NAME, direction="maximize", load_if_exists=True
            )
            self.number = self.storage.get_study_id_from_name(NAME)
            directions = self.study.directions
        if directions != [self.optuna.study.StudyDirection.MAXIMIZE]:
            raise self._unusable("its direction is damaged")

    @contextmanager
    def _damage_in_one_line(self) -> Iterator[None]:
        """Raises a RunError, which names the file, for any error inside. It holds calls of Optuna
        only: of a damaged file Optuna, SQLAlchemy and sqlite3 raise errors of many kinds, a
        TypeError too."""
        try:
            yield
        except Exception as problem:
            raise self._unusable(_words(problem)) from None

    def _unusable(self, why: str) -> RunError:
        return RunError(f"{self.file} cannot be used: {why}; --out puts a new search elsewhere")

    def expect_same_search(self, description: dict[str, Any], folder: Path) -> None:
        """Stores the description of a new search; raises a RunError if a resumed one differs."""
        wanted = json.loads(json.dumps(description))
        with self._damage_in_one_line():
            found = self.study.user_attrs.get("asked")
            if found is None:
                self.study.set_user_attr("asked", wanted)
                return
        if not isinstance(found, dict):
            raise self._unusable("the description of its search is damaged")
        for name in {**wanted, **found}:
            if found.get(name) != wanted.get(name):
                was, now = (quoted(search.get(name)) for search in (found, wanted))
                raise RunError(
                    f"{folder} holds a search with another {name}: {was}, not {now}; "
                    "--out puts this one elsewhere"
                )

    # ---- for the process that searches

    def trials(self) -> list[Any]:
        """Returns every trial that has its settings, in order. A trial that a kill left without
        settings does not count. Raises a RunError if a trial is damaged."""
        every = self._all_trials()
        for number, trial in enumerate(every):
            if problem := _damage(trial, number, self.states):
                raise self._unusable(f"{problem} of trial {number} is damaged")
        return [trial for trial in every if SETTINGS in trial.user_attrs]

    def unfinished(self) -> list[Trial]:
        """Returns the trials that were running when the search was stopped. Those that a kill left
        without settings are recorded as failed instead."""
        for trial in self._all_trials():
            if trial.state == self.states.RUNNING and SETTINGS not in trial.user_attrs:
                with self._damage_in_one_line():
                    self.study.tell(trial.number, state=self.states.FAIL)
        running = [trial for trial in self.trials() if trial.state == self.states.RUNNING]
        for trial in running:
            if trial.user_attrs[SETTINGS].keys() != trial.params.keys():
                raise self._unusable(f"the setting of trial {trial.number} is damaged")
        return [Trial(trial.number, trial.user_attrs[SETTINGS]) for trial in running]

    def ask(self, space: Space, seed: int) -> Trial:
        """Returns a new trial, stored with its settings. Each trial has a sampler of its own, which
        its position in the search seeds. So a resumed search tries what an uninterrupted one
        would have tried."""
        state = np.random.SeedSequence([seed, len(self.trials())]).generate_state(1)
        distributions = space.distributions()
        with self._damage_in_one_line():
            self.study.sampler = _sampler(self.optuna, space, int(state[0]))
            trial = self.study.ask(distributions)
        settings = space.texts(trial.params)
        self._write(trial.number, SETTINGS, settings)
        return Trial(trial.number, settings)

    def tell(self, trial: Trial, ending: Ending) -> None:
        """Records the end of a trial. A trial without a value is recorded as pruned, which the
        sampler takes to be worse than any value."""
        trial.ended = True
        if ending.problem:
            self._write(trial.number, PROBLEM, ending.problem)
        with self._damage_in_one_line():
            if ending.value is None:
                self.study.tell(trial.number, state=self.states.PRUNED)
            else:
                self.study.tell(trial.number, ending.value)

    def ending(self, number: int) -> Ending | None:
        """Returns how a trial has ended; None if it has not. A trial that `mark_stopped` has marked
        counts as ended, even before `tell`."""
        (found,) = [trial for trial in self.trials() if trial.number == number]
        marks = found.user_attrs
        if found.state == self.states.COMPLETE:
            return Ending(found.value)
        over = found.state != self.states.RUNNING or STOPPED in marks or PROBLEM in marks
        return Ending(problem=marks.get(PROBLEM)) if over else None

    # ---- for the process that runs a trial

    def report(self, number: int, step: int, value: float) -> bool:
        """Records the score of a trial at a step. Returns whether the trial should continue: always
        while fewer than five complete trials have a score at that step, and otherwise if its score
        reaches their median."""
        scores = []
        with self._damage_in_one_line():
            self.storage.set_trial_intermediate_value(self._id(number), step, value)
        for trial in self.trials():
            if trial.state == self.states.COMPLETE and step in trial.intermediate_values:
                scores.append(trial.intermediate_values[step])
        return len(scores) < FEWEST_COMPLETE or value >= median(scores)

    def mark_stopped(self, number: int, problem: str | None = None) -> None:
        """Marks a trial as stopped early or, with a `problem`, as failed."""
        key, value = (PROBLEM, problem) if problem else (STOPPED, True)
        self._write(number, key, value)

    def first_trial_with(self, settings: dict[str, str]) -> int:
        """Returns the number of the first trial with these settings, the only one that is run."""
        trials = (trial for trial in self.trials() if trial.user_attrs[SETTINGS] == settings)
        return int(next(trials).number)

    def _all_trials(self) -> list[Any]:
        with self._damage_in_one_line():
            trials: list[Any] = self.study.get_trials(deepcopy=False)
        return trials

    def _write(self, number: int, key: str, value: object) -> None:
        with self._damage_in_one_line():
            self.storage.set_trial_user_attr(self._id(number), key, value)

    def _id(self, number: int) -> int:
        return int(self.storage.get_trial_id_from_study_id_trial_number(self.number, number))


def _damage(trial: Any, number: int, states: Any) -> str:
    """Returns which entry of the trial at position `number` has no valid value, or "". Optuna reads
    any value there. Only a trial that a kill has ended may lack its settings."""
    if trial.number != number:
        return "the number"
    settings, over = trial.user_attrs.get(SETTINGS), trial.state.is_finished()
    killed = settings is None and trial.state in (states.RUNNING, states.FAIL)
    # Another process may be writing a trial that is not over, so its names are not compared.
    if not killed and not _are_texts(settings, trial.params if over else settings):
        return "the setting"
    if not isinstance(trial.user_attrs.get(PROBLEM, ""), str):
        return "the problem"
    if trial.state == states.COMPLETE and not isinstance(trial.value, int | float):
        return "the value"
    if not all(isinstance(score, int | float) for score in trial.intermediate_values.values()):
        return "a score"
    return ""


def _are_texts(settings: Any, names: Iterable[str]) -> bool:
    """Returns whether the settings are a dictionary of texts with these names."""
    return (
        isinstance(settings, dict)
        and settings.keys() == set(names)
        and all(isinstance(text, str) for text in settings.values())
    )


def _words(problem: Exception) -> str:
    """Returns what SQLite says in an error or one that caused it, else the error with its type."""
    cause: BaseException | None = problem
    while cause and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__
    if isinstance(cause, sqlite3.Error):
        return error_in_one_line(cause)
    return f"{type(problem).__name__}: {error_in_one_line(problem)}"


def optuna_module() -> Any:
    """Returns the module `optuna`; raises an InputError if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError("a search needs Optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _sampler(optuna: Any, space: Space, seed: int) -> Any:
    """Returns Optuna's TPE sampler with suggestions of few digits. They are shortened here, so that
    the database has the numbers that are run."""

    class ShortNumbers(optuna.samplers.TPESampler):  # type: ignore[misc]
        """Shortens both kinds of suggestions: of all settings together, and of one."""

        def sample_relative(self, *arguments: Any) -> dict[str, Any]:
            return space.short(super().sample_relative(*arguments))

        def sample_independent(self, study: Any, trial: Any, name: str, among: Any) -> Any:
            value = super().sample_independent(study, trial, name, among)
            return space.settings[name].short(value)

    return ShortNumbers(seed=seed)


def _storage(optuna: Any, file: Path) -> Any:
    """Returns Optuna's storage in a database file. A function opens the file, because characters of
    its path could have a meaning in a URL."""
    creator = partial(_connect, file)
    return optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": creator})


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=WAIT, check_same_thread=False)
