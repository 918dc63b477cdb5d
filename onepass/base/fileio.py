"""File I/O that survives kills and full disks: a file is replaced whole or not at all.

The module also appends JSON lines from several processes, locks files, and parses JSON strictly.
"""

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
    """Calls `write` on a temporary file beside the target, flushes it to the disk and renames it. A
    kill at any moment, or a full disk, leaves the previous file intact.

    A link at the target is replaced, not followed. The temporary name is random, so that another
    user cannot put a link there in advance. Raises a WriteError if the system refuses.
    """
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
    """Writes a file that the user named; makes its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))


def expect_suffix(path: Path, what: str, *suffixes: str) -> None:
    """Raises an InputError unless the file that the user named has one of these suffixes; `what`
    names the file in the message."""
    if path.suffix.lower() not in suffixes:
        *others, last = suffixes
        valid = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"the name of {what} must end in {valid}, not {path.name!r}")


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def append_text(path: Path, text: str) -> None:
    """Appends text to a file, which is made if it is missing. The text may reach the disk later;
    `flush_to_disk` waits for it. Raises a WriteError if the system refuses."""
    try:
        number = _open_descriptor(path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(number, "a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as problem:
        raise WriteError(
            f"{path} could not be appended to: {problem.strerror or problem}"
        ) from None


def flush_to_disk(path: Path) -> None:
    """Waits until everything appended to a file is on the disk; makes the file if it is missing."""
    try:
        with os.fdopen(_open_descriptor(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
            os.fsync(file.fileno())
    except OSError as problem:
        raise WriteError(f"{path} could not be written: {problem.strerror or problem}") from None


def append_line(path: Path, line: str, *, unless: str = "") -> None:
    """Appends a JSON line to a file shared by several processes, whole or not at all.

    A broken last line, left by a kill, is cut off; a last line that only lacks its newline gets it.
    Appends nothing if the file contains the text `unless` already. Raises a WriteError if the
    system refuses, or if the last line is not one that onepass wrote.
    """
    with _growing(path) as (file, end, missing):
        file.truncate(end)
        if unless and _contains(file, unless):
            return
        try:
            _write_all(file, f"{missing}{line}\n".encode())
        except BaseException:
            file.truncate(end)
            raise


def expect_growable(path: Path) -> None:
    """Raises a WriteError if `append_line` could add nothing to this file. Makes the file if it is
    not there yet: to take it away again would lose what another process adds meanwhile."""
    with _growing(path):
        pass


@contextmanager
def _growing(path: Path) -> Iterator[tuple[FileIO, int, str]]:
    """Yields a file of lines, opened and locked; up to where its lines are whole; and what the last
    of them lacks. Raises whatever the system refuses as a WriteError."""
    try:
        with os.fdopen(_open_descriptor(path, os.O_RDWR | os.O_APPEND), "rb+", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            with _file_lock(file.fileno(), path, wait=True):
                yield file, *_end_of_whole_lines(file)
    except OSError as problem:
        raise WriteError(
            f"{path} could not be appended to: {problem.strerror or problem}"
        ) from None


def _end_of_whole_lines(file: FileIO) -> tuple[int, str]:
    """Returns the offset at which the whole lines end, and the text still missing there: a newline
    if the last line lacks only that, else "".

    Raises an OSError if the last line is neither JSON nor a broken JSON line.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    if file.read(1) in (b"", b"\n"):  # the usual case needs no look at the rest
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
        # not our broken line: cutting it off could destroy a foreign file
        raise OSError(
            errno.EINVAL, "its last line is not JSON, so onepass did not write it"
        ) from None
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
    """Holds a file's lock for the body; only one process can have it, and it ends with the process
    at the latest. The file is made if it is missing.

    Raises a BlockingIOError if another process holds the lock and `wait` is False.
    """
    number = _open_descriptor(path, os.O_RDWR)
    try:
        with _file_lock(number, path, wait=wait):
            yield
    finally:
        os.close(number)


@contextmanager
def _file_lock(number: int, path: Path, *, wait: bool) -> Iterator[None]:
    """Locks an open file until it is closed. On a file system without locks, the lock is a file
    beside it, for the body; one left behind by a dead process is removed."""
    from filelock import SoftFileLock, Timeout, lock_descriptor

    beside = ExitStack()
    try:
        free = lock_descriptor(number, blocking=wait, poll_interval=0.01)
    except OSError as problem:
        if problem.errno != errno.ENOSYS:  # "not implemented": some network file systems
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
    """Opens a file, or makes it, and returns its descriptor; refuses to follow a link."""
    try:
        return os.open(path, flags | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise OSError(
                errno.ELOOP, "it is a link to another file; remove it", str(path)
            ) from None
        raise


def parse_json(text: str) -> Any:
    """Returns parsed JSON. Raises a ValueError for text that is not JSON, and for JSON that onepass
    never writes: NaN, half a surrogate pair, numbers too large for a float, and deep nesting."""
    content = parse_json_fast(text)
    try:
        written = json.dumps(content, allow_nan=False, ensure_ascii=False)
        written.encode(errors="surrogateescape")  # paths of any bytes are allowed
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def parse_json_object(text: str, parse: Callable[[str], Any] = parse_json) -> dict[str, Any]:
    """Returns the dict of a JSON object; raises a ValueError that says why the text is not one."""
    try:
        content = parse(text)
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    return content


def parse_json_fast(text: str) -> Any:
    """Returns what `parse_json` returns, three times as fast and with fewer checks: 1e999 is read
    as infinity, and half a surrogate pair is kept. For readers of a few values in very many
    files."""
    try:
        return DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_int(digits: str) -> int:
    number = int(digits)
    if number.bit_length() > 1000:  # a float ends at 1024 bits
        raise ValueError(f"{digits} is too large")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


DECODER = json.JSONDecoder(parse_int=_parse_int, parse_constant=_refuse_constant)


def is_file_name(key: str) -> bool:
    """Returns whether `key` can be the name, without a suffix, of a visible file in a folder."""
    return bool(key) and Path(key).name == key and not key.startswith(".") and "\0" not in key
