"""What came out of a run."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from typing import Any, Self, get_type_hints

from onepass.base.errors import InputError, RunError
from onepass.base.settings import expect_type
from onepass.base.text import printable
from onepass.runs.variant import Variant

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
        `boundaries` (whether they were told); `variant`, what was chosen otherwise than by default
        (names and values; files hold its words); `memory` (samples kept at most; 0 for a method
        that keeps none), `seed`, `tasks`, `normalise` (by the mean and standard deviation of the
        dataset, or of the first task).
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
    commit: str | None = None
    params_sha256: str = field(default="", metadata=PRINTED)
    state_sha256: str = field(default="", metadata=PRINTED)
    out: str = field(metadata=PRINTED)

    dropped: dict[str, str] = field(default_factory=dict)

    points: int = 0
    other_versions: list[dict[str, int | str]] = field(default_factory=list)

    @classmethod
    def read(cls, content: dict[str, Any], out: str, source: str = "") -> Self:
        """Returns the result that a result.json or a line holds. `out` is where its run lies now;
        errors name the `source`, if that is another file. An older result may lack every field
        that has a default."""
        source, types = source or out, _types()
        for option in fields(cls):
            needed = option.default is MISSING and option.default_factory is MISSING
            if option.name in content:
                kind = str if option.name == "variant" else types[option.name]
                _check(option.name, content[option.name], kind, source)
            elif needed and option.name not in (*content, "out"):
                raise RunError(f"{source} is not a run's result: it has no {option.name}")
        known = {name: value for name, value in content.items() if name in types}
        given = {"dataset_identity": content["dataset"], **known}
        return cls(**{**given, "variant": Variant.parse(content["variant"]), "out": out})

    def as_json(self) -> dict[str, Any]:
        """Returns what result.json holds."""
        return {**asdict(self), "variant": str(self.variant), "out": printable(self.out)}

    @property
    def precision(self) -> str:
        """Of the network's arithmetic; an old line tells it by its variant alone."""
        return str(self.settings.get("precision") or self.variant.get("precision", "fp32"))

    def printed(self) -> dict[str, Any]:
        """What `--json` prints."""
        shown = [one.name for one in fields(self) if one.metadata.get("printed")]
        return {name: getattr(self, name) for name in shown}


@cache
def _types() -> dict[str, Any]:
    """Of every field; working them out takes longer than reading a result."""
    return get_type_hints(Result)


def _check(name: str, value: object, annotation: Any, source: str) -> None:
    try:
        expect_type(name, value, annotation)
    except (InputError, RecursionError):  # the value itself may be too much to be shown
        raise RunError(f"{source} is damaged: its {name} is of the wrong type") from None
