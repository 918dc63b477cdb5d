"""In a real terminal, bars and tables have its width, and colours can be switched off."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from command import command

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def in_a_terminal(columns: int, *arguments: object, **environment: str) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")
    }
    process = subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=kept | environment
    )
    os.close(theirs)
    said = b""
    try:
        while block := os.read(ours, 65536):
            said += block
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    assert process.wait(60) == 0, said
    return said.decode()


@pytest.mark.slow
def test_a_narrow_terminal_shows_every_number_and_colours_only_for_who_wants_them(
    tmp_path: Path,
) -> None:
    job = ("run", "finetune", "--dataset", "synthetic", "--device", "cpu", "--out")
    coloured = in_a_terminal(40, *job, tmp_path / "a", TERM="xterm-256color")
    plain = in_a_terminal(40, *job, tmp_path / "b", TERM="xterm-256color", NO_COLOR="1")
    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)
    lines = CONTROL.sub("", plain).split("\n")
    assert "60/60" in CONTROL.sub("", plain)
    header = next(number for number, line in enumerate(lines) if line.startswith("method"))
    table = [line for line in lines[header:] if "/" not in line or "steps/s" in line]
    assert max(map(len, table)) <= 40
