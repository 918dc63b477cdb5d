"""LaTeX and markdown stay valid whatever the cells hold."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latex_tabulars import expect_tabular

from onepass.report.table import Cell, Table, latex, markdown

LETTERS = st.text(string.ascii_letters + string.digits + r"_%&#{}$\^~<>[]*±Δ +-.", max_size=12)
CELLS = st.builds(
    Cell, LETTERS, rank=st.sampled_from([0, 1, 2]), note=st.sampled_from(["", "a", "b"])
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["", "a"]), LETTERS), max_size=2),
)
def test_a_tabular_is_whole_whatever_it_holds(body, notes) -> None:
    groups = ["", "M=1", "M=1", "M=2"]
    table = Table(["method", "ours", "theirs", "p"], body, groups, "a_title", [0], notes)
    assert expect_tabular(latex(table)) == 4
    lines = [line for line in markdown(table).splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {5}


def test_in_latex_numbers_stand_to_the_right_and_notes_below_the_tabular() -> None:
    body = [
        ["er", "50", Cell("12.2 ± 1.9 (3)", rank=1, note="a"), "<0.001", "-1.5", "a100"],
        ["5", "100", "-", "5.0 (1 of 3)", "2.3 MB", "-"],
    ]
    notes = [("a", "doubtful: a copy."), ("", "- is missing.")]
    text = latex(Table(["method", "memory", "ours", "p", "kept", "device"], body, notes=notes))
    assert r"\begin{tabular}{lrrrrl}" in text
    assert text.partition("\\end{tabular}\n")[2].splitlines() == [
        r"{\par\smallskip\footnotesize",
        r"\textsuperscript{a} doubtful: a copy.\par",
        r"-- is missing.\par",
        "}",
    ]


@pytest.mark.parametrize(
    ("cell", "in_latex", "in_markdown"),
    [
        (Cell("90.1", rank=1), r"\textbf{90.1}", "**90.1**"),
        (Cell("90.1 ± 0.5", rank=1), r"\textbf{$\mathbf{90.1 \pm 0.5}$}", "**90.1 ± 0.5**"),
        (Cell("90.1 ± 0.5 (3)", rank=2), r"\underline{$90.1 \pm 0.5$ (3)}", "*90.1 ± 0.5 (3)*"),
        (Cell("12.2", note="a"), r"12.2\textsuperscript{a}", "12.2 <sup>a</sup>"),
        (Cell("$a$", rank=1), r"\textbf{\$a\$}", r"**\$a\$**"),
        ("-3.1", "$-3.1$", "-3.1"),
        ("-", "--", "-"),
    ],
)
def test_ranks_and_notes_show_in_each_format(cell, in_latex, in_markdown) -> None:
    table = Table(["method", "accuracy"], [["er", cell]])
    assert f"er & {in_latex} \\\\" in latex(table)
    assert f"| er | {in_markdown} |" in markdown(table)
