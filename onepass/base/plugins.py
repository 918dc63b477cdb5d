"""Code that others wrote: modules that the user names, and packages that are installed.

Nothing else is imported. A file (a checkpoint, settings, a space) may say which module it needs;
whether that is imported is for the user to say.
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
_user_named: set[str] = set()  # by the user, in this process


def import_modules(modules: Sequence[str]) -> None:
    """Imports modules that the user has named; what they register can be used from here on. They
    are looked for in the present folder too, after everywhere else."""
    for module in modules:
        parts = module.split(".")
        if not all(part.isidentifier() for part in parts) or parts[-1] == "py":  # a file's name
            raise InputError(
                f"a module is named as in Python, such as my.module, not {quoted(module)}"
            )
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        try:
            import_module(module)
        except ModuleNotFoundError as problem:
            if problem.name is None or not f"{module}.".startswith(f"{problem.name}."):
                raise _import_error(module, problem) from problem
            raise InputError(
                f"there is no module {module!r}: install it, or run this where it lies"
            ) from None
        except Exception as problem:  # whatever it does
            raise _import_error(module, problem) from problem
        _user_named.add(module)


def _import_error(module: str, problem: Exception) -> InputError:
    return InputError(f"the module {module!r} cannot be imported: {_describe_error(problem)}")


def _describe_error(problem: Exception) -> str:
    """Words of our own say enough; others come with the name of their error."""
    kind = "" if isinstance(problem, OnepassError) else f"{type(problem).__name__}: "
    return shortened(f"{kind}{' '.join(str(problem).split())}")


def import_reference(reference: str) -> Any:
    """What `package.module:name` stands for: to write that is to name the module.

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
    """Whether the user has named the module of a network, or its package, in this process, or has
    installed what brings it."""
    module = reference.partition(":")[0]
    if any(f"{module}.".startswith(f"{one}.") for one in _user_named):
        return True
    return reference in (one.value for one in installed_entry_points(NETWORKS).values())


def expect_user_named(setting: object, where: str) -> None:
    """A network that a file asks for as `module:name` is code: it is imported, and called, only if
    the user has named it."""
    if isinstance(setting, str) and ":" in setting and not user_named(setting):
        module = setting.partition(":")[0]
        raise InputError(
            f"{where} asks for the network {quoted(setting)}, which is code: if you trust it, name "
            f"its module, with --import {shortened(module)} or imports=[...]"
        )


# ---- installed packages


@cache
def installed_entry_points(group: str) -> dict[str, EntryPoint]:
    """What installed packages bring of one kind, by name; nothing is imported yet."""
    from importlib.metadata import entry_points

    return {one.name: one for one in entry_points(group=group)}


def load_entry_point(entry: EntryPoint, what: str) -> None:
    """Imports what an installed package brings, which thereby registers itself."""
    try:
        entry.load()
    except Exception as problem:  # whatever it does
        package = entry.dist.name if entry.dist else entry.value
        raise InputError(
            f"the {what} {entry.name!r} of the package {package!r} cannot be loaded: "
            f"{_describe_error(problem)}"
        ) from problem
