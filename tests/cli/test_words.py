"""Whatever is typed or piped, an error is one line without traceback or escape sequences.

Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Done, command, onepass, process, untouched
from PIL import Image

import onepass as package
from onepass import cli
from onepass.learning import registry
from onepass.runs.execute import run_job
from onepass.runs.spec import Job

RUN = ("run", "er", "--dataset", "synthetic", "--batch", 60, "--device", "cpu", "--json")
DIGITS = "9" * 400


# ---- Ctrl-C


def importing(started: subprocess.Popen[str], library: str) -> bool:
    return library in Path(f"/proc/{started.pid}/maps").read_text()


@pytest.mark.skipif(
    sys.platform != "linux", reason="/proc says what a process has loaded, and is Linux's"
)
def test_an_interrupt_while_torch_is_imported_is_one_line() -> None:
    started = subprocess.Popen(
        command("list", "methods"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not importing(started, "libtorch_python"):
        assert started.poll() is None
        time.sleep(0.001)
    started.send_signal(signal.SIGINT)
    out, error = started.communicate(timeout=60)
    assert (out, started.returncode) == ("", 130)
    assert error.splitlines()[-1].startswith("error: interrupted")
    assert "Traceback" not in error


def test_an_import_that_makes_something_else_of_an_interrupt_is_interrupted_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dataclasses do so, and most of an import is spent in them."""

    def imported(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("a field could not be named") from None

    monkeypatch.setattr(registry, "methods", imported)
    done = onepass("list", "methods")
    assert (done.status, done.error) == (130, "error: interrupted; what was written can be resumed")


# ---- standard output


def printed_to(stream: Any, *arguments: object) -> Done:
    err = io.StringIO()
    before, sys.argv = sys.argv, ["onepass", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        return Done(int(end.code or 0), "", err.getvalue())
    finally:
        sys.argv = before
    raise AssertionError("main returned without an exit status")


def test_a_closed_standard_output_is_an_error() -> None:
    """Its reader would take nothing for an empty answer."""
    done = process("list", "streams", preexec_fn=lambda: os.close(1))
    assert done.status == 2
    assert "standard output is closed" in done.err
    done = process("list", "streams", preexec_fn=lambda: os.close(2))
    assert done.status == 0 and "long-tail" in done.out


@pytest.mark.parametrize("arguments", [("list", "streams"), ("list", "streams", "--json")])
def test_nobody_need_take_what_is_printed(arguments: tuple[str, ...]) -> None:
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:
        done = printed_to(full, *arguments)
    assert done.status in (1, 2)
    assert "No space left" in done.error
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as nobody:
        assert printed_to(nobody, *arguments) == Done(1, "", "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_an_encoding_cannot_write_is_written_otherwise(encoding: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        run_job(Job("finetune", "synthetic", batch=60, seed=seed, device="cpu"), tmp_path / "猫")
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding=encoding)
    for arguments in (("table", tmp_path), ("predict", tmp_path / "猫", "x"), ("--help",)):
        done = printed_to(stream, *arguments)
        assert "Traceback" not in done.err
    table = content.getvalue().decode(encoding)
    assert " +- " in table if encoding == "ascii" else " ± " in table


# ---- numbers


@pytest.mark.parametrize(
    "arguments",
    [
        *[("--memory", number) for number in (DIGITS, 2**63, 2**63 - 1)],
        *[(option, DIGITS) for option in ("--seed", "--tasks", "--batch", "--every")],
        ("--seed", "-" + DIGITS),
        *[("--seeds", number) for number in (DIGITS, 10**9, 1001)],
        *[(option, "9" * 5000) for option in ("--checkpoint", "--jobs")],
        *[("--stream", f"class-incremental:{key}={DIGITS}") for key in ("tasks", "batch")],
        *[("--stream", f"{key}={DIGITS}") for key in ("long-tail:rho", "blurry:n", "blurry:m")],
        *[("--set", f"{key}={DIGITS}") for key in ("lr", "weight_decay", "gap", "replay")],
        ("--set", f"mean=({DIGITS},)", "--set", "std=(1,)"),
        ("--set", f"lr={2**64}"),
        *[("--set", f"replay={number}") for number in (10**12, 10**15, 2**62, 2**63 - 1)],
        ("--set", "replay=" + "9" * 5000),
    ],
    ids=lambda value: " ".join(str(entry)[:30] for entry in value),
)
def test_numbers_that_nothing_can_hold_are_refused(
    arguments: tuple[object, ...], tmp_path: Path
) -> None:
    with untouched(tmp_path):
        done = onepass(*RUN, *arguments, "--out", tmp_path / "new/runs")
    assert (done.status, done.out) == (2, "")
    assert len(done.error) < 400


def test_settings_for_which_there_is_no_room_are_named(tmp_path: Path) -> None:
    with untouched(tmp_path):
        for jobs in ("1", "2"):
            arguments = ("gsa", *RUN[2:], "--set", f"mix={10**12}", "--seeds", 2, "--jobs", jobs)
            done = onepass("run", *arguments, "--out", tmp_path / "new")
            assert done.status == 2
            assert "not have enough RAM" in done.error and f"mix={10**12}" in done.error
    bench = onepass("bench", "er", "--shape", "3,1000000,1000000")
    assert bench.status == 2
    assert "values in a sample=3000000000000" in bench.error
    with pytest.raises(package.InputError, match=f"replay={10**13}"):
        stream = package.ClassIncremental(package.load("synthetic"), tasks=5)
        list(package.evaluate(package.ER(memory=5, replay=10**13, device="cpu"), stream))


def test_a_run_that_has_learned_is_kept_when_room_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = package.ER.learn, iter(range(100))

    def learn(self: package.Learner, x: Any, y: Any) -> Any:
        if next(count) == 7:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")
        return real(self, x, y)

    monkeypatch.setattr(package.ER, "learn", learn)
    done = onepass(*RUN, "--checkpoint", 3, "--out", tmp_path)
    assert (done.status, "not have enough RAM" in done.error) == (2, True)
    done = onepass(*RUN, "--resume", "--out", tmp_path)
    assert done.status == 0, done.err


# ---- what a terminal would obey


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "er", "--dataset", f"./{HOSTILE}"),
        ("run", "er", "--set", f"a{HOSTILE}=1", "--set", f"a{HOSTILE}=1"),
        ("run", "er", f"--{HOSTILE}"),
        ("run", "er", "--out", f"/dev/null/{HOSTILE}"),
        ("table", HOSTILE),
        ("figure", "accuracy", HOSTILE, "-o", "x.png"),
        ("predict", HOSTILE, HOSTILE),
    ],
    ids=lambda value: " ".join(value).replace(HOSTILE, "x"),
)
def test_no_escape_sequence_comes_back_in_an_error(arguments: tuple[str, ...]) -> None:
    done = onepass(*arguments)
    assert done.status == 2, done.err
    *before, last = filter(None, done.err.splitlines())
    assert last == done.error
    assert all(line.startswith("preset ") for line in before)  # of a run that had begun
    assert done.err.replace("\n", "").isprintable()


def test_names_of_files_and_classes_do_nothing_in_predictions(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "two.npz", x=pixels, y=labels, class_names=[f"{HOSTILE}{i}" for i in "ab"])
    job = Job("finetune", f"{tmp_path}/two.npz", test_fraction=0.5, tasks=1, device="cpu")
    result = run_job(job, tmp_path / "runs")
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(pixels[0, 0]).save(folder / f"{HOSTILE}.png")
    (folder / f"{HOSTILE}\n\udce9.png").write_bytes(b"no image")
    done = onepass("predict", Path(result.out) / "checkpoint.pt", folder)
    assert done.status == 2
    (line,) = done.out.splitlines()
    assert all(cell.isprintable() for cell in line.split("\t")) and line.count("\t") == 2
    assert r"\x1b]0;owned" in line
    assert done.error.isprintable() and r"\n\udce9.png" in done.error


def test_warnings_are_plain_too(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("onepass").warning("%s is not whole", HOSTILE)
    assert capsys.readouterr().err.isprintable()
