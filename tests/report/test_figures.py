"""Finished runs as pictures."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from command import onepass
from matplotlib.figure import Figure
from PIL import Image
from report_runs import METHODS, change_result, read_csv

from onepass.report import figures
from onepass.runs.folder import RunFolder
from onepass.runs.query import find_results as read
from onepass.runs.variant import Variant


@pytest.mark.parametrize("kind", ["both", "bars", "curves"])
def test_a_figure_is_drawn_as_png_and_as_svg(kind: str, runs: Path, tmp_path: Path) -> None:
    size = {}
    for suffix in ("png", "svg"):
        output = tmp_path / "new/folder" / f"{kind}.{suffix}"
        done = onepass("figure", "accuracy", runs, "--kind", kind, "-o", output)
        assert (done.status, done.out) == (0, f"{output}\n"), done.err
        size[suffix] = output
    with Image.open(size["png"]) as image:
        image.load()
        assert image.format == "PNG"
        assert (image.width > 2 * image.height) == (kind == "both")
    drawing = size["svg"].read_text()
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert all(f"<!-- {name} -->" in drawing for name in (*METHODS, "er lr=5e-4"))
    assert ("batches learned" in drawing) == (kind != "bars")
    assert ("final accuracy" in drawing) == (kind != "curves")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_stream_is_drawn(suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"stream.{suffix}"
    done = onepass("figure", "stream", "blurry:n=50,m=10", "--dataset", "synthetic", "-o", output)
    assert (done.status, done.out) == (0, f"{output}\n"), done.err
    assert output.read_bytes()[:4] in (b"\x89PNG", b"<?xm")


def test_bars_show_the_means_of_the_table(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "bars.svg"
    onepass("figure", "accuracy", runs, "--kind", "bars", "-o", output)
    for row in read_csv(onepass("table", runs, "--format", "csv").out):
        assert f"<!-- {float(row['accuracy']):.1f} -->" in output.read_text()


def test_bars_say_of_how_many_runs_they_are(runs: Path) -> None:
    groups = figures.runs_by_row_name(read(runs))
    axes = Figure().subplots()
    for shown, run_line in (
        (groups, "mean and spread of 1 to 3 runs"),
        ({"er": groups["er"]}, "mean and spread of 3 runs"),
        ({"er": groups["er"][:1]}, "1 run"),
    ):
        figures._bars(axes, shown)
        assert axes.get_title() == run_line


def first(method: str, memory: int = 0, tasks: int = 5, **others: object) -> list[Any]:
    usual = {"dataset": "digits", "variant": Variant()}
    return [SimpleNamespace(method=method, memory=memory, tasks=tasks, **{**usual, **others})]


def test_references_are_grey_beside_methods() -> None:
    shown = {"a": first("er"), "b": first("joint", tasks=1), "c": first("gsa")}
    beside = [look.colour for look in figures._looks({**shown, "d": first("other", tasks=1)})]
    assert beside[1::2] == ["0.2", "0.4"] and len(set(beside)) == 4
    references = {"b": first("joint", tasks=1), "d": first("other", tasks=1)}
    alone = [look.colour for look in figures._looks(references)]
    assert not set(alone) & set(figures.GREYS) and len(set(alone)) == 2


def test_a_method_keeps_its_colour_and_each_memory_has_a_mark() -> None:
    shown = [first(method, memory) for memory in (50, 200) for method in ("er", "gsa")]
    shown += [first("er", 50, variant=Variant(lr="1")), first("finetune"), first("joint", tasks=1)]
    looks = figures._looks({str(number): group for number, group in enumerate(shown)})
    er, gsa, more_er, more_gsa, other, finetune, joint = looks
    assert (er.colour, gsa.colour) == (more_er.colour, more_gsa.colour)
    assert len({look.colour for look in (er, gsa, other, finetune, joint)}) == 5
    assert (er.marker, er.hatch) == (gsa.marker, gsa.hatch) == (other.marker, other.hatch)
    assert er.marker != more_er.marker and er.hatch != more_er.hatch
    assert {finetune.marker, joint.marker} == {""}  # what keeps nothing has no size


def test_each_dataset_has_a_mark_and_one_dataset_none() -> None:
    sets = {name: first("finetune", dataset=name) for name in ("digits", "mnist")}
    digits, mnist = figures._looks(sets)
    assert digits.colour == mnist.colour and digits.marker != mnist.marker
    (alone,) = figures._looks({"digits": sets["digits"]})
    assert (alone.marker, alone.hatch) == ("", "")


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (["er digits 50", "gsa digits 50"], ["er", "gsa"]),
        (["er digits 50", "er digits 200"], ["er (M=50)", "er (M=200)"]),
        (["er digits 50", "gsa digits 200"], ["er (M=50)", "gsa (M=200)"]),
        (["er digits 0", "er digits 50"], ["er (M=0)", "er (M=50)"]),
        (["er digits 50", "finetune digits 0"], ["er", "finetune"]),
        (["er digits 50", "er mnist 50"], ["er (digits)", "er (mnist)"]),
        (
            ["er digits 50", "er mnist 200", "finetune mnist 0"],
            ["er (digits, M=50)", "er (mnist, M=200)", "finetune (mnist)"],
        ),
    ],
)
def test_a_name_says_only_what_differs(
    rows: list[str], names: list[str], runs: Path, tmp_path: Path
) -> None:
    for number, (method, dataset, memory) in enumerate(map(str.split, rows)):
        run = tmp_path / str(number)
        shutil.copytree(runs / "er-synthetic-m100-s0", run)
        change_result(run, method=method, dataset=dataset, memory=int(memory))
    assert sorted(figures.runs_by_row_name(read(tmp_path))) == sorted(names)


def test_a_curve_is_the_mean_of_whole_runs(runs: Path, tmp_path: Path) -> None:
    """A run that lacks its last point is left out."""
    out = Path(shutil.copytree(runs, tmp_path / "runs"))
    both = [run for run in read(out) if run.method == "er" and not run.variant][:2]
    first, second = (
        [point.accuracy for point in RunFolder(Path(run.out)).points()] for run in both
    )
    for expected in ([(a + b) / 2 for a, b in zip(first, second, strict=True)], second):
        axes = Figure().subplots()
        figures._curves(axes, {"er": both})
        assert list(axes.lines[0].get_ydata()) == pytest.approx(expected)
        events = Path(both[0].out) / "events.jsonl"
        events.write_text("".join(events.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("what", "option", "of"),
    [
        ("accuracy", ("--seed", 7), "stream"),
        ("fig1", ("--kind", "bars"), "accuracy"),
        ("fig3", ("--test", "t.csv"), "stream"),
        ("stream", ("--kind", "bars"), "accuracy"),
        ("stream", ("--where", "seed=0"), "accuracy, fig1, fig3, fig7, loss-curves, proposition1"),
    ],
)
def test_an_option_of_another_figure_is_refused(
    what: str, option: tuple[object, ...], of: str, runs: Path, tmp_path: Path
) -> None:
    drawn = "blurry" if what == "stream" else runs
    done = onepass("figure", what, drawn, *option, "-o", tmp_path / "one.png")
    assert done.status == 2
    assert f"{option[0]} goes with figure {of}, not with figure {what}" in done.error


def test_where_chooses_the_runs_that_are_drawn(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "er", ignore=shutil.ignore_patterns("[!e]*-*"))
    onepass("figure", "accuracy", runs, "--where", "method=er", "-o", tmp_path / "chosen.png")
    onepass("figure", "accuracy", tmp_path / "er", "-o", tmp_path / "alone.png")
    assert (tmp_path / "chosen.png").read_bytes() == (tmp_path / "alone.png").read_bytes()


def test_both_is_the_default_kind(runs: Path, tmp_path: Path) -> None:
    onepass("figure", "accuracy", runs, "-o", tmp_path / "default.png")
    onepass("figure", "accuracy", runs, "-o", tmp_path / "both.png", "--kind", "both")
    assert (tmp_path / "default.png").read_bytes() == (tmp_path / "both.png").read_bytes()


def test_a_name_with_dollars_is_no_formula(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "runs")
    change_result(tmp_path / "runs", method="$\\frac$")
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


def test_a_picture_of_many_methods_has_a_colour_for_each(runs: Path, tmp_path: Path) -> None:
    for number in range(14):
        shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / f"er-{number}")
        change_result(tmp_path / f"er-{number}", variant=f"lr={number}", state_sha256=str(number))
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    bars = [line for line in drawn.read_text().split("<g id=") if line.startswith('"patch_')]
    colours = {line.split("fill: ")[1][:7] for line in bars if "fill: #" in line}
    assert len(colours - {"#ffffff"}) >= 14


def test_a_method_without_memory_has_a_bar_for_each_dataset(tmp_path: Path) -> None:
    for dataset in ("digits", "synthetic"):
        arguments = ("--dataset", dataset, "--json", "--out", tmp_path)
        assert onepass("run", "finetune", *arguments).status == 0
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    for row in read_csv(onepass("table", tmp_path, "--format", "csv").out):
        assert f"finetune ({row['dataset']})" in drawn.read_text()
        assert f"<!-- {float(row['accuracy']):.1f} -->" in drawn.read_text()


def test_a_method_has_a_bar_for_each_memory(tmp_path: Path) -> None:
    for memory in (50, 200):
        arguments = ("--dataset", "synthetic", "--memory", memory, "--json", "--out", tmp_path)
        assert onepass("run", "er", "--preset", "common", *arguments).status == 0
    drawn = tmp_path / "bars.svg"
    assert onepass("figure", "accuracy", tmp_path, "--kind", "bars", "-o", drawn).status == 0
    for row in read_csv(onepass("table", tmp_path, "--format", "csv").out):
        assert f"er (M={row['memory']})" in drawn.read_text()


@pytest.mark.parametrize("count", [3, 12, 21])
def test_every_name_of_the_legend_is_inside_of_the_picture(count: int) -> None:
    """Every name fits, even in a picture of all methods."""
    names = [f"a-long-method-{number} mirror=false" for number in range(count)]  # two lines each
    figure, axes = figures._panels(names, 2)
    for name in names:
        axes[0].plot([0, 1], label=fill(name, figures.LINE))
    axes[0].legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    figure.canvas.draw()
    room = axes[0].get_legend().get_window_extent()
    assert room.y0 >= 0 and room.y1 <= figure.bbox.height
