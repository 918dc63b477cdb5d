"""A job: what is asked. One method on one stream with one seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from onepass import data, streams
from onepass.base import devices
from onepass.base.errors import InputError, UnknownNameError
from onepass.base.settings import Preset, as_text, check, configured, read_settings, setting_names
from onepass.base.text import plain
from onepass.data.known import is_path
from onepass.learning import registry
from onepass.runs.variant import PRESET, Variant

if TYPE_CHECKING:
    from onepass.learning.learner import Learner
    from onepass.streams import Stream

COMMON = "common"  # the constructor's defaults: one setting for all methods
PRESETS = (COMMON, "paper", "official", "tuned", "best", "fast")
Normalise = Literal["dataset", "first-task"]
CheckpointEvery = int | Literal["auto"] | None  # steps; auto: ten seconds; None: no checkpoint
POINTS_PER_RUN = 20
OWN = "own"  # what a run's identity calls all data that have no name of ours
# Not part of a variant: they stand beside it, or say how a run is watched and not what it is.
NOT_IN_VARIANT = frozenset(
    (
        *("method", "dataset", "memory", "seed", "preset", "settings", "device"),
        *("data_root", "probes", "imports", "fingerprint", "test"),
    )
)
# What may decide a run's numbers or its record besides its data, settings and stream.
IDENTITY_OPTIONS = ("normalise", "validation", "every", "prequential", "threads", "deterministic")


class Fingerprint(NamedTuple):
    """What a run's identity has to know of its data, which are loaded for that: their checksum, and
    into how many tasks they are split if nobody says."""

    sha256: str
    usual_tasks: int


@dataclass(frozen=True)
class Job:
    """What a run is; together with the versions it says everything that decides the result.

    A run is known by content: see `identity_fields`. `settings` are the constructor's arguments as
    text, as `--set` takes them. `probes` are the names of what watches the run; they change
    nothing in it. `imports` are modules of the user's that register what the job
    imports them first. `mirror_is_same_class` is told of the user's own data only; `label` and
    `test` of a table: the column of labels, and the file to test on. `normalise` says whose mean
    and standard deviation samples are normalised by: the dataset's, or those of the samples in the
    stream's first task. `fingerprint` is of the data, once they have been loaded
    (`RunResources.with_fingerprint`).
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
    label: str | None = None
    test: str | None = None
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
    imports: tuple[str, ...] = field(default=(), compare=False)
    fingerprint: Fingerprint | None = field(default=None, compare=False)

    # ---- which run it is

    @property
    def folder_name(self) -> str:
        """Readable for plain jobs; other choices add a digest of their content, and so do the
        user's own data, so that no two jobs meet."""
        start, end = self.folder_name_ends
        name = Path(self.dataset_identity).stem if self.has_own_data else self.dataset
        return f"{start}-{name}{end}"

    @property
    def folder_name_ends(self) -> tuple[str, str]:
        """The folder's name without that of the data, before it and after it: the user's own may
        be renamed.

        >>> Job("er").folder_name_ends, Job("finetune", settings={"lr": "1"}).folder_name_ends
        (('er', '-m100-s0'), ('finetune', '-s0-c4eb5ff1'))
        """
        memory = f"-m{self.memory}" if self.uses_memory else ""
        revision = f"-r{self.revision}" if self.revision > 1 else ""
        own = {"method": self.method, "data": self.data_sha256} if self.has_own_data else {}
        content = self.non_defaults | own
        ending = f"-{digest(content)[:8]}" if content else ""
        return self.method, f"{memory}-s{self.seed}{revision}{ending}"

    @property
    def identity(self) -> str:
        """The same for two jobs if, and only if, they are one and the same run."""
        return digest(self.identity_fields)

    @property
    def identity_fields(self) -> dict[str, Any]:
        """What makes two jobs the same run, as JSON has it: never where something lies, who
        watches, or in which words it was asked for."""
        return {
            "method": self.method,
            "revision": self.revision,
            "dataset": OWN if self.has_own_data else self.dataset,
            "data_sha256": self.data_sha256,
            **({"memory": self.memory} if self.uses_memory else {}),
            "seed": self.seed,
            "device": devices.resolve(self.device).type,
            **self.non_defaults,
        }

    @property
    def non_defaults(self) -> dict[str, Any]:
        """What is otherwise than by default: values, not the words that chose them. Defaults are
        left out, so that a setting which a later version has more makes no other run of this one
        (and where a default changes, the method has another revision).

        >>> Job("er", settings={"weight_decay": "1e-4"}, tasks=5).non_defaults  # the defaults
        {}
        >>> Job("er", settings={"lr": "2.0"}, stream="long-tail:rho=50", batch=20).non_defaults
        {'settings': {'lr': 2}, 'stream': {'stream': 'long-tail', 'rho': 50, 'batch': 20}}
        """
        others = {one.name: one.default for one in fields(self) if one.name in IDENTITY_OPTIONS}
        content = {
            "settings": _differing(self.chosen_settings(), self._defaults),
            "stream": self._stream_choices(),
            **_differing({name: getattr(self, name) for name in IDENTITY_OPTIONS}, others),
        }
        return {name: _canonical(value) for name, value in content.items() if value}

    @property
    def _defaults(self) -> dict[str, Any]:
        """Of the constructor."""
        learner = registry.get(self.method).learner
        return {one.name: one.default for one in fields(learner) if one.default is not MISSING}

    def _stream_choices(self) -> dict[str, Any]:
        asked = self.full_stream(self.usual_tasks)
        tasks = 1 if registry.get(self.method).one_task else self.usual_tasks
        usual = streams.STREAMS[asked["stream"]].defaults | {"stream": Job.stream, "tasks": tasks}
        return _differing(asked, usual)

    @property
    def data_sha256(self) -> str:
        return self._loaded_fingerprint.sha256

    @property
    def usual_tasks(self) -> int:
        return (
            self._loaded_fingerprint.usual_tasks
            if self.has_own_data
            else data.usual_tasks(self.dataset)
        )

    @property
    def revision(self) -> int:
        return registry.get(self.method).revision

    @property
    def uses_memory(self) -> bool:
        return "memory" in setting_names(registry.get(self.method).learner)

    @property
    def device_kind(self) -> str:
        return devices.kind(self.device)

    @property
    def has_own_data(self) -> bool:
        """Whether its data are the user's own files."""
        return is_path(self.dataset)

    @property
    def dataset_identity(self) -> str:
        """Which dataset, for people: its name, or the whole path of the user's own, however it was
        written; as text that can be recorded and be part of a folder's name."""
        return plain(str(Path(self.dataset).resolve())) if self.has_own_data else self.dataset

    @property
    def _loaded_fingerprint(self) -> Fingerprint:
        if self.fingerprint is None:
            raise LookupError(f"the data of {self.method} on {self.dataset} have not been loaded")
        return self.fingerprint

    def with_data(self, whole: data.Dataset) -> Job:
        """The same job, once its data are known; `validation` holds a part of them out later."""
        usual = data.usual_tasks(whole.name, whole.classes)
        return replace(self, fingerprint=Fingerprint(whole.sha256(), usual))

    # ---- what it is made of

    @property
    def run_settings(self) -> dict[str, str]:
        """What was set by hand; and where mirror images are of another class, what a method that
        mirrors by default, or a preset for all data, has instead, unless `mirror` was asked for.
        (Any other preset that mirrors was asked for by name: it is refused rather than changed.)

        >>> Job("gsa-released", "digits").run_settings, Job("gsa-released", "cifar100").run_settings
        ({'mirror': 'false'}, {})
        """
        preset, learner = self.chosen_preset(), registry.get(self.method).learner
        by_default = "mirror" not in preset.settings
        mirrors = preset.settings.get("mirror", learner.mirror)
        instead = {"mirror": False} if by_default else preset.unmirrored
        asked = {name: value for name, value in self.settings.items() if name == "mirror"}
        if not mirrors or instead is None or read_settings(learner, asked).get("mirror"):
            return self.settings
        told = self.mirror_is_same_class
        same = data.mirror_is_same_class(self.dataset) if told is None else told
        if same:
            return self.settings
        return {name: as_text(value) for name, value in instead.items()} | self.settings

    @property
    def variant(self) -> Variant:
        """What was chosen otherwise than by default; empty for a plain job.

        >>> str(Job("gsa", preset="tuned", settings={"lr": "1e-3", "mix": "64"}, tasks=2).variant)
        'tuned lr=1e-3 tasks=2'
        """
        variant = Variant() if self.preset == COMMON else Variant({PRESET: self.preset})
        usual = self._defaults | self.chosen_preset().settings
        others = _differing(self.chosen_settings(), usual)
        variant |= {
            name: text for name, text in sorted(self.run_settings.items()) if name in others
        }
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name not in NOT_IN_VARIANT and value != option.default:
                variant[option.name] = str(value)
        return variant

    def score_every(self, stream: Stream) -> int | None:
        """After how many steps the learner is scored; None: only at the end, since it has to train
        for it."""
        if self.every is None and registry.get(self.method).learner.traits.trains_to_score:
            return None
        return self.every or max(1, len(stream) // POINTS_PER_RUN)

    def load_dataset(self) -> data.Dataset:
        """All of it; `validation` holds out a part afterwards. What can be refused without data is
        refused before they are loaded."""
        registry.get(self.method)
        self.chosen_stream()
        return data.load(
            self.dataset,
            root=self.data_root,
            image_size=self.image_size,
            test_fraction=self.test_fraction,
            mirror_is_same_class=self.mirror_is_same_class,
            label=self.label,
            test=self.test,
        )

    def make(self, dataset: data.Dataset) -> tuple[Stream, Learner]:
        """The stream over a dataset that was loaded, and the learner, not yet prepared."""
        from onepass.evaluation.scoring import expect_untrained_scores

        info = registry.get(self.method)
        asked = self.full_stream(data.usual_tasks(dataset.name, dataset.classes))
        stream = streams.make(dataset, asked, seed=self.seed)
        if info.one_task and len(stream.tasks) > 1:
            raise InputError(
                f"{self.method!r} learns all classes as one task, but stream {asked['stream']!r} "
                f"always has {len(stream.tasks)}"
            )
        stream.check_scorable()
        if self.prequential:
            expect_untrained_scores(info.learner)
        return stream, configured(info.learner, **self.arguments(stream))

    def full_stream(self, usual_tasks: int) -> dict[str, Any]:
        """The stream's table, with its number of tasks."""
        asked, usual = self.chosen_stream(), {"tasks": usual_tasks}
        if registry.get(self.method).one_task:  # whatever was asked
            asked.pop("tasks", None)
            usual = {"tasks": 1}
        return streams.filled(asked, usual)

    def chosen_stream(self) -> dict[str, Any]:
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
        if "memory" in setting_names(learner):
            chosen["memory"] = self.memory
        self._check_mirror(stream.dataset)
        return chosen | self.chosen_settings()

    def chosen_settings(self) -> dict[str, Any]:
        """Those of the preset, then what was set by hand."""
        for name in ("seed", "device", "memory"):
            if name in self.settings:
                raise InputError(f"give --{name} instead of --set {name}")
        learner = registry.get(self.method).learner
        return self.chosen_preset().settings | read_settings(learner, self.run_settings)

    def normalisation(self, stream: Stream) -> dict[str, Any]:
        """Mean and standard deviation for the learner: the dataset's, if it has any, or those of
        the samples as they come in the stream's first task."""
        check("normalise", self.normalise, Normalise)
        mean, std = stream.dataset.mean, stream.dataset.std
        if self.normalise == "first-task":
            mean, std = data.statistics(stream.samples_of(task=0))
        return {} if mean is None else {"mean": mean, "std": std}

    def _check_mirror(self, dataset: data.Dataset) -> None:
        """A preset that mirrors images teaches nonsense where these are of another class."""
        mirrors = self.chosen_preset().settings.get("mirror") and "mirror" not in self.run_settings
        if mirrors and dataset.is_images and not dataset.mirror_is_same_class:
            raise InputError(
                f"preset {self.preset!r} of {self.method!r} also trains mirror images, and in "
                f"{dataset.name!r} these are not of the same class: --set mirror=false keeps the "
                "rest of the preset"
            )

    def chosen_preset(self) -> Preset:
        learner = registry.get(self.method).learner
        if self.preset == COMMON:
            return Preset({}, "the constructor's defaults")
        if self.preset not in PRESETS:
            raise UnknownNameError("preset", self.preset, PRESETS)
        if self.preset not in learner.presets:
            known = ", ".join(preset_names(learner))
            raise InputError(f"{self.method!r} has no preset {self.preset!r}; it has: {known}")
        return learner.presets[self.preset]


def preset_names(learner: type[Learner]) -> list[str]:
    """The presets that a method has."""
    return [name for name in PRESETS if name == COMMON or name in learner.presets]


def _differing(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Those that are not as usual."""
    return {key: one for key, one in values.items() if key not in usual or usual[key] != one}


def _canonical(value: Any) -> Any:
    """As JSON has it, and one way only of writing a number."""
    if isinstance(value, dict):
        return {name: _canonical(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_canonical(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def digest(content: dict[str, Any]) -> str:
    """A checksum of values as JSON has them, in whatever order they come."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
