"""Fixtures: an empty cache for each test, and small copies of TinyImageNet."""

import formats
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("ONEPASS_DATA", raising=False)


@pytest.fixture(scope="module")
def tiny():
    return formats.tiny()


@pytest.fixture(scope="module")
def tiny_folder(tiny, tmp_path_factory):
    return formats.write_tiny(tmp_path_factory.mktemp("tiny") / formats.TINY_FOLDER, tiny)


@pytest.fixture
def broken_tiny(tmp_path):
    """Returns a copy that a test may damage."""
    return formats.write_tiny(tmp_path / formats.TINY_FOLDER, formats.tiny())
