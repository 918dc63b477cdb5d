"""Closed-form methods on the command line: whatever takes a method takes one that keeps sums."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import Done, onepass, read_files, refused
from PIL import Image
from sklearn.datasets import load_digits

import onepass as package

METHODS = ("kernel-lda", "ncm", "ranpac", "ridge", "slda")
DIGITS = ("--dataset", "digits", "--device", "cpu", "--json")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """Runs all closed-form methods with a memory that they do not have, and fine-tuning."""
    out = tmp_path_factory.mktemp("runs")
    asked = ("--memory", 50, "--prequential", "--batch", 50, "--every", 20)
    return onepass("run", *METHODS, "finetune", *asked, *DIGITS, "--out", out), out


def test_each_method_learns_the_digits_and_keeps_no_sample(done: tuple[Done, Path]) -> None:
    printed, out = done
    assert printed.status == 0, printed.err
    accuracies = {record["method"]: record["accuracy"] for record in printed.records}
    assert set(accuracies) == {*METHODS, "finetune"}
    assert min(accuracies[name] for name in METHODS) > 85
    assert {record["memory"] for record in printed.records} == {0}
    for name in METHODS:
        results = [json.loads(path.read_text()) for path in out.glob(f"{name}-*/result.json")]
        (result,) = results
        assert result["trained_per_sample"] == result["scored_per_sample"] == 0
        assert result["memory_bytes"] >= 8 * 64
        assert result["prequential_accuracy"] > 50


def test_a_memory_that_nobody_has_is_said_in_one_line(done: tuple[Done, Path]) -> None:
    said = [line for line in done[0].err.splitlines() if "--memory" in line]
    names = ", ".join((*METHODS, "finetune"))
    assert said == [f"--memory has no effect on {names}, which keep no samples"]


def test_who_gives_no_memory_is_told_nothing_of_it(tmp_path: Path) -> None:
    asked = ("--dataset", "synthetic", "--set", "width=20", "--device", "cpu")
    err = onepass("run", "ranpac", *asked, "--out", tmp_path).err
    assert "memory" not in err


def test_tables_show_the_bytes_of_the_sums(done: tuple[Done, Path]) -> None:
    shown = onepass("table", done[1]).out
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    # 65 numbers a class, and 64 x 64 or 256 x 256 products
    sizes = {"ncm": 8 * (650 + 64), "ridge": 8 * (650 + 64**2), "ranpac": 8 * (2570 + 256**2)}
    for name, size in sizes.items():
        assert rows[name].rstrip().endswith(f"{size / 1e3:.1f} kB")


def test_figures_and_the_page_show_them(done: tuple[Done, Path], tmp_path: Path) -> None:
    assert onepass("figure", "accuracy", done[1], "-o", tmp_path / "a.svg").status == 0
    assert onepass("report", done[1], "-o", tmp_path / "page.html").status == 0
    for name in METHODS:
        assert name in (tmp_path / "a.svg").read_text()
        assert name in (tmp_path / "page.html").read_text()


def test_a_checkpoint_predicts_images_and_has_no_memory(
    done: tuple[Done, Path], tmp_path: Path
) -> None:
    (saved,) = done[1].glob("ranpac-*/checkpoint.pt")
    digits = load_digits()
    for index in range(10):
        pixels = (digits.images[index] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{digits.target[index]}.png")
    shown = onepass("predict", saved, tmp_path)
    assert shown.status == 0, shown.err
    assert refused("memory", saved).endswith("has no memory: ranpac keeps no samples")


def test_vectors_in_a_table_and_in_arrays_are_learned(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (2 * np.eye(5)[y] + 0.3 * rng.normal(size=(120, 5))).astype(np.float32)
    np.savez(tmp_path / "v.npz", train_x=x[:90], train_y=y[:90], test_x=x[90:], test_y=y[90:])
    rows = [
        ",".join(map(str, [*values, f"kind {label}"])) for values, label in zip(x, y, strict=True)
    ]
    (tmp_path / "v.csv").write_text("\n".join(["a,b,c,d,e,label", *rows]))
    own = ("--label", "label", "--test-fraction", 0.25)
    for options in ((tmp_path / "v.npz",), (tmp_path / "v.csv", *own)):
        asked = ("--tasks", 3, "--batch", 7, "--device", "cpu", "--json", "--out", tmp_path / "o")
        found = onepass("run", *METHODS, "--dataset", *options, *asked)
        assert found.status == 0, found.err
        assert min(record["accuracy"] for record in found.records) > 80


@pytest.mark.slow  # two processes start
def test_jobs_in_parallel_give_the_same_sums(done: tuple[Done, Path], tmp_path: Path) -> None:
    asked = ("--jobs", 2, "--batch", 50, *DIGITS, "--out", tmp_path)
    found = onepass("run", "ranpac", "slda", *asked).records
    before = {record["method"]: record["params_sha256"] for record in done[0].records}
    assert {record["params_sha256"] for record in found} == {before["ranpac"], before["slda"]}


def test_a_sweep_over_widths_has_a_run_for_each(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[defaults]\ndataset = "digits"\nbatch = 100\n'
        '[[grid]]\nmethods = "ranpac"\nset = { width = [16, 300] }\n'
    )
    assert onepass("sweep", file, "--device", "cpu", "--out", tmp_path / "runs").status == 0
    again = onepass("sweep", file, "--device", "cpu", "--out", tmp_path / "runs", "--dry-run")
    assert "2" in again.out + again.err
    learners = [package.open(path) for path in (tmp_path / "runs").rglob("checkpoint.pt")]
    assert sorted(learner.width for learner in learners) == [16, 300]  # type: ignore[attr-defined]


def test_a_search_finds_a_width(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text("[space]\nwidth = [8, 64]\n")
    asked = ("--dataset", "digits", "--batch", 100, "--trials", 2, "--device", "cpu")
    found = onepass("tune", "ranpac", "--space", space, *asked, "--out", tmp_path / "tune")
    assert found.status == 0, found.err
    assert "width = 64" in (tmp_path / "tune" / "best.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "ranpac", "--probe", "balance"), "the probe 'balance' needs a method that trains"),
        (("run", "ncm", "--precision", "bf16"), "unknown setting of 'ncm' 'precision'"),
        (("run", "ridge", "--preset", "best"), "has no preset 'best'"),
        (("run", "ridge", "--set", "strength=0"), "strength must be positive, or auto"),
        (("bench", "slda"), "a bench needs a method that trains a network: slda trains none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_needs_a_network_is_refused_in_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    rest = () if arguments[0] == "bench" else ("--dataset", "synthetic", "--out", tmp_path / "out")
    assert said in refused(*arguments, *rest)
    assert read_files(tmp_path) == {}


def test_lists_have_them() -> None:
    listed = {entry["method"]: entry for entry in onepass("list", "methods", "--json").records}
    assert {listed[name]["kept per sample"] for name in METHODS} == {"nothing"}
    assert {listed[name]["trained images a step"] for name in METHODS} == {0}
    settings = {entry["name"] for entry in onepass("list", "settings", "ranpac", "--json").records}
    assert {"width", "strength", "scale", "halflife", "seed", "device"} <= settings
