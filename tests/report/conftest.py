"""Finished runs that all tests share and none changes."""

from pathlib import Path

import pytest
from reported import reported


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reported(tmp_path_factory.mktemp("runs"))
