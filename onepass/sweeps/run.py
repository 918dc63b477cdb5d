"""`onepass.sweep`: makes all runs of a sweep file that have not finished yet."""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onepass import executors
from onepass.base import devices
from onepass.base.errors import DataError, InputError, UnknownNameError, WriteError
from onepass.base.settings import expect_type
from onepass.executors import RunOptions
from onepass.runs import lines
from onepass.runs.folder import RunFolder, make_folder
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery, Job
from onepass.runs.status import RunStatus, finished_result, set_aside_if_damaged
from onepass.sweeps import runner, sweep_file
from onepass.sweeps.durations import Durations
from onepass.sweeps.notices import notices
from onepass.sweeps.runner import EndedRun, SurveyedRun
from onepass.sweeps.sweep_file import PlannedRun

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Progress
    from onepass.executors import AtOnce, Executor

OUT = Path("runs")
log = logging.getLogger("onepass")


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep and its `state`.

    The state is `finished` if the run finished here; `skipped` if it had finished before or another
    process ran it; `failed`, with a `problem`; or `left` if it did not start or was stopped. In a
    dry run the state is the status of its folder, and `expected_seconds` is the estimated duration
    (None if the run has finished or nothing similar was measured). `priority` is the number of its
    grid, from 1."""

    job: Job
    priority: int
    state: RunStatus | Literal["skipped", "failed", "left"]
    result: Result | None = None
    problem: str = ""
    expected_seconds: float | None = None

    @property
    def name(self) -> str:
        return self.job.folder_name


class SweepListener:
    """Follows a sweep. A subclass overrides only the hooks that it needs. The number of a run is
    its index in the list that `sweep` returns."""

    def started(self, runs: Sequence[SweptRun]) -> None:
        """Called after all checks, before the first run. Runs that had finished before are
        `skipped`, all others `left`."""

    def progressed(self, number: int, progress: Progress) -> None:
        """Called as a run makes progress."""

    def ended(self, number: int, run: SweptRun) -> None:
        """Called when a run has ended, here or in another process."""

    def noted(self, text: str) -> None:
        """Called with a warning for the user, which it logs by default."""
        log.warning("%s", text)


def sweep(
    file: Path | str | Mapping[str, Any],
    *,
    dataset: str | Sequence[str] = (),
    out: Path | str | None = None,
    append: Path | str | None = None,
    time_limit: float | None = None,
    dry_run: bool = False,
    jobs: AtOnce = 1,
    fail_fast: bool = False,
    device: str = "auto",
    data_root: Path | str | None = None,
    checkpoint: CheckpointEvery = "auto",
    anyway: bool = False,
    imports: Sequence[str] = (),
    listener: SweepListener | None = None,
) -> list[SweptRun]:
    """Makes all runs of a sweep file that have not finished yet, as the command `onepass sweep`
    does, and returns every run of the file with its state.

    A failing run does not stop the others and raises nothing. Errors that can be found without
    running are raised before the first run starts; with a time limit, some of them only fail their
    run. Runs are in worker processes: a script that calls this must do so below
    `if __name__ == "__main__":`.

    Parameters
    ----------
    file:
        A TOML file (see `docs/sweeps.md`), or a dictionary with the content of one.
    dataset:
        One or more datasets; only the runs on these are made.
    out:
        The folder for run folders, `runs` by default. With `append` alone, none are kept.
    append:
        A .jsonl file that gets a line for each run. Runs that it already holds are skipped.
    time_limit:
        Seconds. Only runs that are expected to end in time start, and one run of each kind that was
        never measured. At the limit all runs stop.
    dry_run:
        Makes no run; returns the status and expected duration of each.
    jobs:
        How many runs at a time; `auto`: as many as speed the sweep up.
    fail_fast:
        Ends the sweep at the first run that fails.
    device, data_root:
        The device to compute on, and the folder of datasets.
    checkpoint:
        Steps between checkpoints; `auto`: one every ten seconds; None: no checkpoint.
    anyway:
        Also resumes runs that were started with other versions of onepass or torch.
    imports:
        Modules to import, which register methods and other things that the file names.
    listener:
        A `SweepListener` that follows the sweep.

    >>> runs = sweep({"defaults": {"methods": ["er", "gsa"], "seeds": 2}}, dry_run=True)
    >>> [run.name for run in runs]
    ['er-digits-m100-s0', 'gsa-digits-m100-s0', 'er-digits-m100-s1', 'gsa-digits-m100-s1']
    """
    until = math.inf if time_limit is None else time.monotonic() + _seconds(time_limit)
    planned = sweep_file.read_sweep_file(
        Path(file) if isinstance(file, str) else file,
        device=str(devices.resolve_device(device)),
        data_root=str(data_root) if data_root else None,
        imports=imports,
    )
    planned = _on_datasets([dataset] if isinstance(dataset, str) else dataset, planned, file)
    lines_file = None if append is None else Path(append)
    with _folder(out, lines_file) as folder:
        return complete_runs(
            planned,
            RunOptions(folder, True, checkpoint, anyway),
            append=lines_file,
            kept=append is None or out is not None,
            until=until,
            dry_run=dry_run,
            jobs=jobs,
            fail_fast=fail_fast,
            listener=listener,
        )


def complete_runs(
    planned: Sequence[PlannedRun],
    options: RunOptions,
    *,
    append: Path | None = None,
    kept: bool = True,
    until: float = math.inf,
    dry_run: bool = False,
    jobs: AtOnce = 1,
    fail_fast: bool = False,
    listener: SweepListener | None = None,
) -> list[SweptRun]:
    """Makes the planned runs that have not finished yet. Returns all planned runs with their
    states, each once. `until` is a time of `time.monotonic`; `kept` says whether run folders stay
    after the sweep. The other arguments are those of `sweep`."""
    planned = sweep_file.without_repeats(_with_fingerprints(planned, all_data=append is not None))
    if any(run.job.deterministic for run in planned):
        devices.allow_determinism()
    if append is not None:
        lines.expect_lines_name(append)
    held = lines.read_results(append) if append is not None and append.exists() else []
    surveyed = runner.survey(planned, options.out, held)
    durations = Durations([*held, *(run.result for run in surveyed if run.result)])
    if dry_run:
        return [_forecast(run, durations) for run in surveyed]
    if append is not None:
        lines.expect_appendable(append)  # or the first run would end before that shows
    executor = executors.choose_executor([run.job for run in planned], jobs, isolated=True)
    listener = listener or SweepListener()
    for text in notices(surveyed, kept=kept):
        listener.noted(text)
    account = _SweepRecord(surveyed, options.out, append, listener)
    todo = account.begin(surveyed, {result.identity for result in held})
    # With a time limit few runs may ever start, so it is not spent on checks of all.
    if until == math.inf:
        for text in runner.validate_runs([planned[number] for number in todo], executor):
            listener.noted(text)
    make_folder(options.out)  # here, a folder that cannot be made is one error for all runs
    listener.started(account.runs)
    _execute(todo, account, options, executor, durations, until, fail_fast)
    return account.runs


def _execute(
    todo: Sequence[int],
    account: _SweepRecord,
    options: RunOptions,
    executor: Executor,
    durations: Durations,
    until: float,
    fail_fast: bool,
) -> None:
    """Makes the runs whose numbers are in `todo`, and records each in `account`."""

    def watch(position: int, progress: Progress) -> None:
        account.listener.progressed(todo[position], progress)

    planned = [account.planned[number] for number in todo]
    with closing(
        runner.execute_runs(planned, options, executor, durations, watch, until=until)
    ) as endings:
        for ended in endings:
            account.end(todo[ended.number], ended)
            if fail_fast and isinstance(ended.outcome, Exception):
                break
    # A run may have finished at the moment at which all runs were stopped.
    for position, number in enumerate(todo):
        if account.runs[number].state == "left":
            job = planned[position].job
            if result := finished_result(RunFolder.of(job, options.out), job):
                account.end(number, EndedRun(position, result))


class _SweepRecord:
    """Records the state of each run by its number, calls the listener, and appends result lines."""

    def __init__(
        self,
        surveyed: Sequence[SurveyedRun],
        out: Path,
        append: Path | None,
        listener: SweepListener,
    ) -> None:
        self.planned = [run.planned for run in surveyed]
        self.out, self.append, self.listener = out, append, listener
        self.runs = [SweptRun(run.job, run.priority + 1, "left") for run in self.planned]

    def begin(self, surveyed: Sequence[SurveyedRun], held: Collection[str]) -> list[int]:
        """Returns the numbers of the runs that have not finished. Records the finished ones as
        skipped, and appends their results unless the file holds their identities (`held`). Renames
        damaged folders."""
        todo = []
        for number, found in enumerate(surveyed):
            if found.result is not None:
                run = replace(self.runs[number], state="skipped", result=found.result)
                self.runs[number] = run
                if found.result.identity not in held:
                    self._keep(found.result)
                continue
            if found.state == "damaged" and (moved := set_aside_if_damaged(found.folder)):
                problem, aside = moved
                self.listener.noted(f"{problem}; moved to {aside.name}, and run again")
            todo.append(number)
        return todo

    def end(self, number: int, ended: EndedRun) -> None:
        """Records the end of a run, appends its result, and calls the listener."""
        run, outcome = self.runs[number], ended.outcome
        if isinstance(outcome, Exception):
            run = replace(run, state="failed", problem=self._message(run.job, outcome))
        else:
            state: Literal["skipped", "finished"] = "skipped" if ended.elsewhere else "finished"
            run = replace(run, state=state, result=outcome)
            self._keep(outcome)
        self.runs[number] = run
        self.listener.ended(number, run)

    def _keep(self, result: Result) -> None:
        """Appends a result to the file, if there is one. A run that another process has appended
        meanwhile is not added twice."""
        if self.append is None:
            return
        try:
            lines.append_result(self.append, result, once=True)
        except WriteError as problem:
            raise WriteError(f"{problem}; the finished run is kept in {result.out}") from None

    def _message(self, job: Job, problem: Exception) -> str:
        """Returns the text of an error with the name of its run and, if there is one, the path of
        its log."""
        log_file = RunFolder.of(job, self.out).log_file
        message = f"{problem}; see {log_file}" if log_file.exists() else str(problem)
        return message if job.folder_name in message else f"{job.folder_name}: {message}"


def _forecast(found: SurveyedRun, durations: Durations) -> SweptRun:
    """Returns a run with the state of its folder and its expected duration."""
    seconds = None if found.result else durations.expected(found.job)
    priority = found.planned.priority + 1
    return SweptRun(found.job, priority, found.state, found.result, expected_seconds=seconds)


def _on_datasets(
    datasets: Sequence[str], planned: Sequence[PlannedRun], file: Path | str | Mapping[str, Any]
) -> list[PlannedRun]:
    """Returns the runs on these datasets; all runs if none is given. Raises an UnknownNameError for
    a dataset without a run."""
    names = {run.job.dataset for run in planned}
    for name in datasets:
        if name not in names:
            source = sweep_file.WITHOUT_FILE if isinstance(file, Mapping) else file
            raise UnknownNameError(f"dataset of {source}", name, names)
    return [run for run in planned if not datasets or run.job.dataset in datasets]


def _with_fingerprints(planned: Sequence[PlannedRun], *, all_data: bool) -> list[PlannedRun]:
    """Returns the runs with the fingerprints of their data.

    With `all_data`, missing data are an error: a run is found among lines by its fingerprint. A
    folder is found without it unless the data are the user's own. So otherwise a run on a missing
    named dataset stays as it is.
    """
    from onepass.runs.resources import RunResources

    resources = RunResources()

    def with_fingerprint(job: Job) -> Job:
        try:
            return resources.with_fingerprint(job)
        except DataError:
            if all_data or job.has_own_data:
                raise
            return job

    return [replace(run, job=with_fingerprint(run.job)) for run in planned]


@contextmanager
def _folder(out: Path | str | None, append: Path | None) -> Iterator[Path]:
    """Yields the folder for run folders: a temporary one if only lines are wanted."""
    if out is not None or append is None:
        yield OUT if out is None else Path(out)
        return
    folder, keep = Path(tempfile.mkdtemp(prefix="onepass-")), False
    try:
        yield folder
    except WriteError:  # a finished run that has no line is here, and nowhere else
        keep = any(folder.glob("*/result.json"))
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _seconds(time_limit: float) -> float:
    """Returns the time limit; raises an InputError unless it is a number above 0."""
    expect_type("time_limit", time_limit, float)
    if not time_limit > 0:
        raise InputError(f"time_limit must be a number of seconds above 0, not {time_limit!r}")
    return time_limit
