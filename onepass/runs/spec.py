"""The specification of a run, a job: one method on one stream with one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from onepass import data, streams
from onepass.base import devices
from onepass.base.errors import InputError, OnepassError, UnknownNameError
from onepass.base.settings import (
    Preset,
    construct,
    expect_type,
    format_setting,
    parse_settings,
    setting_names,
)
from onepass.base.text import printable, quoted
from onepass.data.known import is_path
from onepass.learning import registry
from onepass.learning.registry import COMMON, TUNED
from onepass.runs.variant import PRESET, Variant

if TYPE_CHECKING:
    from onepass.learning.learner import Learner
    from onepass.streams import Stream

PRESETS = (COMMON, "paper", "official", TUNED, "best", "fast")
Normalise = Literal["dataset", "first-task", "none"]
CheckpointEvery = int | Literal["auto"] | None  # steps; auto: ten seconds; None: no checkpoint
OWN = "own"  # the dataset's name in the identity of a run on the user's own files
# Fields that a variant leaves out: tables show them in columns of their own, or they do not change
# the result.
NOT_IN_VARIANT = frozenset(
    (
        *("method", "dataset", "memory", "seed", "preset", "settings", "device"),
        *("data_root", "probes", "imports", "fingerprint", "test"),
    )
)
# Options that may change a run's numbers or its record, besides data, settings and stream
IDENTITY_OPTIONS = ("normalise", "validation", "every", "prequential", "threads", "deterministic")


class Fingerprint(NamedTuple):
    """The facts of the data that a run's identity needs, known once the data are loaded: their
    checksum, the number of tasks into which a stream splits them by default, and the default of
    `every` on the job's stream, None for a twentieth of the steps (`schedule.default_every`)."""

    sha256: str
    usual_tasks: int
    every: int | None = None


