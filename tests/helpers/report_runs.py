"""Finished runs for tests of tables and figures, and readers of both."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

from command import onepass

METHODS = ("finetune", "er", "joint")


def make_runs(out: Path) -> Path:
    """Makes runs of three methods and one variant, and an unfinished folder."""
    arguments = ("--dataset", "synthetic", "--json", "--out", out)
    assert onepass("run", *METHODS, "--seeds", 3, *arguments).status == 0
    assert onepass("run", "er", "--preset", "common", "--set", "lr=5e-4", *arguments).status == 0
    (out / "unfinished").mkdir()
    (out / "unfinished/run.json").write_text("{}")
    return out


def read_results(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in folder.rglob("result.json")]


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def change_result(folder: Path, **values: object) -> None:
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def run_named(runs: Path, folder: Path, name: str) -> Path:
    """Makes a folder of one run whose dataset has this name."""
    shutil.copytree(runs / "er-synthetic-m100-s0", folder / "er")
    change_result(folder / "er", dataset=name)
    return folder
