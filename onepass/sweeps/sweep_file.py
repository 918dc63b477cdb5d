"""Reads a sweep file, which lists the runs to make and their order.

    import = ["my.module"]  your modules that register methods and other things that the file names

    [defaults]              for every run: any option of `onepass run`, by its name there
    methods = ["er", "gsa"] a list makes a grid: a run for each of its values
    memory = [200, 500]
    seeds = 5

    [dataset.cifar100]      for the runs on one dataset
    memory = 1000

    [method.gsa]            for the runs of one method
    preset = "tuned"
    set = { lr = [3e-4, 5e-4] }

    [[grid]]                grids in order of priority; without any, there is one that holds all of
    methods = ["gsa"]       the above

A table further down in this list overrides those above it. A run in two grids belongs to the first.
Inside a grid, all runs of the first seed come before those of the second. Paths of data are
relative to the file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from onepass import data
from onepass.base import plugins, toml
from onepass.base.errors import InputError, OnepassError, UnknownNameError
from onepass.base.settings import LARGEST_INT, expect_type
from onepass.base.text import quoted
from onepass.data.known import is_path
from onepass.evaluation import probes
from onepass.learning import registry
from onepass.runs.spec import Job

MOST_SEEDS = 1000
MOST_RUNS = 100_000
TABLES = ("import", "defaults", "dataset", "method", "grid")
# Options of the command `onepass run` that are fields of a job of the same name
FIELDS = (
    *("dataset", "image_size", "test_fraction", "normalise", "memory", "seed", "stream", "tasks"),
    *("batch", "class_order", "preset", "validation", "every", "prequential", "threads"),
    *("deterministic", "label", "test"),
)
HINTS = get_type_hints(Job)
OPTIONS: dict[str, Any] = {
    "methods": str,
    "seeds": int,
    "set": dict,
    "probe": str,
    "engine": str,
    "precision": str,
    "mirror-is-another-class": bool,
    **{name.replace("_", "-"): HINTS[name] for name in FIELDS},
}
LEAST = {"memory": 0, "seeds": 1, "every": 1, "threads": 1, "image-size": 1}
MOST = {"seeds": MOST_SEEDS, "threads": 1024}
WITHOUT_FILE = Path("the sweep")  # stands for the file in errors if the sweep is a dictionary
Table = dict[str, Any]


@dataclass(frozen=True)
class PlannedRun:
    """A job and its priority: the number of its grid, from 0. Smaller numbers come first."""

    job: Job
    priority: int


def read_sweep_file(
    source: Path | Mapping[str, Any],
    *,
    device: str = "auto",
    data_root: str | None = None,
    imports: Sequence[str] = (),
) -> list[PlannedRun]:
    """Returns the runs of a sweep file, or of a dictionary with the content of one, in their order;
    repeats are kept. `imports` and the `import` of the file are imported here, and again in each
    process that runs a job. Raises an error that names the file and the key."""
    path = source if isinstance(source, Path) else WITHOUT_FILE
    content = toml.read_toml(source) if isinstance(source, Path) else dict(source)
    modules = tuple(dict.fromkeys([*imports, *_imports(path, content)]))
    plugins.import_modules(modules)
    _expect_valid(path, content)
    grids = content.get("grid", [{}])
    counted = 0
    planned: list[PlannedRun] = []
    for number, grid in enumerate(grids):
        where = f"[[grid]] {number + 1}" if "grid" in content else "[defaults]"
        tables = list(_tables(path, where, content, grid))
        counted += sum(_count(table) for table in tables)
        if counted > MOST_RUNS:
            raise InputError(f"{path}: {where} makes more than {MOST_RUNS} runs")
        here = {"device": device, "data_root": data_root, "imports": modules}
        jobs = [job for table in tables for job in _jobs(path, where, table, here)]
        jobs.sort(key=lambda job: job.seed)
        planned += [PlannedRun(job, number) for job in jobs]
    return planned


# ---- reading and checking


def _imports(path: Path, content: Table) -> list[str]:
    modules = _listed(content.get("import", []))
    for module in modules:
        expect_type(f"{path}: import", module, str)
    return modules


def _expect_valid(path: Path, content: Table) -> None:
    """Raises an error for a table, key or value that no sweep file may have."""
    for name in content:
        if name in TABLES:
            continue
        if name in OPTIONS:
            raise InputError(f"{path}: {name} belongs below [defaults] or [[grid]]")
        raise UnknownNameError(f"key of {path}", name, TABLES)
    _expect_valid_table(path, "[defaults]", content.get("defaults", {}))
    for kind, own in (("dataset", "dataset"), ("method", "methods")):
        tables = content.get(kind, {})
        _expect(path, f"[{kind}]", tables, dict)
        for name, table in tables.items():
            where = f"[{kind}.{name}]"
            if not _exists(kind, name):
                valid = data.dataset_names() if kind == "dataset" else registry.METHODS.names()
                raise InputError(f"{path}: {where}: {UnknownNameError(kind, name, valid)}")
            _expect_valid_table(path, where, table, without=own)
    grids = content.get("grid", [{}])
    _expect(path, "[[grid]]", grids, list)
    if not grids:
        raise InputError(f"{path}: there is no [[grid]] in grid = []: add one, or remove that line")
    for number, table in enumerate(grids, start=1):
        _expect_valid_table(path, f"[[grid]] {number}", table)


def _exists(kind: str, name: str) -> bool:
    if kind == "dataset":
        return is_path(name) or data.is_known(name)
    return name in registry.METHODS


def _expect(path: Path, where: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        wanted = "a table" if kind is dict else "a list of tables"
        raise InputError(f"{path}: {where} must be {wanted}, not {quoted(value)}")


def _expect_valid_table(path: Path, where: str, table: Table, without: str = "") -> None:
    """Raises an error for an invalid option of a table; `without` names one more that is not
    allowed there."""
    _expect(path, where, table, dict)
    for name, value in table.items():
        valid = [option for option in OPTIONS if option != without]
        if name not in valid:
            raise UnknownNameError(f"key of {path} {where}", name, valid)
        key = f"{path}: {where} {name}"
        if name == "set":
            _expect_valid_settings(key, value)
            continue
        values = value if isinstance(value, list) and name != "seeds" else [value]
        if not values:
            raise InputError(f"{key} is an empty list")
        for alternative in values:
            expect_type(key, alternative, OPTIONS[name])
            _expect_in_range(key, name, alternative)


def _expect_in_range(key: str, name: str, value: Any) -> None:
    least, most = LEAST.get(name, -LARGEST_INT), MOST.get(name, LARGEST_INT)
    if isinstance(value, int) and not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InputError(f"{key} must be {limit}, not {value}")


def _expect_valid_settings(key: str, settings: Any) -> None:
    expect_type(key, settings, dict)
    for name, value in settings.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            raise InputError(f"{key}.{name} is an empty list")
        for alternative in values:
            expect_type(f"{key}.{name}", alternative, str | int | float | bool)


# ---- from tables to jobs


def _tables(path: Path, where: str, content: Table, grid: Table) -> Iterator[Table]:
    """Yields a table for each method and dataset of a grid, merged from all tables of the file that
    apply to them."""
    defaults = content.get("defaults", {})
    methods = grid.get("methods", defaults.get("methods"))
    if methods is None:
        raise InputError(f"{path}: {where} names no methods; write methods = [...]")
    for method in _all_methods(methods):
        own = content.get("method", {}).get(method, {})
        for dataset in _listed(_merged(defaults, own, grid).get("dataset", Job.dataset)):
            theirs = content.get("dataset", {}).get(dataset, {})
            merged = _merged(defaults, theirs, own, grid)
            yield {**merged, "methods": method, "dataset": dataset}


def _all_methods(methods: Any) -> list[str]:
    """Returns the methods; `all` stands for every registered method, as on the command line."""
    names = _listed(methods)
    return [info.key for info in registry.methods()] if "all" in names else names


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _merged(*tables: Table) -> Table:
    """Returns one table in which later tables override earlier ones, and settings in `set` one by
    one."""
    merged: Table = {}
    for table in tables:
        settings = {**merged.get("set", {}), **table.get("set", {})}
        merged = {**merged, **table, "set": settings}
    return merged


def _axes(table: Table) -> dict[str, list[Any]]:
    """Returns the alternatives of every option, and those of every setting in `set` under its name
    after a dot. `seeds` becomes the list of all seeds."""
    axes = {name: _listed(value) for name, value in table.items() if name not in ("set", "probe")}
    if "seeds" in axes:
        (count,) = axes.pop("seeds")
        axes["seed"] = [seed + n for seed in axes.get("seed", [Job.seed]) for n in range(count)]
    return axes | {f".{name}": _listed(value) for name, value in table["set"].items()}


def _count(table: Table) -> int:
    """Returns how many runs a table makes, without making them."""
    return math.prod(len(values) for values in _axes(table).values())


def _jobs(path: Path, where: str, table: Table, here: Table) -> Iterator[Job]:
    axes = _axes(table)
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        try:
            job = _job(path, chosen, tuple(_listed(table.get("probe", []))), here)
            _expect_known_names(job)
        except OnepassError as problem:
            run = f"{chosen['methods']} on {chosen['dataset']}"
            raise InputError(f"{path}: {where}: {run}: {problem}") from None
        yield job


def _job(path: Path, chosen: Table, watched: tuple[str, ...], here: Table) -> Job:
    from onepass.learning.network_learner import NetworkLearner

    settings = {
        name[1:]: toml.toml_value_as_text(value, name[1:])
        for name, value in chosen.items()
        if name.startswith(".")
    }
    plugins.expect_user_named(settings.get("net"), str(path))
    for name in ("engine", "precision"):
        if name in chosen and name in settings:
            raise InputError(f"{name} and set.{name} are the same setting: give only one of them")
        # A default stays out of the settings, so the run is the same as one that does not name it.
        if chosen.get(name, getattr(NetworkLearner, name)) != getattr(NetworkLearner, name):
            settings[name] = chosen[name]
    options = {name: chosen[key] for name in FIELDS if (key := name.replace("_", "-")) in chosen}
    if is_path(options["dataset"]) and not Path(options["dataset"]).is_absolute():
        options["dataset"] = f"{path.parent}/{options['dataset']}"
    if "test" in options and not Path(options["test"]).is_absolute():
        options["test"] = f"{path.parent}/{options['test']}"
    if chosen.get("mirror-is-another-class"):
        options["mirror_is_same_class"] = False
    return Job(method=chosen["methods"], settings=settings, probes=watched, **options, **here)


def _expect_known_names(job: Job) -> None:
    """Raises an error if the dataset, a setting, the stream or a probe is not valid. Does not load
    data."""
    if not job.has_own_data and not data.is_known(job.dataset):
        raise UnknownNameError("dataset", job.dataset, data.dataset_names())
    job.chosen_settings()
    job.chosen_stream()
    probes.expect_probes(job.probes)


def without_repeats(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Returns each run once, at its first position. Runs are the same if their folders have the
    same name, so jobs on the user's own data must have their fingerprints."""
    first: dict[str, PlannedRun] = {}
    for run in planned:
        first.setdefault(run.job.folder_name, run)
    return list(first.values())
