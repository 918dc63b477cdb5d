"""The folder of one run.

    run.json        what was run and where: settings, stream, versions, device, commit
    events.jsonl    a line for each evaluation point
    <key>.jsonl     the lines of the listener with that key
    checkpoint.pt   the learner and the progress of the run
    result.json     metrics, once the run has finished
    log.txt         starts, resumptions, progress, the end, warnings and errors

Each file is replaced as a whole or grows by whole lines. A kill at any moment therefore leaves a
folder from which the run can continue.
"""

from __future__ import annotations

import glob
import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from onepass.base import fileio
from onepass.base.errors import BusyError, CheckpointError, RunError, WriteError
from onepass.base.settings import expect_type
from onepass.base.text import printable
from onepass.evaluation.callbacks.base import EVENTS
from onepass.evaluation.points import Point, Tick
from onepass.runs.environment import OtherVersions
from onepass.runs.result import Result
from onepass.runs.spec import Job, digest

CANNOT_RESUME = "so the run cannot go on; another --out runs it anew"  # the end of several errors
DAMAGED_NAME = ".damaged-"  # a damaged folder is renamed to its name, this and a number
# The errors that wrong values raise while a file's content is read
DAMAGED = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
log = logging.getLogger("onepass")
Measured = TypeVar("Measured", bound=Tick)
TYPES = {kind: get_type_hints(kind) for kind in (Tick, Point)}
CHECKPOINT_TYPES: dict[str, Any] = {
    "files": dict[str, dict[str, int | str]],
    "states": dict[str, object],
    "dropped": dict[str, str],
    "other_versions": OtherVersions,
}


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run, as a checkpoint holds it: its last tick; the lines of its .jsonl
    files, the states of its listeners and the reasons of dropped ones, all by listener key; and
    `other_versions` as in `Result`."""

    tick: Tick
    lines: dict[str, list[str]] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    other_versions: OtherVersions = field(default_factory=list)


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_file = path / "run.json"
        self.events_file = self.lines_file(EVENTS)
        self.checkpoint_file = path / "checkpoint.pt"
        self.result_file = path / "result.json"
        self.log_file = path / "log.txt"

    @classmethod
    def of(cls, job: Job, out: Path) -> RunFolder:
        """Returns a job's folder below `out`, which may not exist yet. The folder of a job on the
        user's own data is also found if the data were renamed, because its name ends in a digest of
        their content."""
        path = out / job.folder_name
        if job.has_own_data and not path.exists():
            start, end = job.folder_name_ends
            path = next(iter(sorted(out.glob(f"{glob.escape(start)}-*{end}"))), path)
        return cls(path)

    def lines_file(self, key: str) -> Path:
        return self.path / f"{key}.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder for one process. Raises a BusyError if another process holds the lock,
        and a RunError if locking fails. The system releases the lock when the process ends, however
        it ends."""
        path = self.path / ".lock"
        with ExitStack() as held:
            try:
                held.enter_context(fileio.locked_file(path, wait=False))
            except BlockingIOError:
                raise BusyError(f"{self.path} is being run by another process") from None
            except OSError as problem:
                raise RunError(f"{path} cannot be locked: {problem.strerror}") from None
            yield

    def is_being_run(self) -> bool:
        """Returns whether a process holds the folder's lock now, because it runs the job."""
        lock = self.path / ".lock"
        try:
            with fileio.locked_file(lock, wait=False) if lock.is_file() else nullcontext():
                return False
        except BlockingIOError:
            return True
        except OSError:  # running the job will report the problem
            return False

    def move_aside(self) -> Path:
        """Renames the folder to the first free name of a damaged one, and returns its new path."""
        names = (f"{self.path.name}{DAMAGED_NAME}{number}" for number in count(1))
        paths = (self.path.with_name(name) for name in names)
        return self.path.rename(next(path for path in paths if not path.exists()))

    def refuse_existing(self) -> None:
        """Raises a RunError if the folder exists."""
        if self.path.exists():
            raise RunError(f"{self.path} exists: give --resume to continue it, or another --out")

    def make(self) -> None:
        """Makes the folder if it is missing. Raises a RunError if it holds files but no run.json,
        or if it cannot be made."""
        make_folder(self.path)
        foreign = [entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")]
        if foreign and not self.run_file.exists():
            raise RunError(
                f"{self.path} holds something else than a run, {foreign[0]}: choose another --out"
            )

    def describe(self, description: dict[str, Any]) -> None:
        """Writes run.json."""
        fileio.write_json(self.run_file, description)

    def description(self) -> dict[str, Any] | None:
        """Returns the content of run.json; None if there is no such file. Raises a RunError if it
        is damaged."""
        content = _read_json(self.run_file)
        if content is not None and not _describes_a_run(content):
            raise RunError(f"{self.run_file} is damaged: it describes no run")
        return content

    def result(self) -> Result | None:
        """Returns the result, whose `out` is where the folder is now; None if there is none yet.
        Raises a RunError if result.json is damaged."""
        content = _read_json(self.result_file)
        return (
            None if content is None else Result.read(content, str(self.path), str(self.result_file))
        )

    def points(self) -> list[Point]:
        """Returns the points of events.jsonl, without a last line that a kill cut short. Raises a
        RunError if another line is damaged."""
        if not _file_exists(self.events_file):
            return []
        try:
            *lines, _ = self.events_file.read_text("utf-8").split("\n")
            return [parse_point(line) for line in lines]
        except DAMAGED:
            raise RunError(f"{self.events_file} is damaged: a line is not a point") from None

    def has_all_points(self, result: Result) -> bool:
        """Returns whether events.jsonl still holds every point of a finished run. Early versions
        did not count points; there the last one must be that of the last step."""
        points = self.points()
        counted = len(points) == (result.points or len(points))
        return counted and bool(points) and points[-1].step == result.steps

    def probe_lines(self, probe: str) -> list[dict[str, Any]] | None:
        """Returns the lines that a probe has recorded; None if the run has no file of the probe. In
        an unfinished run, a last line that a kill cut short is left out. Raises a RunError if
        another line is damaged."""
        path = self.lines_file(probe)
        if not path.is_file():
            return None
        try:
            *whole, last = path.read_text("utf-8").split("\n")
            # In a finished run, a last line without an end was damaged later: it raises an error.
            half = [last] if last and self.result_file.exists() else []
            return [fileio.parse_json_object(line) for line in [*whole, *half]]
        except (OSError, ValueError):
            raise RunError(f"{path} is damaged: a line is not a JSON object") from None

    def append(self, key: str, lines: Sequence[str]) -> None:
        fileio.append_text(self.lines_file(key), _as_text(lines))

    def ensure_lines(self, key: str, lines: Sequence[str]) -> None:
        """Flushes a .jsonl file to the disk. If it does not hold exactly these lines, because it
        was changed or removed meanwhile, writes it again, with a warning."""
        path = self.lines_file(key)
        found = path.read_bytes() if path.is_file() else None
        if found != (_as_text(lines).encode() if lines or key == EVENTS else None):
            log.warning("%s was changed while the run went on: it is written again", path)
            self.rewrite(key, lines)
        elif found is not None:
            fileio.flush_to_disk(path)

    def rewrite(self, key: str, lines: Sequence[str]) -> None:
        """Replaces a .jsonl file by these lines. Without lines the file is removed, except for
        events.jsonl."""
        path = self.lines_file(key)
        if lines or key == EVENTS:
            fileio.write_text(path, _as_text(lines))
        else:
            path.unlink(missing_ok=True)

    def save_checkpoint(self, payload: dict[str, Any], progress: RunProgress) -> None:
        """Flushes the .jsonl files, then writes the checkpoint, which holds their lengths and
        digests. `payload` is what a learner's own checkpoint holds, so that `onepass.open` reads
        this one too."""
        from onepass.learning.checkpoint import file

        content = {**payload, **vars(progress), "tick": asdict(progress.tick)}
        lines = content.pop("lines")
        for key in lines:
            self.ensure_lines(key, lines[key])
        files = {key: _length_and_digest(_as_text(lines[key]).encode()) for key in lines}
        file.write_checkpoint(self.checkpoint_file, {**content, "files": files})

    def load_checkpoint(self) -> tuple[dict[str, Any], RunProgress] | None:
        """Returns the content of the last checkpoint and the progress of the run at that moment;
        None if there is no checkpoint. Raises a CheckpointError if the checkpoint is damaged or too
        old, or if a .jsonl file no longer begins as it did then."""
        from onepass.learning.checkpoint import file

        if not _file_exists(self.checkpoint_file):
            return None
        content = file.read_checkpoint(self.checkpoint_file)
        if "lines" in content:
            raise CheckpointError(
                f"{self.checkpoint_file} was written by an earlier version of onepass, "
                f"{CANNOT_RESUME}"
            )
        try:
            return content, self._so_far(content)
        except DAMAGED:
            raise CheckpointError(
                f"{self.checkpoint_file} is not a run's checkpoint, {CANNOT_RESUME}"
            ) from None

    def _so_far(self, content: dict[str, Any]) -> RunProgress:
        """Returns the progress in a checkpoint; raises one of DAMAGED if it is not valid."""
        tick = _checked(Tick, {name: content["tick"][name] for name in Tick.__dataclass_fields__})
        for name, kind in CHECKPOINT_TYPES.items():
            expect_type(name, content[name], kind)
        if not 0 <= tick.step == content["state"]["steps"]:
            raise ValueError("the learner and its progress do not belong together")
        lines = {key: self._lines_before(key, extent) for key, extent in content["files"].items()}
        for line in lines[EVENTS]:
            parse_point(line)
        return RunProgress(
            tick, lines, content["states"], content["dropped"], content["other_versions"]
        )

    def _lines_before(self, key: str, extent: dict[str, int | str]) -> list[str]:
        """Returns the lines that a file had when the checkpoint was written. Later lines are left
        out, because the run records them again. Raises a CheckpointError if the file no longer
        begins with those lines."""
        path, size = self.lines_file(key), int(extent["bytes"])
        if not fileio.is_file_name(key):
            raise ValueError("the key of a listener must be usable as a file name")
        found = path.read_bytes()[:size] if _file_exists(path) else b""
        if _length_and_digest(found) != extent:
            raise CheckpointError(
                f"{path} does not begin with the {size} bytes that it had when "
                f"{self.checkpoint_file} was written, {CANNOT_RESUME}"
            )
        return found.decode().split("\n")[:-1]

    def remove_partials(self) -> None:
        """Removes the temporary files of interrupted writes, which a kill left behind."""
        for partial in self.path.glob(".*.partial"):
            partial.unlink(missing_ok=True)

    def add_to_log(self, text: str) -> bool:
        """Adds a text to the log, with the time. Returns whether that worked; it raises no error,
        because a log must never stop a run. A folder without run.json gets no log: `make` would
        refuse a folder with a log alone."""
        if not self.run_file.exists():
            return False
        first, *others = [printable(line) for line in text.rstrip().split("\n")]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            fileio.append_text(self.log_file, _as_text([f"{now} {first}", *others]))
        except WriteError:
            return False
        return True

    def finish(self, result: Result) -> None:
        """Writes result.json, which marks the run as finished."""
        fileio.write_json(self.result_file, result.as_json())


def parse_point(line: str) -> Point:
    """Returns the point of a line of events.jsonl; raises one of DAMAGED if it is not valid."""
    entry = fileio.parse_json(line)
    counts = {name: tuple(entry[name]) for name in ("correct", "total")}
    confusion = tuple(map(tuple, entry.get("confusion", ())))  # early versions wrote none
    point = _checked(Point, {**entry, **counts, "confusion": confusion})
    if not all(0 <= n <= total for n, total in zip(point.correct, point.total, strict=True)):
        raise ValueError("a class has more correct predictions than samples")
    if not any(point.total):
        raise ValueError("a point without a scored sample")
    return point


def _checked(kind: type[Measured], entry: dict[str, Any]) -> Measured:
    types = TYPES[kind]
    for name, value in entry.items():
        expect_type(name, value, types[name])
    return kind(**entry)


def _as_text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _length_and_digest(content: bytes) -> dict[str, int | str]:
    """Returns the length and the digest of a file's content, which a checkpoint records."""
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _file_exists(path: Path) -> bool:
    """Returns whether a file exists. Raises a RunError if something else is at this path, such as a
    folder or a broken link, whose target may come back."""
    if path.is_file():
        return True
    if path.is_symlink() or path.exists():
        raise RunError(f"{path} must be a file, not a folder or a broken link: move it away")
    return False


def _read_json(path: Path) -> dict[str, Any] | None:
    """Returns the content of a file; None if it is missing. Raises a RunError if it is damaged."""
    if not _file_exists(path):
        return None
    try:
        return fileio.parse_json_object(path.read_text("utf-8"))
    except ValueError as problem:
        reason = "it is not UTF-8" if isinstance(problem, UnicodeError) else problem
        raise RunError(f"{path} is damaged: {reason}") from None


def _describes_a_run(content: dict[str, Any]) -> bool:
    """Returns whether the fields of a run.json are valid and its identity is that of its job. Early
    versions wrote the job only, which is valid too."""
    try:
        expect_type("job", content.get("job"), dict)
        for name in ("probes", "imports"):
            expect_type(name, content.get(name, []), list[str])
        for name in ("identity", "module", "source", "commit", "onepass", "torch"):
            expect_type(name, content.get(name), str | None)
        return content.get("identity") in (None, digest(content["job"]))
    except DAMAGED:
        return False


def make_folder(path: Path) -> None:
    """Makes a folder and its parents if they are missing; raises a RunError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise RunError(f"cannot make the folder {path}: a file is in the way") from None
    except OSError as problem:
        raise RunError(f"cannot make the folder {path}: {problem.strerror}") from None
