"""Checks that LaTeX tabulars are well-formed."""

from __future__ import annotations

import re


def count_columns(row: str) -> int:
    """Returns the number of columns that a row of a tabular fills."""
    bare = row.replace(r"\&", "")
    wide = [int(n) for n in re.findall(r"\\multicolumn{(\d+)}", bare)]
    return bare.count("&") + 1 + sum(wide) - len(wide)


def expect_tabular(text: str) -> int:
    """Checks that braces and formulas balance and rows are equally wide; returns the width."""
    bare = text.replace("\\\\", " ").replace(r"\{", "").replace(r"\}", "").replace(r"\$", "")
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    width = len(re.search(r"\\begin{tabular}{([lr]+)}", text)[1])
    rows = [line[:-3] for line in text.splitlines() if line.endswith(r" \\")]
    assert {count_columns(row) for row in rows} == {width}
    commands = [line for line in text.splitlines() if line.startswith(r"\cmidrule")]
    for first, last in re.findall(r"{(\d+)-(\d+)}", "".join(commands)):
        assert 1 <= int(first) <= int(last) <= width
    return width
