"""The command line. Each command has one file, which parses the arguments and prints the outcome.

This package may import every other one, and no other package imports it.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from onepass.base.errors import OnepassError, TrainingError
from onepass.base.settings import setting_names
from onepass.base.text import printable, shortened
from onepass.cli import (
    bench,
    check,
    data,
    embed,
    figure,
    list,
    memory,
    merge,
    paper,
    predict,
    report,
    run,
    runs,
    sweep,
    table,
    tune,
)
from onepass.cli.app import app, messages, prepare_output
from onepass.learning import registry
from onepass.version import __version__

INTERRUPTED = 130
INTERRUPTED_TEXT = "interrupted; what was written can be resumed"
# typer bundles its own click under a private name, so its base classes of usage errors
# (UsageError, ClickException) are reachable only as ancestors of typer.BadParameter.
USAGE_ERRORS: Any = typer.BadParameter.__mro__[1:3]


@atexit.register
def _skip_last_collection() -> None:
    """Skips Python's last garbage collection, which would walk all of torch's objects."""
    if "triton" not in sys.modules:  # Triton would report the frozen objects as leaked
        gc.freeze()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onepass {__version__}")
        raise typer.Exit


@app.callback()
def root_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs a command and exits.

    An error that the user can correct, or one of files or RAM, is one line on standard error and
    exit status 2. Failed training exits with 1, an interrupt with 130. Other errors are bugs: they
    end with a traceback.
    """
    output_is_closed = sys.stdout is None
    prepare_output()
    if output_is_closed:  # what a command prints would be lost, and its status would say nothing
        sys.exit(_print_error("standard output is closed; /dev/null can take it", 2))
    try:
        status = app(prog_name="onepass", standalone_mode=False)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
    except OnepassError as problem:
        status = _print_error(problem, 2)
    except (typer.Abort, KeyboardInterrupt):
        status = _print_error(INTERRUPTED_TEXT, INTERRUPTED)
    except TrainingError as problem:
        status = _print_error(problem, 1)
    except OSError as problem:
        status = _print_error(problem, 2)
    except MemoryError as problem:
        status = _print_error(f"there is not enough RAM: {problem}", 2)
    except Exception as problem:
        if _caused_by_interrupt(problem):
            status = _print_error(INTERRUPTED_TEXT, INTERRUPTED)
        elif isinstance(problem, USAGE_ERRORS):
            status = _report_misuse(problem)
        else:
            raise
    sys.exit(_flush_output(status if isinstance(status, int) else 0))


def _caused_by_interrupt(problem: BaseException) -> bool:
    """Returns whether Ctrl-C is behind an error.

    Modules that are being imported may turn the interrupt into an error of another class.
    """
    cause = problem.__cause__ or problem.__context__
    return cause is not None and (
        isinstance(cause, KeyboardInterrupt) or _caused_by_interrupt(cause)
    )


def _flush_output(status: int) -> int:
    """Flushes standard output and returns the exit status.

    If the output cannot be written, it goes to the null device, because Python would otherwise try
    once more at exit and print an error of its own.
    """
    try:
        sys.stdout.flush()
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or _print_error(
            f"standard output could not be written: {problem.strerror}", 1
        )
    return status


def _report_misuse(problem: Any) -> int:
    """Reports a usage error; returns the exit status 2.

    A command that was given no arguments prints its help, any other misuse one line.
    """
    if type(problem).__name__ == "NoArgsIsHelpError":
        typer.echo(problem.format_message(), err=True)
        return 2
    return _print_error(shortened(_as_setting_hint(problem) or _with_help(problem)), 2)


def _with_help(problem: Any) -> str:
    """Returns the message of a usage error, with the help of the parameter if that is missing."""
    message: str = problem.format_message()
    missing = type(problem).__name__ == "MissingParameter"
    return f"{message.rstrip('.')}: {problem.param.help}" if missing else message


def _as_setting_hint(problem: Any) -> str:
    """Returns the error for an unknown option that is a setting of a method, with the right option.

    It is empty if the option is no setting, or if the command does not take `--set`.
    """
    name = getattr(problem, "option_name", "").lstrip("-").replace("-", "_")
    settings = {setting for info in registry.methods() for setting in setting_names(info.learner)}
    if name not in settings:
        return ""
    if problem.ctx is None:  # the parser found the value missing before there was a context
        return ""
    options = {option for parameter in problem.ctx.command.params for option in parameter.opts}
    return f"{problem.message}; as a setting: --set {name}=VALUE" if "--set" in options else ""


def _print_error(problem: object, status: int) -> int:
    """Prints an error and its notes as one line on standard error; returns `status`."""
    text = " ".join([str(problem), *getattr(problem, "__notes__", [])])
    with suppress(OSError):  # standard error is closed; the exit status is enough
        messages.print(printable(f"error: {text}"))
    return status


__all__ = [
    "bench",
    "check",
    "data",
    "embed",
    "figure",
    "list",
    "main",
    "memory",
    "merge",
    "paper",
    "predict",
    "report",
    "run",
    "runs",
    "sweep",
    "table",
    "tune",
]
