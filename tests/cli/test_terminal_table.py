"""Tables fit the terminal and never cut a number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import onepass, refused

from onepass.cli.terminal_table import format_table
from onepass.report import layout

HEADER = [name for name in layout.COLUMNS if name not in layout.HIDDEN]
ROWS = [
    "gsa-released|mirror=false|digits|100|90.0 ± 1.2|4.2 ± 1.1|93.1 ± 0.8|88.0 ± 4.1"
    "|90.4 ± 1.2|5|274|9.6 + 17.0|7.2 kB",
    "er||digits|100|85.2 ± 1.4|16.1 ± 1.6|97.0 ± 0.4|96.9 ± 0.6|87.1 ± 1.0|5|0.37|7.4|7.2 kB",
    "er|lr=0.0005 head=frozen|digits|1000|9.2|-|-|10.1|87.1|1|1234|7.4|7.2 kB",
]
CELLS = [row.split("|") for row in ROWS]
NUMBERS = [cell for row in CELLS for cell in row[3:]]


@pytest.mark.parametrize("room", [30, 50, 80, 100])
def test_numbers_are_whole_and_lines_fit_at_any_width(room: int) -> None:
    text = format_table(HEADER, CELLS, room)
    assert max(map(len, text.splitlines())) <= room
    found = re.split(r" {2,}|\n", text)
    assert all(found.count(cell) >= NUMBERS.count(cell) for cell in NUMBERS)
    assert all(name in found for name in HEADER)


def test_what_is_not_a_terminal_has_room_for_everything() -> None:
    header, *lines = format_table(HEADER, CELLS).splitlines()
    assert header.split() == HEADER
    assert [re.split(r" {2,}", line) for line in lines] == [
        [cell for cell in row if cell] for row in CELLS
    ]


@pytest.mark.parametrize(("room", "told_by"), [(80, "lr=0.0005"), (50, "\n3  er ")])
def test_rows_of_one_method_are_told_apart_wherever_their_columns_stand(
    room: int, told_by: str
) -> None:
    blocks = format_table(HEADER, CELLS, room).split("\n\n")
    assert len(blocks) > 1
    assert all(told_by in block for block in blocks)


def test_text_is_wrapped_and_none_of_it_is_lost() -> None:
    words = "Tasks of disjoint classes, one after another, each sample once"
    lines = format_table(["name", "what"], [["x" * 60, words]], 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert "".join(lines).count("x") == 60
    assert words in " ".join(" ".join(lines[2:]).replace("x", "").split())


@pytest.mark.parametrize(
    "command", [("list", "methods"), ("list", "settings", "gsa"), ("data", "list")]
)
def test_commands_know_how_wide_the_terminal_is(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, onepass(*command).out.splitlines())) <= 50


def test_columns_are_chosen_by_name() -> None:
    done = onepass("list", "streams", "--columns", "what, stream")
    assert done.out.splitlines()[0].split() == ["what", "stream"]


@pytest.mark.parametrize(
    "command", [("list", "streams"), ("data", "list"), ("bench", "er"), ("run", "er")]
)
def test_an_unknown_column_is_named_before_anything_is_done(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "unknown column 'methd'" in refused(*command, "--columns", "methd")
    assert not any(tmp_path.iterdir())


def test_a_rule_stands_in_a_terminal_and_is_as_wide_as_its_table() -> None:
    assert format_table(["name"], [["letters"]], 80).splitlines()[1] == "─" * len("letters")
    assert format_table(["name"], [["letters"]]) == "name\nletters\n"


@pytest.mark.parametrize("cell", ["[bold]x[/bold]", "[a]", ":smile:", "猫" * 3, "a" * 5000])
def test_a_cell_is_shown_as_it_is(cell: str) -> None:
    assert format_table(["name", "n"], [[cell, "1"]]).splitlines()[1].split() == [cell, "1"]
