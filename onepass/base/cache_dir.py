"""Where things lie that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`ONEPASS_CACHE`, or the user's cache folder."""
    if os.environ.get("ONEPASS_CACHE"):
        return Path(os.environ["ONEPASS_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onepass"
