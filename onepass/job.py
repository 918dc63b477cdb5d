"""A job: what is asked. One method on one stream with one seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from onepass import data, registry, streams
from onepass.data.load import is_path
from onepass.errors import InputError, UnknownNameError
from onepass.learner import Learner
from onepass.scoring import check_scorable
from onepass.streams import Stream

PRESETS = ("paper", "official", "tuned")
POINTS_PER_RUN = 20
# Not part of a variant: they stand beside it, or say how a run is watched and not what it is.
BESIDE = frozenset(
    ["method", "dataset", "memory", "seed", "preset", "settings", "device", "data_root", "probes"]
)


@dataclass(frozen=True)
class Job:
    """What a run is; together with the versions it says everything that decides the result.

    `settings` are the constructor's arguments as text, as `--set` takes them. `probes` are the
    names of what watches the run; they change nothing in it.
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
    probes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def folder_name(self) -> str:
        """Readable for plain jobs; other choices add a fingerprint, so that no two jobs meet."""
        own = is_path(self.dataset)
        dataset = Path(self.dataset_identity).stem if own else self.dataset
        name = f"{self.method}-{dataset}-m{self.memory}-s{self.seed}"
        choices = self.variant + (self.dataset_identity if own else "")
        return f"{name}-{hashlib.sha256(choices.encode()).hexdigest()[:8]}" if choices else name

    @property
    def dataset_identity(self) -> str:
        """Which dataset: its name, or the whole path of the user's own."""
        return dataset_identity(self.dataset)

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two jobs the same, as JSON has it: neither where the data lie on this machine
        nor who watches."""
        whole: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del whole["data_root"], whole["probes"]
        return {**whole, "dataset": self.dataset_identity}

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
            if one.name not in BESIDE and value != one.default:
                chosen.append(f"{one.name}={value}")
        return " ".join(chosen)

    def score_every(self, stream: Stream) -> int | None:
        """After how many steps the learner is scored; None: only at the end, since it has to train
        for it."""
        if self.every is None and registry.get(self.method).learner.trains_to_score:
            return None
        return self.every or max(1, len(stream) // POINTS_PER_RUN)

    def load_dataset(self) -> data.Dataset:
        """All of it; `validation` holds out a part afterwards. What can be refused without data is
        refused before they are loaded."""
        registry.get(self.method)
        self.asked_of_stream()
        return data.load(
            self.dataset,
            root=self.data_root,
            image_size=self.image_size,
            test_fraction=self.test_fraction,
        )

    def make(self, dataset: data.Dataset) -> tuple[Stream, Learner]:
        """The stream over a dataset that was loaded, and the learner, not yet prepared."""
        info = registry.get(self.method)
        asked = self.asked_of_stream()
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


def dataset_identity(dataset: str) -> str:
    """A dataset's name, or the whole path of the user's own, however it was written."""
    return str(Path(dataset).resolve()) if is_path(dataset) else dataset
