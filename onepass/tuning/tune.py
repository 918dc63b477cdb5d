"""`onepass.tune`: searches a method's best settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass import executors
from onepass.base import devices, plugins
from onepass.base.errors import InputError, TrainingError, UnknownNameError
from onepass.base.settings import expect_type
from onepass.runs.spec import Job
from onepass.tuning import space_file
from onepass.tuning.spec import OBJECTIVES, SearchSpec

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Progress
    from onepass.executors import AtOnce
    from onepass.tuning.search import SearchState

VALIDATION = 0.1
MOST_RUNS_AT_ONCE = 1000  # no machine has more, so the executor need not be asked about more


class TuneListener:
    """Follows a search. A subclass overrides only the hooks that it needs."""

    def started(self, state: SearchState) -> None:
        """Called after all checks, before the first run."""

    def progressed(self, trial: int, seed: int, progress: Progress) -> None:
        """Called as the run of a trial and seed makes progress."""

    def ended(self, state: SearchState) -> None:
        """Called when the run `state.run` has ended."""


def tune(
    method: str,
    space: Path | str | Mapping[str, Any],
    trials: int,
    *,
    objective: str = OBJECTIVES[0],
    validation: float | None = None,
    seeds: int | None = None,
    seed: int = 0,
    jobs: AtOnce = 1,
    out: Path | str | None = None,
    dataset: str | None = None,
    data_root: Path | str | None = None,
    memory: int | None = None,
    stream: str | None = None,
    batch: int | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    every: int | None = None,
    device: str = "auto",
    threads: int | None = None,
    imports: Sequence[str] = (),
    listener: TuneListener | None = None,
) -> SearchState:
    """Searches a method's best settings on held-out training data, as `onepass tune` does, and
    returns the final state of the search: its best settings, and the file that holds them.

    Trials whose any-time accuracy so far is worse than that of most are stopped early. The same
    call resumes a search that was stopped; with more trials it extends one that has finished.
    Raises a TrainingError if no trial was complete in the end. With several jobs, runs are in
    worker processes: a script that calls this must then do so below `if __name__ == "__main__":`.

    Parameters
    ----------
    method:
        The name of the method.
    space:
        A TOML file with the settings to search, or a dictionary with the content of one:
        `{"space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}}`. The arguments here override
        its `defaults`.
    trials:
        The number of trials, those of the resumed search included.
    objective:
        The value of a trial: its final `accuracy`, its `anytime` accuracy, or the `mean` of both.
    validation:
        The fraction of the training data to score on; by default a tenth.
    seeds:
        The number of runs of each trial; by default one.
    seed:
        The seed of the sampler. The same seed tries the same settings.
    jobs:
        How many runs at a time; `auto`: as many as speed the search up.
    out:
        The folder of the search; by default `tune-METHOD`.
    dataset, memory, stream, batch, every, threads:
        As for `onepass run`.
    preset:
        The preset from which trials start; by default `common`.
    settings:
        Arguments of the learner's constructor, which all trials share.
    device, data_root:
        The device to compute on, and the folder of datasets.
    imports:
        Modules to import, which register methods and other things that the search names.
    listener:
        A `TuneListener` that follows the search.
    """
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    for name, number, least in (("trials", trials, 1), ("seed", seed, 0)):
        expect_type(name, number, int)
        if number < least:
            raise InputError(f"{name} must be at least {least}, not {number}")
    plugins.import_modules(imports)
    source = Path(space) if isinstance(space, str) else space
    searched, fixed = space_file.read_space_file(source, method)
    given: dict[str, Any] = {
        "dataset": dataset,
        "memory": memory,
        "stream": stream,
        "batch": batch,
        "preset": preset,
        "validation": validation,
        "every": every,
        "threads": threads,
        "seeds": seeds,
    }
    for name, value in given.items():
        if value is not None:
            space_file.expect_option(name, name, value)
            fixed[name] = value
    chosen = fixed.pop("set") | space_file.as_texts(settings or {})
    per_trial = fixed.pop("seeds", 1)
    job = Job(
        method,
        settings=chosen,
        device=str(devices.resolve_device(device)),
        data_root=str(data_root) if data_root else None,
        imports=tuple(imports),
        **{"validation": VALIDATION, **fixed},
    )
    if job.deterministic:
        devices.allow_determinism()
    spec = SearchSpec(job, searched, objective, per_trial, seed)
    folder = Path(f"tune-{method}" if out is None else out)
    return _search(spec, folder, trials, jobs, listener or TuneListener())


def _search(
    spec: SearchSpec, folder: Path, trials: int, jobs: AtOnce, listener: TuneListener
) -> SearchState:
    """Searches, and returns the final state; raises a TrainingError if no trial has completed."""
    from onepass.tuning.search import Search

    executor = executors.choose_executor([spec.job] * min(trials, MOST_RUNS_AT_ONCE), jobs)
    with closing(Search(spec, folder).run(executor, trials, listener.progressed)) as states:
        state = next(states)
        listener.started(state)
        for state in states:
            listener.ended(state)
    if state.settings is None:
        raise TrainingError(f"no trial has run to its end: {state.summary}")
    return state
