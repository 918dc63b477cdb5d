"""Where to compute: names of devices, and what is asked of them."""

from __future__ import annotations

import pytest
import torch
from command import refused

from onepass import InputError, devices
from onepass.cli.running import thread_count


def test_apples_gpu_is_taken_where_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'mps' is not there"):
        devices.resolve("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.resolve("mps") == torch.device("mps")
    assert devices.finest(devices.resolve("mps")) == torch.float32  # it has no doubles


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "mps:1", "cpu:0", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="device must be auto, cpu, mps, cuda or cuda:N"):
        devices.resolve(name)


def test_threads_are_a_number_or_all_cores() -> None:
    assert thread_count("auto") == devices.cores() >= 1
    assert thread_count("3") == 3
    for text in ("0", "1025", "many", "-1"):
        assert "--threads takes a number of CPU threads" in refused("run", "er", "--threads", text)
