"""The trials of a search, in the database that Optuna keeps: asked for, told, and found again."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onepass.base.errors import InputError, RunError
from onepass.base.text import quoted
from onepass.tuning.space import Space

NAME = "onepass"
STOPPED, PROBLEM = "stopped", "problem"
FEWEST_COMPLETE = (
    5  # trials that must have been whole before one is stopped for being worse than they were
)
WAIT = 60  # seconds for another process that writes


@dataclass
class Trial:
    """One choice of settings, and what its runs have scored so far, by their seeds."""

    number: int
    settings: dict[str, str]
    scores: dict[int, float] = field(default_factory=dict)
    ended: bool = False


@dataclass(frozen=True)
class Ending:
    """How a trial has ended: with a value, or stopped early, or with a problem."""

    value: float | None = None
    problem: str | None = None


class Study:
    """Only the process that holds the folder asks for trials and tells their ends; whoever runs one
    reports its scores."""

    def __init__(self, file: Path) -> None:
        self.optuna = optuna_module()
        self.states = self.optuna.trial.TrialState
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise RunError(f"{file} is not a file")
        try:
            self.storage = _storage(self.optuna, file)
            self.study = self.optuna.create_study(
                storage=self.storage, study_name=NAME, direction="maximize", load_if_exists=True
            )
        except Exception as problem:  # of whichever of the libraries below
            told = str(problem).splitlines()
            raise RunError(f"{file} cannot be used: {told[0] if told else problem!r}") from None
        self.number = self.storage.get_study_id_from_name(NAME)

    def expect_same_search(self, asked: dict[str, Any], folder: Path) -> None:
        """A search that goes on is the one that was begun."""
        found = self.study.user_attrs.get("asked")
        wanted = json.loads(json.dumps(asked))
        if found is None:
            self.study.set_user_attr("asked", wanted)
            return
        for name in {**wanted, **found}:
            if found.get(name) != wanted.get(name):
                was, now = (quoted(said.get(name)) for said in (found, wanted))
                raise RunError(
                    f"{folder} holds a search with another {name}: {was}, not {now}; "
                    "--out puts this one elsewhere"
                )

    # ---- for who searches

    def trials(self) -> list[Any]:
        """Every trial whose settings are known, in their order. What a kill has left of one before
        that counts for nothing."""
        every = self.study.get_trials(deepcopy=False)
        return [trial for trial in every if "settings" in trial.user_attrs]

    def unfinished(self) -> list[Trial]:
        """Those that were running when the search was stopped."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.state == self.states.RUNNING and "settings" not in trial.user_attrs:
                self.study.tell(trial.number, state=self.states.FAIL)
        running = [trial for trial in self.trials() if trial.state == self.states.RUNNING]
        return [Trial(trial.number, trial.user_attrs["settings"]) for trial in running]

    def ask(self, space: Space, seed: int) -> Trial:
        """A new trial. Each has a sampler of its own, seeded by its place: a search that was
        stopped and goes on tries what it would have tried."""
        place = np.random.SeedSequence([seed, len(self.trials())]).generate_state(1)
        self.study.sampler = self.optuna.samplers.TPESampler(seed=int(place[0]))
        trial = self.study.ask(space.distributions())
        settings = space.texts(trial.params)
        trial.set_user_attr("settings", settings)
        return Trial(trial.number, settings)

    def tell(self, trial: Trial, ending: Ending) -> None:
        """To the sampler, a trial that was stopped or could not be run is worse than any other."""
        trial.ended = True
        if ending.problem:
            self._write(trial.number, PROBLEM, ending.problem)
        if ending.value is None:
            self.study.tell(trial.number, state=self.states.PRUNED)
        else:
            self.study.tell(trial.number, ending.value)

    def ending(self, number: int) -> Ending | None:
        """How it has ended; also, before that is told, if whoever ran it has given it up."""
        (found,) = [trial for trial in self.trials() if trial.number == number]
        noted = found.user_attrs
        if found.state == self.states.COMPLETE:
            return Ending(found.value)
        over = found.state != self.states.RUNNING or STOPPED in noted or PROBLEM in noted
        return Ending(problem=noted.get(PROBLEM)) if over else None

    # ---- for who runs one

    def report(self, number: int, step: int, value: float) -> bool:
        """What a trial has scored by some step; and whether it is worth going on: not if most of
        those that were whole had scored more by then."""
        whole = []
        self.storage.set_trial_intermediate_value(self._id(number), step, value)
        for trial in self.trials():
            if trial.state == self.states.COMPLETE and step in trial.intermediate_values:
                whole.append(trial.intermediate_values[step])
        return len(whole) < FEWEST_COMPLETE or value >= median(whole)

    def mark_stopped(self, number: int, problem: str | None = None) -> None:
        """Says of a trial that it is not worth going on, or what is wrong with it."""
        key, what = (PROBLEM, problem) if problem else (STOPPED, True)
        self._write(number, key, what)

    def first_trial_with(self, settings: dict[str, str]) -> int:
        """The number of the trial that is run of all those with the same settings."""
        trials = (trial for trial in self.trials() if trial.user_attrs["settings"] == settings)
        return int(next(trials).number)

    def _write(self, number: int, key: str, what: object) -> None:
        self.storage.set_trial_user_attr(self._id(number), key, what)

    def _id(self, number: int) -> int:
        return int(self.storage.get_trial_id_from_study_id_trial_number(self.number, number))


def optuna_module() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("a search needs Optuna: pip install 'onepass[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _storage(optuna: Any, file: Path) -> Any:
    """A path may have letters in it that mean something in a URL, so it is in none."""
    creator = partial(_connect, file)
    return optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": creator})


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=WAIT, check_same_thread=False)
