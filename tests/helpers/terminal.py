"""Runs commands in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from command import command

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def in_a_terminal(columns: int, *arguments: object, **environment: str) -> str:
    """Runs a command in a terminal of this width, and returns all that the terminal gets."""
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


def without_controls(text: str) -> str:
    """Returns what a terminal got without moves of the cursor and colours."""
    return CONTROL.sub("", text)
