"""TOML files, and settings in them: as text, as `--set` takes them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from onepass.base import plugins
from onepass.base.errors import InputError


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a file; whatever is wrong with it is one line that names it."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"there is no file {path}") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path} is not TOML: {problem}") from None


def read_settings_file(path: Path) -> dict[str, str]:
    """Constructor arguments of a file that holds nothing else."""
    settings = {
        name: toml_value_as_text(value, f"{path}: {name}")
        for name, value in read_toml(path).items()
    }
    plugins.expect_user_named(settings.get("net"), str(path))
    return settings


def toml_value_as_text(value: object, name: str) -> str:
    """As somebody would write it after `--set name=`.

    >>> toml_value_as_text(True, "mirror"), toml_value_as_text([0.5], "mean")
    ('true', '(0.5,)')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return repr(tuple(value))
    raise InputError(f"{name} must be a number, a text, true, false or a list of these")


def settings_as_toml(settings: dict[str, str]) -> str:
    """Lines of TOML from which `read_settings_file` gives the same texts.

    >>> print(settings_as_toml({"lr": "5e-4", "replay": "64", "head": "frozen"}), end="")
    lr = "5e-4"
    replay = 64
    head = "frozen"
    """
    return "".join(f"{name} = {_format_value(text)}\n" for name, text in settings.items())


def _format_value(text: str) -> str:
    """A number, true or false, if it would be read as just this text; otherwise a string."""
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except ValueError:
        value = None
    plain = isinstance(value, bool | int | float) and toml_value_as_text(value, "") == text
    return text if plain else json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
