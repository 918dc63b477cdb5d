"""Disturbs a sweep of small runs in every way, and checks that its results do not change.

Its workers and then the sweep itself are killed at random, the disk fills once, and the folder of a
finished run is corrupted. Then the same command is given until nothing is left to do. Every result
must equal that of an undisturbed sweep, bit for bit.

    python benchmarks/faults.py                     # 60 runs on the digits, some minutes
    python benchmarks/faults.py --runs 6 --seed 3

`unshare` mounts a small disk for the sweep. If that is not allowed, the disk is not filled, and the
script says so. If anything is wrong, it prints one line and exits with status 1.
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

# fields of a result that no fault may change
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
    # `--jobs` is limited by the cores, so the sweep is given eight
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
    """Waits until the sweep ends; returns its exit status and its standard error."""
    _, errors = child.communicate(timeout=PATIENCE)
    return child.returncode, errors


def children(parent: int) -> list[int]:
    """Returns the process ids of a sweep's workers."""
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
    """Waits until a condition holds; returns False if the sweep ends first."""
    while not holds():
        if child.poll() is not None:
            return False
        time.sleep(0.01)
    return True


class Faults:
    """A sweep and the faults to inflict on it."""

    def __init__(self, work: Path, runs: int, seed: int, jobs: int) -> None:
        self.disk, self.file, self.out = work, work / "a.toml", work / "out"
        self.chance, self.jobs, self.began = random.Random(seed), jobs, 0.0
        self.longest = runs / 8  # seconds until the next fault, at most
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
        """Returns whether this call has written a checkpoint of a run that is still going on."""
        for path in self.out.glob("*/checkpoint.pt"):
            with suppress(OSError):  # the checkpoint is just being replaced
                new = path.stat().st_mtime > self.began
                if new and not (path.parent / "result.json").exists():
                    return True
        return False

    def kill_workers(self, times: int) -> int:
        """Kills workers while runs go on, then the sweep once a run has finished.

        Returns how many workers were killed. A run whose worker is killed is tried once more by the
        sweep. If that attempt is killed too, a later call of the command completes the run.
        """
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
        """Kills the sweep; its workers must end by themselves.

        Returns whether runs were still going on when it was killed.
        """
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
        """Fills the disk while runs go on, until the sweep ends by itself.

        Returns its exit status and its standard error.
        """
        child = self.sweep()
        wait(self.under_way, child)
        time.sleep(self.chance.uniform(0, self.longest))
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file:
            while child.poll() is None:  # fill again whatever room the sweep makes
                try:
                    file.write(b"\0" * 65536)
                except OSError:
                    time.sleep(0.01)
        filler.unlink()
        return ended(child)

    def corrupt(self) -> Path:
        """Cuts the result file of a finished run in half; returns its folder."""
        folder = self.chance.choice(self.finished())
        content = (folder / "result.json").read_bytes()
        (folder / "result.json").write_bytes(content[: len(content) // 2])
        return folder

    def go_on(self) -> list[tuple[int, str]]:
        """Gives the same command until nothing is left to do; returns status and output of each."""
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
        """Returns the runs whose log has these words at least `least` times."""
        logs = {path.parent.name: path.read_text() for path in self.out.glob("*/log.txt")}
        return [name for name, text in logs.items() if text.count(words) >= least]


def show(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def undisturbed(work: Path, runs: int, seed: int, jobs: int) -> dict[str, list[object]]:
    work.mkdir()
    faults = Faults(work, runs, seed, jobs)
    status, errors = ended(faults.sweep())
    assert status == 0, errors
    return faults.results()


def disturb(faults: Faults, runs: int, fills: bool) -> Path:
    """Inflicts all faults on a sweep; returns the folder that was corrupted."""
    killed = faults.kill_workers(times=max(2, runs // 4))
    show(f"{killed} workers killed, then the sweep; {len(faults.finished())} runs finished")
    for _ in range(runs // 20):
        hit = faults.kill_sweep(faults.sweep())
        when = "with runs under way" if hit else "when it had ended"
        show(f"the sweep killed {when}; {len(faults.finished())} runs finished")
    if fills:
        status, errors = faults.fill_disk()
        errors = errors.replace(f"{faults.disk}/", "")
        assert status in (1, 2) and FULL in errors, f"a full disk ended with {status}: {errors}"
        error = next(line for line in errors.splitlines() if FULL in line)
        show(f"the disk filled: status {status}; {len(faults.finished())} runs finished; {error}")
    else:
        show("no disk can be mounted here: it did not fill")
    corrupted = faults.corrupt()
    show(f"half of {corrupted.name}/result.json cut off")
    return corrupted


def check(faults: Faults, whole: dict[str, list[object]], corrupted: Path) -> None:
    """Continues the sweep; raises AssertionError unless its results equal `whole`.

    `whole` holds the results of the undisturbed sweep.
    """
    calls = faults.go_on()
    last = calls[-1][1].splitlines()[-1].split(";")[0]
    show(f"continued {len(calls)} times; the last call printed: {last}")
    assert calls[-1][0] == 0, calls[-1][1]
    named = [line for line in calls[0][1].splitlines() if str(corrupted) in line]
    assert named, f"{corrupted.name} was not named: {calls[0][1]}"
    show(f"printed about the corrupted run: {named[0].replace(f'{faults.disk}/', '')}")
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
    arguments = parser.parse_args()
    disk = os.environ.get(OUR_DISK)
    if disk is None:
        with tempfile.TemporaryDirectory() as place:
            sys.exit(on_a_disk_of_its_own(Path(place)))
    runs = -(-arguments.runs // len(METHODS)) * len(METHODS)
    work = Path(disk)
    show(f"{runs} runs, {arguments.jobs} at a time, seed {arguments.seed}")
    try:
        whole = undisturbed(work / "undisturbed", runs, arguments.seed, arguments.jobs)
        show(f"undisturbed: {len(whole)} runs")
        faults = Faults(work, runs, arguments.seed, arguments.jobs)
        check(faults, whole, disturb(faults, runs, fills=os.path.ismount(work)))
    except AssertionError as problem:
        show(f"WRONG: {problem}")
        sys.exit(1)


def on_a_disk_of_its_own(place: Path) -> int:
    """Runs this script again on a small disk, or in this folder if none can be mounted.

    Returns its exit status.
    """
    again = [sys.executable, __file__, *sys.argv[1:]]
    environment = {**os.environ, OUR_DISK: str(place)}
    mount = f'mount -t tmpfs -o size=400m tmpfs "{place}"'
    probe = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode == 0:
        again = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", *again]
    return subprocess.run(again, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
