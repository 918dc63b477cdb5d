"""After kills at any moment, a run of any method ends with the files of one never stopped.

Nothing is lost, and nothing is there twice. Every value in the run's folder is compared, except for
those in TIMES, so that a value added later is compared too. `FUZZ_SECONDS=600 pytest -s
tests/fuzz/test_fuzz_kills.py` prints how many kills of each kind hit.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command import EVENT_TIMES, RESULT_TIMES, command, onepass
from fuzzing import fuzz
from PIL import Image
from random_runs import METHODS, a_run, write_data
from worker_processes import worker_pids

from onepass import cli
from onepass.base import devices
from onepass.base.checksum import sha256
from onepass.learning.checkpoint import file as checkpoint

TIMES = {  # the values that no two runs share, by file
    "result.json": RESULT_TIMES,
    "run.json": ("started",),
    "events.jsonl": EVENT_TIMES,
    "checkpoint.pt": ("files",),  # digests of events.jsonl, times included
}
NOT_COMPARED = {".lock", "log.txt"}  # log.txt says when the run was resumed
SEEDS_OF_WORKERS = 3
PATIENCE = 300
TRIES = 30
KILLS: Counter[str] = Counter()
NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(
    ["onepass.cli", "onepass.report.figures", "sklearn.datasets", "torch._dynamo"]
)


def accepted(chance: random.Random, place: Path, *more: object) -> tuple[list[str], Path]:
    """Returns a random command that is not refused, and the folder of its undisturbed runs."""
    data, method = write_data(place), chance.choice(METHODS)
    for number in range(TRIES):
        every = chance.choice(["1", "2", "4", "8", "auto", "none"])
        arguments = [*a_run(chance, method, data), "--checkpoint", every, *map(str, more)]
        out = place / f"undisturbed-{number}"
        done = onepass(*arguments, "--json", "--out", out)
        if not done.status:
            return arguments, out
        assert done.status in (1, 2) and done.error, arguments  # 1: it diverged
        KILLS["refused"] += 1
    raise AssertionError(f"{TRIES} commands in a row were refused, the last one with {done.error}")


def ended(arguments: list[str], out: Path) -> dict[str, dict[str, Any]]:
    """Continues the runs of a command to their end; returns what their folders hold."""
    done = onepass(*arguments, "--json", "--resume", "--out", out)
    assert done.status == 0, done.err
    return contents_of_runs(out)


def contents_of_runs(out: Path) -> dict[str, dict[str, Any]]:
    """Returns the content of each file in each run folder, without times."""
    return {
        folder.name: {
            path.name: content(path)
            for path in sorted(folder.iterdir())
            if path.name not in NOT_COMPARED
        }
        for folder in sorted(out.iterdir())
        if folder.is_dir()
    }


def content(path: Path) -> Any:
    """Returns the content of a file without times; checksums for the values of a checkpoint."""

    def timeless(entry: dict[str, Any], times: Sequence[str]) -> dict[str, Any]:
        return {name: value for name, value in entry.items() if name not in times}

    times = TIMES.get(path.name, ())
    if path.suffix == ".jsonl":
        return [timeless(json.loads(line), times) for line in path.read_text().splitlines()]
    if path.suffix == ".pt":
        entry = timeless(checkpoint.read_checkpoint(path), times)
        entry["tick"] = timeless(entry["tick"], EVENT_TIMES)
        return {name: sha256(value) for name, value in entry.items()}
    entry = timeless(json.loads(path.read_text()), times)
    return {**entry, "out": Path(entry["out"]).name} if "out" in entry else entry


# ---- kills


def in_process(arguments: list[str], printed: str) -> None:
    """Runs the command in a forked process, where everything is imported already."""
    with Path(printed).open("a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.argv = ["onepass", *arguments]
    devices.IMPORTING_PROCESS = os.getpid()  # the nursery has no threads that this process lacks
    cli.main()


def until(holds: Callable[[], object], running: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while running() and not holds() and time.monotonic() < end:
        time.sleep(0.002)


def kill_alone(chance: random.Random, arguments: list[str], out: Path) -> None:
    """Kills one run a few times, until it has ended.

    This happens before it begins, between checkpoints, or while the table and the picture are made.
    """
    line = [*arguments, "--out", str(out), "--resume"]
    for _ in range(chance.randint(1, 10)):
        child = NURSERY.Process(target=in_process, args=(line, f"{out}.txt"))
        child.start()
        late, wanted = chance.random() < 0.15, chance.choice([0, 1, 2, 4, 8, 16])
        moment = (lambda: has_result(out)) if late else after_changes(out, wanted)
        until(moment, child.is_alive)
        time.sleep(chance.uniform(0, 0.25 if late or not wanted else 0.04))
        after = has_result(out)
        child.kill()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL), Path(f"{out}.txt").read_text()
        if child.exitcode == -signal.SIGKILL:  # or it was faster
            count("after the result" if after else "before the result", arguments)
        if after:
            return


def count(kind: str, arguments: list[str], hits: int = 1) -> None:
    """Counts kills by their kind, method and preset, and those of prequential runs."""
    method, preset = arguments[1], f"--preset {arguments[3]}"
    for what in ("SIGKILL", kind, method, preset, *{"--prequential"}.intersection(arguments)):
        KILLS[what] += hits


def has_result(out: Path) -> bool:
    return any(out.glob("*/result.json"))


def after_changes(out: Path, count: int) -> Callable[[], bool]:
    """Returns a condition that holds once the files of a run have changed this many times."""
    seen: set[frozenset[tuple[str, int]]] = set()

    def moment() -> bool:
        with suppress(FileNotFoundError):  # a temporary file was renamed meanwhile
            files = out.glob("*/*")
            seen.add(frozenset((path.name, path.stat().st_mtime_ns) for path in files))
        return len(seen) > count

    return moment


def kill_workers(chance: random.Random, arguments: list[str], out: Path) -> None:
    """Kills one or two workers of a command that has two; a run is lost only if both hit it."""
    python, flag, code, *rest = command(*arguments, "--json", "--jobs", 2, "--out", out)
    line = [python, flag, f"import os; os.sched_getaffinity = lambda pid: {{0, 1}}; {code}", *rest]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(line, **pipes)
    hits = sum(kill_worker(chance, child, out) for _ in range(chance.randint(1, 2)))
    printed, said = child.communicate(timeout=PATIENCE)
    lost = SEEDS_OF_WORKERS - len(printed.splitlines())
    assert "Traceback" not in said, said
    assert lost <= hits // 2, said
    assert len(list(out.glob("*/result.json"))) >= SEEDS_OF_WORKERS - lost
    assert (child.returncode, "tried twice" in said) == ((1, True) if lost else (0, False)), said
    count("one worker", arguments, hits)


def kill_worker(chance: random.Random, child: subprocess.Popen, out: Path) -> bool:
    written = chance.choice([0, 1, 2, 4, 5, 6, 7, 8, 9])  # files of all runs together
    until(lambda: worker_pids(child.pid) and len(list(out.glob("*/*"))) >= written, running(child))
    time.sleep(chance.uniform(0, 0.2 if written else 2.0))
    there = worker_pids(child.pid)
    if there:
        os.kill(chance.choice(there), signal.SIGKILL)
    return bool(there)


def running(child: subprocess.Popen) -> Callable[[], bool]:
    return lambda: child.poll() is None


def a_case(chance: random.Random) -> None:
    workers = chance.random() < 0.12
    # where other tests run beside, two threads wait for each other
    threads = 2 if not workers and chance.random() < 0.05 else 1
    seeds = SEEDS_OF_WORKERS if workers else 1
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        arguments, undisturbed = accepted(chance, place, "--seeds", seeds, "--threads", threads)
        out, said = place / "runs", place / "runs.txt"
        try:
            (kill_workers if workers else kill_alone)(chance, arguments, out)
            assert not said.exists() or "Traceback" not in said.read_text(), said.read_text()
            assert ended(arguments, out) == contents_of_runs(undisturbed)
            if (picture := out / "accuracy.png").exists():
                Image.open(picture).load()
        except BaseException as failed:
            failed.add_note(f"command: {arguments}")
            raise


@pytest.mark.slow
def test_kills_at_any_moment_change_no_value() -> None:
    try:
        fuzz("kills", a_case, few=6)
    finally:
        print(dict(KILLS), flush=True)
