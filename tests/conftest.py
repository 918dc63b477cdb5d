"""One thread for every test: bits depend on the thread count, and the tests run side by side."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
