"""In a real terminal, bars and tables have its width, and colours can be switched off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from terminal import in_a_terminal, without_controls

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.slow
def test_a_narrow_terminal_shows_every_number_and_colours_only_for_who_wants_them(
    tmp_path: Path,
) -> None:
    job = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--out")
    coloured = in_a_terminal(40, *job, tmp_path / "a", TERM="xterm-256color")
    plain = in_a_terminal(40, *job, tmp_path / "b", TERM="xterm-256color", NO_COLOR="1")
    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)
    lines = without_controls(plain).split("\n")
    assert "60/60" in without_controls(plain)
    header = next(number for number, line in enumerate(lines) if line.startswith("method"))
    table = [line for line in lines[header:] if "/" not in line or "steps/s" in line]
    assert max(map(len, table)) <= 40
