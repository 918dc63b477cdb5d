"""Makes studies skip the disk sync: tests write thousands of times and need no durability."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from onepass.tuning import study


def no_disk_sync(patched: pytest.MonkeyPatch) -> None:
    real = study._connect

    def connected(file: Path) -> sqlite3.Connection:
        connection = real(file)
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    patched.setattr(study, "_connect", connected)