@dataclass(frozen=True)
class Job:
    """The description of one run. Together with the versions of onepass and torch and the kind of
    machine it determines the result.

    `identity` is a digest of its content (`identity_fields`). `stream` is a stream's name with
    arguments, as `--stream` takes it; `tasks`, `batch` and `class_order` are arguments of it too,
    and `tasks` None means the usual number. `preset` names a set of settings of the method;
    `settings` override them, as text, as `--set` takes it. `validation` is the fraction of the
    training data that is held out and scored on. `every` is the number of steps between evaluation
    points; None leaves it to `schedule.default_every`. `probes` are names of probes; they do not
    change the run. `imports` are the user's modules that register what the job names; they are
    imported before the run.

    `mirror_is_same_class` is for the user's own images only. `label` and `test` are for tables: the
    column of labels, and the file to test on. `normalise` chooses the mean and standard deviation
    that samples are normalised by: those of the dataset, of the samples in the stream's first task,
    or none. `fingerprint` is None until the data have been loaded
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
        """The name of the run's folder. Choices that differ from the defaults, and the user's own
        data, add a digest of their content. Jobs that differ only in their kinds of device share a
        name; `expect_same_run` then raises an error."""
        start, end = self.folder_name_ends
        name = Path(self.dataset_identity).stem if self.has_own_data else self.dataset
        return f"{start}-{name}{end}"

    @property
    def folder_name_ends(self) -> tuple[str, str]:
        """The parts of the folder's name before and after the name of the data. They find the
        folder again if the user's own data were renamed.

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
    def kind(self) -> str:
        """A name that jobs share if they differ only in their seeds."""
        return f"{replace(self, seed=0).folder_name} {self.device}"

    @property
    def identity(self) -> str:
        """A digest of `identity_fields`: two jobs share it only if they are the same run."""
        return digest(self.identity_fields)

    @property
    def identity_fields(self) -> dict[str, Any]:
        """The JSON values that two jobs share if, and only if, they are the same run. Paths, probes
        and the spelling of settings are not among them."""
        return {
            "method": self.method,
            "revision": self.revision,
            "dataset": OWN if self.has_own_data else self.dataset,
            "data_sha256": self.data_sha256,
            **({"memory": self.memory} if self.uses_memory else {}),
            "seed": self.seed,
            "device": devices.resolve_device(self.device).type,
            **self.non_defaults,
            **({} if self.known_every is None else {"every": self.known_every}),
        }

    @property
    def non_defaults(self) -> dict[str, Any]:
        """The choices that differ from `common` and from the other defaults, as values, not as
        text. Defaults are left out, so that a new setting in a later version does not change the
        identity of an old run. (A setting of `common` that changes raises the method's revision.)

        >>> Job("er", settings={"weight_decay": "1e-4"}, tasks=5).non_defaults  # the defaults
        {}
        >>> Job("er", settings={"lr": "2.0"}, stream="long-tail:rho=50", batch=20).non_defaults
        {'settings': {'lr': 2}, 'stream': {'stream': 'long-tail', 'rho': 50, 'batch': 20}}
        """
        defaults = {
            option.name: option.default
            for option in fields(self)
            if option.name in IDENTITY_OPTIONS
        }
        content = {
            "settings": _differing(self.chosen_settings(), self._common_settings),
            "stream": self._stream_choices(),
            **_differing({name: getattr(self, name) for name in IDENTITY_OPTIONS}, defaults),
        }
        return {name: _canonical(value) for name, value in content.items() if value}

    @property
    def _common_settings(self) -> dict[str, Any]:
        return registry.get(self.method).common_settings

    def _stream_choices(self) -> dict[str, Any]:
        """Returns the stream's settings that differ from the defaults."""
        table = self.full_stream(self.usual_tasks)
        tasks = 1 if registry.get(self.method).one_task else self.usual_tasks
        usual = streams.STREAMS[table["stream"]].defaults | {"stream": Job.stream, "tasks": tasks}
        return _differing(table, usual)

    @property
    def data_sha256(self) -> str:
        """The checksum of the data; a LookupError if they have not been loaded."""
        return self._loaded_fingerprint.sha256

    @property
    def usual_tasks(self) -> int:
        """The number of tasks into which a stream splits the data by default."""
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
        return devices.device_type(self.device)

    @property
    def has_own_data(self) -> bool:
        """True if the data are the user's own files."""
        return is_path(self.dataset)

    @property
    def dataset_identity(self) -> str:
        """The name of the dataset, or the absolute path of the user's own data, as printable text;
        an InputError for a path that cannot be."""
        if not self.has_own_data:
            return self.dataset
        try:
            return printable(str(Path(self.dataset).resolve()))
        except ValueError as problem:  # a NUL, or a letter that names of files cannot have here
            raise InputError(f"{quoted(self.dataset)} cannot be a path here: {problem}") from None

    @property
    def _loaded_fingerprint(self) -> Fingerprint:
        if self.fingerprint is None:
            raise LookupError(f"the data of {self.method} on {self.dataset} have not been loaded")
        return self.fingerprint

    @property
    def known_every(self) -> int | None:
        """The number of steps between evaluation points, chosen or by default; None for a twentieth
        of the steps, as in runs from before there was another default, and while the data are
        unknown."""
        return self.every or (self.fingerprint.every if self.fingerprint else None)

    def with_data(self, full: data.Dataset) -> Job:
        """Returns the job with the fingerprint of its full dataset, before `validation` holds
        samples out."""
        usual = data.usual_tasks(full.name, full.classes)
        every = self._default_every(full, usual)
        return replace(self, fingerprint=Fingerprint(full.sha256(), usual, every))

    def _default_every(self, full: data.Dataset, usual_tasks: int) -> int | None:
        """Returns `schedule.default_every` of the job's stream; None if it has no effect. The seed
        is 0, so that runs that differ only in their seeds are scored at the same steps. A method
        that learns all classes as one task is scored as if it did not."""
        from onepass.evaluation import schedule
        from onepass.learning.closed_form import ClosedForm

        info = registry.get(self.method)
        if self.every is not None or info.learner.traits.trains_to_score:
            return None
        table = self.full_stream(usual_tasks)
        if info.one_task and "tasks" in table:
            table["tasks"] = usual_tasks
        try:
            scored = full.hold_out(self.validation) if self.validation else full
            stream, learner = streams.make_stream(scored, table, seed=0), None
            if issubclass(info.learner, ClosedForm):
                learner = construct(info.learner, **self.chosen_settings())
            return schedule.default_every(stream, learner)
        except OnepassError:  # making the run, or a check before it, raises the error
            return None

    # ---- its settings, data, stream and learner

    @property
    def run_settings(self) -> dict[str, str]:
        """The user's settings. If mirrored images of the dataset are not of the same class (digits,
        text), settings that switch off mirroring are added: `mirror=false` for a method that
        mirrors by default, and the `unmirrored` settings of a preset that has them. Nothing is
        added if the user sets `mirror=true`. (`make` refuses any other preset that mirrors, because
        the user chose it by name.)

        >>> Job("gsa-released", "digits").run_settings, Job("gsa-released", "cifar100").run_settings
        ({'mirror': 'false'}, {})
        """
        preset, learner = self.chosen_preset(), registry.get(self.method).learner
        by_default = "mirror" not in preset.settings
        mirrors = preset.settings.get("mirror", getattr(learner, "mirror", False))
        instead = {"mirror": False} if by_default else preset.unmirrored
        chosen = {name: value for name, value in self.settings.items() if name == "mirror"}
        if not mirrors or instead is None or parse_settings(learner, chosen).get("mirror"):
            return self.settings
        given = self.mirror_is_same_class
        same = data.mirror_is_same_class(self.dataset) if given is None else given
        if same:
            return self.settings
        return {name: format_setting(value) for name, value in instead.items()} | self.settings

    @property
    def variant(self) -> Variant:
        """The choices that differ from `common` and from the other defaults, without the method, as
        results show them. A setting that equals the preset's value is left out.

        >>> chosen = {"lr": "1e-3", "mix": "64"}
        >>> str(Job("gsa", "cifar100", preset="tuned", settings=chosen, tasks=2).variant)
        'tuned lr=1e-3 tasks=2'
        """
        variant = Variant() if self.preset == COMMON else Variant({PRESET: self.preset})
        usual = self._common_settings | self.chosen_preset().settings
        others = _differing(self.chosen_settings(), usual)
        variant |= {
            name: text for name, text in sorted(self.run_settings.items()) if name in others
        }
        for option in fields(self):
            value = self.known_every if option.name == "every" else getattr(self, option.name)
            if option.name not in NOT_IN_VARIANT and value != option.default:
                variant[option.name] = str(value)
        return variant

    def score_every(self, stream: Stream) -> int | None:
        """Returns the number of steps between evaluation points. Returns None if `every` is not
        given and the method has to train before it is scored: then it is scored at the end only."""
        from onepass.evaluation import schedule

        if self.every is None and registry.get(self.method).learner.traits.trains_to_score:
            return None
        return self.known_every or schedule.twentieth(stream)

    def load_dataset(self) -> data.Dataset:
        """Returns the full dataset, before `validation` holds samples out. Errors in the method and
        the stream are raised before the data are loaded."""
        registry.get(self.method)
        self.chosen_stream()
        if self.encoder is not None:
            return self._encoded_dataset(self.encoder)
        return data.load(
            self.dataset,
            root=self.data_root,
            image_size=self.image_size,
            test_fraction=self.test_fraction,
            mirror_is_same_class=self.mirror_is_same_class,
            label=self.label,
            test=self.test,
        )

    @property
    def encoder(self) -> str | None:
        """The name of the encoder whose features the learner learns, if there is one."""
        name: str | None = self.chosen_settings().get("encoder")
        return name

    def _encoded_dataset(self, encoder: str) -> data.Dataset:
        from onepass.encoders.cache import encoded_dataset
        from onepass.learning.encoding import shared_encoder

        return encoded_dataset(
            self.dataset,
            shared_encoder(encoder, self.device),
            root=self.data_root,
            test_fraction=self.test_fraction,
            label=self.label,
        )

    def make(self, dataset: data.Dataset) -> tuple[Stream, Learner]:
        """Returns the stream over a loaded dataset, and the learner, not yet prepared. Raises an
        error if they do not go together."""
        from onepass.evaluation.probes.registry import expect_useful
        from onepass.evaluation.scoring import expect_untrained_scores

        info = registry.get(self.method)
        table = self.full_stream(data.usual_tasks(dataset.name, dataset.classes))
        stream = streams.make_stream(dataset, table, seed=self.seed)
        if info.one_task and len(stream.tasks) > 1:
            raise InputError(
                f"{self.method!r} learns all classes as one task, but stream {table['stream']!r} "
                f"always has {len(stream.tasks)} tasks: choose another stream"
            )
        stream.check_scorable()
        if self.prequential:
            expect_untrained_scores(info.learner)
        expect_useful(self.probes, info.learner)
        return stream, construct(info.learner, **self.arguments(stream))

    def full_stream(self, usual_tasks: int) -> dict[str, Any]:
        """Returns all settings of the stream: those chosen, and its number of tasks, which is
        `usual_tasks` if the user chose none, and 1 for a method that learns all classes at once."""
        chosen, usual = self.chosen_stream(), {"tasks": usual_tasks}
        if registry.get(self.method).one_task:  # overrides the user's choice
            chosen.pop("tasks", None)
            usual = {"tasks": 1}
        return streams.with_defaults(chosen, usual)

    def chosen_stream(self) -> dict[str, Any]:
        """Returns the settings that the job gives its stream: in `stream`, and by the fields
        `tasks`, `batch` and `class_order`, with the defaults of the latter two."""
        names = ("tasks", "batch", "class_order")
        usual = {option.name: option.default for option in fields(self) if option.name in names}
        given = {name: getattr(self, name) for name in names if getattr(self, name) != usual[name]}
        del usual["tasks"]  # depends on the data
        return streams.parse_with_options(self.stream, given, usual)

    def arguments(self, stream: Stream) -> dict[str, Any]:
        """Returns the arguments of the learner's constructor: those of the job's fields, the
        preset's settings and the user's, where later ones override earlier ones."""
        learner = registry.get(self.method).learner
        chosen: dict[str, Any] = {"seed": self.seed, "device": self.device}
        chosen |= self.normalisation(stream)
        if "memory" in setting_names(learner):
            chosen["memory"] = self.memory
        self._check_mirror(stream.dataset)
        return chosen | self.chosen_settings()

    def chosen_settings(self) -> dict[str, Any]:
        """Returns the settings of `common`, overridden by those of the preset, and these by the
        user's. Raises an InputError for a setting that is a field of the job."""
        for name in ("seed", "device", "memory"):
            if name in self.settings:
                raise InputError(
                    f"{name} is not a setting here: give --{name} instead of --set {name}"
                )
        info = registry.get(self.method)
        own = parse_settings(info.learner, self.run_settings)
        for name in ("mean", "std"):
            # None is the constructor's default, so the identity would be that of a normalised run
            if name in own and own[name] is None:
                raise InputError(f"{name} cannot be none here: give --normalise none")
        return info.common.settings | self.chosen_preset().settings | own

    def normalisation(self, stream: Stream) -> dict[str, Any]:
        """Returns the learner's arguments `mean` and `std`, as `normalise` chooses: those of the
        dataset, or those of the first task's samples, as the stream changes them. Returns none if
        the dataset has none, or if `normalise` is none."""
        expect_type("normalise", self.normalise, Normalise)
        if self.encoder is not None and self.normalise == "first-task":
            raise InputError("features of an encoder are not normalised: leave out --normalise")
        if self.normalise == "none":
            return {}
        mean, std = stream.dataset.mean, stream.dataset.std
        if self.normalise == "first-task":
            mean, std = data.statistics(stream.samples_of(task=0))
        return {} if mean is None else {"mean": mean, "std": std}

    def _check_mirror(self, dataset: data.Dataset) -> None:
        """Raises an InputError if the preset mirrors images, but mirrored images of this dataset
        are not valid examples of their class (digits, text)."""
        mirrors = self.chosen_preset().settings.get("mirror") and "mirror" not in self.run_settings
        if mirrors and dataset.is_images and not dataset.mirror_is_same_class:
            raise InputError(
                f"preset {self.preset!r} of {self.method!r} also trains on mirrored images, but in "
                f"{dataset.name!r} these are not of the same class: --set mirror=false keeps the "
                "rest of the preset"
            )

    def chosen_preset(self) -> Preset:
        """Returns the job's preset. Raises an UnknownNameError if there is no preset of this name,
        and an InputError if the method does not have it."""
        info = registry.get(self.method)
        learner = info.learner
        if self.preset == COMMON:
            return info.common
        if self.preset not in PRESETS:
            raise UnknownNameError("preset", self.preset, PRESETS)
        if self.preset not in learner.presets:
            known = ", ".join(preset_names(learner))
            raise InputError(f"{self.method!r} has no preset {self.preset!r}; it has: {known}")
        return learner.presets[self.preset]


def default_preset(methods: Sequence[str]) -> str:
    """Returns the preset of a command that names none: `tuned` for one method that has it, and
    `common` for several methods, so that they can be compared.

    >>> default_preset(["gsa"]), default_preset(["gdumb"]), default_preset(["gsa", "er"])
    ('tuned', 'common', 'common')
    """
    alone = len(methods) == 1
    return TUNED if alone and TUNED in registry.get(methods[0]).learner.presets else COMMON


def preset_names(learner: type[Learner]) -> list[str]:
    """Returns the names of a method's presets, in the order of PRESETS."""
    return [name for name in PRESETS if name == COMMON or name in learner.presets]


def _differing(values: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that differ from the usual ones or have none."""
    return {key: value for key, value in values.items() if key not in usual or usual[key] != value}


def _canonical(value: Any) -> Any:
    """Returns a value as JSON has it, with whole numbers always as int, so that 1 and 1.0 have the
    same digest."""
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def digest(content: dict[str, Any]) -> str:
    """Returns the SHA-256 of JSON values, which does not depend on the order of keys."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
