"""After kills at any moment, a run ends with the bits of one never stopped.

Nothing is lost, and nothing is there twice. `FUZZ_SECONDS=600 pytest -s
tests/fuzz/test_fuzz_kills.py` prints how many kills of each kind hit.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from command import command, events, file_names, onepass, timeless
from fuzzing import fuzz
from PIL import Image
from worker_processes import worker_pids

from onepass import cli
from onepass.base.checksum import sha256
from onepass.learning import registry
from onepass.learning.checkpoint import file as checkpoint
from onepass.runs.folder import RunFolder

METHODS = [info.key for info in registry.methods()]
SAME = ("params_sha256", "state_sha256", "accuracy", "forgetting", "accuracy_matrix", "steps")
RUN = ("--memory", 20, "--device", "cpu", "--batch", 20, "--checkpoint", 4)  # 75 steps
FILES = {"run.json", "events.jsonl", "checkpoint.pt", "result.json", "log.txt"}
SEEDS_OF_WORKERS = 3
PATIENCE = 180
KILLS: Counter[str] = Counter()
NURSERY = multiprocessing.get_context("forkserver")
NURSERY.set_forkserver_preload(
    ["onepass.cli", "onepass.report.figures", "sklearn.datasets", "torch._dynamo"]
)


def asked(method: str, seeds: int = 1) -> tuple[object, ...]:
    """Returns a short command; a method that trains at its end trains little."""
    quick = registry.get(method).learner.traits.quick
    settings = [part for name, n in quick.items() for part in ("--set", f"{name}={min(n, 2)}")]
    return ("run", method, *settings, *RUN, "--seeds", seeds)


@cache
def undisturbed(arguments: tuple[object, ...]) -> dict[int, tuple[Any, ...]]:
    """Returns the final state of each seed of a command without kills."""
    with tempfile.TemporaryDirectory() as out:
        return ended(arguments, Path(out))


def ended(arguments: tuple[object, ...], out: Path) -> dict[int, tuple[Any, ...]]:
    """Continues to the end; returns result, events without times and last checkpoint per seed."""
    done = onepass(*arguments, "--json", "--resume", "--out", out)
    assert done.status == 0, done.err
    found = {}
    for record in done.records:
        folder = Path(record["out"])
        assert file_names(folder) == FILES
        saved = sha256(checkpoint.read_checkpoint(folder / "checkpoint.pt")["state"])
        anytime = RunFolder(folder).result().anytime_accuracy
        results = [anytime, *(record[key] for key in SAME)]
        found[record["seed"]] = (results, timeless(events(folder)), saved)
    return found


# ---- kills


def in_process(arguments: list[str], printed: str) -> None:
    """Runs the command in a forked process, where everything is imported already."""
    with Path(printed).open("a") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.argv = ["onepass", *arguments]
    cli.main()


def until(holds: Callable[[], object], running: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while running() and not holds() and time.monotonic() < end:
        time.sleep(0.002)


def kill_alone(chance: random.Random, method: str, out: Path) -> tuple[object, ...]:
    """Kills one run a few times.

    This happens before it begins, between checkpoints, or while the table and the picture are made.
    """
    arguments = asked(method)
    for _ in range(chance.randint(1, 5)):
        line = [*map(str, arguments), "--out", str(out), "--resume"]
        child = NURSERY.Process(target=in_process, args=(line, f"{out}.txt"))
        child.start()
        late, wanted = chance.random() < 0.3, chance.choice([0, 1, 1, 2, 4])
        moment = (lambda: has_result(out)) if late else after_checkpoints(out, wanted)
        until(moment, child.is_alive)
        time.sleep(chance.uniform(0, 0.25 if late or not wanted else 0.04))
        kill(child, method, out)
    return arguments


def kill(child: ForkServerProcess, method: str, out: Path) -> None:
    after = has_result(out)
    child.kill()
    child.join()
    if child.exitcode == -signal.SIGKILL:  # or it was faster
        KILLS.update(["after the result" if after else "before the result", method])


def has_result(out: Path) -> bool:
    return any(out.glob("*/result.json"))


def after_checkpoints(out: Path, count: int) -> Callable[[], bool]:
    """Returns a condition that holds after this many more checkpoints."""
    seen = set()

    def moment() -> bool:
        seen.add(tuple(path.stat().st_mtime_ns for path in out.glob("*/checkpoint.pt")))
        return len(seen) > count

    return moment


def kill_workers(chance: random.Random, method: str, out: Path) -> tuple[object, ...]:
    """Kills one or two workers of a command that has two; a run is lost only if both hit it."""
    arguments = asked(method, SEEDS_OF_WORKERS)
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
    KILLS.update({"one worker": hits, method: hits})
    return arguments


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
    method = chance.choice(METHODS)
    with tempfile.TemporaryDirectory() as folder:
        out, said = Path(folder) / "runs", Path(folder) / "runs.txt"
        one_of = kill_workers if chance.random() < 0.25 else kill_alone
        arguments = one_of(chance, method, out)
        assert not said.exists() or "Traceback" not in said.read_text(), said.read_text()
        assert ended(arguments, out) == undisturbed(arguments)
        if (picture := out / "accuracy.png").exists():
            Image.open(picture).load()


@pytest.mark.slow
def test_kills_at_any_moment_change_no_bit() -> None:
    fuzz("kills", a_case, few=4)
    print(dict(KILLS), flush=True)
