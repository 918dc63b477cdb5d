"""Executes a job in its run folder, from the data to the result, resumably."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onepass.base import plugins
from onepass.base.devices import threads_and_determinism
from onepass.base.errors import CheckpointError, DataError, RunError, TooLargeError
from onepass.base.news import Line, tell
from onepass.base.text import format_bytes, shortened
from onepass.evaluation import probes
from onepass.evaluation.callbacks import Listener, Run
from onepass.evaluation.callbacks.audience import expect_distinct_keys
from onepass.evaluation.loop import is_scored, learn_and_score
from onepass.evaluation.points import BEGINNING, Point
from onepass.evaluation.schedule import (
    has_large_sums,
    scoring_cost,
    solving_cost,
    sums_bytes,
)
from onepass.learning.checkpoint import file as checkpoints
from onepass.learning.learner import Learner
from onepass.runs.environment import (
    OtherVersions,
    describe_environment,
    last_versions,
    method_source_digest,
    versions,
)
from onepass.runs.folder import CANNOT_RESUME, RunFolder, RunProgress
from onepass.runs.log import StepLines, log_run
from onepass.runs.net_inputs import describe_inputs
from onepass.runs.outcome import gpu_name, make_result, plain_settings
from onepass.runs.recorder import Recorder
from onepass.runs.resources import RunResources
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery, Job
from onepass.runs.status import abbreviated, expect_same_run
from onepass.streams import Stream

log = logging.getLogger("onepass")
DISPLAY_NAMES = {"source": "a method's file with the digest"}


def run_job(
    job: Job,
    out: Path,
    *,
    resume: bool = False,
    anyway: bool = False,
    checkpoint: CheckpointEvery = "auto",
    listeners: Sequence[Listener] = (),
    resources: RunResources | None = None,
) -> Result:
    """Runs a job in its folder below `out`, and returns its result.

    An existing folder raises a RunError, unless `resume`. With `resume`, a finished run returns its
    result, an interrupted run continues from its last checkpoint, and a missing run starts. Then a
    RunError is raised for a run on other data, for an interrupted run with other probes, and,
    unless `anyway`, for a run with other versions of onepass, torch or a user's method. A run of
    another revision of the method has another folder.

    `checkpoint` is the number of steps between checkpoints; `auto` means about ten seconds, or only
    the end if the sums of a closed-form method are large; None means no checkpoint. `listeners` are
    called besides the job's probes. `resources` are shared with other runs of this process.
    """
    plugins.import_modules(job.imports)
    resources = resources or RunResources()
    job = _with_fingerprint(job, out, resources)
    folder = RunFolder.of(job, out)
    if not resume:
        folder.refuse_existing()
    found = folder.description()
    if found is not None:
        expect_same_run(folder, found, job)
    finished = folder.result()
    if finished is not None:
        # This raises an error for other versions, unless `anyway`.
        _versions_differ(folder, job, finished.other_versions, anyway)
        if missing := set(job.probes) - set((found or {}).get("probes", [])):
            log.warning("%s was run without the probe %s", folder.path, ", ".join(sorted(missing)))
        return finished
    if found is not None:
        _expect_same_probes(folder, found, job)
    observers = [*probes.make_probes(job.probes), *listeners]
    expect_distinct_keys(observers)
    stream, learner = resources.take(job)
    with _removing_new_folder_if_too_large(folder):
        folder.make()
        with folder.locked(), threads_and_determinism(job.threads, job.deterministic):
            if meanwhile := folder.result():  # another process has just finished it
                return meanwhile
            return _train(job, stream, learner, folder, observers, checkpoint, anyway)


@contextmanager
def _removing_new_folder_if_too_large(folder: RunFolder) -> Iterator[None]:
    """Removes a run folder that is new, and its new parents, if the run fails for lack of RAM or
    GPU memory before its first evaluation point. A step's need is known only once it runs."""
    missing = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    try:
        yield
    except TooLargeError:
        if folder.path in missing and not folder.points():
            shutil.rmtree(folder.path)
            with suppress(OSError):  # a parent that holds another run stays
                for path in missing[1:]:
                    path.rmdir()
        raise


def _train(
    job: Job,
    stream: Stream,
    learner: Learner,
    folder: RunFolder,
    listeners: Sequence[Listener],
    checkpoint: CheckpointEvery,
    anyway: bool,
) -> Result:
    """Trains from the last checkpoint, or from the start if there is none. Returns the result."""
    learner, before = _restore(folder, job, learner)
    if before is None:
        folder.describe(_describe(job, stream, learner))
        before = RunProgress(BEGINNING)
    elif _versions_differ(folder, job, before.other_versions, anyway):
        now: dict[str, int | str] = {"step": before.tick.step, **_computed_by(job)}
        before = replace(before, other_versions=[*before.other_versions, now])
    every = job.score_every(stream)
    late = checkpoint == "auto" and has_large_sums(learner, stream)
    recorder = Recorder(folder, listeners, before, len(stream) if late else checkpoint)
    _expect_all_points(folder, recorder.points, learner, stream, every, before.tick.step)
    with log_run(folder, before.tick.step):
        if remark := describe_inputs(learner):
            folder.add_to_log(remark)
        audience = recorder.audience
        audience.load_state_dict(before.states)
        audience.started(Run(learner, stream, before.tick, job, folder.path))
        if before.tick.step == 0 and every is not None:
            for cost in _costs(learner, stream, every, prequential=job.prequential, late=late):
                tell(Line(cost, "note"))
        progress = StepLines(len(stream), before.tick.step)
        for tick in learn_and_score(
            learner,
            stream,
            every=every,
            prequential=job.prequential,
            start=before.tick,
            listener=audience,
        ):
            recorder.save(learner, tick)
            progress.follow(tick)
        result = make_result(job, stream, learner, recorder.points, folder.path)
        began = folder.description() or {}
        result = replace(result, other_versions=recorder.other_versions, commit=_commit_of(began))
        audience.finished(result)
        return replace(result, dropped=audience.dropped)


