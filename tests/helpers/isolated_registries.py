"""What a test registers is gone after it."""

from __future__ import annotations

import pytest

from onepass.base.registry import Registry


def isolate_registries(monkeypatch: pytest.MonkeyPatch, *registries: Registry) -> None:
    """From here on the test has its own copy of these registries."""
    for names in registries:
        names.all()  # a module that is imported in the test would not register again after it
        monkeypatch.setattr(names, "entries", dict(names.entries))
        monkeypatch.setattr(names, "_definitions", dict(names._definitions))
