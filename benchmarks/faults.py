"""A sweep of small runs to which everything happens: its workers and then the sweep itself are
killed at random, the disk fills once, a finished run's folder is corrupted. Afterwards the same
command is given until it has nothing left to do, and every result must be the one of a sweep that
nobody disturbed, bit for bit.

    python benchmarks/faults.py                     # 60 runs on the digits, some minutes
    python benchmarks/faults.py --runs 6 --seed 3

The disk is a small one of its own, mounted by `unshare`; where that is not allowed, it does not
fill, and the script says so. Exit status 1, and a line that says what, if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SAME = ("params_sha256", "state_sha256", "accuracy_matrix", "forgetting", "anytime_accuracy")
METHODS = ("er", "finetune", "gsa")
PATIENCE = 300  # seconds
OUR_DISK = "ONEPASS_FAULTS_DISK"
FULL = "No space left"


def sweep_file(path: Path, runs: int) -> None:
    seeds = -(-runs // len(METHODS))
    path.write_text(
        f'[defaults]\nmethods = {json.dumps(METHODS)}\ndataset = "digits"\nmemory = 50\n'
        f"seeds = {seeds}\n"
    )


def sweep(file: Path, out: Path, jobs: int) -> subprocess.Popen[str]:
    cores = "import os; os.sched_getaffinity = lambda pid: set(range(8))"
    code = f"{cores}; from onepass.cli import main; main()"
    options = ("--out", out, "--jobs", jobs, "--device", "cpu", "--checkpoint", 10)
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *map(str, (file, *options))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(child: subprocess.Popen[str]) -> tuple[int, str]:
    _, told = child.communicate(timeout=PATIENCE)
    return child.returncode, told


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = path.read_text().rpartition(")")[2].split()[:2]
            words = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if ppid == str(parent) and state not in "ZX" and b"spawn_main" in words:
            found.append(int(path.parent.name))
    return found


def wait(holds: Callable[[], object], child: subprocess.Popen[str]) -> bool:
    """Until it holds; False if the sweep has ended before."""
    while not holds():
        if child.poll() is not None:
            return False
        time.sleep(0.01)
    return True


class Faults:
    """One sweep, what is done to it, and what is said of that."""

    def __init__(self, work: Path, runs: int, seed: int, jobs: int) -> None:
        self.disk, self.file, self.out = work, work / "a.toml", work / "out"
        self.chance, self.jobs, self.began = random.Random(seed), jobs, 0.0
        self.longest = runs / 8  # seconds until the next blow
        sweep_file(self.file, runs)

    def finished(self) -> list[Path]:
        return sorted(
            path.parent
            for path in self.out.glob("*/result.json")
            if ".damaged-" not in path.parent.name
        )

    def sweep(self) -> subprocess.Popen[str]:
        self.began = time.time()
        return sweep(self.file, self.out, self.jobs)

    def under_way(self) -> bool:
        """Whether the present call has written a checkpoint of a run that has not ended."""
        for path in self.out.glob("*/checkpoint.pt"):
            with suppress(OSError):  # it is being replaced
                new = path.stat().st_mtime > self.began
                if new and not (path.parent / "result.json").exists():
                    return True
        return False

    def kill_workers(self, times: int) -> int:
        """While runs are under way, then the sweep, once a run has finished. A run whose worker was
        killed is tried once more; one that is hit twice fails, and is left to a later call."""
        child, killed = self.sweep(), 0
        while killed < times and wait(self.under_way, child):
            time.sleep(self.chance.uniform(0, 0.5))
            for pid in children(child.pid)[: self.chance.randint(1, self.jobs)]:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            time.sleep(self.chance.uniform(1, 1 + self.longest / 2))
        wait(self.finished, child)
        self.kill_sweep(child)
        return killed

    def kill_sweep(self, child: subprocess.Popen[str]) -> bool:
        """At a moment when runs are under way; its workers must end by themselves."""
        wait(self.under_way, child)
        time.sleep(self.chance.uniform(0, self.longest))
        hit = wait(self.under_way, child)
        orphans = children(child.pid)
        child.kill()
        child.communicate()
        last = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in orphans):
            assert time.monotonic() < last, f"workers {orphans} outlive the sweep"
            time.sleep(0.05)
        return hit

    def fill_disk(self) -> tuple[int, str]:
        """While runs are under way; the sweep must end by itself and say so."""
        child = self.sweep()
        wait(self.under_way, child)
        time.sleep(self.chance.uniform(0, self.longest))
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file:
            while child.poll() is None:  # whatever room somebody makes is taken
                try:
                    file.write(b"\0" * 65536)
                except OSError:
                    time.sleep(0.01)
        filler.unlink()
        return ended(child)

    def corrupt(self) -> Path:
        """A finished run: half of its result is gone."""
        folder = self.chance.choice(self.finished())
        content = (folder / "result.json").read_bytes()
        (folder / "result.json").write_bytes(content[: len(content) // 2])
        return folder

    def go_on(self) -> list[tuple[int, str]]:
        """The same command until it has nothing left to do."""
        calls = [ended(self.sweep())]
        while calls[-1][0] != 0 and len(calls) < 3:
            calls.append(ended(self.sweep()))
        return calls

    def results(self) -> dict[str, list[object]]:
        found = {}
        for folder in self.finished():
            result = json.loads((folder / "result.json").read_text())
            found[folder.name] = [result[key] for key in SAME]
        return found

    def logged(self, words: str, least: int = 1) -> list[str]:
        """The runs in whose log these words stand so often."""
        logs = {path.parent.name: path.read_text() for path in self.out.glob("*/log.txt")}
        return [name for name, text in logs.items() if text.count(words) >= least]


def show(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def undisturbed(work: Path, runs: int, seed: int, jobs: int) -> dict[str, list[object]]:
    work.mkdir()
    faults = Faults(work, runs, seed, jobs)
    status, told = ended(faults.sweep())
    assert status == 0, told
    return faults.results()


def disturb(faults: Faults, runs: int, fills: bool) -> Path:
    """All that is done to it; gives the folder that was corrupted."""
    killed = faults.kill_workers(times=max(2, runs // 4))
    show(f"{killed} workers killed, then the sweep; {len(faults.finished())} runs finished")
    for _ in range(runs // 20):
        hit = faults.kill_sweep(faults.sweep())
        when = "with runs under way" if hit else "when it had ended"
        show(f"the sweep killed {when}; {len(faults.finished())} runs finished")
    if fills:
        status, told = faults.fill_disk()
        told = told.replace(f"{faults.disk}/", "")
        assert status in (1, 2) and FULL in told, f"a full disk ended with {status}: {told}"
        told = next(line for line in told.splitlines() if FULL in line)
        show(f"the disk filled: status {status}; {len(faults.finished())} runs finished; {told}")
    else:
        show("no disk can be mounted here: it did not fill")
    corrupted = faults.corrupt()
    show(f"half of {corrupted.name}/result.json cut off")
    return corrupted


def check(faults: Faults, whole: dict[str, list[object]], corrupted: Path) -> None:
    calls = faults.go_on()
    last = calls[-1][1].splitlines()[-1].split(";")[0]
    show(f"gone on with, {len(calls)} times; the last said: {last}")
    assert calls[-1][0] == 0, calls[-1][1]
    named = [line for line in calls[0][1].splitlines() if str(corrupted) in line]
    assert named, f"{corrupted.name} was not named: {calls[0][1]}"
    show(f"said of the corrupted one: {named[0].replace(f'{faults.disk}/', '')}")
    aside = [path.name for path in faults.out.iterdir() if ".damaged-" in path.name]
    assert aside == [f"{corrupted.name}.damaged-1"], aside
    found = faults.results()
    assert found.keys() == whole.keys(), f"missing or too many: {found.keys() ^ whole.keys()}"
    others = [name for name in whole if found[name] != whole[name]]
    assert not others, f"not the same bits: {others}"
    twice = faults.logged(" finished\n", least=2)
    assert not twice, f"came to their end twice: {twice}"
    resumed = faults.logged("resumed after step")
    show(f"{len(resumed)} runs were resumed inside their stream")
    show(f"all {len(whole)} results are those of the undisturbed sweep, bit for bit, none twice")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    disk = os.environ.get(OUR_DISK)
    if disk is None:
        with tempfile.TemporaryDirectory() as place:
            sys.exit(on_a_disk_of_its_own(Path(place)))
    runs = -(-asked.runs // len(METHODS)) * len(METHODS)
    work = Path(disk)
    show(f"{runs} runs, {asked.jobs} at a time, seed {asked.seed}")
    try:
        whole = undisturbed(work / "undisturbed", runs, asked.seed, asked.jobs)
        show(f"undisturbed: {len(whole)} runs")
        faults = Faults(work, runs, asked.seed, asked.jobs)
        check(faults, whole, disturb(faults, runs, fills=os.path.ismount(work)))
    except AssertionError as problem:
        show(f"WRONG: {problem}")
        sys.exit(1)


def on_a_disk_of_its_own(place: Path) -> int:
    """This script again, with a disk that can fill if one can be mounted."""
    again = [sys.executable, __file__, *sys.argv[1:]]
    environment = {**os.environ, OUR_DISK: str(place)}
    mount = f'mount -t tmpfs -o size=400m tmpfs "{place}"'
    probe = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode == 0:
        again = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", *again]
    return subprocess.run(again, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
