"""Finished runs, in folders and lines, as tables."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from xml.etree import ElementTree

import formats
import numpy as np
import pytest
from command import onepass
from figures_of_runs import told, written
from reported import reported

from onepass import lines
from onepass.data.catalogue import CATALOGUE
from onepass.report import grids, tables
from onepass.report.formats import FORMATS
from onepass.words import rate


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reported(tmp_path_factory.mktemp("runs"))


def results(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in folder.rglob("result.json")]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_table_has_a_row_for_each_method_and_variant(runs: Path) -> None:
    table = rows(onepass("table", runs, "--format", "csv").out)
    assert [(row["method"], row["variant"]) for row in table] == [
        ("er", ""),
        ("er", "lr=5e-4"),
        ("finetune", ""),
        ("joint", ""),
    ]
    assert [row["n"] for row in table] == ["3", "1", "3", "3"]


def test_a_table_shows_mean_and_sample_deviation_over_the_seeds(runs: Path) -> None:
    for row in rows(onepass("table", runs, "--format", "csv").out):
        group = [
            result
            for result in results(runs)
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
    table = rows(onepass("table", runs, "--format", "csv").out)
    passes = {row["method"]: (row["trained/sample"], row["scored/sample"]) for row in table}
    assert passes == {"er": ("7.4", "0.0"), "finetune": ("1.0", "0.0"), "joint": ("1.0", "0.0")}


def test_every_format_shows_the_same_cells(runs: Path) -> None:
    formats = {
        name: onepass("table", runs, "--format", name)
        for name in ("csv", "markdown", "latex", "text")
    }
    assert all(done.status == 0 for done in formats.values())
    assert onepass("table", runs).out == formats["text"].out
    numbers = rows(formats["csv"].out)
    left_out = ("scored/sample", *grids.MORE)
    names = [name for name in numbers[0] if not name.endswith(" sd") and name not in left_out]
    told = {"trained/sample": "passes/sample", "kept bytes": "kept"}
    header = [told.get(name, name) for name in names]
    cells = [header, *([for_people(row, name) for name in names] for row in numbers)]

    first, rule, *body = formats["markdown"].out.splitlines()
    assert set(rule) == {"|", "-"}
    assert [[c.strip(" *") for c in line[1:-1].split("|")] for line in (first, *body)] == cells

    latex = formats["latex"].out
    assert latex.startswith(r"\begin{tabular}{" + "l" * len(cells[0]) + "}")
    lines = [line[:-3].split(" & ") for line in latex.splitlines() if line.endswith(r" \\")]
    plain = [[unmarked(c) for c in line] for line in lines]
    assert plain == cells
    assert "±" not in latex

    text = formats["text"].out
    assert all(cell in text for line in cells for cell in line)


def unmarked(cell: str) -> str:
    """A cell of LaTeX without what makes it bold or underlined."""
    bare = re.sub(r"\\(textbf|mathbf|underline){", "", cell).replace("}", "")
    return bare.replace(r" \pm ", " ± ").strip("$")


def for_people(row: dict[str, str], name: str) -> str:
    """A cell of the other formats, from the numbers of the comma-separated one."""
    if name == "trained/sample" and float(row["scored/sample"]):
        return f"{row[name]} + {row['scored/sample']}"
    if name == "kept bytes":  # thousands, on the digits
        return f"{int(row[name]) / 1000:.1f} kB" if int(row[name]) else "-"
    if name == "steps/s":
        return rate(float(row[name]))
    if f"{name} sd" not in row:
        return row[name]
    spread = f" ± {float(row[f'{name} sd']):.1f}" if row[f"{name} sd"] else ""
    return f"{float(row[name]):.1f}{spread}" if row[name] else "-"


def test_a_run_that_lies_there_twice_counts_once(runs: Path, tmp_path: Path) -> None:
    for place in ("one", "copy"):
        for seed in (0, 1):
            shutil.copytree(runs / f"er-synthetic-m100-s{seed}", tmp_path / place / f"er-{seed}")
    (row,) = rows(onepass("table", tmp_path, "--format", "csv").out)
    assert row["n"] == "2"
    assert float(row["accuracy sd"]) == pytest.approx(
        stdev(result["accuracy"] for result in results(tmp_path / "one")), abs=1e-4
    )
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    assert "mean and spread of 2 runs" in drawn.read_text()


def test_a_method_without_memory_is_the_same_run_for_every_memory(tmp_path: Path) -> None:
    arguments = ("run", "finetune", "--dataset", "synthetic", "--json", "--out", tmp_path)
    first = onepass(*arguments, "--memory", 100)
    again = onepass(*arguments, "--memory", 200, "--resume")
    assert first.record == again.record


def changed(folder: Path, **values: object) -> None:
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "other", [{"state_sha256": "0f"}, {"accuracy": 50.0}], ids=["state_sha256", "accuracy"]
)
def test_two_results_for_a_seed_are_not_two_seeds(
    other: dict[str, object], runs: Path, tmp_path: Path
) -> None:
    """Of two versions of the code, or of data that changed in between: a row for each folder."""
    for place in ("before", "after"):
        for seed in (0, 1):
            folder = tmp_path / place / f"er-{seed}"
            shutil.copytree(runs / f"er-synthetic-m100-s{seed}", folder)
            if place == "after":
                changed(folder, **other)
    table = rows(onepass("table", tmp_path, "--format", "csv").out)
    assert [(row["variant"], row["n"]) for row in table] == [("in after", "2"), ("in before", "2")]
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    assert "er before" in drawn.read_text() and "er after" in drawn.read_text()


@pytest.mark.parametrize("left", [0, 3, None], ids=["emptied", "a part", "deleted"])
def test_missing_events_are_told_in_one_line(
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


def test_a_name_with_dollars_is_no_formula(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "runs")
    changed(tmp_path / "runs", method="$\\frac$")
    drawn = tmp_path / "a.svg"
    assert onepass("figure", "accuracy", tmp_path / "runs", "-o", drawn).status == 0
    assert "$\\frac$" in drawn.read_text()


def test_a_picture_replaces_a_link_and_leaves_what_it_leads_to(runs: Path, tmp_path: Path) -> None:
    precious, picture = tmp_path / "precious", tmp_path / "a.png"
    precious.write_text("precious")
    picture.symlink_to(precious)
    assert onepass("figure", "accuracy", runs, "-o", picture).status == 0
    assert precious.read_text() == "precious"
    assert not picture.is_symlink()


@pytest.mark.parametrize("what", [("accuracy", None), ("stream", "class-incremental")])
def test_a_picture_that_cannot_be_written_leaves_the_old_one(
    what: tuple[str, str | None], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    picture = tmp_path / "a.svg"
    picture.write_text("old")
    monkeypatch.setattr("os.fsync", full)
    done = onepass("figure", what[0], what[1] or runs, "-o", picture)
    assert done.status == 2
    assert str(picture) in done.error and "No space" in done.error
    assert picture.read_text() == "old"
    assert list(tmp_path.iterdir()) == [picture]


def test_two_results_for_a_seed_in_one_folder_are_refused(runs: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / name)
    changed(tmp_path / "other", state_sha256="x")
    done = onepass("table", tmp_path)
    assert done.status == 2
    assert "two results of one seed" in done.error
    assert all(str(tmp_path / name) in done.error for name in ("one", "other"))


def test_a_method_without_memory_counts_once_even_where_bits_differ(
    runs: Path, tmp_path: Path
) -> None:
    for memory in (100, 200):
        folder = tmp_path / f"finetune-m{memory}-s0"
        shutil.copytree(runs / "finetune-synthetic-s0", folder)
        changed(folder, state_sha256=str(memory), accuracy=float(memory))
    (row,) = rows(onepass("table", tmp_path, "--format", "csv").out)
    assert (row["n"], float(row["accuracy"])) == ("1", 100.0)
    assert "variant" not in row


def test_brackets_stay_in_a_table(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "er")
    changed(tmp_path / "er", dataset="pets [old]")
    assert "pets [old]" in onepass("table", tmp_path).out


def named(runs: Path, folder: Path, name: str) -> Path:
    """A folder of one run whose dataset has that name."""
    shutil.copytree(runs / "er-synthetic-m100-s0", folder / "er")
    changed(folder / "er", dataset=name)
    return folder


def test_letters_that_mean_something_to_a_format_are_escaped(runs: Path, tmp_path: Path) -> None:
    named(runs, tmp_path, "a|b_c&d#e")
    assert r"| a\|b_c&d#e |" in onepass("table", tmp_path, "--format", "markdown").out
    assert r"& a|b\_c\&d\#e &" in onepass("table", tmp_path, "--format", "latex").out


@pytest.mark.parametrize(
    ("name", "markdown", "latex", "in_csv"),
    [
        ("a\\|b", r"a\\\|b", r"a\textbackslash{}|b", "a\\|b"),
        ("<b>&lt;", r"\<b\>\&lt;", r"\textless{}b\textgreater{}\&lt;", "<b>&lt;"),
        ("_x_ *y*", r"\_x\_ \*y\*", r"\_x\_ {*}y{*}", "_x_ *y*"),
        ("[2cm]~$x^2", r"\[2cm\]\~\$x^2", r"{[}2cm]\textasciitilde{}\$x\textasciicircum{}2", None),
        ("=1+1", "=1+1", "=1+1", "'=1+1"),
        ("@SUM(A1)", "@SUM(A1)", "@SUM(A1)", "'@SUM(A1)"),
        ("-1+1", "-1+1", "-1+1", "'-1+1"),
        ("-1.5", "-1.5", "$-1.5$", "-1.5"),
        ("a\nb", r"a\\nb", r"a\textbackslash{}nb", r"a\nb"),
    ],
)
def test_a_cell_is_text_for_whatever_reads_the_table(
    name: str, markdown: str, latex: str, in_csv: str | None, runs: Path, tmp_path: Path
) -> None:
    named(runs, tmp_path, name)
    made = {form: onepass("table", tmp_path, "--format", form).out for form in FORMATS}
    assert f"| {markdown} |" in made["markdown"]
    assert f"& {latex} &" in made["latex"]
    assert [row["dataset"] for row in rows(made["csv"])] == [in_csv or name]


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202e[/red] :cat: $\\frac$"
HARMLESS = r"\x1b[2J\x1b]0;owned\x07\r\u202e[/red] :cat: $\frac$"


def test_names_do_nothing_in_a_table_or_a_picture(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finetune-synthetic-s0", tmp_path / "finetune")
    named(runs, tmp_path, HOSTILE)
    for form in ("text", "csv"):
        done = onepass("table", tmp_path, "--format", form)
        assert done.status == 0, done.err
        assert HARMLESS in done.out
    for suffix in ("svg", "png", "pdf"):
        picture = tmp_path / f"picture.{suffix}"
        done = onepass("figure", "accuracy", tmp_path, "-o", picture)
        assert done.status == 0, done.err
    drawing = (tmp_path / "picture.svg").read_text()
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "owned" in drawing and "\x1b" not in drawing


def test_what_is_named_by_bytes_that_are_no_text_can_be_run_and_shown(tmp_path: Path) -> None:
    folder = tmp_path / "\udcff"
    folder.mkdir()
    vectors = {"x": np.eye(4, dtype=np.float32).repeat(20, axis=0), "y": np.arange(80) // 20}
    np.savez(folder / "caf\udce9\x1b.npz", **vectors)
    job = ("er", "--dataset", folder / "caf\udce9\x1b.npz", "--test-fraction", 0.5, "--tasks", 2)
    done = onepass("run", *job, "--out", folder / "runs")
    assert done.status == 0, done.err
    (run,) = (folder / "runs").glob("*/")
    assert run.name.startswith(r"er-caf\udce9\x1b-m100-s0-")
    assert rf"{tmp_path}/\udcff/runs/{run.name}" in done.out
    assert r"caf\udce9\x1b" in onepass("table", folder).out
    assert onepass("figure", "accuracy", folder, "-o", folder / "a.svg").status == 0
    (record,) = results(folder)
    assert r"\udcff" in record["out"]
    assert onepass("run", *job, "--resume", "--out", folder / "runs").status == 0
    (folder / "pictures").mkdir()
    assert r"\udcff" in onepass("predict", run / "checkpoint.pt", folder / "pictures").error


def test_a_picture_of_many_methods_has_a_colour_for_each(runs: Path, tmp_path: Path) -> None:
    for number in range(14):
        shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / f"er-{number}")
        changed(tmp_path / f"er-{number}", variant=f"lr={number}", state_sha256=str(number))
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    bars = [line for line in drawn.read_text().split("<g id=") if line.startswith('"patch_')]
    colours = {line.split("fill: ")[1][:7] for line in bars if "fill: #" in line}
    assert len(colours - {"#ffffff"}) >= 14


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
    table = rows(onepass("table", tmp_path / "runs", "--format", "csv").out)
    assert sorted(row["dataset"] for row in table) == ["first/pets.npz", "second/pets.npz"]
    assert [row["n"] for row in table] == ["1", "1"]
    drawn = tmp_path / "curves.svg"
    assert onepass("figure", "accuracy", tmp_path / "runs", "-o", drawn).status == 0
    for place in ("first", "second"):
        assert f"er ({place}/pets.npz," in drawn.read_text()
    assert "tasks=2" not in drawn.read_text()  # names say only what differs


def test_a_method_without_memory_has_a_bar_for_each_dataset(tmp_path: Path) -> None:
    for dataset in ("digits", "synthetic"):
        arguments = ("--dataset", dataset, "--json", "--out", tmp_path)
        assert onepass("run", "finetune", *arguments).status == 0
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    for row in rows(onepass("table", tmp_path, "--format", "csv").out):
        assert f"finetune ({row['dataset']}, 0)" in drawn.read_text()
        assert f"<!-- {float(row['accuracy']):.1f} -->" in drawn.read_text()


def test_a_method_has_a_bar_for_each_memory(tmp_path: Path) -> None:
    for memory in (50, 200):
        arguments = ("--dataset", "synthetic", "--memory", memory, "--json", "--out", tmp_path)
        assert onepass("run", "er", *arguments).status == 0
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    for row in rows(onepass("table", tmp_path, "--format", "csv").out):
        assert f"er (synthetic, {row['memory']})" in drawn.read_text()


def test_images_that_are_only_scored_are_a_number_of_their_own(tmp_path: Path) -> None:
    assert onepass("run", "mir", "--dataset", "synthetic", "--json", "--out", tmp_path).status == 0
    (row,) = rows(onepass("table", tmp_path, "--format", "csv").out)
    assert (row["trained/sample"], row["scored/sample"]) == ("7.4", "64.0")
    assert "7.4 + 64.0" in onepass("table", tmp_path).out


def test_without_variants_there_is_no_column_for_them(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "deep/down/er")
    (row,) = rows(onepass("table", tmp_path, "--format", "csv").out)
    assert "variant" not in row
    assert row["n"] == "1"


AS_IN_THE_PAPER = {
    "method": "gsa",
    "dataset": "cifar100",
    "dataset_identity": "cifar100",
    "samples": [[500] * 100, [100] * 100],
    "stream": "class-incremental",
    "tasks": 10,
    "batch": 10,
    "memory": 1000,
}


def published(folder: Path) -> str:
    """What stands beside the only row."""
    (row,) = rows(onepass("table", folder, "--format", "csv", "--against", "published").out)
    return row["published"]


def test_published_figures_stand_beside_ours(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "gsa")
    changed(tmp_path / "gsa", **AS_IN_THE_PAPER)
    assert "31.4 ± 0.2" in published(tmp_path)
    assert "gsa-paper" in published(tmp_path)
    assert "published" not in onepass("table", tmp_path, "--format", "csv").out


@pytest.mark.parametrize(
    "other",
    [
        {"dataset_identity": "/home/me/cifar100.npz"},
        {"samples": [[500] * 99 + [499], [100] * 100]},
        {"samples": [[450] * 100, [50] * 100]},  # --validation 0.1
        {"samples": []},  # a version that did not record them
        {"stream": "long-tail"},
        {"tasks": 20},
        {"batch": 64},
        {"boundaries": False},
        {"memory": 1001},
        {"method": "er-ace"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_no_figure_stands_beside_a_run_of_something_else(
    other: dict[str, object], runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "gsa")
    changed(tmp_path / "gsa", **{**AS_IN_THE_PAPER, **other})
    assert published(tmp_path) == "-"


def test_a_dataset_is_known_by_what_it_holds_and_not_by_a_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MNIST, were it this small; the same images in a file of the user's own; and not all."""
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    small = replace(CATALOGUE["mnist"], train=(6,) * 10, test=(2,) * 10)
    monkeypatch.setitem(CATALOGUE, "mnist", small)
    images = formats.noise(10, (1, 28, 28), train=6, test=2)
    formats.write_idx(tmp_path / "whole/mnist", images)
    fewer = images._replace(test_x=images.test_x[:-1], test_y=images.test_y[:-1])
    formats.write_idx(tmp_path / "part/mnist", fewer)
    np.savez(tmp_path / "mnist.npz", **images._asdict())
    found = {}
    for name, dataset in {
        "whole": ("mnist", "--data-root", tmp_path / "whole"),
        "part": ("mnist", "--data-root", tmp_path / "part"),
        "file": (tmp_path / "mnist.npz",),
        "batch": ("mnist", "--data-root", tmp_path / "whole", "--batch", 5),
    }.items():
        out = tmp_path / "runs" / name
        done = onepass("run", "er", "--dataset", *dataset, "--json", "--out", out)
        assert done.status == 0, done.err
        found[name] = published(out)
    assert "78.7" in found.pop("whole")
    assert set(found.values()) == {"-"}


