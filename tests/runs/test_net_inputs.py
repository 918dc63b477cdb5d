"""A run says how the inputs of a user's network are made, and `--normalise none` leaves pixels."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from command import onepass, refused
from isolated_registries import isolate_registries

import onepass as package
from onepass.nets import NETWORKS
from onepass.runs.spec import Job

MODULE = """
from pathlib import Path
import torch
from torch import nn
from onepass.nets import network

class Recording(nn.Module):
    '''Writes the range of its inputs to a file, also in a worker.'''
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(torch.Size(shape).numel(), 5)
    def forward(self, x):
        with (Path(__file__).parent / "ranges").open("a") as file:
            file.write(f"{float(x.min())} {float(x.max())}\\n")
        return self.layer(x.flatten(1))

def make(shape):
    return Recording(shape)

@network("own", takes="images", preprocess=lambda x: x, initialises=True)
def own(shape):
    return Recording(shape)
"""
RUN = ("--dataset", "synthetic", "--batch", 200, "--device", "cpu")
NORMALISED = (
    "net recording:make: its inputs are normalised by the data's mean and deviation; if it "
    "normalises them itself, give --normalise none, or register it with "
    "@network(..., preprocess=...)"
)
PLAIN = "net recording:make: its inputs are not normalised; pixels are between 0 and 1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate_registries(monkeypatch, NETWORKS)
    (tmp_path / "recording.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "recording", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seen(folder: Path) -> tuple[float, float]:
    """Returns the lowest and highest input that the network has recorded."""
    values = [float(word) for word in (folder / "ranges").read_text().split()]
    return min(values), max(values)


def said(folder: Path) -> list[str]:
    """Returns the lines of all logs of runs that name the network, without the time."""
    logs = [file.read_text() for file in (folder / "runs").glob("*/log.txt")]
    return re.findall(r"^\S+ (net .*)$", "".join(logs), re.MULTILINE)


def test_a_function_gets_normalised_pixels_and_the_run_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onepass("run", "finetune", *RUN, "--set", "net=recording:make")
    low, high = seen(folder)
    assert low < -1 and high > 1
    assert caplog.messages == [NORMALISED]  # logging prints it on standard error
    assert said(folder) == [NORMALISED]


def test_without_normalisation_it_gets_pixels(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onepass("run", "finetune", *RUN, "--set", "net=recording:make", "--normalise", "none")
    assert seen(folder) == (0, 1)
    assert caplog.messages == said(folder) == [PLAIN]
    (result,) = (folder / "runs").glob("*/result.json")
    assert json.loads(result.read_text())["normalise"] == "none"


def test_a_function_with_its_own_preprocessing_is_left_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onepass("run", "finetune", *RUN, "--set", "net=recording:own")
    own = "net recording:own: its own preprocessing makes its inputs"
    assert seen(folder) == (0, 1)
    assert caplog.messages == said(folder) == [own]


def test_many_runs_say_it_once_and_named_networks_not_at_all(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = ("er", "finetune", *RUN, "--seeds", 2)
    onepass("run", *asked, "--set", "net=recording:make", "--out", "runs")
    assert caplog.messages == [NORMALISED]
    assert said(folder) == 4 * [NORMALISED]
    (folder / "two.toml").write_text(
        'import = "recording"\n[defaults]\nmethods = ["er", "finetune"]\nbatch = 200\n'
        'dataset = "synthetic"\nset = { net = "recording:make" }\n'
    )
    swept = onepass("sweep", "two.toml", "--device", "cpu", "--out", "swept")
    assert (swept.status, swept.err.count(NORMALISED)) == (0, 1)
    onepass("run", "finetune", *RUN, "--set", "net=mlp", "--out", "plain")
    assert caplog.messages == [NORMALISED]


def test_normalise_none_is_another_run_than_the_normalised_one() -> None:
    jobs = [Job("er", "synthetic", normalise=how) for how in ("dataset", "none")]
    data = package.load("synthetic")
    plain, raw = (job.with_data(data) for job in jobs)
    assert plain.identity != raw.identity and plain.folder_name != raw.folder_name
    _, learner = raw.make(data)
    assert (learner.mean, learner.std) == (None, None)
    assert plain.make(data)[1].mean == data.mean


@pytest.mark.parametrize("pairs", [("mean=none", "std=none"), ("std=none",)])
def test_settings_cannot_switch_normalisation_off_unseen(pairs: tuple[str, ...]) -> None:
    """None is the default of the settings, so the run would have the identity of a normalised
    one."""
    chosen = [word for pair in pairs for word in ("--set", pair)]
    assert "give --normalise none" in refused("run", "er", *RUN, *chosen)
