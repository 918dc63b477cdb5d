"""The campaign's commands exist, and its sweeps can be read and tried."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from onepass.base.settings import construct
from onepass.learning import registry
from onepass.sweeps.sweep_file import read_sweep_file

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (EXPERIMENTS / "CAMPAIGN.md").read_text("utf-8").splitlines()
    if re.match(r"\| \d", line)
]
COMMANDS = [
    pytest.param(command, id=f"{row[0]}-{number}")
    for row in ROWS
    for number, command in enumerate(re.findall(r"`((?:onepass|python) [^`]+)`", row[2]))
]
page_commands = runpy.run_path(str(ROOT / "tests" / "test_page_commands.py"))


def test_rows_are_in_their_order_and_each_has_a_command() -> None:
    numbers = [row[0] for row in ROWS]
    assert numbers == sorted(set(numbers))
    assert [row[0] for row in ROWS if "`" not in row[2]] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_its_file_and_its_options(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "python":
        text = (ROOT / words[1]).read_text("utf-8")
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in text] == []
        return
    assert page_commands["mistake"](words) is None
    assert words[:2] == ["onepass", "sweep"]
    file = ROOT / words[2]
    assert read_sweep_file(file, device="cpu")
    written = file.read_text("utf-8")
    for option in ("--append", "--out"):  # the file says where its runs go, too
        if option in words:
            assert f"{option} {words[words.index(option) + 1]}" in written


def test_what_goes_past_the_recipe_trains_no_more_images_than_it() -> None:
    for run in read_sweep_file(EXPERIMENTS / "past-the-recipe.toml", device="cpu"):
        learner_class = registry.get(run.job.method).learner
        learner = construct(learner_class, memory=run.job.memory, **run.job.chosen_settings())
        assert learner.images_per_batch(10).trained <= 444, run.job


def test_a_sweep_is_tried_without_its_data(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        """
        [defaults]
        seeds = 2
        [[grid]]
        methods = "er"
        dataset = ["cifar100", "cifar10"] # alike once they are shrunken
        preset = "tuned"
        validation = 0.1
        precision = "bf16"
        [[grid]]
        methods = "gsa"
        dataset = "mnist"
        set = { mix = [32, 0] }
        """
    )
    command = [sys.executable, "scripts/try_sweep.py", str(file), "--samples", "5"]
    tried = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    first, second, third = tried.stdout.splitlines()
    assert first.startswith("1/3 er tuned 3x8x8 ") and first.endswith(": ended")
    assert second == "2/3 gsa common 1x28x28 mix=32 precision=fp32: ended"
    assert "mix=0 precision=fp32: error: gsa: mix must be" in third
    assert tried.returncode == 1
