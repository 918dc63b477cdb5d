"""What can go wrong, in the user's words. An `OnepassError` is something that the user can mend."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from onepass.base.text import LONGEST, quoted


class OnepassError(Exception):
    """One clear line on what was wrong and what is valid; the command line exits with 2."""


class InputError(OnepassError, ValueError):
    """A batch, a label or a setting is not what it has to be."""


class TooLargeError(InputError):
    """Settings, or samples, for which this machine has no room."""


class UnknownNameError(OnepassError, LookupError):
    """A method, dataset or setting that does not exist."""

    def __init__(self, kind: str, name: str, valid: Iterable[str], more: str = "") -> None:
        names = sorted(valid)
        near = get_close_matches(name[:LONGEST], names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(names) or "none"
        super().__init__(f"unknown {kind} {quoted(name)}.{hint} Valid: {known}.{more}")


class NotFittedError(OnepassError, ValueError, AttributeError):
    """A prediction was asked of a learner that has seen no batch."""


class DataError(OnepassError):
    """A dataset that is missing, incomplete or damaged."""


class CheckpointError(OnepassError):
    """A file that is no checkpoint of ours, or not of this method or version."""


class MissingEntryError(CheckpointError, KeyError):
    """A saved state lacks an entry."""

    __str__ = Exception.__str__  # a KeyError would show its text in quotes


class WriteError(OnepassError, OSError):
    """A file could not be written; the one that was there before is still there."""


class RunError(OnepassError):
    """A run folder that exists already, belongs to other settings, or cannot be written."""


class BusyError(RunError):
    """A run that another process is at just now."""


class TrainingError(RuntimeError):
    """Training itself failed; the command line exits with 1."""


def error_name(problem: BaseException) -> str:
    """Returns the name of the class here that an error is of, or derives from; empty if of none.

    >>> error_name(DataError("no file")), error_name(KeyError("lr"))
    ('DataError', '')
    """
    return next((one.__name__ for one in type(problem).__mro__ if one.__module__ == __name__), "")


def rebuild_error(name: str, text: str) -> Exception:
    """Returns the error of a class here that has this text, as another process had it.

    >>> rebuild_error("UnknownNameError", "unknown method 'gsaa'")
    UnknownNameError("unknown method 'gsaa'")
    """
    kind: type[Exception] = globals()[name]
    return kind.__new__(kind, text)  # without __init__, which may take other arguments
