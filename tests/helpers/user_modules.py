"""Modules as a user would write them, which register a method and are undone after the test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from isolated_registries import isolate_registries

from onepass.base import plugins
from onepass.data import DATASETS
from onepass.learning.registry import METHODS
from onepass.nets import NETWORKS
from onepass.streams import STREAMS

METHOD = """
from dataclasses import dataclass
import onepass
from onepass.learning.registry import method

@method("mine", paper="none", year=0)
@dataclass(kw_only=True, eq=False)
class Mine(onepass.ER):
    pass
"""
NETWORK = """
from torch import nn

def wide(shape):
    linear = nn.Linear(shape[0] * shape[1] * shape[2], 7)
    nn.init.constant_(linear.bias, 0.25)
    return nn.Sequential(nn.Flatten(), linear, nn.ReLU())
"""


def write_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes the modules `mymethod` and `mynets` and makes their folder the working directory."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "mymethod.py").write_text(METHOD)
    (folder / "mynets.py").write_text(NETWORK)
    isolate_registries(monkeypatch, METHODS, DATASETS, STREAMS, NETWORKS)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    unregister(monkeypatch, "mymethod", "mynets")
    return folder


def unregister(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Forgets these modules, as in a new process that never imported them."""
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(plugins, "_user_named", set())
    others = {name: info for name, info in METHODS.all().items() if name != "mine"}
    monkeypatch.setattr(METHODS, "entries", others)
