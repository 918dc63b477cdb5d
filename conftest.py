"""For every test and doctest: one thread, since bits depend on the number and tests run side by
side; interrupts that arrive, whoever started the tests (a shell's background jobs ignore them, and
so would every command that a test starts); no width of a terminal, which pytest's workers are told;
all of scikit-learn's checks; Triton's kernels by its interpreter, where there is no GPU; and, for
documents, an empty folder to write in. Documents that take long are run with what is slow."""

import os
import signal
import sys

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
collect_ignore = ["docs/extending.md"]  # tests/test_extending.py imports its code as a module
if sys.platform != "linux":
    collect_ignore.append("onepass/nets/fast/fused_norm.py")  # no Triton

SLOW_DOCUMENTS = (  # all have tests that are not
    "onepass.tools.checks",
    "onepass.methods.co2l.Co2L",
    "onepass.methods.gss.GSS",
    "onepass.methods.ocm.OCM",
    "onepass.methods.ocm_gsa.OCMGSA",
)
os.environ.pop("COLUMNS", None)
os.environ["SCIPY_ARRAY_API"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name in SLOW_DOCUMENTS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def documents_write_elsewhere(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
