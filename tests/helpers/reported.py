"""Finished runs to make tables and figures of."""

from __future__ import annotations

from pathlib import Path

from command import onepass

METHODS = ("finetune", "er", "joint")


def reported(out: Path) -> Path:
    """Runs of three methods and one variant, and a folder that is none."""
    arguments = ("--dataset", "synthetic", "--json", "--out", out)
    assert onepass("run", *METHODS, "--seeds", 3, *arguments).status == 0
    assert onepass("run", "er", "--set", "lr=5e-4", *arguments).status == 0
    (out / "unfinished").mkdir()
    (out / "unfinished/run.json").write_text("{}")
    return out
