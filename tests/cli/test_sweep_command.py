"""`onepass sweep` finishes all runs of a file, whatever interrupts it."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import Done, command, onepass, read_files, untouched, values_of
from isolated_registries import isolate_registries
from recording_listeners import Stopped, stop_after
from worker_processes import worker_pids

from onepass.base import fileio
from onepass.executors.base import Outcome
from onepass.executors.serial import Serial
from onepass.learning import registry
from onepass.learning.registry import METHODS
from onepass.runs import lines
from onepass.runs.execute import run_job
from onepass.runs.spec import Job, digest

ROOT = Path(__file__).parents[2]
SAME = ("identity", "params_sha256", "state_sha256", "accuracy_matrix")
JOB = Job("er", "synthetic", batch=30, device="cpu")  # 20 steps
SMALL = """
[defaults]
dataset = "synthetic"
batch = 30
methods = ["er", "finetune"]
seeds = 2
"""
NAMES = ["er-synthetic-m100-s0", "finetune-synthetic-s0"]
PATIENCE = 120


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a sweep run in this process, which is faster than the worker processes of real ones."""
    monkeypatch.setattr("onepass.executors.choose_executor", lambda *_, **__: Serial())


def sweep(*arguments: object) -> Done:
    return onepass("sweep", *arguments, "--device", "cpu")


def begin(*arguments: object) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    line = command("sweep", *arguments, "--device", "cpu")
    return subprocess.Popen(line, start_new_session=True, **pipes)


def end(child: subprocess.Popen) -> Done:
    out, err = child.communicate(timeout=PATIENCE)
    return Done(child.returncode, out, err)


def summary(done: Done) -> str:
    return done.err.splitlines()[-1]


def folders(out: Path) -> dict[str, Path]:
    """Returns the run folders by method and seed."""
    found = {}
    for path in out.glob("*/run.json"):
        job = json.loads(path.read_text())["job"]
        found[f"{job['method']} {job['seed']}"] = path.parent
    return found


def logged(folder: Path, words: str) -> int:
    return (folder / "log.txt").read_text().count(words)


def eventually(holds: Callable[[], object]) -> bool:
    last = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > last:
            return False
        time.sleep(0.01)
    return True


# ---- what is there already


