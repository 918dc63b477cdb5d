"""The worker processes of a command, seen from outside."""

from __future__ import annotations

from pathlib import Path


def process_stat(pid: int | str) -> list[str]:
    """Returns state and parent of a process; an empty list once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    return bool(process_stat(pid)) and process_stat(pid)[0] not in "ZX"


def worker_pids(parent: int) -> list[int]:
    """Returns the ids of the processes that a command has started for its jobs."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    children = [pid for pid in pids if process_stat(pid)[1:] == [str(parent)] and is_alive(pid)]
    return [pid for pid in children if b"spawn_main" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
