"""A job: what is asked. One method on one stream with one seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from onepass import data, registry, streams
from onepass.data.load import is_path
from onepass.errors import InputError, UnknownNameError
from onepass.learner import Learner
from onepass.scoring import check_scorable
from onepass.settings import check
from onepass.streams import Stream
from onepass.words import plain

COMMON = "common"  # the constructor's defaults: one setting for all methods
PRESETS = (COMMON, "paper", "official", "tuned")
Normalise = Literal["dataset", "first-task"]
# What an older record of a job does not have, with the value that the job had.
LATER = {"mirror_is_same_class": None, "normalise": "dataset"}
POINTS_PER_RUN = 20
# Not part of a variant: they stand beside it, or say how a run is watched and not what it is.
BESIDE = frozenset(
    ["method", "dataset", "memory", "seed", "preset", "settings", "device", "data_root", "probes"]
)


@dataclass(frozen=True)
class Job:
    """What a run is; together with the versions it says everything that decides the result.

    `settings` are the constructor's arguments as text, as `--set` takes them. `probes` are the
    names of what watches the run; they change nothing in it. `mirror_is_same_class` is told of the
    user's own data only; `normalise` says whose mean and standard deviation samples are normalised
    by: the dataset's, or those of the samples in the stream's first task.
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
    mirror_is_same_class: bool | None = None
    normalise: Normalise = "dataset"
    preset: str = COMMON
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
        digest = hashlib.sha256(choices.encode(errors="surrogatepass")).hexdigest()
        return f"{name}-{digest[:8]}" if choices else name

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
        return {**whole, "dataset": self.dataset_identity, "settings": self.run_settings}

    def identity_in(self, record: dict[str, Any]) -> dict[str, Any]:
        """The identity that a run.json has recorded, as one of now, to be compared with this job's.
        The default preset was once called `paper`; a method may have another of that name now."""
        found = {**LATER, **record, "dataset": dataset_identity(str(record.get("dataset")))}
        own = registry.get(self.method).learner.presets
        if found.get("preset") == "paper" and "paper" not in own:
            found["preset"] = COMMON
        return found

    @property
    def run_settings(self) -> dict[str, str]:
        """What was set by hand; and no mirror images where they are of another class, for a method
        that would have them by default. (A preset that has them was asked for by name: it is
        refused rather than changed.)

        >>> Job("gsa-released", "digits").run_settings, Job("gsa-released", "cifar100").run_settings
        ({'mirror': 'false'}, {})
        """
        said = {*self.settings, *self.preset_settings()}
        if not registry.get(self.method).learner.mirror or "mirror" in said:
            return self.settings
        told = self.mirror_is_same_class
        same = data.mirror_is_same_class(self.dataset) if told is None else told
        return self.settings if same else {**self.settings, "mirror": "false"}

    @property
    def variant(self) -> str:
        """What was chosen otherwise than by default, in words; empty for a plain job.

        >>> Job("gsa", preset="tuned", settings={"lr": "3e-4"}, tasks=2).variant
        'tuned lr=3e-4 tasks=2'
        """
        chosen = [] if self.preset == COMMON else [self.preset]
        chosen += [f"{name}={value}" for name, value in sorted(self.run_settings.items())]
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
            mirror_is_same_class=self.mirror_is_same_class,
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
        return stream, info.learner.configured(**self.arguments(stream))

    def asked_of_stream(self) -> dict[str, Any]:
        """What the stream's line and the arguments beside it say together."""
        names = ("tasks", "batch", "class_order")
        usual = {one.name: one.default for one in fields(self) if one.name in names}
        given = {name: getattr(self, name) for name in names if getattr(self, name) != usual[name]}
        del usual["tasks"]  # depends on the data
        return streams.asked(self.stream, given, usual)

    def arguments(self, stream: Stream) -> dict[str, Any]:
        """Constructor defaults, then the preset, then what was set by hand."""
        learner = registry.get(self.method).learner
        chosen: dict[str, Any] = {"seed": self.seed, "device": self.device}
        chosen |= self.normalisation(stream)
        if "memory" in learner.setting_names():
            chosen["memory"] = self.memory
        chosen |= self.preset_settings()
        self._check_mirror(stream.dataset)
        for name in ("seed", "device", "memory"):
            if name in self.settings:
                raise InputError(f"give --{name} instead of --set {name}")
        return chosen | learner.read_settings(self.run_settings)

    def normalisation(self, stream: Stream) -> dict[str, Any]:
        """Mean and standard deviation for the learner: the dataset's, if it has any, or those of
        the samples as they come in the stream's first task."""
        check("normalise", self.normalise, Normalise)
        mean, std = stream.dataset.mean, stream.dataset.std
        if self.normalise == "first-task":
            steps = [step for step in range(len(stream)) if stream.task_of(step) == 0]
            mean, std = data.statistics(torch.cat([stream.batch(step)[0] for step in steps]))
        return {} if mean is None else {"mean": mean, "std": std}

    def _check_mirror(self, dataset: data.Dataset) -> None:
        """A preset that mirrors images teaches nonsense where these are of another class."""
        mirrors = self.preset_settings().get("mirror") and "mirror" not in self.settings
        if mirrors and dataset.is_images and not dataset.mirror_is_same_class:
            raise InputError(
                f"preset {self.preset!r} of {self.method!r} also trains mirror images, and in "
                f"{dataset.name!r} these are not of the same class: --set mirror=false keeps the "
                "rest of the preset"
            )

    def preset_settings(self) -> dict[str, Any]:
        learner = registry.get(self.method).learner
        if self.preset == COMMON:
            return {}
        if self.preset not in PRESETS:
            raise UnknownNameError("preset", self.preset, PRESETS)
        if self.preset not in learner.presets:
            known = ", ".join(preset_names(learner))
            raise InputError(f"{self.method!r} has no preset {self.preset!r}; it has: {known}")
        return learner.presets[self.preset].settings


def preset_names(learner: type[Learner]) -> list[str]:
    """The presets that a method has."""
    return [name for name in PRESETS if name == COMMON or name in learner.presets]


def dataset_identity(dataset: str) -> str:
    """A dataset's name, or the whole path of the user's own, however it was written; as text that
    can be recorded and be part of a folder's name."""
    return plain(str(Path(dataset).resolve())) if is_path(dataset) else dataset
