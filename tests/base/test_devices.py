"""Tests of device names, numerical modes and thread counts."""

from __future__ import annotations

import pytest
import torch
from command import refused

from onepass import InputError
from onepass.base import devices
from onepass.cli.run import parse_threads


def test_mps_is_resolved_if_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'mps' is missing"):
        devices.resolve_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.resolve_device("mps") == torch.device("mps")
    assert devices.widest_float(devices.resolve_device("mps")) == torch.float32  # it has no float64


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "mps:1", "cpu:0", ""])
def test_an_unknown_device_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="device must be auto, cpu, mps, cuda or cuda:N"):
        devices.resolve_device(name)


def flushed() -> bool:
    return float(torch.tensor(1e-39) * 1) == 0


@pytest.mark.parametrize("before", [False, True])
def test_subnormals_are_flushed_inside_and_the_mode_is_restored(before: bool) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(before)
    try:
        with pytest.raises(ZeroDivisionError), devices.no_subnormals():
            assert flushed()
            1 / 0  # noqa: B018
        assert flushed() == before
        torch.set_num_threads(2)
        with devices.no_subnormals():  # the mode would reach only some of the threads
            assert flushed() == before
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def test_the_thread_count_is_a_number_or_all_cores() -> None:
    assert parse_threads("auto") == devices.usable_cores() >= 1
    assert parse_threads("3") == 3
    for text in ("0", "1025", "many", "-1"):
        assert "--threads takes a number of CPU threads" in refused("run", "er", "--threads", text)
