"""Finished runs that all tests share and none changes."""

from pathlib import Path

import pytest
from report_runs import make_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("runs"))
