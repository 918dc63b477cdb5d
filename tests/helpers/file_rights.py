"""Lets the rights of files bind a child process whose user is root."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

DROP_FROM_BOUNDING_SET = 24  # of prctl, Linux
OVERRIDING = (1, 2)  # the capabilities to write, and to read, whatever the rights of a file say


def obey_file_rights() -> None:
    """Takes the right to override those of files from a child process, before it starts a program.

    It stays root, the owner of its files. Any other user is bound already.
    """
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in OVERRIDING:
            if prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "a capability could not be dropped")


@cache
def file_rights_bind() -> bool:
    """Returns whether a child that obeys the rights of files is kept from writing."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o500)
        line = [sys.executable, "-c", f"open({place + '/file'!r}, 'w')"]
        try:
            done = subprocess.run(
                line, preexec_fn=obey_file_rights, capture_output=True, check=False
            )
        except (OSError, AttributeError, subprocess.SubprocessError):
            return False
        return b"PermissionError" in done.stderr
