"""Checks a setting against its annotation, and reads one from text."""

from __future__ import annotations

import ast
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from onepass.errors import InputError


def check(name: str, value: object, annotation: Any) -> None:
    """Raises an InputError if the value is not of the annotated type.

    >>> check("lr", "fast", float)
    Traceback (most recent call last):
    ...
    onepass.errors.InputError: lr must be a number, not 'fast'
    """
    if not _fits(value, annotation):
        raise InputError(f"{name} must be {_say(annotation)}, not {value!r}")


def read(name: str, text: str, annotation: Any) -> Any:
    """A value from `--set name=text`.

    >>> read("lr", "5e-4", float), read("mirror", "true", bool), read("fill", "none", int | None)
    (0.0005, True, None)
    """
    if _fits(text, annotation):
        return text
    words = {"true": True, "false": False, "none": None}
    try:
        value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    check(name, value, annotation)
    return value


def _fits(value: object, annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, arguments[0]) for one in value)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _say(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(str(one) for one in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_say(one) for one in arguments)
    if origin is tuple:
        return f"a tuple, each {_say(arguments[0])}"
    plain = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a name",
        NoneType: "none",
    }
    return plain.get(annotation, f"a {annotation.__name__}")
