"""Files that are whole or absent."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, Any

from onepass.base.errors import InputError, WriteError


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes beside the target, flushes to the disk, then renames: a kill at any moment or a full
    disk leaves the file that was there before. A link of the target's name is replaced, not
    followed, and nobody can foresee the name beside it to put one there."""
    partial = path.with_name(f".onepass.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        raise WriteError(f"{path} could not be written: {problem.strerror or problem}") from None
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def write_output(path: Path, content: bytes | memoryview) -> None:
    """Writes what a user asked for, in a folder that need not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))


def expect_suffix(path: Path, what: str, *suffixes: str) -> None:
    """Raises an InputError if the name of what a user asked for ends otherwise."""
    if path.suffix.lower() not in suffixes:
        *others, last = suffixes
        valid = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"the name of {what} must end in {valid}, not {path.name!r}")


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def append_text(path: Path, text: str) -> None:
    try:
        number = _open_descriptor(path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(number, "a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as problem:
        raise WriteError(f"{path} could not grow: {problem.strerror or problem}") from None


def flush_to_disk(path: Path) -> None:
    """Sees what was appended to a file onto the disk."""
    try:
        with os.fdopen(_open_descriptor(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            os.fsync(file.fileno())
    except OSError as problem:
        raise WriteError(f"{path} could not be written: {problem.strerror or problem}") from None


def append_line(path: Path, line: str, *, unless: str = "") -> None:
    """Adds a line of JSON to a file that several processes add to, whole or not at all. What a kill
    has left of the line before is cut off; a last line that only lacks its end gets one. Nothing is
    added if the whole lines hold the words `unless`."""
    try:
        with os.fdopen(_open_descriptor(path, os.O_RDWR | os.O_APPEND), "rb+", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a file")
            with _file_lock(file.fileno(), path, wait=True):
                end, missing = _end_of_whole_lines(file)
                file.truncate(end)
                if unless and _contains(file, unless):
                    return
                try:
                    _write_all(file, f"{missing}{line}\n".encode())
                except BaseException:
                    file.truncate(end)
                    raise
    except OSError as problem:
        raise WriteError(f"{path} could not grow: {problem.strerror or problem}") from None


def _end_of_whole_lines(file: FileIO) -> tuple[int, str]:
    """Up to where a file's lines are whole, and what the last of them lacks."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    if file.read(1) in (b"", b"\n"):
        return size, ""
    file.seek(0)
    content = file.read()
    begin = content.rfind(b"\n") + 1
    last = content[begin:].decode(errors="replace")
    try:
        parse_json(last)
    except ValueError:
        if last.startswith("{"):
            return begin, ""
        raise OSError(errno.EINVAL, "its last line is no JSON") from None
    return size, "\n"


def _contains(file: FileIO, words: str) -> bool:
    file.seek(0)
    return words.encode() in file.read()


def _write_all(file: FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) :]
    os.fsync(file.fileno())


@contextmanager
def locked_file(path: Path, *, wait: bool) -> Iterator[None]:
    """For one process at a time; the lock goes with the process, however it ends. Who does not want
    to wait gets a BlockingIOError."""
    number = _open_descriptor(path, os.O_RDWR)
    try:
        with _file_lock(number, path, wait=wait):
            yield
    finally:
        os.close(number)


@contextmanager
def _file_lock(number: int, path: Path, *, wait: bool) -> Iterator[None]:
    """The system's lock of an open file, until that is closed. Where a system has none, a file
    beside it stands for the lock; what a process that died has left of it is taken away."""
    from filelock import SoftFileLock, Timeout, lock_descriptor

    beside = ExitStack()
    try:
        free = lock_descriptor(number, blocking=wait, poll_interval=0.01)
    except OSError as problem:
        if problem.errno != errno.ENOSYS:
            raise
        try:
            beside.enter_context(SoftFileLock(f"{path}.held", blocking=wait))
            free = True
        except Timeout:
            free = False
    if not free:
        raise BlockingIOError(errno.EAGAIN, "another process holds it", str(path))
    with beside:
        yield


def _open_descriptor(path: Path, flags: int) -> int:
    """Opens the file of this name, or makes it; a link of that name is not followed."""
    try:
        return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise OSError(
                errno.ELOOP, "it is a link to another file; remove it", str(path)
            ) from None
        raise


def parse_json(text: str) -> Any:
    """JSON as we write it. Anything else is a ValueError: also what Python alone takes for JSON
    (NaN, half a character), numbers that fit no machine, and more brackets than it can follow."""
    content = parse_json_fast(text)
    try:
        written = json.dumps(content, allow_nan=False, ensure_ascii=False)
        written.encode(errors="surrogateescape")  # so paths of any bytes pass
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def parse_json_object(text: str, parse: Callable[[str], Any] = parse_json) -> dict[str, Any]:
    """Returns a JSON object; raises a ValueError that says why it is none."""
    try:
        content = parse(text)
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    return content


def parse_json_fast(text: str) -> Any:
    """Returns what `parse_json` returns, three times as fast and with fewer checks: a number may be
    infinite and a character half of one. For readers of a few values in very many files."""
    try:
        return DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_int(digits: str) -> int:
    number = int(digits)
    if number.bit_length() > 1000:  # a float has no room for it
        raise ValueError(f"{digits} is too large")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


DECODER = json.JSONDecoder(parse_int=_parse_int, parse_constant=_refuse_constant)


def is_file_name(key: str) -> bool:
    """Returns whether `key` can be the name, without a suffix, of a visible file in a folder."""
    return bool(key) and Path(key).name == key and not key.startswith(".") and "\0" not in key
