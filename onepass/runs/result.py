"""What came out of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Self, get_type_hints

import torch

from onepass.base.devices import kind
from onepass.base.errors import InputError, RunError
from onepass.base.settings import check
from onepass.base.text import plain
from onepass.evaluation import metrics
from onepass.evaluation.scoring import Point
from onepass.learning.learner import Learner
from onepass.runs.spec import Job
from onepass.streams import Stream

PRINTED: Any = {"printed": True}  # marks what `onepass run --json` prints


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run's numbers: the record, the tables and `--json` all take them from here.

    What was run
        `identity`, by which the run is known (`Job.identity`); `method` and its `revision` (0: run
        before revisions were counted); `settings`, all of the learner's; `dataset` (its name),
        `dataset_identity` (its name, or the path of the user's own), `data_sha256` (of all of it),
        `validation` (the part of the training data that was scored on), `samples` (for training and
        test, how many of each class there were); `stream` (its name), `stream_settings`, `batch`,
        `boundaries` (whether they were told); `variant` (what was chosen otherwise than by
        default), `memory` (samples kept at most; 0 for a method that keeps none), `seed`, `tasks`,
        `normalise` (by the mean and standard deviation of the dataset, or of the first task).
    How good it was, in percent
        `accuracy` over all test images; `forgetting` in the 1 / (T - 1) form and
        `forgetting_all_tasks` in the 1 / T form; `mean_task_accuracy`; `anytime_accuracy`, the mean
        over equally spaced points, at least three; `prequential_accuracy`, each batch before it was
        learned;
        `accuracy_matrix`, after task i on task j; `class_accuracy`; `task_confusion`, how many test
        images of task i (row) were taken at the end for a class of task j. None stands for what was
        not scored or cannot be.
    How long it took
        `steps`; `seconds` and `steps_per_second` of training, and of what watches each step;
        `scoring_seconds`; `capture_seconds` of the steps as CUDA graphs.
    What it cost
        `trained_per_sample` and `scored_per_sample`, images through the network for each of the
        stream; `images_beside_steps`, outside of steps, by purpose; `memory_bytes` of the samples
        kept; `copy_bytes` of copies of the network.
    Where, and which bits
        `device`, and the name of the `gpu`; `threads`; the `commit` of the tree that began the run
        (`-dirty`: with changes), none once installed; `params_sha256` of the network;
        `state_sha256` of all that learning changes; `out`, the run's folder.
    Who did not see it through
        `dropped`: listeners that failed, with the reason.
    What else one should know
        `points`, how many lines of events.jsonl there are (0: a version that did not count them);
        `other_versions`, where the run was resumed `--anyway` with other versions of onepass or
        torch than before: the step after which it went on, and the versions from there on. Of a
        line that was made by an early version, None stands for whatever it does not tell.
    """

    identity: str = ""
    method: str = field(metadata=PRINTED)
    revision: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    dataset: str = field(metadata=PRINTED)
    dataset_identity: str = ""
    data_sha256: str = ""
    validation: float = 0.0
    variant: str
    memory: int = field(metadata=PRINTED)
    seed: int = field(metadata=PRINTED)
    tasks: int
    normalise: str = "dataset"
    samples: list[list[int]] = field(default_factory=list)
    stream: str = ""
    stream_settings: dict[str, object] = field(default_factory=dict)
    batch: int = 0
    boundaries: bool = True

    accuracy: float = field(metadata=PRINTED)
    forgetting: float | None = field(metadata=PRINTED)
    forgetting_all_tasks: float | None
    mean_task_accuracy: float | None
    anytime_accuracy: float | None
    prequential_accuracy: float | None
    accuracy_matrix: list[list[float | None]] = field(metadata=PRINTED)
    class_accuracy: list[float | None]
    task_confusion: list[list[int]] = field(default_factory=list)

    steps: int | None = field(metadata=PRINTED)
    seconds: float = field(metadata=PRINTED)
    steps_per_second: float | None = field(metadata=PRINTED)
    scoring_seconds: float = 0.0
    capture_seconds: float = 0.0

    trained_per_sample: float | None
    scored_per_sample: float | None
    images_beside_steps: dict[str, dict[str, int]] = field(default_factory=dict)
    memory_bytes: int | None
    copy_bytes: int = 0

    device: str = field(metadata=PRINTED)
    gpu: str | None = None
    threads: int = 0
    commit: str | None = None
    params_sha256: str = field(metadata=PRINTED)
    state_sha256: str = field(metadata=PRINTED)
    out: str = field(metadata=PRINTED)

    dropped: dict[str, str] = field(default_factory=dict)

    points: int = 0
    other_versions: list[dict[str, int | str]] = field(default_factory=list)

    @classmethod
    def of(
        cls, job: Job, stream: Stream, learner: Learner, points: Sequence[Point], out: Path
    ) -> Self:
        """The result of a run that has come to its end."""
        ends = {point.task: point.correct for point in points if point.boundary}
        last, cadence = points[-1], job.score_every(stream)
        correct = [ends.get(task) for task in range(len(stream.tasks))]
        a = metrics.accuracy_matrix(correct, last.total, stream.tasks)
        spaced = [p.accuracy for p in points if cadence and p.step % cadence == 0]
        batch = len(stream.indices(0))
        images = learner.images(batch)
        return cls(
            identity=job.identity,
            method=job.method,
            revision=job.revision,
            settings=plain_settings(learner),
            dataset=plain(stream.dataset.name),
            dataset_identity=job.dataset_identity,
            data_sha256=job.data_sha256,
            validation=job.validation,
            variant=job.variant,
            memory=getattr(learner, "memory", 0),
            seed=job.seed,
            tasks=len(stream.tasks),
            normalise=job.normalise,
            samples=stream.dataset.samples_of_each_class(),
            stream=stream.key,
            stream_settings=_plain(stream.spec),
            batch=batch,
            boundaries=stream.boundaries,
            accuracy=last.accuracy,
            forgetting=metrics.forgetting(a),
            forgetting_all_tasks=metrics.forgetting_all(a),
            mean_task_accuracy=metrics.mean_task_accuracy(a),
            anytime_accuracy=metrics.anytime(spaced),
            prequential_accuracy=last.prequential,
            accuracy_matrix=a,
            class_accuracy=metrics.per_class(last.correct, last.total),
            task_confusion=[list(row) for row in last.confusion],
            steps=last.step,
            seconds=last.seconds,
            steps_per_second=last.step / last.seconds,
            scoring_seconds=last.scoring,
            capture_seconds=last.capture,
            trained_per_sample=images.trained / batch,
            scored_per_sample=images.scored / batch,
            images_beside_steps={name: n._asdict() for name, n in learner.spent.items()},
            memory_bytes=learner.memory_bytes,
            copy_bytes=learner.copy_bytes,
            device=learner.where.type,
            gpu=gpu_of(learner),
            threads=job.threads,
            params_sha256=learner.params_sha256(),
            state_sha256=learner.state_sha256(),
            out=str(out),
            points=len(points),
        )

    @classmethod
    def read(cls, content: dict[str, Any], file: Path, out: str | None = None) -> Self:
        """From the content of a result.json, with the place where its folder is now, or of whatever
        else `file` names, with the place that is told. Fields with a default came later: an older
        file may lack them."""
        types = _types()
        for one in fields(cls):
            if one.name in content:
                _check(one.name, content[one.name], types[one.name], file)
            elif one.default is MISSING and one.default_factory is MISSING:
                raise RunError(f"{file} is not a run's result: it has no {one.name}")
        here = {"dataset_identity": content["dataset"], **content, "out": out or str(file.parent)}
        return cls(**{name: value for name, value in here.items() if name in types})

    def as_json(self) -> dict[str, Any]:
        """What result.json holds; where it is now is known to whoever reads it."""
        return {**asdict(self), "out": plain(self.out)}

    def printed(self) -> dict[str, Any]:
        """What `--json` prints."""
        shown = [one.name for one in fields(self) if one.metadata.get("printed")]
        return {name: getattr(self, name) for name in shown}


def plain_settings(learner: Learner) -> dict[str, Any]:
    """The constructor's arguments as JSON has them; a network of the user's own as it shows
    itself, a GPU without its number."""
    chosen = {**learner.get_params(), "device": kind(learner.device)}
    return {name: _plain(value) for name, value in chosen.items()}


def gpu_of(learner: Learner) -> str | None:
    cuda = learner.where.type == "cuda"
    return torch.cuda.get_device_name(learner.where) if cuda else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


@cache
def _types() -> dict[str, Any]:
    """Of every field; working them out takes longer than reading a result."""
    return get_type_hints(Result)


def _check(name: str, value: object, annotation: Any, file: Path) -> None:
    try:
        check(name, value, annotation)
    except (InputError, RecursionError):  # the value itself may be too much to be shown
        raise RunError(f"{file} is damaged: its {name} is of the wrong type") from None
