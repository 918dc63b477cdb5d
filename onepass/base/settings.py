"""Settings: the constructor keywords of a class, checked against their types, listed for users, and
read from text.

A configurable class is a dataclass. Its init fields are its settings, and an instance keeps them
unchanged.
"""

from __future__ import annotations

import ast
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.text import quoted, short_value

LARGEST_INT = 2**63 - 1
T = TypeVar("T")


class Setting(NamedTuple):
    """A constructor argument as listed for users. The default is text as `--set` takes it, or "" if
    the argument is required."""

    name: str
    type: str
    default: str
    meaning: str


class Preset(NamedTuple):
    """Settings of a method that belong together, on top of those of its preset `common`, and their
    source.

    `unmirrored` are the settings to change for data whose mirror images are of another class
    (digits). A preset that sets `mirror` to true and has none is refused for them.
    """

    settings: dict[str, Any]
    source: str
    unmirrored: dict[str, Any] | None = None


def setting_names(cls: type) -> list[str]:
    """Returns the names of a class's settings: the init fields of a dataclass."""
    return [setting.name for setting in fields(cls) if setting.init]


def non_defaults(configured: Any) -> dict[str, Any]:
    """Returns the settings whose values differ from the defaults."""
    usual = {setting.name: setting.default for setting in fields(configured) if setting.init}
    found = {name: getattr(configured, name) for name in usual}
    return {
        name: value
        for name, value in found.items()
        if value is not usual[name] and value != usual[name]
    }


def constructor_call(configured: Any) -> str:
    """Returns the constructor call of an object as text for display: without the defaults, and with
    long values cut."""
    given = (f"{name}={short_value(value)}" for name, value in non_defaults(configured).items())
    return f"{type(configured).__name__}({', '.join(given)})"


def describe_settings(cls: type) -> list[Setting]:
    """Returns a description of each setting, beginning with those of the class itself; the meanings
    come from its docstring and those of its bases."""
    hints, meanings = _setting_types(cls), _parameter_texts(cls)
    annotated = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
    settings = {setting.name: setting for setting in fields(cls) if setting.init}
    ordered = [settings[name] for name in dict.fromkeys(annotated) if name in settings]
    return [
        Setting(
            name=setting.name,
            type=_describe_type(hints[setting.name]),
            default="" if setting.default is MISSING else format_setting(setting.default),
            meaning=meanings.get(setting.name, ""),
        )
        for setting in ordered
    ]


def parse_settings(cls: type, texts: dict[str, str]) -> dict[str, Any]:
    """Returns constructor arguments parsed from text, as `--set` takes them. Raises an error for an
    unknown name, and for a text that does not fit its setting's type."""
    hints = _setting_types(cls)
    for name in texts:
        expect_setting_name(cls, name)
    return {
        name: parse_setting(qualified_name(cls, name), text, hints[name])
        for name, text in texts.items()
    }


@cache
def _setting_types(cls: type) -> dict[str, Any]:
    """Returns the types of the settings; cached, because resolving them is slow and a sweep does so
    for thousands of jobs."""
    return get_type_hints(cls)


def construct(cls: type[T], **chosen: Any) -> T:
    """Returns a new object with these settings. Raises an UnknownNameError, which suggests a
    similar name, for an unknown setting."""
    for name in chosen:
        expect_setting_name(cls, name)
    return cls(**chosen)


def expect_setting_name(cls: type, name: str) -> None:
    """Raises an UnknownNameError if the class has no such setting."""
    if name not in setting_names(cls):
        raise UnknownNameError(f"setting of {_registered_name(cls)!r}", name, setting_names(cls))


def convert_settings(configured: Any) -> None:
    """Converts an object's settings in place: NumPy scalars to Python's, which files can hold and
    which do not overflow, and whole numbers to float where the setting is a float."""
    cls: type = type(configured)
    for name in setting_names(cls):
        setattr(configured, name, _as_plain(getattr(configured, name), _setting_types(cls)[name]))


def expect_setting_types(configured: Any) -> None:
    """Raises an InputError if a setting does not have its type."""
    cls: type = type(configured)
    for name in setting_names(cls):
        expect_type(qualified_name(cls, name), getattr(configured, name), _setting_types(cls)[name])


def require(configured: Any, name: str, holds: bool, wanted: str) -> None:
    """Raises an InputError unless `holds`. The message says that the setting `name` must be
    `wanted` and what it is."""
    if not holds:
        value = quoted(getattr(configured, name))
        raise InputError(f"{qualified_name(type(configured), name)} must be {wanted}, not {value}")


def qualified_name(cls: type, name: str) -> str:
    """Returns a setting's name for a message, after the name of its class: "er: lr"."""
    return f"{_registered_name(cls)}: {name}" if _registered_name(cls) else name


