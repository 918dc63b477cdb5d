"""The errors of onepass: an `OnepassError` is one that the user can correct, a `TrainingError` is a
failure of training itself."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from onepass.base.text import LONGEST, quoted


class OnepassError(Exception):
    """An error whose message says in one line what is wrong and what is valid. The command line
    exits with status 2."""


class InputError(OnepassError, ValueError):
    """An argument is invalid: a batch, a label, a setting or an option."""


class TooLargeError(InputError):
    """Settings or samples need more RAM or GPU memory than this machine has."""


class UnknownNameError(OnepassError, LookupError):
    """No method, dataset, setting or other entry has this name. The message lists the valid names
    and suggests one that is similar."""

    def __init__(self, kind: str, name: str, valid: Iterable[str], more: str = "") -> None:
        names = sorted(valid)
        near = get_close_matches(name[:LONGEST], names, cutoff=0.5)
        near.sort(key=lambda known: sorted(known) != sorted(name))  # first: letters in wrong order
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(names) or "none"
        super().__init__(f"unknown {kind} {quoted(name)}.{hint} Valid: {known}.{more}")


class NotFittedError(OnepassError, ValueError, AttributeError):
    """A learner cannot predict, or be inspected, because it has learned from no batch yet."""


class DataError(OnepassError):
    """A dataset is missing, incomplete or damaged."""


class CheckpointError(OnepassError):
    """A file is not a checkpoint, is damaged, or does not fit this learner, method or version."""


class MissingEntryError(CheckpointError, KeyError):
    """A saved state lacks an entry."""

    __str__ = Exception.__str__  # a KeyError puts its message in quotes


class WriteError(OnepassError, OSError):
    """A file could not be written or appended to; its previous content is intact."""


class RunError(OnepassError):
    """A run folder or a results file is missing, foreign, damaged or unwritable, or the folder of a
    new run exists already. A run that fails while it trains raises a `TrainingError`."""


class BusyError(RunError):
    """Another process has locked this run's folder."""


class TrainingError(RuntimeError):
    """A run failed while it trained: it diverged, met an unexpected error, or was killed. The
    command line exits with status 1."""


def error_name(problem: BaseException) -> str:
    """Returns the name of the error's class, or of its nearest base class, in this module; "" if
    none is defined here.

    >>> error_name(DataError("no file")), error_name(KeyError("lr"))
    ('DataError', '')
    """
    return next((cls.__name__ for cls in type(problem).__mro__ if cls.__module__ == __name__), "")


def rebuild_error(name: str, text: str) -> Exception:
    """Returns an error of the class with this name in this module. Another process raised it, and
    sent its name and text.

    >>> rebuild_error("UnknownNameError", "unknown method 'gsaa'")
    UnknownNameError("unknown method 'gsaa'")
    """
    kind: type[Exception] = globals()[name]
    return kind.__new__(kind, text)  # not __init__: it may take other arguments than the text
