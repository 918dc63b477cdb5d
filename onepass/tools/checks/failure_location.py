"""Finds the line of a method's own file that a failed check points to."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb

METHODS = "onepass.methods."


def locate_failure(failure: BaseException, method: type, at: str = "") -> str:
    """Returns `file:line, in name` for a failure.

    This is the innermost line of the traceback that lies in the method's own files. If there is
    none, it is the definition of the first function in `at` (names separated by spaces) that these
    files define, or else of the class.
    """
    own = _modules_of_method(method)
    for problem in _causes(failure):
        lines = [  # a file name that starts with "<" is generated code, as of a dataclass
            (frame.f_code.co_filename, number, frame.f_code.co_qualname)
            for frame, number in walk_tb(problem.__traceback__)
            if frame.f_globals.get("__name__") in own and frame.f_code.co_filename[:1] != "<"
        ]
        if lines:
            file, number, name = lines[-1]
            return _format_location(file, number, name)
    return _locate_definition(method, at.split(), own)


def _modules_of_method(method: type) -> set[str]:
    """Returns the modules that define the method and its base classes.

    For a method of onepass these are modules of `onepass.methods`; for a user's they are only those
    outside onepass.
    """
    found = {cls.__module__ for cls in method.__mro__}
    if method.__module__.startswith(METHODS):
        return {module for module in found if module.startswith(METHODS)}
    return {module for module in found if not module.startswith("onepass.")}


def _causes(failure: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, then the errors that it was raised from, the nearest first."""
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _locate_definition(method: type, names: list[str], own: set[str]) -> str:
    """Returns the location of the first of these functions that `own` modules define.

    If there is none, it is the location of the class.
    """
    for name in names:
        found = inspect.getattr_static(method, name, None)
        found = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
        if inspect.isfunction(found) and found.__module__ in own:
            file, first = found.__code__.co_filename, found.__code__.co_firstlineno
            return _format_location(
                file, _line_after_decorators(file, first, "def "), found.__qualname__
            )
    try:
        file, first = inspect.getfile(method), inspect.getsourcelines(method)[1]
    except (OSError, TypeError):  # a class typed at a prompt has no source file
        return f"in {method.__qualname__}"
    return _format_location(
        file, _line_after_decorators(file, first, "class "), method.__qualname__
    )


def _line_after_decorators(file: str, first: int, word: str) -> int:
    """Returns the line of the `def` or `class` whose first decorator, if any, is at `first`."""
    lines = enumerate(linecache.getlines(file)[first - 1 :], first)
    return next((number for number, line in lines if line.lstrip().startswith(word)), first)


def _format_location(file: str, line: int, name: str) -> str:
    path, here = Path(file), Path.cwd()
    short = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{short}:{line}, in {name}"
