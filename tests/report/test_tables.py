"""Folders of finished runs as tables."""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from command import onepass
from report_runs import change_result, read_csv, read_results

from onepass.base.text import format_rate
from onepass.report import layout
from onepass.report import rows as tables
from onepass.runs import query


def test_a_table_has_a_row_for_each_method_and_variant(runs: Path) -> None:
    table = read_csv(onepass("table", runs, "--format", "csv").out)
    assert [(row["method"], row["variant"]) for row in table] == [
        ("er", ""),
        ("er", "lr=5e-4"),
        ("finetune", ""),
        ("joint", ""),
    ]
    assert [row["n"] for row in table] == ["3", "1", "3", "3"]


def test_rows_come_in_the_order_of_folders_with_numbers_by_their_size(
    runs: Path, tmp_path: Path
) -> None:
    for name in ("m100-s0", "m50-s10", "m50-s2"):
        memory, seed = (int(part[1:]) for part in name.split("-"))
        shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / name)
        change_result(tmp_path / name, memory=memory, seed=seed)
    table = read_csv(onepass("table", tmp_path, "--per-run", "--format", "csv").out)
    ordered = [("50", "2"), ("50", "10"), ("100", "0")]
    assert [(row["memory"], row["seed"]) for row in table] == ordered
    listed = onepass("runs", "list", tmp_path, "--json").records
    assert [(str(run["memory"]), str(run["seed"])) for run in listed] == ordered


def test_a_table_shows_mean_and_sample_deviation_over_the_seeds(runs: Path) -> None:
    for row in read_csv(onepass("table", runs, "--format", "csv").out):
        group = [
            result
            for result in read_results(runs)
            if (result["method"], result["variant"]) == (row["method"], row["variant"])
        ]
        for column, key in (
            ("accuracy", "accuracy"),
            ("forgetting", "forgetting"),
            ("any-time", "anytime_accuracy"),
        ):
            values = [result[key] for result in group]
            known = None not in values
            assert row[column] == (f"{mean(values):.4f}" if known else "")
            several = known and len(values) > 1
            assert row[f"{column} sd"] == (f"{stdev(values):.4f}" if several else "")
        speed = mean(result["steps_per_second"] for result in group)
        assert row["steps/s"] == f"{speed:.4f}"
        assert row["memory"] == ("100" if row["method"] == "er" else "0")


def test_passes_are_images_trained_for_each_image_of_the_stream(runs: Path) -> None:
    table = read_csv(onepass("table", runs, "--format", "csv").out)
    passes = {row["method"]: (row["trained/sample"], row["scored/sample"]) for row in table}
    assert passes == {"er": ("7.4", "0.0"), "finetune": ("1.0", "0.0"), "joint": ("1.0", "0.0")}


def test_every_format_shows_the_same_cells(runs: Path) -> None:
    formats = {
        name: onepass("table", runs, "--format", name)
        for name in ("csv", "markdown", "latex", "text")
    }
    assert all(done.status == 0 for done in formats.values())
    assert onepass("table", runs).out == formats["text"].out
    numbers = read_csv(formats["csv"].out)
    left_out = ("scored/sample", *layout.HIDDEN)
    names = [name for name in numbers[0] if not name.endswith(" sd") and name not in left_out]
    run_line = {"trained/sample": "passes/sample", "kept bytes": "kept"}
    header = [run_line.get(name, name) for name in names]
    cells = [header, *([for_people(row, name) for name in names] for row in numbers)]

    first, rule, *body = formats["markdown"].out.splitlines()
    assert set(rule) == {"|", "-"}
    assert [[c.strip(" *") for c in line[1:-1].split("|")] for line in (first, *body)] == cells

    latex = formats["latex"].out
    assert latex.startswith(r"\begin{tabular}{lll" + "r" * (len(cells[0]) - 3) + "}")
    lines = [line[:-3].split(" & ") for line in latex.splitlines() if line.endswith(r" \\")]
    plain = [[unmarked(c) for c in line] for line in lines]
    assert plain == cells
    assert "±" not in latex

    text = formats["text"].out
    assert all(cell in text for line in cells for cell in line)


def unmarked(cell: str) -> str:
    """Returns a LaTeX cell without bold, underline and dashes."""
    bare = re.sub(r"\\(textbf|mathbf|underline){", "", cell).replace("}", "")
    return bare.replace(r" \pm ", " ± ").replace("--", "-").strip("$")


