"""Runs the command line, in this process if possible, or else in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import typer.main

from onepass import cli
from onepass.runs.execute import run_job
from onepass.runs.result import Result
from onepass.runs.spec import Job

# the run that bad input is tried on, as a job and as a command
JOB = Job("er", "synthetic", batch=30, device="cpu")
RUN = (
    "run",
    "er",
    "--preset",
    "common",
    "--dataset",
    "synthetic",
    "--batch",
    30,
    "--device",
    "cpu",
)

# A process of its own makes the tree of commands once; hundreds of them in this one share it, since
# it takes as long as a run of ten steps.
made_once = cache(typer.main.get_command)

# the values that no two runs share, in a line of events.jsonl and in result.json
EVENT_TIMES = ("seconds", "scoring", "capture")
RESULT_TIMES = ("seconds", "steps_per_second", "scoring_seconds", "capture_seconds")


class Done(NamedTuple):
    """The exit status of a command, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """Returns standard output as JSON objects, one per line; raises if it holds other text."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        (only,) = self.records
        return only

    @property
    def error(self) -> str:
        """Returns the single error line; fails if there is a traceback."""
        assert "Traceback" not in self.err, self.err
        (line,) = [line for line in self.err.splitlines() if line.startswith("error:")]
        return line


def onepass(*arguments: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["onepass", *map(str, arguments)]
    said_here = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    try:
        with mock.patch("typer.main.get_command", made_once), said_here[0], said_here[1]:
            cli.main()
    except SystemExit as end:
        return Done(int(end.code or 0), out.getvalue(), err.getvalue())
    finally:
        sys.argv = before
    raise AssertionError("main returned without an exit status")


def command(*arguments: object) -> list[str]:
    start = "from onepass.cli import main; main()"
    return [sys.executable, "-c", start, *map(str, arguments)]


def process(*arguments: object, **options: Any) -> Done:
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=120, check=False, **options
    )
    return Done(done.returncode, done.stdout, done.stderr)


def read_files(folder: Path) -> dict[str, bytes | None]:
    """Returns the content of every file below a folder, and None for every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[None]:
    before = read_files(folder)
    yield
    assert read_files(folder) == before


def file_names(folder: Path) -> set[str]:
    """Returns the files of a run folder, without its lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


def finished_run(out: Path) -> Path:
    """Makes a folder with one finished run, which no bad input may touch."""
    run_job(JOB, out)
    return out


def refused(*arguments: object) -> str:
    """Returns the line of the error with which a command is refused."""
    done = onepass(*arguments)
    assert done.status == 2, done.err
    assert done.out == ""
    return done.error


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def timeless(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns events without their times, which no two runs share."""
    return [{key: entry[key] for key in entry if key not in EVENT_TIMES} for entry in entries]


def values_of(result: Result | dict[str, Any], keys: Iterable[str]) -> list[Any]:
    """Returns the values of these fields of a result, or of a line of JSON."""
    return [result[key] if isinstance(result, dict) else getattr(result, key) for key in keys]


def execute_until_write(job: Job, out: Path, moment: int) -> None:
    """Runs a job that is killed at its n-th file, which is written but not yet in place."""
    real, calls = Path.replace, iter(range(1, moment + 1))

    def replace(partial: Path, path: Path) -> Path:
        if next(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(partial, path)

    Path.replace = replace
    run_job(job, out, resume=True, checkpoint=20)
