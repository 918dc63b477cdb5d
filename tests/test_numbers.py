"""The numbers on the first pages are those of the lines; `make results` says where they differ."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onepass.runs.query import find_results
from onepass.runs.result import Result

ROOT = Path(__file__).parents[1]
script = runpy.run_path(str(ROOT / "scripts" / "check_numbers.py"))
LISTED = tomllib.loads(script["NUMBERS"].read_text())
PAGES = {
    name: (ROOT / name).read_text()
    for name in [*script["COVERED"], *(sentence["page"] for sentence in LISTED["sentence"])]
}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return find_results(ROOT / "results" / "lines")


@pytest.fixture(scope="module")
def numbers(results: list[Result]) -> Any:
    return script["Numbers"](results)


def test_the_pages_have_the_numbers_of_the_lines(numbers: Any) -> None:
    assert script["faults"](LISTED, PAGES, numbers) == []


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("README.md", "from 19.1 to 43.5 %", "from 19.1 to 44.5 %"),
        ("results/README.md", "15 are reproduced on MNIST", "14 are reproduced on MNIST"),
    ],
)
def test_another_digit_is_a_fault(page: str, old: str, new: str, numbers: Any) -> None:
    (fault,) = script["faults"](LISTED, PAGES | {page: PAGES[page].replace(old, new)}, numbers)
    assert fault.startswith(f"{page}: ") and old in fault and new in fault


def test_a_number_that_nothing_computes_is_a_fault(numbers: Any) -> None:
    text = PAGES["README.md"] + "\n`er` is 2.5 times as fast, see [x7](y8.md) and `z=9`.\n"
    (fault,) = script["faults"](LISTED, PAGES | {"README.md": text}, numbers)
    assert fault.startswith("README.md: ") and "2.5" in fault


def test_another_line_is_a_fault(results: list[Result]) -> None:
    """A run of `er best` with 1000 kept that ends three points higher changes three pages."""
    changed = [
        replace(run, accuracy=run.accuracy + 3.0)
        if (run.method, run.dataset, run.memory, run.seed) == ("er", "cifar100", 1000, 0)
        and run.variant.get("preset") == "best"
        else run
        for run in results
    ]
    assert changed != results
    faults = script["faults"](LISTED, PAGES, script["Numbers"](changed))
    assert {fault.partition(":")[0] for fault in faults} == {
        "README.md",
        "results/README.md",
        "results/best.md",
    }


def test_every_line_that_a_table_counts_names_its_commit(results: list[Result]) -> None:
    assert [run for run in results if not run.commit] == []


@pytest.mark.slow
def test_the_script_fails_and_names_the_page(tmp_path: Path) -> None:
    for name in ("README.md", "results", "scripts"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "scripts/check_numbers.py"]
    assert subprocess.run(command, check=False, cwd=tmp_path).returncode == 0
    lines = tmp_path / "results/lines/recipe.jsonl"
    first, *rest = lines.read_text().splitlines()
    line = json.loads(first)
    lines.write_text("\n".join([json.dumps({**line, "accuracy": 1.0}), *rest]) + "\n")
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "results/best.md: the lines say" in done.stderr