def for_people(row: dict[str, str], name: str) -> str:
    """Returns a cell of the other formats from the numbers of the CSV."""
    if name == "trained/sample" and float(row["scored/sample"]):
        return f"{row[name]} + {row['scored/sample']}"
    if name == "kept bytes":  # thousands, on the digits
        return f"{int(row[name]) / 1000:.1f} kB" if int(row[name]) else "-"
    if name == "steps/s":
        return format_rate(float(row[name]))
    if f"{name} sd" not in row:
        return row[name]
    spread = f" ± {float(row[f'{name} sd']):.1f}" if row[f"{name} sd"] else ""
    return f"{float(row[name]):.1f}{spread}" if row[name] else "-"


def test_a_copied_run_counts_once(runs: Path, tmp_path: Path) -> None:
    for place in ("one", "copy"):
        for seed in (0, 1):
            shutil.copytree(runs / f"er-synthetic-m100-s{seed}", tmp_path / place / f"er-{seed}")
    (row,) = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert row["n"] == "2"
    assert float(row["accuracy sd"]) == pytest.approx(
        stdev(result["accuracy"] for result in read_results(tmp_path / "one")), abs=1e-4
    )
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    assert "mean and spread of 2 runs" in drawn.read_text()


def test_a_method_without_memory_is_the_same_run_for_every_memory(tmp_path: Path) -> None:
    arguments = ("run", "finetune", "--dataset", "synthetic", "--json", "--out", tmp_path)
    first = onepass(*arguments, "--memory", 100)
    again = onepass(*arguments, "--memory", 200, "--resume")
    assert first.record == again.record


@pytest.mark.parametrize(
    "other", [{"state_sha256": "0f"}, {"accuracy": 50.0}], ids=["state_sha256", "accuracy"]
)
def test_two_results_for_a_seed_are_not_two_seeds(
    other: dict[str, object], runs: Path, tmp_path: Path
) -> None:
    """Two versions of the code or of the data give a row for each folder."""
    for place in ("before", "after"):
        for seed in (0, 1):
            folder = tmp_path / place / f"er-{seed}"
            shutil.copytree(runs / f"er-synthetic-m100-s{seed}", folder)
            if place == "after":
                change_result(folder, commit="0f", **other)
    table = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert [(row["variant"], row["n"]) for row in table] == [("in after", "2"), ("in before", "2")]
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    assert "er in before" in drawn.read_text() and "er in after" in drawn.read_text()


