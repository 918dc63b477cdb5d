"""RAM: how much is free, and a refusal of what cannot fit, before the system kills the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MEMINFO = "/proc/meminfo"
# Control groups of Linux, versions 2 and 1: the folder of the controller below `mounted`, the files
# with the limit and with the bytes in use, and the beginning of the names of the bytes of cached
# files in memory.stat, which the system takes back
GROUPS = {
    "": ("", "memory.max", "memory.current", ""),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}


def free_ram_bytes() -> int | None:
    """Returns the bytes of RAM that are free, within the limits of a container or another control
    group. Returns None if they cannot be read, as on systems other than Linux."""
    free = read_number(MEMINFO, "MemAvailable:", 1024)
    return None if free is None else min([free, *_free_in_groups()])


def expect_ram(need: int, what: str) -> None:
    """Raises a MemoryError if more bytes are needed than are free, with the swap space. `what`
    needs them. Does nothing if the system does not say what is free."""
    free = free_ram_bytes()
    if free is not None and need > (free := free + (read_number(MEMINFO, "SwapFree:", 1024) or 0)):
        raise MemoryError(
            f"{what} needs at least {need / 1e9:.1f} GB of RAM, and {free / 1e9:.1f} GB are free"
        )


def _free_in_groups(
    groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Yields the bytes that are free in each control group around this process that has a limit."""
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in GROUPS:
                top, *names = GROUPS[controllers]
                below = [part for part in path.split("/") if part]
                # a container sees its own group as the top, whatever its path is outside
                for depth in range(len(below) + 1):
                    yield from _free_in(Path(mounted, top, *below[:depth]), *names)


def _free_in(group: Path, limit: str, used: str, prefix: str) -> Iterator[int]:
    """Yields the bytes that are free in one control group; nothing if it is missing or without a
    limit."""
    with suppress(OSError, ValueError):  # a limit may be the word max
        room = int((group / limit).read_text()) - int((group / used).read_text())
        stat = str(group / "memory.stat")
        cached = [read_number(stat, f"{prefix}{kind}_file") or 0 for kind in ("active", "inactive")]
        yield room + sum(cached)


def read_number(path: str, name: str, unit: int = 1) -> int | None:
    """Returns the value of a name in one of Linux's tables of numbers, times its unit; None if the
    table or the name is missing, as on other systems."""
    with suppress(OSError):
        for words in map(str.split, Path(path).read_text().splitlines()):
            if words[:1] == [name]:
                return int(words[1]) * unit
    return None
