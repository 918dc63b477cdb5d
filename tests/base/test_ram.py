"""How much RAM is free, within control groups too, and what is refused for lack of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onepass.base import ram

FREE, SWAP, GIB = "8388608 kB", "1048576 kB", 2**30
UNLIMITED = 2**63 - 4096  # how version 1 says it


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB free and 1 GiB of swap, whose control groups the test writes."""
    (tmp_path / "meminfo").write_text(f"MemAvailable: {FREE}\nSwapFree: {SWAP}\n")
    monkeypatch.setattr(ram, "MEMINFO", str(tmp_path / "meminfo"))
    groups = (tmp_path / "cgroup", tmp_path / "mounted")
    monkeypatch.setattr(ram._free_in_groups, "__defaults__", groups)
    return tmp_path


def write_group(machine: Path, path: str, limit: object, used: int, stat: str) -> None:
    """Writes a control group of version 1 (below `memory/`) or 2."""
    folder, old = machine / "mounted" / path, path.startswith("memory")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_without_groups_the_whole_machine_is_free(machine: Path) -> None:
    assert ram.free_ram_bytes() == 8 * GIB
    (machine / "meminfo").unlink()
    assert ram.free_ram_bytes() is None
    ram.expect_ram(2**60, "anything")  # nothing is known, so nothing is refused


def test_a_container_has_what_its_limit_leaves_and_cached_files(machine: Path) -> None:
    (machine / "cgroup").write_text("0::/\n")
    write_group(machine, "", "max", 3 * GIB, "")
    assert ram.free_ram_bytes() == 8 * GIB
    write_group(machine, "", 4 * GIB, 3 * GIB, f"anon 5\nactive_file {GIB}\ninactive_file 7\n")
    assert ram.free_ram_bytes() == 2 * GIB + 7


@pytest.mark.parametrize(("line", "top"), [("0::/a/b", ""), ("4:memory:/a/b", "memory/")])
def test_the_tightest_group_around_this_one_counts(machine: Path, line: str, top: str) -> None:
    (machine / "cgroup").write_text(f"9:name=systemd:/\n3:cpu,cpuacct:/a/b\n{line}\n")
    write_group(machine, top, UNLIMITED, GIB, "")
    write_group(machine, f"{top}a", 5 * GIB, 2 * GIB, "total_active_file 9\nactive_file 9\n")
    write_group(machine, f"{top}a/b", 6 * GIB, GIB, "")
    assert ram.free_ram_bytes() == 3 * GIB + 9


def test_a_need_is_refused_only_if_swap_space_does_not_help(machine: Path) -> None:
    ram.expect_ram(9 * GIB, "a step")
    with pytest.raises(MemoryError, match=r"a step needs at least 9.8 GB of RAM, and 9.7 GB are"):
        ram.expect_ram(9 * GIB + 2**27, "a step")
