"""Where in a method's own file to look for the reason of a failure."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb

METHODS = "onepass.methods."


def locate_failure(failure: BaseException, method: type, at: str = "") -> str:
    """Returns `file:line, in name`: the innermost line of the method's own files that the failure
    passed through; where it passed through none, the line of the first of the functions `at`
    (names, separated by spaces) that these files define, or else of the class."""
    own = _modules_of_method(method)
    for problem in _causes(failure):
        lines = [
            (frame.f_code.co_filename, number, frame.f_code.co_qualname)
            for frame, number in walk_tb(problem.__traceback__)
            if frame.f_globals.get("__name__") in own and frame.f_code.co_filename[:1] != "<"
        ]
        if lines:
            file, number, name = lines[-1]
            return _format_location(file, number, name)
    return _locate_definition(method, at.split(), own)


def _modules_of_method(method: type) -> set[str]:
    """Returns the modules that define the method; those of onepass only for a method of ours."""
    found = {cls.__module__ for cls in method.__mro__}
    if method.__module__.startswith(METHODS):
        return {module for module in found if module.startswith(METHODS)}
    return {module for module in found if not module.startswith("onepass.")}


def _causes(failure: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, and those that it was raised from."""
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__


def _locate_definition(method: type, names: list[str], own: set[str]) -> str:
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
    except (OSError, TypeError):  # typed at a prompt
        return f"in {method.__qualname__}"
    return _format_location(
        file, _line_after_decorators(file, first, "class "), method.__qualname__
    )


def _line_after_decorators(file: str, first: int, word: str) -> int:
    """Returns the line of the `def` or `class` that begins, by a decorator perhaps, at a line."""
    lines = enumerate(linecache.getlines(file)[first - 1 :], first)
    return next((number for number, line in lines if line.lstrip().startswith(word)), first)


def _format_location(file: str, line: int, name: str) -> str:
    path, here = Path(file), Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"{shown}:{line}, in {name}"
