"""Finding GPUs, and assigning runs to them. No test here needs a GPU."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_workers import finished, use_fake_workers
from hypothesis import given
from hypothesis import strategies as st

from onepass import Finetune
from onepass.base.devices import resolve_device
from onepass.base.errors import InputError
from onepass.executors import InOrder, RunOptions
from onepass.executors.processes import gpus
from onepass.executors.processes.gpus import VISIBLE_DEVICES
from onepass.executors.processes.pool import Processes
from onepass.runs.spec import Fingerprint, Job
from onepass.sweeps.durations import run_kind

UUIDS = ["GPU-aa", "GPU-bb", "GPU-cc"]


@pytest.mark.parametrize(
    ("visible", "count", "uuids", "found"),
    [
        (None, 3, UUIDS, UUIDS),
        ("2, GPU-aa", 2, UUIDS, ["2", "GPU-aa"]),
        ("1,7", 1, UUIDS, ["1"]),  # CUDA stops at the first GPU that does not exist
        (None, 2, [], ["0", "1"]),
        (None, 1, UUIDS, ["0"]),
        (None, 0, [], []),
    ],
    ids=["all", "chosen", "one is not there", "without nvidia-smi", "one", "none"],
)
def test_gpus_are_named_as_in_cuda_visible_devices(
    visible: str | None,
    count: int,
    uuids: list[str],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VISIBLE_DEVICES, raising=False)
    if visible:
        monkeypatch.setenv(VISIBLE_DEVICES, visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(gpus, "query_nvidia_smi", lambda what: uuids)
    assert gpus.visible_gpus() == found


def test_nvidia_smi_is_asked_for_a_gpu_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.query_nvidia_smi("uuid") == []
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    words = gpus.query_nvidia_smi("memory.free", "GPU-aa")
    assert words == ["--query-gpu=memory.free", "--format=csv,noheader,nounits", "--id=GPU-aa"]
    program.write_text("#!/bin/sh\necho No devices were found; exit 6\n")
    assert gpus.query_nvidia_smi("uuid") == []


@given(st.integers(1, 40), st.integers(1, 8))
def test_slots_are_spread_evenly_over_the_gpus(at_once: int, count: int) -> None:
    spread = gpus.spread_over_gpus(at_once, [str(number) for number in range(count)])
    loads = Counter(spread)
    assert len(spread) == at_once
    assert max(loads.values()) - min(loads[str(n)] for n in range(min(count, at_once))) <= 1


@pytest.mark.parametrize("before", [None, "5,6"])
def test_each_worker_sees_only_the_least_loaded_gpu_and_stays_there(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VISIBLE_DEVICES, raising=False)
    if before:
        monkeypatch.setenv(VISIBLE_DEVICES, before)
    where: dict[int, Any] = {}
    together = threading.Barrier(4)

    def script(job: Job, gpu: str | None) -> tuple[Any, ...]:
        where[job.seed] = gpu
        if job.seed < 4:
            together.wait(10)
        return finished(job)

    workers = use_fake_workers(monkeypatch, script)
    jobs = [Job("er", seed=seed, device="cuda") for seed in range(6)]
    executor = Processes(4, gpus=["GPU-aa", "GPU-bb"])
    executor.ram_budget.free = lambda gpu: None
    ended = list(executor.outcomes(jobs, InOrder(jobs), RunOptions(tmp_path), lambda *_: None))
    assert sorted(index for index, _ in ended) == list(range(6))
    assert [where[seed] for seed in range(4)] == ["GPU-aa", "GPU-bb", "GPU-aa", "GPU-bb"]
    assert where.keys() == set(range(6)) and set(where.values()) == {"GPU-aa", "GPU-bb"}
    assert len(workers.all) == 4
    assert os.environ.get(VISIBLE_DEVICES) == before


def test_the_free_slot_on_the_gpu_with_the_fewest_runs_is_taken() -> None:
    assert gpus.least_loaded(["a", "b"], busy=["a", "b", "a"]) == 1
    assert gpus.least_loaded(["a", "b"], busy=["b"]) == 0
    assert gpus.least_loaded(["b", "a"], busy=[]) == 0


def test_one_gpu_of_several_is_chosen_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is the same on each GPU, so its number is not part of the identity."""
    with pytest.raises(InputError, match="'cuda:1' is missing: torch sees no GPU"):
        Finetune(device="cuda:1").learn([[0.0]], [0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InputError, match="'cuda:2' is missing: the last one is cuda:1"):
        resolve_device("cuda:2")
    data = Fingerprint("", 5)
    jobs = [Job("er", device=name, fingerprint=data) for name in ("cuda", "cuda:0", "cuda:1")]
    assert len({job.identity for job in jobs}) == 1
    assert len({run_kind(job) for job in jobs}) == 1


def test_runs_on_one_gpu_of_several_all_go_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker sees only this GPU."""
    seen = []

    def script(job: Job, gpu: str | None) -> tuple[Any, ...]:
        seen.append((gpu, job.device))
        return finished(job)

    use_fake_workers(monkeypatch, script)
    jobs = [Job("er", seed=seed, device="cuda:1") for seed in range(3)]
    executor = Processes(2, gpus=["GPU-aa", "GPU-bb"])
    executor.ram_budget.free = lambda gpu: None
    assert (
        len(list(executor.outcomes(jobs, InOrder(jobs), RunOptions(tmp_path), lambda *_: None)))
        == 3
    )
    assert seen == 3 * [("GPU-bb", "cuda")]