def test_a_sweep_does_what_run_does_and_is_then_finished(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = sweep(file, "--out", out, "--jobs", 2, "--json")
    assert done.status == 0, done.err
    assert summary(done).startswith("4 finished, 0 skipped, 0 failed")
    assert "preset common (4 runs)" in done.err
    alone = run_job(JOB, tmp_path / "alone")
    (ours,) = [entry for entry in done.records if (entry["method"], entry["seed"]) == ("er", 0)]
    assert values_of(ours, SAME[1:]) == values_of(alone, SAME[1:])
    with untouched(out):
        again = sweep(file, "--out", out, "--json")
    assert (again.status, again.out) == (0, "")
    assert summary(again).startswith("0 finished, 4 skipped, 0 failed")


@pytest.mark.usefixtures("here")
def test_what_was_stopped_goes_on_where_it_was_and_what_changed_is_run_anew(
    file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    whole = run_job(JOB, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_job(JOB, out, checkpoint=5, listeners=[stop_after(12)])
    finished = run_job(replace(JOB, seed=1), out)
    with untouched(Path(finished.out)):
        done = sweep(file, "--out", out, "--json")
    assert summary(done).startswith("3 finished, 1 skipped")
    (ours,) = [entry for entry in done.records if (entry["method"], entry["seed"]) == ("er", 0)]
    assert values_of(ours, SAME[1:]) == values_of(whole, SAME[1:])
    assert logged(Path(ours["out"]), "resumed after step 10") == 1
    file.write_text(SMALL.replace('methods = ["er", "finetune"]', 'methods = "er"\nset.lr = 0.01'))
    with untouched(Path(ours["out"])):
        done = sweep(file, "--out", out, "--json")
    assert summary(done).startswith("2 finished, 0 skipped")
    assert len(list(out.iterdir())) == 6


@pytest.mark.usefixtures("here")
def test_a_raised_revision_is_run_anew(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert sweep(file, "--out", out).status == 0
    isolate_registries(monkeypatch, METHODS)
    METHODS.entries["er"] = replace(registry.get("er"), revision=2)
    before = read_files(out)
    done = sweep(file, "--out", out)
    assert summary(done).startswith("2 finished, 2 skipped")
    assert read_files(out).items() >= before.items()
    table = onepass("table", out, "--format", "csv").out
    assert [line.split(",")[:2] for line in table.splitlines()[1:]] == [
        ["er", "revision=1 batch=30"],
        ["er", "batch=30"],
        ["finetune", "batch=30"],
    ]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "result.json": lambda folder: (folder / "result.json").write_text('{"method": "er"'),
    "run.json": lambda folder: (folder / "run.json").unlink(),
    "identity": lambda folder: (folder / "run.json").write_text(
        (folder / "run.json").read_text().replace('"seed": 0', '"seed": 1')
    ),
    "events.jsonl": lambda folder: (folder / "events.jsonl").write_text(""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.usefixtures("here")
def test_a_damaged_folder_is_named_kept_and_its_run_done_again(
    damage: str, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = sweep(file, "--out", out, "--json")
    folder = Path(first.records[0]["out"])
    DAMAGES[damage](folder)
    left = read_files(folder)
    done = sweep(file, "--out", out, "--json")
    assert summary(done).startswith("1 finished, 3 skipped, 0 failed")
    (said,) = [line for line in done.err.splitlines() if str(folder) in line]
    aside = out / f"{folder.name}.damaged-1"
    assert aside.name in said
    assert read_files(aside) == left
    assert values_of(done.record, SAME[1:]) == values_of(first.records[0], SAME[1:])
    assert onepass("table", out).status == 0


@pytest.mark.usefixtures("here")
def test_a_damaged_checkpoint_is_one_too(file: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_job(JOB, tmp_path / "out", checkpoint=5, listeners=[stop_after(12)])
    saved = tmp_path / "out" / JOB.folder_name / "checkpoint.pt"
    saved.write_bytes(saved.read_bytes()[:1000])
    done = sweep(file, "--out", tmp_path / "out")
    assert summary(done).startswith("4 finished")
    assert str(saved) in done.err


# ---- --dry-run


@pytest.mark.usefixtures("here")
def test_a_dry_run_shows_how_far_all_are_and_changes_nothing(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finished = run_job(JOB, out)
    with pytest.raises(Stopped):
        run_job(replace(JOB, seed=1), out, checkpoint=5, listeners=[stop_after(12)])
    damaged = run_job(replace(JOB, method="finetune", seed=1), out)
    (Path(damaged.out) / "result.json").write_text("{")
    with untouched(tmp_path):
        done = sweep(file, "--out", out, "--dry-run", "--json")
        shown = sweep(file, "--out", out, "--dry-run")
    states = {entry["run"]: (entry["state"], entry["expected_seconds"]) for entry in done.records}
    took = finished.seconds + finished.scoring_seconds
    assert states.pop(Path(finished.out).name) == ("finished", None)
    assert [state for state, _ in states.values()] == ["to run", "to resume", "damaged"]
    resumed = states[replace(JOB, seed=1).folder_name]
    assert resumed[1] == pytest.approx(took)
    assert all(seconds is not None for _, seconds in states.values())
    assert all(name in shown.out for name in states)
    assert [entry["variant"] for entry in done.records] == ["batch=30"] * 4
    assert shown.out.count("common batch=30") == 4
    assert "1 finished, 1 to run, 1 to resume, 1 damaged" in shown.out
    nothing = sweep(file, "--out", tmp_path / "new", "--dry-run")
    assert "expected: 4 of unknown duration" in nothing.out
    assert not (tmp_path / "new").exists()


# ---- what goes wrong


@pytest.mark.usefixtures("here")
def test_where_one_dataset_is_missing_those_of_another_are_done(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its data the whole file is refused: nobody can tell which of its lines are there."""
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    file.write_text(SMALL.replace('"synthetic"', '["mnist", "synthetic"]'))
    wanted = ("--append", tmp_path / "lines.jsonl")
    assert "mnist" in sweep(file, *wanted).error
    assert sweep(file, *wanted, "--dataset", "synthetic").status == 0
    assert {entry.dataset for entry in lines.read_results(tmp_path / "lines.jsonl")} == {
        "synthetic"
    }


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("fast", [False, True])
def test_a_run_that_fails_is_told_and_the_others_go_on(
    fast: bool, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    theirs = out / JOB.folder_name
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("years of work")
    done = sweep(file, "--out", out, *(["--fail-fast"] if fast else []))
    assert done.status == 1
    (told,) = [line for line in done.err.splitlines() if line.startswith("failed: ")]
    assert JOB.folder_name in told and "thesis.txt" in told
    ended = "0 finished, 0 skipped, 1 failed, 3 left" if fast else "3 finished, 0 skipped, 1 failed"
    assert summary(done).startswith(ended)
    assert (theirs / "thesis.txt").read_text() == "years of work"


@pytest.mark.usefixtures("here")
def test_a_finished_run_of_another_device_is_not_taken_for_this_one(
    file: Path, tmp_path: Path
) -> None:
    path = Path(run_job(JOB, tmp_path / "out").out) / "run.json"
    content = json.loads(path.read_text())
    content["job"]["device"] = "cuda"
    path.write_text(json.dumps({**content, "identity": digest(content["job"])}))
    done = sweep(file, "--out", tmp_path / "out")
    assert done.status == 1
    assert "device 'cuda', not 'cpu'" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.toml"], ["none.toml"]),
        (["a.toml", "--for", "5x"], ["--for", "'5x'"]),
        (["a.toml", "--for", "0s"], ["--for", "'0s'"]),
        (["a.toml", "--jobs", "0"], ["--jobs"]),
        (["a.toml", "--append", "lines.txt"], [".jsonl"]),
        (["bad.toml"], ["bad.toml", "'memroy'"]),
        (["a.toml", "--out", "bad.toml"], ["bad.toml", "a file is in the way"]),
        (["a.toml", "--dataset", "digits"], ["dataset of a.toml", "'digits'", "synthetic"]),
    ],
)
@pytest.mark.usefixtures("here")
def test_misuse_is_one_line(
    arguments: list[str], words: list[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    Path("bad.toml").write_text('[defaults]\nmethods = "er"\nmemroy = 1\n')
    with untouched(file.parent):
        done = sweep(*arguments)
    assert done.status == 2
    assert all(word in done.error for word in words)


@pytest.mark.slow  # that of a run is tested in `test_resume.py`, that of workers with the executors
def test_an_interrupt_stops_everything_and_says_how_to_go_on(file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL.replace("batch = 30", "batch = 1"))
    out = tmp_path / "out"
    child = begin(file, "--out", out, "--checkpoint", 5)
    assert eventually(lambda: list(out.glob("*/checkpoint.pt")) or child.poll() is not None)
    pids = worker_pids(child.pid)
    os.killpg(child.pid, signal.SIGINT)
    done = end(child)
    assert done.status == 130
    assert "interrupted" in done.error
    assert "4 left: the same command continues" in done.err
    assert pids and eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    (saved,) = out.glob("*/checkpoint.pt")
    states = sweep(file, "--out", out, "--dry-run", "--json").records
    assert {entry["run"]: entry["state"] for entry in states}[saved.parent.name] == "to resume"


# ---- others at the same folder


@pytest.mark.slow
def test_two_sweeps_at_once_neither_repeat_nor_disturb_each_other(
    file: Path, tmp_path: Path
) -> None:
    """They share one folder and one file of lines; each run is done once, by either."""
    out, appended = tmp_path / "out", tmp_path / "lines.jsonl"
    file.write_text(SMALL.replace("seeds = 2", "seeds = 4"))
    both = [begin(file, "--out", out, "--append", appended, "--checkpoint", 5) for _ in range(2)]
    ended = [end(child) for child in both]
    for done in ended:
        assert done.status == 0, done.err
    counts = [[int(word.split()[0]) for word in summary(done).split(", ")[:3]] for done in ended]
    assert [sum(count) for count in counts] == [8, 8]
    assert len(folders(out)) == 8
    for folder in folders(out).values():
        assert logged(folder, " started") == logged(folder, " finished") == 1
    assert sorted(entry.identity for entry in lines.read_results(appended)) == sorted(
        json.loads((folder / "run.json").read_text())["identity"]
        for folder in folders(out).values()
    )
    whole = run_job(JOB, tmp_path / "whole")
    found = json.loads((folders(out)["er 0"] / "result.json").read_text())
    assert values_of(found, SAME) == values_of(whole, SAME)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_of_another_process_is_waited_for_and_done_if_that_has_died(
    finishes: bool, file: Path, tmp_path: Path
) -> None:
    out, whole = tmp_path / "out", run_job(JOB, tmp_path / "whole")
    theirs = out / JOB.folder_name
    theirs.mkdir(parents=True)
    lock = fileio.locked_file(theirs / ".lock", wait=False)

    def others_end() -> bool:
        return len(list(out.glob("*/result.json"))) == 3

    def work() -> None:
        with lock:
            locked.set()
            eventually(others_end)
            if finishes:
                shutil.copytree(Path(whole.out), theirs, dirs_exist_ok=True)

    locked = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    locked.wait()
    done = sweep(file, "--out", out)
    thread.join()
    assert done.status == 0, done.err
    wanted = "3 finished, 1 skipped" if finishes else "4 finished, 0 skipped"
    assert summary(done).startswith(wanted)
    found = json.loads((theirs / "result.json").read_text())
    assert values_of(found, SAME) == values_of(whole, SAME)


@pytest.mark.usefixtures("here")
def test_a_run_of_another_process_is_not_waited_for_when_the_time_is_up(
    file: Path, tmp_path: Path
) -> None:
    file.write_text(SMALL.replace('["er", "finetune"]', '"er"').replace("= 2", "= 1"))
    theirs = tmp_path / "out" / JOB.folder_name
    theirs.mkdir(parents=True)
    with ExitStack() as at_work:
        at_work.enter_context(fileio.locked_file(theirs / ".lock", wait=False))
        their_end = threading.Timer(5, at_work.close)
        their_end.start()
        done = sweep(file, "--out", tmp_path / "out", "--for", "0.4s")
        assert their_end.is_alive()
        their_end.cancel()
    assert done.status == 0, done.err
    assert summary(done).startswith("0 finished, 0 skipped, 0 failed, 1 left")


# ---- lines, and a limit of time


@pytest.mark.usefixtures("here")
def test_each_run_is_a_line_and_what_is_there_is_not_run_again(file: Path, tmp_path: Path) -> None:
    appended = tmp_path / "lines.jsonl"
    first = sweep(file, "--append", appended)
    assert summary(first).startswith("4 finished, 0 skipped, 0 failed")
    whole = run_job(JOB, tmp_path / "whole")
    results = lines.read_results(appended)
    assert [len(results), len({entry.identity for entry in results})] == [4, 4]
    (ours,) = [entry for entry in results if entry.identity == whole.identity]
    assert values_of(ours, SAME) == values_of(whole, SAME)
    assert (ours.revision, ours.data_sha256, ours.settings) == (
        whole.revision,
        whole.data_sha256,
        whole.settings,
    )
    file.write_text(SMALL.replace("seeds = 2", "seeds = 3"))
    again = sweep(file, "--append", appended, "--dry-run", "--json").records
    assert [entry["state"] for entry in again] == ["finished"] * 4 + ["to run"] * 2
    assert summary(sweep(file, "--append", appended)).startswith("2 finished, 4 skipped")
    assert len(lines.read_results(appended)) == 6
    assert {path.name for path in tmp_path.iterdir()} == {"a.toml", "lines.jsonl", "whole"}
    rows = csv.DictReader(io.StringIO(onepass("table", appended, "--format", "csv").out))
    assert {row["method"]: row["n"] for row in rows} == {"er": "3", "finetune": "3"}


@pytest.mark.usefixtures("here")
def test_who_asks_for_a_watcher_in_vain_is_told(here: None, file: Path, tmp_path: Path) -> None:
    """Probes write into run folders, so a finished run cannot be probed any more."""
    out, lines_file = tmp_path / "runs", tmp_path / "a.jsonl"
    file.write_text(SMALL.replace('["er", "finetune"]', '"finetune"').replace("= 2", "= 1"))
    assert "probes" not in sweep(file, "--out", out).err
    file.write_text(file.read_text() + 'probe = "balance"\n')
    assert "skipped: 1, such as finetune-synthetic" in sweep(file, "--out", out).err
    assert "the records of probes are lost" in sweep(file, "--append", lines_file).err
    watched = sweep(file, "--out", tmp_path / "other")
    assert "probes" not in watched.err
    assert "probes" not in sweep(file, "--out", tmp_path / "other").err


@pytest.mark.usefixtures("here")
def test_what_was_finished_and_not_yet_written_down_is_not_lost(file: Path, tmp_path: Path) -> None:
    out, appended = tmp_path / "out", tmp_path / "lines.jsonl"
    sweep(file, "--out", out)
    for _ in range(2):
        done = sweep(file, "--out", out, "--append", appended)
        assert summary(done).startswith("0 finished, 4 skipped")
        assert len(lines.read_results(appended)) == 4


def test_what_one_run_took_tells_whether_the_next_ones_fit(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the same kind count, and runs of another method on the same data."""

    class Slow(Serial):
        def outcomes(self, *given: Any) -> Generator[Outcome, None, None]:
            for number, result in super().outcomes(*given):
                yield number, replace(result, seconds=3600.0)

    monkeypatch.setattr("onepass.executors.choose_executor", lambda *_, **__: Slow())
    done = sweep(file, "--append", tmp_path / "lines.jsonl", "--for", "60s")
    told = "1 finished, 0 skipped, 0 failed, 3 left: the same command starts them anew (--out"
    assert summary(done).startswith(told)


@pytest.mark.slow
def test_when_the_time_is_up_what_is_running_stops_and_can_go_on(
    file: Path, tmp_path: Path
) -> None:
    """The first run starts because its duration is unknown; the others wait for it.

    On a slow machine it may not reach its first checkpoint, so the limit then grows.
    """
    file.write_text(
        '[defaults]\nmethods = "gsa"\nbatch = 1\nevery = 1\nseeds = 2\nset = { mix = 512 }\n'
    )  # 1442 slow steps, each scored
    out, appended = tmp_path / "out", tmp_path / "lines.jsonl"
    asked = (file, "--out", out, "--append", appended)
    for seconds in (8, 16, 32, 64):
        began = time.monotonic()
        done = end(begin(*asked, "--for", f"{seconds}s", "--checkpoint", 5, "--jobs", 2))
        assert done.status == 0, done.err
        assert seconds < time.monotonic() - began < seconds + 30
        told = "0 finished, 0 skipped, 0 failed, 2 left: the same command"
        assert summary(done).startswith(told)
        states = [entry["state"] for entry in sweep(*asked, "--dry-run", "--json").records]
        if states[0] == "to resume":
            break
    assert states == ["to resume", "to run"]
    assert appended.read_text() == ""  # opened before the first run, and no run has ended


# ---- everything at once


@pytest.mark.slow  # each alone is tested above, with the executors or with bad options
def test_whatever_happens_to_six_runs_they_end_with_the_same_bits() -> None:
    """benchmarks/faults.py says which faults it inflicts."""
    line = [sys.executable, str(ROOT / "benchmarks/faults.py"), "--runs", "6", "--seed", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 6 results are those of the undisturbed sweep" in done.stdout
