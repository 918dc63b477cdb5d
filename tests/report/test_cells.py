"""Names with special characters appear as text in every format, and have no other effect."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from command import onepass
from report_runs import change_result, read_csv, read_results, run_named

from onepass.report.table import FORMATS


@pytest.mark.slow
def test_brackets_stay_in_a_table(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "er")
    change_result(tmp_path / "er", dataset="pets [old]")
    assert "pets [old]" in onepass("table", tmp_path).out


def test_letters_that_mean_something_to_a_format_are_escaped(runs: Path, tmp_path: Path) -> None:
    run_named(runs, tmp_path, "a|b_c&d#e")
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
        ("\uff1d1+1", "\uff1d1+1", "\uff1d1+1", "'\uff1d1+1"),  # a wide = is one to a spreadsheet
        ("\ufe621", "\ufe621", "\ufe621", "'\ufe621"),  # a small +
        ("-1.5", "-1.5", "$-1.5$", "-1.5"),
        ("a\nb", r"a\\nb", r"a\textbackslash{}nb", r"a\nb"),
    ],
)
def test_a_cell_is_text_for_whatever_reads_the_table(
    name: str, markdown: str, latex: str, in_csv: str | None, runs: Path, tmp_path: Path
) -> None:
    run_named(runs, tmp_path, name)
    made = {form: onepass("table", tmp_path, "--format", form).out for form in FORMATS}
    assert f"| {markdown} |" in made["markdown"]
    assert f"& {latex} &" in made["latex"]
    assert [row["dataset"] for row in read_csv(made["csv"])] == [in_csv or name]


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202e[/red] :cat: $\\frac$"
HARMLESS = r"\x1b[2J\x1b]0;owned\x07\r\u202e[/red] :cat: $\frac$"


def test_names_do_nothing_in_a_table_or_a_picture(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "finetune-synthetic-s0", tmp_path / "finetune")
    run_named(runs, tmp_path, HOSTILE)
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


def test_names_that_are_no_valid_text_can_be_run_and_shown(tmp_path: Path) -> None:
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
    (record,) = read_results(folder)
    assert r"\udcff" in record["out"]
    assert onepass("run", *job, "--resume", "--out", folder / "runs").status == 0
    (folder / "pictures").mkdir()
    assert r"\udcff" in onepass("predict", run / "checkpoint.pt", folder / "pictures").error