@pytest.mark.parametrize("left", [0, 3, None], ids=["emptied", "a part", "deleted"])
def test_missing_events_give_one_line(
    left: int | None, runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in (0, 1):
        shutil.copytree(runs / f"er-synthetic-m100-s{seed}", tmp_path / "runs" / str(seed))
    events = tmp_path / "runs" / "1" / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.unlink() if left is None else events.write_text("".join(lines[:left]))
    for command in (("table",), ("figure", "accuracy", "-o", tmp_path / "a.png")):
        caplog.clear()
        done = onepass(*command, tmp_path / "runs")
        assert done.status == 0
        (said,) = caplog.messages
        assert str(events) in said and "lacks points" in said
    events.write_text("".join(lines))
    caplog.clear()
    onepass("table", tmp_path / "runs")
    assert not caplog.messages


@pytest.mark.parametrize("method", ["er-synthetic-m100-s0", "finetune-synthetic-s0"])
def test_results_of_one_run_that_disagree_are_refused_where_bits_repeat(
    method: str, runs: Path, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        shutil.copytree(runs / method, tmp_path / name)
    change_result(tmp_path / "other", state_sha256="x", accuracy=99.9)
    done = onepass("table", tmp_path)
    assert done.status == 2
    assert f"{tmp_path / 'one'} and {tmp_path / 'other'} are results of one run" in done.err


@pytest.mark.parametrize("other", [{"device": "cuda"}, {"processor": ""}], ids=str)
def test_elsewhere_the_first_counts_and_the_row_says_so(
    other: dict[str, object], runs: Path, tmp_path: Path
) -> None:
    """A GPU's bits differ; an early result does not say on which processor it was made."""
    for memory in (100, 200):
        folder = tmp_path / f"finetune-m{memory}-s0"
        shutil.copytree(runs / "finetune-synthetic-s0", folder)
        change_result(folder, state_sha256=str(memory), accuracy=float(memory), **other)
        if "processor" in other:
            (folder / "run.json").unlink()
    (row,) = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert (row["n"], float(row["accuracy"]), row["variant"]) == ("1", 100.0, "uncounted=1")


def test_data_of_one_name_and_different_content_are_two_rows(runs: Path, tmp_path: Path) -> None:
    """An incomplete copy on another machine has the name of the whole dataset."""
    for seed in (0, 1):
        shutil.copytree(runs / f"er-synthetic-m100-s{seed}", tmp_path / str(seed))
    change_result(tmp_path / "1", data_sha256="ab" * 32, identity="another")
    table = read_csv(onepass("table", tmp_path, "--format", "csv", "--against", "er").out)
    assert [row["n"] for row in table] == ["1", "1"]
    assert table[1]["dataset"] == "synthetic abababab"
    first, second = (row["dataset"] for row in table)
    assert first != second and first.startswith("synthetic ")


def test_an_early_result_without_a_checksum_is_of_the_only_data_known(
    runs: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        shutil.copytree(runs / f"er-synthetic-m100-s{seed}", tmp_path / str(seed))
    change_result(tmp_path / "1", data_sha256="")
    (row,) = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert (row["n"], row["dataset"]) == ("2", "synthetic")


def test_two_states_of_a_users_method_are_two_rows(runs: Path, tmp_path: Path) -> None:
    for seed, source in enumerate(("0123456789ab", "ba9876543210")):
        shutil.copytree(runs / f"er-synthetic-m100-s{seed}", tmp_path / str(seed))
        change_result(tmp_path / str(seed), source=source)
    table = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert [(row["variant"], row["n"]) for row in table] == [
        ("source=0123456789ab", "1"),
        ("source=ba9876543210", "1"),
    ]


def test_a_folder_that_cannot_be_read_is_named_beside_the_table(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in (0, 1):
        shutil.copytree(runs / f"er-synthetic-m100-s{seed}", tmp_path / str(seed))
    scan = os.scandir

    def refuse(path: str) -> object:  # a mode refuses nothing to root
        if path == str(tmp_path / "1"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (row,) = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert row["n"] == "1"
    assert f"{tmp_path / '1'} cannot be read: Permission denied" in caplog.text


def test_datasets_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    for place in ("first", "second"):
        (tmp_path / place).mkdir()
        arrays = {
            f"{part}_x": source.normal(size=(40, 3)).astype(np.float32)
            for part in ("train", "test")
        }
        labels = {f"{part}_y": np.arange(40) % 4 for part in ("train", "test")}
        np.savez(tmp_path / place / "pets.npz", **arrays, **labels)
        dataset = tmp_path / place / "pets.npz"
        arguments = ("--dataset", dataset, "--tasks", 2, "--json", "--out", tmp_path / "runs")
        assert onepass("run", "er", *arguments).status == 0
    table = read_csv(onepass("table", tmp_path / "runs", "--format", "csv").out)
    assert sorted(row["dataset"] for row in table) == ["first/pets.npz", "second/pets.npz"]
    assert [row["n"] for row in table] == ["1", "1"]
    drawn = tmp_path / "curves.svg"
    assert onepass("figure", "accuracy", tmp_path / "runs", "-o", drawn).status == 0
    for place in ("first", "second"):
        assert f"er ({place}/pets.npz)" in drawn.read_text()
    assert "tasks=2" not in drawn.read_text()  # names say only what differs


def test_images_that_are_only_scored_are_a_number_of_their_own(tmp_path: Path) -> None:
    assert onepass("run", "mir", "--dataset", "synthetic", "--json", "--out", tmp_path).status == 0
    (row,) = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert (row["trained/sample"], row["scored/sample"]) == ("7.4", "64.0")
    assert "7.4 + 64.0" in onepass("table", tmp_path).out


def test_without_variants_there_is_no_column_for_them(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "deep/down/er")
    (row,) = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert "variant" not in row
    assert row["n"] == "1"


def test_a_result_file_of_another_program_is_named(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "er")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/result.json").write_text('{"score": 1}')
    picture = tmp_path / "x.png"
    for arguments in (("table", tmp_path), ("figure", "accuracy", tmp_path, "-o", picture)):
        done = onepass(*arguments)
        assert done.status == 2
        assert "theirs" in done.error


def test_a_slow_run_is_not_shown_as_one_that_stands_still(runs: Path) -> None:
    (result, *_) = query.find_results(runs)
    made = layout.make_table(tables.summarise([replace(result, steps_per_second=0.3712)]))
    assert made.body[0][list(made.header).index("steps/s")] == "0.37"


def test_columns_are_chosen_in_every_format(runs: Path) -> None:
    chosen = ("--columns", "accuracy,variant,method")
    for form, rule in (("text", "  "), ("markdown", "|"), ("latex", "&"), ("csv", ",")):
        header = onepass("table", runs, "--format", form, *chosen).out
        words = [word.strip(" \\") for word in re.split(rf"[{rule}\n]", header)]
        first = [word for word in words if word in layout.COLUMNS][:3]
        assert first == ["accuracy", "variant", "method"]
