"""Makes the result of a run that has just finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from onepass.base.devices import device_type
from onepass.base.text import printable
from onepass.evaluation import metrics
from onepass.evaluation.points import Point
from onepass.learning.learner import Learner
from onepass.runs.environment import method_source_digest, processor
from onepass.runs.result import Result
from onepass.runs.spec import Job
from onepass.streams import Stream


def make_result(
    job: Job, stream: Stream, learner: Learner, points: Sequence[Point], out: Path
) -> Result:
    """Returns the result of a run after its last step. `points` are all its evaluation points, and
    `out` is its folder. The listeners' facts and the commit are added by the caller."""
    from onepass.learning.memory_contents import copy_bytes, memory_bytes

    ends = {point.task: point.correct for point in points if point.boundary}
    last, cadence = points[-1], job.score_every(stream)
    correct = [ends.get(task) for task in range(len(stream.tasks))]
    a = metrics.accuracy_matrix(correct, last.total, stream.tasks)
    # Any-time accuracy leaves out points at task ends that lie between the equally spaced ones.
    spaced = [p.accuracy for p in points if cadence and p.step % cadence == 0]
    batch = len(stream.indices(0))
    images = learner.images_per_batch(batch)
    return Result(
        identity=job.identity,
        method=job.method,
        revision=job.revision,
        source=method_source_digest(job.method) or "",
        settings=plain_settings(learner),
        dataset=printable(stream.dataset.name),
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
        learning_accuracy=metrics.learning_accuracy(a),
        newest_accuracy=metrics.newest_accuracy(a),
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
        images_beside_steps={name: n._asdict() for name, n in learner.image_counts.items()},
        memory_bytes=memory_bytes(learner),
        copy_bytes=copy_bytes(learner),
        device=learner.torch_device.type,
        gpu=gpu_name(learner),
        threads=job.threads,
        processor=processor(),
        torch=str(torch.__version__),
        params_sha256=learner.params_sha256(),
        state_sha256=learner.state_sha256(),
        out=str(out),
        points=len(points),
    )


def plain_settings(learner: Learner) -> dict[str, Any]:
    """Returns the arguments of the learner's constructor as JSON values. A network of the user's is
    its repr, and a GPU has no number."""
    chosen = {**learner.get_params(), "device": device_type(learner.device)}
    return {name: _plain(value) for name, value in chosen.items()}


def gpu_name(learner: Learner) -> str | None:
    """Returns the name of the learner's GPU; None on the CPU."""
    cuda = learner.torch_device.type == "cuda"
    return torch.cuda.get_device_name(learner.torch_device) if cuda else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