def _costs(
    learner: Learner, stream: Stream, every: int, *, prequential: bool, late: bool
) -> Iterator[str]:
    """Yields what a run will cost besides its steps, as far as it is worth a line. `late` means
    that only the end has a checkpoint."""
    for cost in (scoring_cost, solving_cost):
        if line := cost(learner, stream, every, prequential=prequential):
            yield line
    if late:
        size = format_bytes(sums_bytes(learner, stream))
        yield f"a checkpoint has {size}: one at the end only (--checkpoint N: each N steps)"


# ---- what the folder already holds


def _with_fingerprint(job: Job, out: Path, resources: RunResources) -> Job:
    """Returns the job with the fingerprint of its data. If the data of a named dataset are gone but
    the run has finished, logs a warning and returns the job without a fingerprint. Otherwise
    missing data raise a DataError."""
    try:
        return resources.with_fingerprint(job)
    except DataError:
        if job.has_own_data or not RunFolder.of(job, out).result_file.exists():
            raise
        log.warning(
            "%s: %s is not on this machine, so its data are not checked",
            job.folder_name,
            job.dataset,
        )
        return job


def _expect_same_probes(folder: RunFolder, found: dict[str, Any], job: Job) -> None:
    """Raises a RunError if a run was started with other probes than the job names, because a probe
    has to see every step."""
    began = found.get("probes", [])
    if sorted(began) != sorted(job.probes):
        before, now = (", ".join(sorted(names)) or "none" for names in (began, job.probes))
        raise RunError(
            f"{folder.path} was begun with other probes: {before}, not {now}; resume it with the "
            "same ones, or choose another --out"
        )


def _computed_by(job: Job) -> dict[str, str]:
    """Returns the versions of onepass and torch now, with a digest of the method's source file if
    the method is the user's own."""
    source = method_source_digest(job.method)
    return {**versions(), **({"source": source} if source else {})}


def _versions_differ(folder: RunFolder, job: Job, since: OtherVersions, anyway: bool) -> bool:
    """Returns whether onepass, torch or the user's method have changed since the run last ran. If
    they have, the numbers may change too: raises a RunError, unless `anyway`. A version that an old
    run did not record counts as unchanged."""
    last = last_versions(folder.description() or {}, since)
    changes = [
        f"{DISPLAY_NAMES.get(name, name)} {shortened(last[name])}, and this is {now}"
        for name, now in _computed_by(job).items()
        if last.get(name) not in (None, now)
    ]
    if changes and not anyway:
        raise RunError(
            f"{folder.path} was run with {' and '.join(changes)}, which may give other numbers; "
            "--anyway resumes it all the same, another --out runs it anew"
        )
    return bool(changes)


def _restore(folder: RunFolder, job: Job, learner: Learner) -> tuple[Learner, RunProgress | None]:
    """Returns the learner and the progress of the last checkpoint; the given learner and None if
    there is no checkpoint. Raises a CheckpointError if the checkpoint is of another method or of
    other settings."""
    saved = folder.load_checkpoint() if folder.description() is not None else None
    if saved is None:
        return learner, None
    content, progress = saved
    wanted = checkpoints.checkpoint_content(learner)
    for name in ("method", "settings"):
        if content.get(name) != wanted[name]:
            raise CheckpointError(
                f"{folder.checkpoint_file} belongs to another run: its {name} is "
                f"{abbreviated(content.get(name))}, not {abbreviated(wanted[name])}, "
                f"{CANNOT_RESUME}"
            )
    return checkpoints.learner_from_content(
        content, str(folder.checkpoint_file), device=job.device
    ), progress


def _expect_all_points(
    folder: RunFolder,
    points: Sequence[Point],
    learner: Learner,
    stream: Stream,
    every: int | None,
    done: int,
) -> None:
    """Raises a CheckpointError unless the restored points are exactly those of the first `done`
    steps, because the result needs all of them."""
    steps = range(1, min(done, len(stream)) + 1)
    due = [step for step in steps if is_scored(learner, stream, every, step)]
    if done > len(stream) or [point.step for point in points] != due:
        raise CheckpointError(
            f"{folder.checkpoint_file} does not hold the points of its run so far, {CANNOT_RESUME}"
        )


# ---- run.json


def _describe(job: Job, stream: Stream, learner: Learner) -> dict[str, Any]:
    """Returns the content of run.json for a run that starts now."""
    return {
        **_computed_by(job),
        "identity": job.identity,
        "job": job.identity_fields,
        "dataset": job.dataset_identity,
        "variant": str(job.variant),
        "probes": list(job.probes),
        "imports": list(job.imports),
        "module": type(learner).__module__,
        "learner": plain_settings(learner),
        "stream": {**stream.spec, **stream.derived},
        "steps": len(stream),
        "class_names": list(stream.dataset.class_names),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": gpu_name(learner),
        **describe_environment(),
    }


def _commit_of(began: dict[str, Any]) -> str | None:
    """Returns the commit with which a run began, from the content of its run.json, with `-dirty` if
    the tree had changes; None if it is unknown."""
    commit = began.get("commit")
    return f"{commit}-dirty" if commit and began.get("dirty") else commit
