"""The folder for files that can be rebuilt at any time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Returns `ONEPASS_CACHE` if it is set, else `onepass` in the user's cache folder."""
    if os.environ.get("ONEPASS_CACHE"):
        return Path(os.environ["ONEPASS_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onepass"
