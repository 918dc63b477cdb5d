"""Reads the file of a search: the settings to search, and options for all of its runs.

[space]
lr = {low = 1e-4, high = 1e-2, log = true}

[defaults]
dataset = "cifar100"
memory = 1000
set = {mirror = true}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from onepass.base import plugins, toml
from onepass.base.errors import InputError, UnknownNameError
from onepass.base.settings import expect_type
from onepass.learning import registry
from onepass.runs.spec import Job
from onepass.tuning.space import Space

TABLES = ("space", "defaults")
# Options of `onepass run`, by their names there
FIXED = (
    *("dataset", "image_size", "test_fraction", "normalise", "memory", "stream", "tasks", "batch"),
    *("class_order", "preset", "validation", "every", "threads", "deterministic", "label", "test"),
)
OPTIONS: dict[str, Any] = {
    "set": dict,
    "seeds": int,
    **{name.replace("_", "-"): get_type_hints(Job)[name] for name in FIXED},
}
LEAST = dict.fromkeys(["seeds", "image-size", "tasks", "batch", "every", "threads"], 1) | {
    "memory": 0
}
WITHOUT_FILE = Path("the search")  # stands for the file in errors if the space is a dictionary


def read_space_file(source: Path | Mapping[str, Any], method: str) -> tuple[Space, dict[str, Any]]:
    """Returns the space of a file, or of a dictionary with the content of one, and the options of
    its [defaults] by the names of a job's fields. Two options are no fields: `seeds`, if the file
    has it, and `set`, the settings as texts."""
    file = source if isinstance(source, Path) else WITHOUT_FILE
    content = toml.read_toml(source) if isinstance(source, Path) else dict(source)
    for name in content:
        if name not in TABLES:
            raise UnknownNameError(f"table of {file}", name, TABLES)
    table = content.get("defaults", {})
    if not isinstance(table, dict):
        raise InputError(f"{file}: defaults must be a table: write [defaults] above its options")
    for name, value in table.items():
        if name not in OPTIONS:
            raise UnknownNameError(f"option in {file}", name, OPTIONS)
        expect_option(f"{file}: {name}", name, value)
    options = {name.replace("-", "_"): value for name, value in table.items()}
    options["set"] = as_texts(table.get("set", {}))
    for net in (options["set"].get("net"), *_choices(content.get("space"), "net")):
        plugins.expect_user_named(net, str(file))
    return Space.read(content.get("space"), registry.get(method).learner, str(file)), options


def expect_option(where: str, name: str, value: Any) -> None:
    """Raises an InputError, which begins with `where`, if the value of an option is not valid."""
    expect_type(where, value, OPTIONS[name])
    if value is not None and name in LEAST and value < LEAST[name]:
        raise InputError(f"{where} must be at least {LEAST[name]}, not {value}")


def as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings with their values as texts, which `--set` would accept."""
    return {name: toml.toml_value_as_text(value, name) for name, value in settings.items()}


def _choices(space: Any, name: str) -> list[Any]:
    """Returns the choices of a setting in a table [space]; empty if it has none or is a range."""
    values = space.get(name) if isinstance(space, dict) else None
    return values if isinstance(values, list) else []
