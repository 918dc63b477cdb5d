"""One run = one folder.

    run.json        what was asked and where it ran: settings, stream, versions, device, commit
    events.jsonl    one line for each point at which the learner was scored
    <key>.jsonl     what a listener of that name had to say
    checkpoint.pt   the learner and its progress, whole at any moment
    result.json     metrics; there once the run has finished

Every file is replaced as a whole or appended to by whole lines, so a kill at any moment leaves a
folder from which the run can go on.
"""

from __future__ import annotations

import fcntl
import json
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onepass import checkpoint, files
from onepass.errors import CheckpointError, RunError, WriteError
from onepass.result import Result
from onepass.scoring import Point, Tick

EVENTS = "events"


@dataclass(frozen=True)
class SoFar:
    """How far a run had come: its last tick, the lines of its .jsonl files, the states of its
    listeners, and those that were dropped, with the reason; all but the tick by their keys."""

    tick: Tick
    lines: dict[str, list[str]] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


class RunFolder:
    """Reads and writes the files of one run, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_file = path / "run.json"
        self.events_file = self.lines_file(EVENTS)
        self.checkpoint_file = path / "checkpoint.pt"
        self.result_file = path / "result.json"

    def lines_file(self, key: str) -> Path:
        return self.path / f"{key}.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For one process at a time; the lock goes with the process, however it ends."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(f"{self.path} is being run by another process") from None
            yield

    def refuse_existing(self) -> None:
        if self.path.exists():
            raise RunError(f"{self.path} exists; --resume goes on with it, --out puts it elsewhere")

    def make(self) -> None:
        """Makes the folder; one that holds something else than a run is refused."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise RunError(f"cannot make the folder {self.path}: a file is in the way") from None
        except OSError as problem:
            raise RunError(f"cannot make the folder {self.path}: {problem.strerror}") from None
        foreign = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if foreign and not self.run_file.exists():
            raise RunError(f"{self.path} holds something else than a run: {foreign[0]}")

    def describe(self, description: dict[str, Any]) -> None:
        """Says what the run is."""
        files.write_json(self.run_file, description)

    def description(self) -> dict[str, Any] | None:
        content = _read_json(self.run_file)
        if content is not None and not isinstance(content.get("job"), dict):
            raise RunError(f"{self.run_file} is damaged: it describes no run")
        return content

    def result(self) -> Result | None:
        """The result as it was written, with the place where the folder is now."""
        content = _read_json(self.result_file)
        return None if content is None else Result.read(content, self.result_file)

    def points(self) -> list[Point]:
        """The points of events.jsonl; a last line that a kill cut short is not one of them."""
        if not self.events_file.exists():
            return []
        try:
            lines = self.events_file.read_text().splitlines(keepends=True)
            return [point_of(json.loads(line)) for line in lines if line.endswith("\n")]
        except (ValueError, TypeError, KeyError):
            raise RunError(f"{self.events_file} is damaged: a line is not a point") from None

    def append(self, key: str, lines: Sequence[str]) -> None:
        path = self.lines_file(key)
        try:
            with path.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
        except OSError as problem:
            raise WriteError(f"{path} could not grow: {problem.strerror}") from None

    def rewrite(self, key: str, lines: Sequence[str]) -> None:
        """Puts a file of lines back to what it was; there is none for who has said nothing yet,
        except for events."""
        path = self.lines_file(key)
        if lines or key == EVENTS:
            text = "".join(f"{line}\n" for line in lines)
            files.write_atomically(path, lambda file: file.write(text.encode()))
        else:
            path.unlink(missing_ok=True)

    def save_checkpoint(self, payload: dict[str, Any], progress: SoFar) -> None:
        """`payload` is the learner's; the file serves `onepass.open` as well."""
        content = {**payload, **vars(progress), "tick": asdict(progress.tick)}
        checkpoint.write(self.checkpoint_file, content)

    def load_checkpoint(self) -> tuple[dict[str, Any], SoFar] | None:
        """The content of the last whole checkpoint, and how far the run had come by then."""
        if not self.checkpoint_file.exists():
            return None
        content = checkpoint.read(self.checkpoint_file)
        try:
            tick = Tick(**{name: content["tick"][name] for name in Tick.__dataclass_fields__})
            lines = {key: [*map(str, said)] for key, said in content["lines"].items()}
            for line in lines[EVENTS]:
                point_of(json.loads(line))
            if tick.step != content["state"]["steps"] or not isinstance(tick.seconds, float):
                raise ValueError("the learner and its progress do not belong together")
            states, dropped = dict(content["states"]), dict(content["dropped"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise CheckpointError(f"{self.checkpoint_file} is not a run's checkpoint") from None
        return content, SoFar(tick, lines, states, dropped)

    def remove_partials(self) -> None:
        """Removes what a kill left half-written."""
        for partial in self.path.glob(".*.partial"):
            partial.unlink(missing_ok=True)

    def finish(self, result: Result) -> None:
        files.write_json(self.result_file, result.as_json())


def point_of(entry: dict[str, Any]) -> Point:
    return Point(**{**entry, "correct": tuple(entry["correct"]), "total": tuple(entry["total"])})


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise RunError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it is not an object")
    return content


def finished_runs(folder: Path) -> list[RunFolder]:
    """Every finished run at or below a folder, in order of their paths."""
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}")
    found = [RunFolder(path.parent) for path in sorted(folder.rglob("result.json"))]
    if not found:
        raise RunError(f"there is no finished run in {folder}")
    return found


def surroundings() -> dict[str, Any]:
    """Versions, machine and commit: what one needs to know to make a number again."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        **commit(),
    }


def commit() -> dict[str, Any]:
    """The commit of the tree that runs, and whether it had changes; none once installed."""
    tree = Path(__file__).resolve().parents[1]
    if not (tree / ".git").exists():
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tree), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
