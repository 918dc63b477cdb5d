"""The result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from typing import Any, Self, get_type_hints

from onepass.base.errors import InputError, RunError
from onepass.base.settings import expect_type
from onepass.base.text import printable
from onepass.evaluation import metrics
from onepass.runs import early_settings
from onepass.runs.variant import Variant

PRINTED: Any = {"printed": True}  # marks what `onepass run --json` prints


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run: result.json, tables and `--json` all take their numbers from it.

    The run
        `identity`, which two runs share only if they are the same run (`Job.identity`); `method`
        and its `revision` (0: before revisions were counted); `source`, a digest of the file of a
        user's method; `settings`, all arguments of the
        learner's constructor; `dataset`, its name; `dataset_identity`, its name or the path of the
        user's own data; `data_sha256`, a checksum of the data; `validation`, the fraction of the
        training data that was held out and scored on in place of the test samples; `samples`, for
        training and test, how many samples each class has; `stream`, its name; `stream_settings`;
        `batch`; `boundaries`, whether the learner is given them; `variant`, the other choices that
        differ from the defaults (files hold its text); `memory`, the most samples that are stored
        (0 for a method without a memory); `seed`; `tasks`; `normalise`, whether by the mean and
        standard deviation of the dataset, of the first task, or not at all (none).
    Accuracy, in percent
        `accuracy` over all test samples at the end; `forgetting` in the 1 / (T - 1) form and
        `forgetting_all_tasks` in the 1 / T form; `learning_accuracy`, the mean over tasks of the
        accuracy just after learning; `newest_accuracy`, the final accuracy on the last task;
        `mean_task_accuracy` at the end;
        `anytime_accuracy`, the mean over at least three equally spaced points;
        `prequential_accuracy`, on each batch before it is learned; `accuracy_matrix`, after task i
        on task j; `class_accuracy` at the end; `task_confusion`, how many test samples of task i
        (row) were predicted as a class of task j at the end. None stands for a value that was not
        measured or does not exist.
    Time
        `steps`; `seconds` and `steps_per_second` of training, listeners included;
        `scoring_seconds`; `capture_seconds`, the capture of steps as CUDA graphs.
    Cost
        `trained_per_sample` and `scored_per_sample`, images that pass through networks in a step,
        with and without a gradient, for each sample of the stream; `images_beside_steps`, images
        outside of steps, by purpose; `memory_bytes` of full memories and of covariances;
        `copy_bytes` of copies of the network.
    Machine and checksums
        `device`, and the name of the `gpu`; `threads`; the `processor` with its instruction set;
        the version of `torch`; `commit`, of the source tree when the run
        began (`-dirty`: with changes), None once installed; `params_sha256` of the network;
        `state_sha256` of all that learning changes; `out`, the run's folder.
    Dropped listeners
        `dropped`: listeners that failed, with the reason.
    Other facts
        `points`, the number of lines of events.jsonl (0: an early version did not count them);
        `other_versions`: if the run was resumed with `--anyway` under other versions of onepass or
        torch, the step after which it continued and the versions from there on.

    A line of an early version has None for values that it did not record.
    """

    identity: str = ""
    method: str = field(metadata=PRINTED)
    revision: int = 0
    source: str = ""
    settings: dict[str, object] = field(default_factory=dict)
    dataset: str = field(metadata=PRINTED)
    dataset_identity: str = ""
    data_sha256: str = ""
    validation: float = 0.0
    variant: Variant
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
    forgetting: float | None = field(default=None, metadata=PRINTED)
    forgetting_all_tasks: float | None = None
    learning_accuracy: float | None = field(default=None, metadata=PRINTED)
    newest_accuracy: float | None = field(default=None, metadata=PRINTED)
    mean_task_accuracy: float | None = None
    anytime_accuracy: float | None = None
    prequential_accuracy: float | None = None
    accuracy_matrix: list[list[float | None]] = field(default_factory=list, metadata=PRINTED)
    class_accuracy: list[float | None] = field(default_factory=list)
    task_confusion: list[list[int]] = field(default_factory=list)

    steps: int | None = field(default=None, metadata=PRINTED)
    seconds: float = field(metadata=PRINTED)
    steps_per_second: float | None = field(default=None, metadata=PRINTED)
    scoring_seconds: float = 0.0
    capture_seconds: float = 0.0

    trained_per_sample: float | None = None
    scored_per_sample: float | None = None
    images_beside_steps: dict[str, dict[str, int]] = field(default_factory=dict)
    memory_bytes: int | None = None
    copy_bytes: int = 0

    device: str = field(metadata=PRINTED)
    gpu: str | None = None
    threads: int = 0
    processor: str = ""
    torch: str = ""
    commit: str | None = None
    params_sha256: str = field(default="", metadata=PRINTED)
    state_sha256: str = field(default="", metadata=PRINTED)
    out: str = field(metadata=PRINTED)

    dropped: dict[str, str] = field(default_factory=dict)

    points: int = 0
    other_versions: list[dict[str, int | str]] = field(default_factory=list)

    @classmethod
    def read(cls, content: dict[str, Any], out: str, source: str = "") -> Self:
        """Returns the result that the content of a result.json or of a line holds. `out` is where
        the run is now. Raises a RunError that names `source` (by default `out`) if a value is
        missing or of the wrong type. Early results may lack any field that has a default;
        `early_settings` completes their settings."""
        source, types = source or out, _types()
        for option in fields(cls):
            needed = option.default is MISSING and option.default_factory is MISSING
            if option.name in content:
                kind = str if option.name == "variant" else types[option.name]
                _check(option.name, content[option.name], kind, source)
            elif needed and option.name not in (*content, "out"):
                raise RunError(f"{source} is not a run's result: it has no {option.name}")
        known = {name: value for name, value in content.items() if name in types}
        given = {**accuracies_in_matrix(content), "dataset_identity": content["dataset"], **known}
        method, variant = content["method"], content["variant"]
        settings = early_settings.completed(method, variant, content.get("settings") or {})
        made = {"settings": settings, "variant": Variant.parse(variant), "out": out}
        return cls(**{**given, **made})

    def as_json(self) -> dict[str, Any]:
        """Returns the content of result.json: all fields, as JSON values."""
        return {**asdict(self), "variant": str(self.variant), "out": printable(self.out)}

    @property
    def precision(self) -> str:
        """The precision of the network's arithmetic. An early line has it only in its variant."""
        return str(self.settings.get("precision") or self.variant.get("precision", "fp32"))

    def printed(self) -> dict[str, Any]:
        """Returns the fields that `--json` prints."""
        names = [option.name for option in fields(self) if option.metadata.get("printed")]
        return {name: getattr(self, name) for name in names}


def accuracies_in_matrix(content: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the accuracies that an early result does not hold, but its accuracy matrix does."""
    a = content.get("accuracy_matrix")
    if not a or "learning_accuracy" in content:
        return {}
    try:
        expect_type("accuracy_matrix", a, _types()["accuracy_matrix"])
    except (InputError, RecursionError):  # damaged; `Result.read` refuses it
        return {}
    if any(len(row) != len(a) for row in a):
        return {}
    return {
        "learning_accuracy": metrics.learning_accuracy(a),
        "newest_accuracy": metrics.newest_accuracy(a),
    }


@cache
def _types() -> dict[str, Any]:
    """Returns the type of every field by name. It is cached, because resolving the types takes
    longer than reading a result."""
    return get_type_hints(Result)


def _check(name: str, value: object, annotation: Any, source: str) -> None:
    try:
        expect_type(name, value, annotation)
    except (InputError, RecursionError):  # the value may be too large to quote
        raise RunError(f"{source} is damaged: its {name} is of the wrong type") from None
