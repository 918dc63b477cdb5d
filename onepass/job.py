"""A job: one method on one stream with one seed, from the dataset to the result, resumable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from onepass import checkpoint as checkpoints
from onepass import data, metrics, registry, streams
from onepass.data.load import is_path
from onepass.errors import CheckpointError, InputError, RunError, UnknownNameError
from onepass.evaluate import Point, Tick, check_scorable, walk
from onepass.learner import Learner
from onepass.record import Progress, RunFolder, surroundings
from onepass.streams import Stream
from onepass.version import __version__

PRESETS = ("paper", "official", "tuned")
POINTS_PER_RUN = 20
NAMED = ("method", "dataset", "memory", "seed", "preset", "settings", "device", "data_root")
REPORTED = (
    "method",
    "dataset",
    "memory",
    "seed",
    "accuracy",
    "forgetting",
    "steps",
    "seconds",
    "steps_per_second",
    "device",
    "params_sha256",
    "state_sha256",
    "out",
)


@dataclass(frozen=True)
class Job:
    """What a run is; together with the versions it says everything that decides the result.

    `settings` are the constructor's arguments as text, as `--set` takes them.
    """

    method: str
    dataset: str = "digits"
    memory: int = 100
    seed: int = 0
    stream: str = "class-incremental"
    tasks: int | None = None
    batch: int = 10
    class_order: Literal["natural", "shuffled"] = "natural"
    image_size: int | None = None
    test_fraction: float | None = None
    preset: str = "paper"
    settings: dict[str, str] = field(default_factory=dict)
    validation: float = 0.0
    every: int | None = None
    prequential: bool = False
    device: str = "auto"
    threads: int = 1
    deterministic: bool = False
    data_root: str | None = field(default=None, compare=False)

    @property
    def folder_name(self) -> str:
        """Readable for plain jobs; other choices add a fingerprint, so that no two jobs meet."""
        dataset = Path(self.source).stem if is_path(self.dataset) else self.dataset
        name = f"{self.method}-{dataset}-m{self.memory}-s{self.seed}"
        choices = self.variant + (self.source if is_path(self.dataset) else "")
        return f"{name}-{hashlib.sha256(choices.encode()).hexdigest()[:8]}" if choices else name

    @property
    def source(self) -> str:
        """Which dataset: its name, or the whole path of the user's own."""
        return _source(self.dataset)

    @property
    def variant(self) -> str:
        """What was chosen otherwise than by default, in words; empty for a plain job.

        >>> Job("gsa", preset="tuned", settings={"lr": "3e-4"}, tasks=2).variant
        'tuned lr=3e-4 tasks=2'
        """
        chosen = [] if self.preset == "paper" else [self.preset]
        chosen += [f"{name}={value}" for name, value in sorted(self.settings.items())]
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in NAMED and value != one.default:
                chosen.append(f"{one.name}={value}")
        return " ".join(chosen)

    def cadence(self, stream: Stream) -> int | None:
        """After how many steps the learner is scored; None: only at the end, since it has to train
        for it."""
        if self.every is None and registry.get(self.method).learner.trains_to_score:
            return None
        return self.every or max(1, len(stream) // POINTS_PER_RUN)

    def load(self) -> tuple[Stream, Learner]:
        info = registry.get(self.method)
        asked = self.asked_of_stream()
        dataset = data.load(
            self.dataset,
            root=self.data_root,
            image_size=self.image_size,
            test_fraction=self.test_fraction,
        )
        if self.validation:
            dataset = dataset.hold_out(self.validation, self.seed)
        usual = {"tasks": data.usual_tasks(dataset)}
        if info.one_task:  # whatever was asked
            asked.pop("tasks", None)
            usual = {"tasks": 1}
        stream = streams.make(dataset, streams.filled(asked, usual), seed=self.seed)
        if info.one_task and len(stream.tasks) > 1:
            raise InputError(
                f"{self.method!r} learns all classes as one task, but stream {asked['stream']!r} "
                f"always has {len(stream.tasks)}"
            )
        check_scorable(stream)
        return stream, info.learner.configured(**self.arguments(dataset))

    def asked_of_stream(self) -> dict[str, Any]:
        """What the stream's line and the arguments beside it say together."""
        names = ("tasks", "batch", "class_order")
        usual = {one.name: one.default for one in fields(self) if one.name in names}
        given = {name: getattr(self, name) for name in names if getattr(self, name) != usual[name]}
        del usual["tasks"]  # depends on the data
        return streams.asked(self.stream, given, usual)

    def arguments(self, dataset: data.Dataset) -> dict[str, Any]:
        """Constructor defaults, then the preset, then what was set by hand."""
        learner = registry.get(self.method).learner
        chosen: dict[str, Any] = {"seed": self.seed, "device": self.device}
        if dataset.mean is not None:
            chosen |= {"mean": dataset.mean, "std": dataset.std}
        if "memory" in learner.setting_names():
            chosen["memory"] = self.memory
        chosen |= self.preset_settings()
        for name in ("seed", "device", "memory"):
            if name in self.settings:
                raise InputError(f"give --{name} instead of --set {name}")
        return chosen | learner.read_settings(self.settings)

    def preset_settings(self) -> dict[str, Any]:
        learner = registry.get(self.method).learner
        if self.preset == "paper":
            return {}
        if self.preset not in PRESETS:
            raise UnknownNameError("preset", self.preset, PRESETS)
        if self.preset not in learner.presets:
            known = ", ".join(["paper", *learner.presets])
            raise InputError(f"{self.method!r} has no preset {self.preset!r}; it has: {known}")
        return learner.presets[self.preset].settings


def execute(
    job: Job,
    out: Path,
    *,
    resume: bool = False,
    checkpoint: int | None = 500,
    watch: Callable[[Tick, int], None] = lambda tick, steps: None,
) -> dict[str, Any]:
    """Runs a job in its folder below `out` and returns the result.

    An existing run is an error, unless `resume`: then a finished run is returned as it is, a broken
    one goes on after its last checkpoint, and a missing one starts. `checkpoint` is the number of
    steps between checkpoints; None keeps no checkpoint at all. `watch` is told of every step.
    """
    folder = RunFolder(out / job.folder_name)
    if folder.exists() and not resume:
        raise RunError(f"{folder.path} exists; --resume goes on with it, --out puts it elsewhere")
    found = folder.description()
    if found is not None and _asked(found) != _plain(job):
        raise RunError(f"{folder.path} holds a run with other settings: {_difference(found, job)}")
    finished = folder.result()
    if finished is not None:
        if is_path(job.dataset) and Path(job.dataset).exists():  # others cannot have changed
            _compare_data(folder, job.load()[0])
        return finished
    stream, learner = job.load()
    folder.make()
    with folder.locked(), computing(job):
        _compare_data(folder, stream)
        learner, progress = _restore(folder, job, learner)
        if progress is None:
            folder.describe(_describe(job, stream, learner))
            progress = Progress(Tick(0, 0, 0.0), [])
        folder.remove_partials()
        folder.rewrite_events(progress.points)
        _learn(job, stream, learner, folder, progress=progress, checkpoint=checkpoint, watch=watch)
        result = _result(job, stream, learner, folder)
        folder.finish(result)
    return result


def _compare_data(folder: RunFolder, stream: Stream) -> None:
    """A run that goes on must go on with the data it began with."""
    found = folder.description()
    if found is not None and found.get("data_sha256") != stream.dataset.sha256():
        raise RunError(f"{folder.path} was begun on other data than {stream.dataset.name!r} is now")


def _restore(folder: RunFolder, job: Job, learner: Learner) -> tuple[Learner, Progress | None]:
    saved = folder.load_checkpoint() if folder.description() is not None else None
    if saved is None:
        return learner, None
    content, progress = saved
    wanted = checkpoints.content(learner)
    for name in ("method", "settings"):
        if content.get(name) != wanted[name]:
            raise CheckpointError(
                f"{folder.checkpoint_file} belongs to another run: its {name} is "
                f"{content.get(name)!r}, not {wanted[name]!r}"
            )
    return checkpoints.restored(content, str(folder.checkpoint_file), device=job.device), progress


def _learn(
    job: Job,
    stream: Stream,
    learner: Learner,
    folder: RunFolder,
    *,
    progress: Progress,
    checkpoint: int | None,
    watch: Callable[[Tick, int], None],
) -> None:
    points = list(progress.points)
    names = {"class_names": list(stream.dataset.class_names)}
    watch(progress.tick, len(stream))
    every, prequential = job.cadence(stream), job.prequential
    for tick in walk(learner, stream, every=every, prequential=prequential, start=progress.tick):
        if isinstance(tick, Point):
            points.append(tick)
            folder.append(tick)
        last = tick.step == len(stream)
        if checkpoint and (tick.step % checkpoint == 0 or last):
            folder.save_checkpoint(
                {**checkpoints.content(learner), **names}, Progress(tick, points)
            )
        watch(tick, len(stream))


def _result(job: Job, stream: Stream, learner: Learner, folder: RunFolder) -> dict[str, Any]:
    points = folder.points()
    ends = {point.task: point.correct for point in points if point.boundary}
    last, cadence = points[-1], job.cadence(stream)
    correct = [ends.get(task) for task in range(len(stream.tasks))]
    a = metrics.accuracy_matrix(correct, last.total, stream.tasks)
    spaced = [p.accuracy for p in points if cadence and p.step % cadence == 0]
    batch = len(stream.indices(0))
    passes = learner.cost(batch)
    return {
        "method": job.method,
        "dataset": stream.dataset.name,
        "source": job.source,
        "memory": getattr(learner, "memory", 0),
        "seed": job.seed,
        "accuracy": last.accuracy,
        "forgetting": metrics.forgetting(a),
        "forgetting_all_tasks": metrics.forgetting_all(a),
        "mean_task_accuracy": metrics.mean_task_accuracy(a),
        "anytime_accuracy": metrics.anytime(spaced) if spaced else None,
        "prequential_accuracy": last.prequential,
        "accuracy_matrix": a,
        "class_accuracy": metrics.per_class(last.correct, last.total),
        "steps": last.step,
        "seconds": last.seconds,
        "steps_per_second": last.step / last.seconds,
        "scoring_seconds": last.scoring,
        "capture_seconds": last.capture,
        "trained_per_sample": passes.trained / batch,
        "scored_per_sample": passes.scored / batch,
        "images_beside_steps": {
            purpose: spent._asdict() for purpose, spent in learner.spent.items()
        },
        "memory_bytes": learner.memory_bytes,
        "variant": job.variant,
        "tasks": len(stream.tasks),
        "device": learner.where.type,
        "params_sha256": learner.params_sha256(),
        "state_sha256": learner.state_sha256(),
        "out": str(folder.path),
    }


def report(result: dict[str, Any]) -> dict[str, Any]:
    """The part of a result that `--json` prints."""
    return {name: result[name] for name in REPORTED}


def _plain(job: Job) -> dict[str, Any]:
    """What makes two jobs the same; where the data lie on this machine does not."""
    whole: dict[str, Any] = json.loads(json.dumps(asdict(job)))
    del whole["data_root"]
    return {**whole, "dataset": job.source}


def _asked(description: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = description["job"]
    return {**asked, "dataset": _source(str(asked.get("dataset")))}


def _source(dataset: str) -> str:
    return str(Path(dataset).resolve()) if is_path(dataset) else dataset


def _difference(found: dict[str, Any], job: Job) -> str:
    asked, wanted = _asked(found), _plain(job)
    names = [name for name in wanted if asked.get(name) != wanted[name]]
    return ", ".join(f"{name} {asked.get(name)!r}, not {wanted[name]!r}" for name in names)


def _describe(job: Job, stream: Stream, learner: Learner) -> dict[str, Any]:
    params = {name: _simple(value) for name, value in learner.get_params().items()}
    return {
        "onepass": __version__,
        "job": _plain(job),
        "learner": params,
        "stream": {**stream.spec, **stream.derived},
        "data_sha256": stream.dataset.sha256(),
        "steps": len(stream),
        "class_names": list(stream.dataset.class_names),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **surroundings(),
    }


def _simple(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | tuple | None) else repr(value)


def allow_determinism() -> None:
    """What CUDA asks for; it counts only before the GPU is first used."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def computing(job: Job) -> Iterator[None]:
    """Threads and determinism as the job says; both are put back afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(job.threads)
    if job.deterministic:
        allow_determinism()
    torch.use_deterministic_algorithms(job.deterministic or strict)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
