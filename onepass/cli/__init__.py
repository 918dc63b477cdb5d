"""The command line: one file for each command, which parses what is typed and prints what comes of
it. It may import everything, and nothing imports it."""

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
    figure,
    list,
    memory,
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
# typer carries a click of its own under a private name; its usage errors are this one's ancestors.
USAGE_ERRORS: Any = typer.BadParameter.__mro__[1:3]


@atexit.register
def _skip_last_collection() -> None:
    """Without one more search through all of torch for garbage; Triton would call that a leak."""
    if "triton" not in sys.modules:
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
    """Runs a command; whatever the user can mend is one line on standard error and exit 2."""
    prepare_output()
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
        status = _print_error(f"there is not enough memory: {problem}", 2)
    except Exception as problem:
        if _caused_by_interrupt(problem):
            status = _print_error(INTERRUPTED_TEXT, INTERRUPTED)
        elif isinstance(problem, USAGE_ERRORS):
            status = _report_misuse(problem)
        else:
            raise
    sys.exit(_flush_output(status if isinstance(status, int) else 0))


def _caused_by_interrupt(problem: BaseException) -> bool:
    """Returns whether somebody pressed Ctrl-C while modules were being imported: some turn the
    interrupt into an error of another class."""
    cause = problem.__cause__ or problem.__context__
    return cause is not None and (
        isinstance(cause, KeyboardInterrupt) or _caused_by_interrupt(cause)
    )


def _flush_output(status: int) -> int:
    """The exit status, once all that was printed is out; what nobody takes is dropped, or Python
    would try again, and complain, when it ends."""
    try:
        sys.stdout.flush()
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or _print_error(
            f"standard output could not be written: {problem.strerror}", 1
        )
    return status


def _report_misuse(problem: Any) -> int:
    """A command without arguments shows its help as it is; any other misuse is one line."""
    if type(problem).__name__ == "NoArgsIsHelpError":
        typer.echo(problem.format_message(), err=True)
        return 2
    return _print_error(shortened(_as_setting_hint(problem) or _with_help(problem)), 2)


def _with_help(problem: Any) -> str:
    """Something that has to be given and is missing is told with what its help says."""
    told: str = problem.format_message()
    missing = type(problem).__name__ == "MissingParameter"
    return f"{told.rstrip('.')}: {problem.param.help}" if missing else told


def _as_setting_hint(problem: Any) -> str:
    """Of an option that a command does not have: how it is given, if it is a method's setting."""
    name = getattr(problem, "option_name", "").lstrip("-").replace("-", "_")
    settings = {one for info in registry.methods() for one in setting_names(info.learner)}
    if name not in settings:
        return ""
    options = {one for parameter in problem.ctx.command.params for one in parameter.opts}
    return f"{problem.message}; as a setting: --set {name}=VALUE" if "--set" in options else ""


def _print_error(problem: object, status: int) -> int:
    told = " ".join([str(problem), *getattr(problem, "__notes__", [])])
    with suppress(OSError):  # nobody reads it, and the status says enough
        messages.print(printable(f"error: {told}"))
    return status


__all__ = [
    "bench",
    "check",
    "data",
    "figure",
    "list",
    "main",
    "memory",
    "paper",
    "predict",
    "report",
    "run",
    "runs",
    "sweep",
    "table",
    "tune",
]