def test_a_result_file_of_another_program_is_named(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "er")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/result.json").write_text('{"score": 1}')
    picture = tmp_path / "x.png"
    for arguments in (("table", tmp_path), ("figure", "accuracy", tmp_path, "-o", picture)):
        done = onepass(*arguments)
        assert done.status == 2
        assert "theirs" in done.error


# ---- lines


@pytest.fixture(scope="module")
def file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs as lines."""
    path = tmp_path_factory.mktemp("lines") / "all.jsonl"
    for result in tables.read(runs):
        lines.append(path, result)
    return path


@pytest.mark.parametrize("form", ["text", "csv", "markdown", "latex"])
def test_lines_are_rendered_as_folders_are(form: str, runs: Path, file: Path) -> None:
    for against in ((), ("--against", "published")):
        asked = ("--format", form, *against)
        assert onepass("table", file, *asked) == onepass("table", runs, *asked)


def test_folders_and_lines_are_one_table_in_which_a_run_counts_once(
    runs: Path, file: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    for seed in (0, 1):
        shutil.copytree(runs / f"er-synthetic-m100-s{seed}", few / str(seed))
    others = tmp_path / "others.jsonl"
    for name in ("er-synthetic-m100-s2", "er-synthetic-m100-s1"):
        lines.append(others, tables.read(runs / name)[0])
    (row,) = rows(onepass("table", others, few, "--format", "csv").out)
    assert row["n"] == "3"
    assert onepass("table", file, runs, others, few).out == onepass("table", runs).out


def test_two_results_of_a_seed_in_two_files_are_two_rows(runs: Path, tmp_path: Path) -> None:
    (result,) = tables.read(runs / "er-synthetic-m100-s0")
    for number, name in enumerate(("before", "after")):
        lines.append(tmp_path / f"{name}.jsonl", replace(result, state_sha256=str(number)))
    done = onepass("table", *sorted(tmp_path.glob("*.jsonl")), "--format", "csv")
    assert [row["variant"] for row in rows(done.out)] == ["in after.jsonl", "in before.jsonl"]


@pytest.mark.parametrize("name", ["empty.jsonl", "none.jsonl", "none"])
def test_a_table_of_nothing_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    done = onepass("table", tmp_path / name)
    assert done.status == 2
    assert name in done.error


def test_bars_are_drawn_of_lines_and_curves_need_points(
    runs: Path, file: Path, tmp_path: Path
) -> None:
    drawn = [tmp_path / f"{name}.svg" for name in "ab"]
    for source, picture in zip((file, runs), drawn, strict=True):
        assert onepass("figure", "accuracy", source, "--kind", "bars", "-o", picture).status == 0
    texts = [re.findall("<!-- (.*) -->", picture.read_text()) for picture in drawn]
    assert texts[0] == texts[1]
    assert onepass("figure", "accuracy", file, runs, "-o", tmp_path / "c.svg").status == 0
    done = onepass("figure", "accuracy", file, "-o", tmp_path / "d.svg")
    assert done.status == 2
    assert str(file) in done.error and "--kind bars" in done.error


def test_a_slow_run_is_not_shown_as_one_that_stands_still(runs: Path) -> None:
    (row, *_) = tables.summarise(tables.read(runs))
    made = grids.grid([replace(row, steps_per_second=0.3712)])
    assert made.body[0][list(made.header).index("steps/s")] == "0.37"


def test_columns_are_chosen_in_every_format(runs: Path) -> None:
    chosen = ("--columns", "accuracy,variant,method")
    for form, rule in (("text", "  "), ("markdown", "|"), ("latex", "&"), ("csv", ",")):
        header = onepass("table", runs, "--format", form, *chosen).out
        words = [word.strip(" \\") for word in re.split(rf"[{rule}\n]", header)]
        first = [word for word in words if word in grids.COLUMNS][:3]
        assert first == ["accuracy", "variant", "method"]


# ---- folders of lines, and old ones


def test_a_folder_stands_for_its_files_of_lines_and_its_runs(
    runs: Path, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(file, tmp_path / "all.jsonl")
    assert onepass("table", tmp_path).out == onepass("table", file).out
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "runs/er")
    assert onepass("table", tmp_path).out == onepass("table", tmp_path / "runs", file).out
    alone = onepass("table", runs / "er-synthetic-m100-s0")  # whose events.jsonl are no results
    assert alone.status == 0
    assert not caplog.messages


def test_lines_of_other_things_are_passed_over_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path / "a.jsonl", told("er", 0, 50.0), {"what": "a benchmark", "seconds": 3})
    written(tmp_path / "b.jsonl", {"method": "er", "memory": 3}, {"method": "er", "trial": 1})
    (row,) = rows(onepass("table", tmp_path, "--format", "csv").out)
    assert row["n"] == "1"
    (said,) = caplog.messages
    assert "3 lines" in said and "a.jsonl" in said and "b.jsonl" in said
    damaged = written(tmp_path / "c.jsonl", told("er", 0, "fifty"))
    assert f"{damaged}:1 is damaged" in onepass("table", tmp_path).error
    nothing = onepass("table", tmp_path / "b.jsonl")
    assert nothing.status == 2 and "no finished run" in nothing.error


def test_what_an_old_line_does_not_tell_is_missing_and_never_guessed(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", told("er", 0, 50.0))
    (row,) = rows(onepass("table", file, "--format", "csv").out)
    untold = ("forgetting", "any-time", "steps/s", "trained/sample", "scored/sample", "kept bytes")
    assert {row[name] for name in untold} == {""}
    assert (row["accuracy"], row["n"], row["seconds"]) == ("50.0000", "1", "1.0000")
    assert onepass("table", file).out.split()[-7:] == ["50.0", "-", "-", "1", "-", "-", "-"]
    assert onepass("runs", "show", f"{file}:1").status == 0
    assert onepass("runs", "export", file, "-o", tmp_path / "a.csv").status == 0
    (exported,) = rows((tmp_path / "a.csv").read_text())
    assert exported["steps_per_second"] == exported["memory_bytes"] == ""


def test_a_mean_over_some_of_the_seeds_says_so(tmp_path: Path) -> None:
    lines = [told("er", seed, 80.0) for seed in range(3)]
    lines[1]["forgetting"] = 5.0
    done = onepass("table", written(tmp_path / "a.jsonl", *lines), "--format", "markdown")
    assert "| 80.0 ± 0.0 | 5.0 (1 of 3) | - | 3 |" in done.out


def test_seeds_of_a_preset_before_and_after_it_changed_are_two_rows(tmp_path: Path) -> None:
    lines = [
        told("gsa", seed, 70.0 + seed, variant="best", settings={"lr": lr, "mix": 64, "seed": seed})
        for seed, lr in enumerate((3e-4, 3e-4, 7e-4))
    ]
    lines.append(told("er", 0, 60.0, variant="best"))
    file = written(tmp_path / "a.jsonl", *lines)
    made = csv.DictReader(io.StringIO(onepass("table", file, "--format", "csv").out))
    found = {(row["variant"], row["accuracy"], row["n"]) for row in made if row["method"] == "gsa"}
    assert found == {("best lr=0.0003", "70.5000", "2"), ("best lr=0.0007", "72.0000", "1")}


def test_the_committed_lines_are_rendered() -> None:
    results = Path(__file__).parents[2] / "results"
    found = rows(onepass("table", results, "--format", "csv").out)
    assert {row["dataset"] for row in found} >= {"cifar100", "cifar10", "mnist", "digits"}
    assert any("20 channels" in row["variant"] and not row["forgetting"] for row in found)


def test_rows_that_look_alike_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [told("er", 0, 50.0, variant=variant) for variant in ("", "lr=1")]
    file = written(tmp_path / "a.jsonl", *lines, told("gsa", 0, 60.0))
    for columns, alike in (("method,accuracy", True), ("method,variant,accuracy", False)):
        caplog.clear()
        assert onepass("table", file, "--columns", columns).status == 0
        assert [("variant" in said and "alike" in said) for said in caplog.messages] == [
            True
        ] * alike


def test_only_of_one_dataset(tmp_path: Path) -> None:
    lines = [told("er", 0, 50.0, dataset=name) for name in ("toys", "pets")]
    file = written(tmp_path / "a.jsonl", *lines)
    (row,) = rows(onepass("table", file, "--dataset", "pets", "--format", "csv").out)
    assert row["dataset"] == "pets"
    assert "'pets'" in onepass("table", file, "--dataset", "pet").error


def test_a_row_for_each_run(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", *(told("er", seed, 50.0 + seed) for seed in (3, 1)))
    found = rows(onepass("table", file, "--per-run", "--format", "csv").out)
    assert [(row["seed"], row["accuracy"]) for row in found] == [("3", "53.0000"), ("1", "51.0000")]
    assert [row["where"] for row in found] == [f"{file}:1", f"{file}:2"]
    assert not {"n", "accuracy sd"} & found[0].keys()
    assert onepass("table", file, "--per-run", "--pivot", "memory").status == 2


def test_memories_stand_side_by_side(tmp_path: Path) -> None:
    lines = [
        told("er", seed, 40.0 + memory / 10 + seed, memory=memory)
        for memory in (200, 1000)
        for seed in (0, 1)
    ]
    lines += [told("gsa", 0, 70.0, memory=200), told("finetune", 0, 20.0, memory=0)]
    file = written(tmp_path / "a.jsonl", *lines)
    found = {row["method"]: row for row in rows(pivoted(file, "csv"))}
    assert list(found["er"]) == [
        *("method", "dataset", "M=200 accuracy", "M=200 accuracy sd", "M=200 n"),
        *("M=1000 accuracy", "M=1000 accuracy sd", "M=1000 n"),
    ]
    er = found["er"]
    assert (er["M=200 accuracy"], er["M=1000 accuracy"]) == ("60.5000", "140.5000")
    assert found["gsa"]["M=1000 accuracy"] == ""
    assert found["finetune"]["M=200 accuracy"] == found["finetune"]["M=1000 accuracy"] == "20.0000"
    latex = pivoted(file, "latex")
    assert r"&  & \multicolumn{2}{c}{M=200} & \multicolumn{2}{c}{M=1000} \\" in latex
    assert r"\textbf{70.0} & 1 & - & - \\" in latex
    assert "| gsa | toys | **70.0** | 1 | - | - |" in pivoted(file, "markdown")
    assert "M=1000 accuracy" in pivoted(file, "text")


def pivoted(file: Path, form: str) -> str:
    done = onepass("table", file, "--pivot", "memory", "--format", form)
    assert done.status == 0, done.err
    return done.out


def test_streams_stand_side_by_side(tmp_path: Path) -> None:
    streams = ("", "stream=blurry:n=50,m=10")
    lines = [told("er", 0, 9.0 + n, variant=f"lr=1 {one}".strip()) for n, one in enumerate(streams)]
    file = written(tmp_path / "a.jsonl", *lines)
    done = onepass("table", file, "--pivot", "stream", "--columns", "accuracy", "--format", "csv")
    (row,) = rows(done.out)
    assert row["variant"] == "lr=1"
    assert row["class-incremental accuracy"] == "9.0000"
    assert row["blurry:n=50,m=10 accuracy"] == "10.0000"


def test_the_best_and_the_second_stand_out_among_those_that_learned_the_same(
    tmp_path: Path,
) -> None:
    lines = [told("er", 0, 50.0), told("gsa", 0, 70.0), told("scr", 0, 60.0)]
    lines += [told("joint", 0, 99.0), told("er", 0, 90.0, dataset="other")]
    text = onepass("table", written(tmp_path / "a.jsonl", *lines), "--format", "latex").out
    for shown in (
        "& 50.0 &",
        r"& \textbf{70.0} &",
        r"& \underline{60.0} &",
        "& 99.0 &",
        "& 90.0 &",
    ):
        assert shown in text
