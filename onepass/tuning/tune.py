"""`onepass.tune`: a search for a method's best settings."""

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
    from onepass.tuning.search import SearchProgress

VALIDATION = 0.1
MOST_RUNS_AT_ONCE = 1000  # no machine runs more at a time


class TuneListener:
    """Follows a search; a subclass writes only those hooks that it needs."""

    def started(self, standing: SearchProgress) -> None:
        """Whatever can be refused has been; so it stands, and the first run comes next."""

    def progressed(self, trial: int, seed: int, progress: Progress) -> None:
        """The run of a trial and seed goes on."""

    def ended(self, standing: SearchProgress) -> None:
        """A run has ended, that of `standing.run`."""


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
) -> SearchProgress:
    """Searches a method's best settings on held-out training data, as `onepass tune` does, and
    returns how the search stands in the end: its best settings, and the file that holds them.

    Trials that are worse than most, by their any-time accuracy so far, are stopped early. The same
    call goes on with a search that was stopped; with more trials it searches on. With several jobs
    runs are in processes of their own: a script that calls this must then do so below
    `if __name__ == "__main__":`.

    Parameters
    ----------
    method:
        Its name.
    space:
        A TOML file with what to search, or a dictionary of what would stand in one:
        `{"space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}}`. What it gives as `defaults`
        yields to the arguments here.
    trials:
        How many in all.
    objective:
        What a trial is worth: its final `accuracy`, its `anytime` accuracy, or the `mean` of both.
    validation:
        The part of the training data to score on; by default a tenth.
    seeds:
        Runs of each trial; by default one.
    seed:
        That of the sampler: the same one tries the same.
    jobs:
        How many runs at a time; `auto`: as many as pay.
    out:
        Where the search goes; by default `tune-METHOD`.
    dataset, memory, stream, batch, preset, every, threads:
        As for `onepass run`.
    settings:
        Constructor arguments of every trial.
    device, data_root:
        Where to compute, and where datasets lie.
    imports:
        Modules that register what the search needs.
    listener:
        Is told how the search goes on.
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
) -> SearchProgress:
    """Searches, and returns how it stands in the end."""
    from onepass.tuning.search import Search

    executor = executors.choose_executor([spec.job] * min(trials, MOST_RUNS_AT_ONCE), jobs)
    with closing(Search(spec, folder).run(executor, trials, listener.progressed)) as standings:
        standing = next(standings)
        listener.started(standing)
        for standing in standings:
            listener.ended(standing)
    if standing.settings is None:
        raise TrainingError(f"no trial has come to its end: {standing.summary}")
    return standing
