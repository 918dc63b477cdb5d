"""What a test registers is gone after it."""

from __future__ import annotations

import pytest

from onepass.names import Names
from onepass.nets import NETWORKS


def put_back(monkeypatch: pytest.MonkeyPatch, *registries: Names) -> None:
    """From here on the test has its own copy of the registries."""
    for names in registries:
        monkeypatch.setattr(names, "entries", dict(names.entries))
        monkeypatch.setattr(names, "_places", dict(names._places))


@pytest.fixture
def own_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    put_back(monkeypatch, NETWORKS)
