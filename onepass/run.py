"""How a job is carried out: from the data to the result, in a folder, resumable."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from reprlib import Repr
from typing import Any

import torch

from onepass import checkpoint as checkpoints
from onepass import probes
from onepass.data import Dataset
from onepass.data.load import is_path
from onepass.devices import computing
from onepass.errors import CheckpointError, DataError, RunError, TooLargeError
from onepass.evaluate import is_scored, walk
from onepass.job import Job
from onepass.learner import Learner
from onepass.listeners import Listener, Run
from onepass.listeners.audience import check_keys
from onepass.listeners.recorder import CheckpointEvery, Recorder
from onepass.record import OtherVersions, RunFolder, SoFar, surroundings, versions
from onepass.result import Result
from onepass.runlog import logged
from onepass.scoring import BEGINNING, Point
from onepass.streams import Stream
from onepass.supplies import Supplies
from onepass.words import shortened

log = logging.getLogger("onepass")
SHORT = Repr()
SHORT.maxdict, SHORT.maxstring, SHORT.maxother = 20, 200, 200


def run(
    job: Job,
    out: Path,
    *,
    resume: bool = False,
    anyway: bool = False,
    checkpoint: CheckpointEvery = "auto",
    listeners: Sequence[Listener] = (),
    supplies: Supplies | None = None,
) -> Result:
    """Runs a job in its folder below `out`.

    An existing run is an error, unless `resume`: then a finished run is returned as it is, a broken
    one goes on after its last checkpoint, and a missing one starts. A run of other data is refused,
    and so is one of other versions of onepass or torch, unless `anyway`. `checkpoint` is the number
    of steps between checkpoints, `auto` for one every ten seconds, None for none at all.
    `listeners` are told beside the job's probes. `supplies` are what other runs of this process
    share with it.
    """
    supplies = supplies or Supplies()
    folder = RunFolder(out / job.folder_name)
    if not resume:
        folder.refuse_existing()
    found = folder.description()
    if found is not None:
        _compare_job(folder, found, job)
    finished = folder.result()
    if finished is not None:
        _versions_differ(folder, finished.other_versions, anyway)
        _compare_data_if_here(folder, job, supplies)
        if missing := set(job.probes) - set((found or {}).get("probes", [])):
            log.warning("%s was run without the probe %s", folder.path, ", ".join(sorted(missing)))
        return finished
    if found is not None:
        _compare_probes(folder, found, job)
    observers = [*probes.made(job.probes), *listeners]
    check_keys(observers)
    stream, learner = supplies.take(job)
    with _nothing_left_if_too_large(folder):
        folder.make()
        with folder.locked(), computing(job.threads, job.deterministic):
            return _carry_out(job, stream, learner, folder, observers, checkpoint, anyway)


@contextmanager
def _nothing_left_if_too_large(folder: RunFolder) -> Iterator[None]:
    """That there is no room for a step shows only when one is made. If it was the first, the folder
    goes again, and so do those that had to be made for it."""
    missing = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    try:
        yield
    except TooLargeError:
        if folder.path in missing and not folder.points():
            shutil.rmtree(folder.path)
            with suppress(OSError):  # another run is in there
                for path in missing[1:]:
                    path.rmdir()
        raise


def _carry_out(
    job: Job,
    stream: Stream,
    learner: Learner,
    folder: RunFolder,
    listeners: Sequence[Listener],
    checkpoint: CheckpointEvery,
    anyway: bool,
) -> Result:
    """From the last checkpoint, if there is one, to the result."""
    _compare_data(folder, stream.dataset)
    learner, before = _restore(folder, job, learner)
    if before is None:
        folder.describe(_describe(job, stream, learner))
        before = SoFar(BEGINNING)
    elif _versions_differ(folder, before.other_versions, anyway):
        now: dict[str, int | str] = {"step": before.tick.step, **versions()}
        before = replace(before, other_versions=[*before.other_versions, now])
    every = job.score_every(stream)
    recorder = Recorder(folder, listeners, before, checkpoint)
    _check_points(folder, recorder.points, learner, stream, every, before.tick.step)
    with logged(folder, before.tick.step):
        audience = recorder.audience
        audience.load_state_dict(before.states)
        audience.started(Run(learner, stream, before.tick, job, folder.path))
        for tick in walk(
            learner,
            stream,
            every=every,
            prequential=job.prequential,
            start=before.tick,
            listener=audience,
        ):
            recorder.save(learner, tick)
        result = Result.of(job, stream, learner, recorder.points, folder.path)
        result = replace(result, other_versions=recorder.other_versions)
        audience.finished(result)
        return replace(result, dropped=audience.dropped)


# ---- what a folder holds already


def _compare_job(folder: RunFolder, found: dict[str, Any], job: Job) -> None:
    asked, wanted = job.identity_in(found["job"]), job.identity
    names = [name for name in {**wanted, **asked} if asked.get(name) != wanted.get(name)]
    if names:
        told = [
            f"{name} {_shown(asked.get(name))}, not {_shown(wanted.get(name))}" for name in names
        ]
        raise RunError(f"{folder.path} holds a run with other settings: {', '.join(told)}")


def _compare_probes(folder: RunFolder, found: dict[str, Any], job: Job) -> None:
    """What a probe did not see it cannot tell afterwards."""
    began = found.get("probes", [])
    if sorted(began) != sorted(job.probes):
        with_these, now = (", ".join(sorted(names)) or "none" for names in (began, job.probes))
        raise RunError(f"{folder.path} was begun with other probes: {with_these}, not {now}")


def _compare_data(folder: RunFolder, dataset: Dataset) -> None:
    """A run that goes on must go on with the data it began with; an old one may not tell."""
    began = (folder.description() or {}).get("data_sha256")
    if began not in (None, dataset.sha256()):
        raise RunError(f"{folder.path} was begun on other data than {dataset.name!r} is now")


def _compare_data_if_here(folder: RunFolder, job: Job, supplies: Supplies) -> None:
    """A finished run needs its data no more: where they are gone, the result is still a result."""
    if is_path(job.dataset) and not Path(job.dataset).exists():
        return
    try:
        dataset = supplies.dataset(job)
    except DataError:
        if is_path(job.dataset):
            raise
        log.warning("%s: %s is not here to be compared with", folder.path, job.dataset)
    else:
        _compare_data(folder, dataset)


def _versions_differ(folder: RunFolder, since: OtherVersions, anyway: bool) -> bool:
    """Whether this onepass and this torch are others than those that the run last went on with:
    other bits may come of it, so it is refused, unless `anyway`. An old run may not tell."""
    last = {**(folder.description() or {}), **(since[-1] if since else {})}
    told = [
        f"{name} {shortened(last[name])}, and this is {now}"
        for name, now in versions().items()
        if last.get(name) not in (None, now)
    ]
    if told and not anyway:
        raise RunError(
            f"{folder.path} was run with {' and '.join(told)}, which may give other numbers; "
            "--anyway resumes it all the same"
        )
    return bool(told)


def _restore(folder: RunFolder, job: Job, learner: Learner) -> tuple[Learner, SoFar | None]:
    saved = folder.load_checkpoint() if folder.description() is not None else None
    if saved is None:
        return learner, None
    content, progress = saved
    wanted = checkpoints.content(learner)
    for name in ("method", "settings"):
        if content.get(name) != wanted[name]:
            raise CheckpointError(
                f"{folder.checkpoint_file} belongs to another run: its {name} is "
                f"{_shown(content.get(name))}, not {_shown(wanted[name])}"
            )
    return checkpoints.restored(content, str(folder.checkpoint_file), device=job.device), progress


def _check_points(
    folder: RunFolder,
    points: Sequence[Point],
    learner: Learner,
    stream: Stream,
    every: int | None,
    done: int,
) -> None:
    """The result is made of all points: those before a stop must all be in the checkpoint."""
    steps = range(1, min(done, len(stream)) + 1)
    due = [step for step in steps if is_scored(learner, stream, every, step)]
    if done > len(stream) or [point.step for point in points] != due:
        raise CheckpointError(f"{folder.checkpoint_file} does not hold all scores of its run")


# ---- what is said of a run


def _describe(job: Job, stream: Stream, learner: Learner) -> dict[str, Any]:
    params = {name: _simple(value) for name, value in learner.get_params().items()}
    return {
        **versions(),
        "job": job.identity,
        "probes": list(job.probes),
        "learner": params,
        "stream": {**stream.spec, **stream.derived},
        "data_sha256": stream.dataset.sha256(),
        "steps": len(stream),
        "class_names": list(stream.dataset.class_names),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **surroundings(),
    }


def _shown(value: Any) -> str:
    """As much of a value as an error has room for."""
    return SHORT.repr(value)


def _simple(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | tuple | None) else repr(value)
