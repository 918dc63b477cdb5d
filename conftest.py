"""Settings for every test and doctest.

- torch uses one thread, because bits depend on the number and tests run in parallel.
- Ctrl-C works even if a shell started the tests in the background, where SIGINT is ignored.
- No terminal width is set; pytest's workers inherit one.
- scikit-learn runs all of its checks.
- Without a GPU, Triton interprets its kernels.
- Doctests run in an empty folder, and slow ones are marked `slow`.
"""

import os
import signal
import sys

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
collect_ignore = ["docs/extending.md"]  # tests/test_extending.py imports its code as a module
# Two of them would be one module, `conftest`, and their fixtures have no doctests.
collect_ignore_glob = ["tests/**/conftest.py"]
if sys.platform != "linux":
    collect_ignore.append("onepass/nets/fast/fused_norm.py")  # no Triton

SLOW_DOCTESTS = (  # each of them also has fast tests
    "onepass.tools.checks",
    "onepass.methods.co2l.Co2L",
    "onepass.methods.gss.GSS",
    "onepass.methods.ocm.OCM",
    "onepass.methods.ocm_gsa.OCMGSA",
)
os.environ.pop("COLUMNS", None)
os.environ["SCIPY_ARRAY_API"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name in SLOW_DOCTESTS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def doctests_run_in_an_empty_folder(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))


@pytest.fixture
def tiny(monkeypatch):
    """Puts small random networks in the place of the published encoders, for images of 32
    pixels."""
    from tiny_encoders import tiny_network

    from onepass.encoders import efficientnet
    from onepass.encoders.whole_numbers import freeze, weights_sha256

    networks = {f"efficientnet-lite{n}": tiny_network(seed=n) for n in range(3)}
    hashes = {name: weights_sha256(freeze(net, whole=True)) for name, net in networks.items()}
    monkeypatch.setattr(efficientnet, "pretrained", networks.__getitem__)
    monkeypatch.setattr(efficientnet, "DERIVED", hashes)
    return networks