def _registered_name(cls: type) -> str:
    """Returns the name by which a class is registered, or ""."""
    return getattr(cls, "key", "")


def _as_plain(value: Any, annotation: Any) -> Any:
    """Returns a value as plain Python. A plain value stays the same object, which scikit-learn's
    `clone` requires.

    >>> _as_plain(10, float), _as_plain((1, 2), tuple[float, ...] | None)
    (10.0, (1.0, 2.0))
    >>> _as_plain(10, int | float)
    10
    """
    if isinstance(value, tuple):
        made = tuple(_as_plain(item, annotation) for item in value)
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        integer = int(value)
        becomes_float = _takes_only_floats(annotation) and abs(integer) <= LARGEST_INT
        return float(integer) if becomes_float else integer
    if isinstance(value, Real):
        return float(value)
    return str(value) if isinstance(value, str) else value


def _takes_only_floats(annotation: Any) -> bool:
    """Returns whether numbers of this type are floats: it is float or a union without int."""
    kinds = get_args(annotation)
    return annotation is float or (int not in kinds and any(map(_takes_only_floats, kinds)))


def expect_type(name: str, value: object, annotation: Any) -> None:
    """Raises an InputError if a value does not have the annotated type, or is an integer of more
    than 64 bits, which tensors and files cannot hold.

    >>> expect_type("lr", "fast", float)
    Traceback (most recent call last):
    ...
    onepass.base.errors.InputError: lr must be a number, not 'fast'
    """
    _expect_kind(name, value, annotation)
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, int) and not -LARGEST_INT <= item <= LARGEST_INT:
            raise InputError(f"{name} must be a number of at most 64 bits, not {quoted(item)}")


def parse_setting(name: str, text: str, annotation: Any) -> Any:
    """Returns the value of `--set name=text`; raises an InputError if it does not fit the type.

    >>> parse_setting("lr", "5e-4", float), parse_setting("encoder", "none", str | None)
    (0.0005, None)
    """
    if text.lower() == "none" and _matches(None, annotation):
        return None  # also where any text would do
    if _matches(text, annotation):
        return text
    words = {"true": True, "false": False, "none": None}
    try:
        with warnings.catch_warnings(action="ignore"):  # literal_eval warns of invalid escapes
            value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = text
    _expect_kind(name, value, annotation)
    return value


def format_setting(value: object) -> str:
    """Returns the text from which `parse_setting` reads this value.

    >>> format_setting(True), format_setting(None), format_setting(1e-3), format_setting((0.5,))
    ('true', 'none', '0.001', '(0.5,)')
    """
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def _parameter_texts(documented: type) -> dict[str, str]:
    """Returns the descriptions of parameters by name, from the sections `Parameters` in the
    docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for cls in reversed(documented.__mro__):  # a class's own text replaces that of its bases
        text = inspect.cleandoc(vars(cls).get("__doc__") or "")
        section = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
        names: list[str] = []
        for line in section.splitlines():
            if not line.startswith(" "):
                names = line.split(", ")
                found |= dict.fromkeys(names, "")
            else:
                found |= {name: f"{found[name]} {line.strip()}".lstrip() for name in names}
    return found


def _expect_kind(name: str, value: object, annotation: Any) -> None:
    if not _matches(value, annotation):
        raise InputError(f"{name} must be {_describe_type(annotation)}, not {quoted(value)}")


def _matches(value: object, annotation: Any) -> bool:
    """Returns whether a value has the annotated type. A float may be an int but must be finite;
    True and False are no numbers."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(_matches(value, member) for member in arguments)
    if origin in (tuple, list, dict):
        return isinstance(value, origin) and _items_match(value, arguments)
    if annotation is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (isinstance(value, int) or math.isfinite(value))  # type: ignore[arg-type]
    if annotation is int:  # True is an int to Python, but not a number to users
        return isinstance(value, int) and not isinstance(value, bool)
    return callable(value) if origin is Callable else isinstance(value, annotation)


def _items_match(value: Any, arguments: tuple[Any, ...]) -> bool:
    """Returns whether the items of a tuple, a list or a dict have the annotated types."""
    if isinstance(value, dict):
        key, inner = arguments
        return all(_matches(name, key) and _matches(item, inner) for name, item in value.items())
    return all(_matches(item, arguments[0]) for item in value)


def _describe_type(annotation: Any) -> str:
    """Returns a type in words for users, for example "a whole number or none"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(str(choice) for choice in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_describe_type(member) for member in arguments)
    if origin is tuple:
        return f"a tuple, each {_describe_type(arguments[0])}"
    if origin is Callable:
        return "a function"
    plain = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a name",
        NoneType: "none",
    }
    return plain.get(annotation, f"a {annotation.__name__}")
