"""TOML files, and the settings in them as text, in the form that `--set` takes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from onepass.base import plugins
from onepass.base.errors import InputError
from onepass.base.text import BYTE_ORDER_MARK, describe_encoding

# What the parser says of a string that does not end, on its line or at all
OPEN_QUOTE = re.compile(
    r"(Illegal|Found invalid) character '\\n'|Expected \"'\"|Unterminated string"
)


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the content of a TOML file; raises an InputError that names the file if it is
    missing, unreadable or not TOML."""
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"there is no file {path}") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise InputError(f"{path} {describe_encoding(problem)}") from None
    if text.startswith(BYTE_ORDER_MARK):
        raise InputError(f"{path} begins with a byte order mark: save it as UTF-8 without BOM")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as problem:
        said = OPEN_QUOTE.sub("a quote is not closed", str(problem))
        raise InputError(f"{path} is not TOML: {said}") from None


def read_settings_file(path: Path) -> dict[str, str]:
    """Returns the settings of a file as text. Raises an InputError if it asks for a network of the
    user's own code that the user has not named."""
    settings = {
        name: toml_value_as_text(value, f"{path}: {name}")
        for name, value in read_toml(path).items()
    }
    plugins.expect_user_named(settings.get("net"), str(path))
    return settings


def toml_value_as_text(value: object, name: str) -> str:
    """Returns a TOML value as text for `--set name=`; raises an InputError for a table, a date or a
    list that holds one. `name` is for the message.

    >>> toml_value_as_text(True, "mirror"), toml_value_as_text([0.5], "mean")
    ('true', '(0.5,)')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return repr(tuple(value))
    raise InputError(f"{name} must be a number, a text, true, false or a list of these")


def settings_as_toml(settings: dict[str, str]) -> str:
    """Returns TOML text from which `read_settings_file` reads the same settings.

    >>> print(settings_as_toml({"lr": "5e-4", "replay": "64", "head": "frozen"}), end="")
    lr = "5e-4"
    replay = 64
    head = "frozen"
    """
    return "".join(f"{name} = {_format_value(text)}\n" for name, text in settings.items())


def _format_value(text: str) -> str:
    """Returns the text itself if it is a number or boolean that TOML writes in the same way, else
    as a TOML string."""
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except ValueError:
        value = None
    same = isinstance(value, bool | int | float) and toml_value_as_text(value, "") == text
    # TOML forbids the character DEL in strings, but JSON does not escape it
    return text if same else json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
