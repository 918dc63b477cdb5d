"""Undoes what a test registers."""

from __future__ import annotations

import pytest

from onepass.base.registry import Registry


def isolate_registries(monkeypatch: pytest.MonkeyPatch, *registries: Registry) -> None:
    """Gives the test copies of these registries until it ends."""
    for names in registries:
        names.all()  # a module that is imported in the test would not register again after it
        monkeypatch.setattr(names, "entries", dict(names.entries))
        monkeypatch.setattr(names, "_definitions", dict(names._definitions))
