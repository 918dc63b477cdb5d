"""Foreign code: modules that the user names, and installed packages with our entry points.

Nothing else is imported. A file (a checkpoint, settings, a search space) may name a module that it
needs, but only the user can allow its import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.base.errors import InputError, OnepassError
from onepass.base.text import quoted, shortened

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NETWORKS = "onepass.networks"
_user_named: set[str] = set()  # modules that the user has named in this process


def import_modules(modules: Sequence[str]) -> None:
    """Imports modules that the user named, so that what they register can be used. The current
    folder is searched too, last. Raises an InputError if an import fails."""
    for module in modules:
        parts = module.split(".")
        if not all(part.isidentifier() for part in parts) or parts[-1] == "py":  # a file name
            raise InputError(
                f"a module must be named as in Python (my.module), not {quoted(module)}"
            )
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        try:
            import_module(module)
        except ModuleNotFoundError as problem:
            # the named module exists, and one that it imports does not
            if problem.name is None or not f"{module}.".startswith(f"{problem.name}."):
                raise _import_error(module, problem) from problem
            raise InputError(
                f"there is no module {module!r}: install it, or run onepass in its folder"
            ) from None
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # foreign code may raise anything, SystemExit too
            raise _import_error(module, problem) from problem
        _user_named.add(module)


def _import_error(module: str, problem: BaseException) -> InputError:
    return InputError(f"the module {module!r} cannot be imported: {_describe_error(problem)}")


def _describe_error(problem: BaseException) -> str:
    """Returns an error's text in one line; an error that is not ours comes with its type."""
    kind = "" if isinstance(problem, OnepassError) else f"{type(problem).__name__}: "
    return shortened(f"{kind}{' '.join(str(problem).split())}").rstrip(": ")


def import_reference(reference: str) -> Any:
    """Returns the object that the user named as `package.module:name`; imports its module. Raises
    an InputError if there is none.

    >>> import_reference("onepass.base.errors:InputError")
    <class 'onepass.base.errors.InputError'>
    """
    module, _, name = reference.partition(":")
    import_modules([module])
    try:
        return attrgetter(name)(sys.modules[module])
    except AttributeError:
        raise InputError(f"the module {module!r} has no {quoted(name)}") from None


def user_named(reference: str) -> bool:
    """Returns whether the user has allowed a network `module:name`: by naming its module, or a
    package around it, in this process, or by installing a package that declares it."""
    module = reference.partition(":")[0]
    if any(f"{module}.".startswith(f"{name}.") for name in _user_named):
        return True
    return reference in (entry.value for entry in installed_entry_points(NETWORKS).values())


def expect_user_named(setting: object, where: str) -> None:
    """Raises an InputError if a file asks for a network `module:name` that the user has not named:
    importing and calling it would run foreign code."""
    if isinstance(setting, str) and ":" in setting and not user_named(setting):
        module = setting.partition(":")[0]
        raise InputError(
            f"{where} asks for the network {quoted(setting)}, which is code: if you trust it, name "
            f"its module with --import {shortened(module)} or imports=[...]"
        )


# ---- installed packages


@cache
def installed_entry_points(group: str) -> dict[str, EntryPoint]:
    """Returns the entry points of a group by name; imports none of them."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=group)}


def load_entry_point(entry: EntryPoint, what: str) -> None:
    """Imports an entry point, which registers itself. Raises an InputError if that fails; `what`
    ("method", "dataset") names it in the message."""
    try:
        entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # foreign code may raise anything, SystemExit too
        package = entry.dist.name if entry.dist else entry.value
        raise InputError(
            f"the {what} {entry.name!r} of the package {package!r} cannot be loaded: "
            f"{_describe_error(problem)}"
        ) from problem
