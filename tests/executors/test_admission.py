"""When runs start: in the order of the queue, and if there is enough RAM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fake_workers import KILLED, failed, finished, use_fake_workers

from onepass import data
from onepass.base.errors import TooLargeError, TrainingError
from onepass.executors import Fits, InOrder, RunOptions, execute_all
from onepass.executors.processes import pool, slot
from onepass.executors.processes.pool import Processes
from onepass.executors.processes.ram import MIB, PROCESS, RamBudget, RamUse, free_bytes, ram_use
from onepass.runs.result import Result
from onepass.runs.spec import Job

GIB = 2**30
PATIENCE = 20  # seconds
JOBS = [Job("er", "synthetic", seed=seed, device="cpu") for seed in range(4)]
BIG = Job("gsa", "synthetic", device="cpu")


@dataclass(eq=False)
class Try:
    job: Job
    workers: int
    together: int = 0


class Stage:
    """Runs jobs with fake workers, and records for each try how many ran at the same time. On a
    busy machine workers start late, so a try lasts until `enough` holds."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        answers: dict[str, list[Any]],
        enough: Callable[[Stage, Try], bool] = lambda stage, this: True,
    ) -> None:
        self.answers, self.enough = answers, enough
        self.tries, self.lock = [], threading.Lock()
        self.at_work: list[Try] = []
        monkeypatch.setattr(pool, "PAUSE", 0.01)
        self.workers = use_fake_workers(monkeypatch, self.script)

    def script(self, job: Job, gpu: str | None) -> tuple[Any, ...]:
        this = Try(job, self.workers.alive)
        with self.lock:
            self.tries.append(this)
            self.at_work.append(this)
            for other in self.at_work:
                other.together = max(other.together, len(self.at_work))
        end = time.monotonic() + PATIENCE
        while not self.enough(self, this) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)  # long enough for one too many to start beside it
        answers = self.answers.get(job.folder_name)
        with self.lock:
            self.at_work.remove(this)
        return answers.pop(0) if answers else finished(job)

    @property
    def most(self) -> int:
        return max((attempt.together for attempt in self.tries), default=0)

    def of(self, job: Job) -> list[int]:
        return [attempt.together for attempt in self.tries if attempt.job == job]

    def play(
        self, jobs: list[Job], out: Path, executor: Processes, queue: InOrder | None = None
    ) -> list[tuple[int, Result | Exception]]:
        queue = queue or InOrder(jobs)
        return list(executor.outcomes(jobs, queue, RunOptions(out), lambda *_: None))


def two_together(stage: Stage, this: Try) -> bool:
    return stage.most >= 2


def ram_with(free: float | None, **seen: int) -> RamBudget:
    """Returns the budget of a machine that always has this many bytes free."""
    made = RamBudget(lambda gpu: free)
    for job in (*JOBS[:1], BIG):
        if job.method in seen:
            made.record(job, RamUse(most=seen[job.method]))
    return made


# ---- RAM


@pytest.mark.parametrize(
    ("free", "most"), [(None, 3), (40 * GIB, 3), (11 * GIB, 2), (8.8 * GIB, 1), (0, 1)]
)
def test_a_run_waits_if_the_others_leave_too_little_ram(
    free: float | None, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is expected to take 4 GiB, and a tenth of the free RAM stays free. (If the system
    does not tell what is free, all start.)"""
    stage = Stage(monkeypatch, {}, lambda stage, this: stage.most >= most)
    ended = stage.play(JOBS, tmp_path, Processes(3, ram_with(free, er=4 * GIB)))
    assert len(ended) == 4
    assert stage.most == most


def test_a_large_run_waits_until_no_other_runs_and_small_runs_overtake_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(monkeypatch, {}, two_together)
    jobs = [JOBS[0], BIG, *JOBS[1:]]
    ended = stage.play(jobs, tmp_path, Processes(2, ram_with(9 * GIB, er=GIB, gsa=50 * GIB)))
    assert len(ended) == 5 and all(isinstance(outcome, Result) for _, outcome in ended)
    started = [attempt.job for attempt in stage.tries]  # two threads may swap their first tries
    assert stage.of(BIG) == [1] and started.index(BIG) > started.index(JOBS[1])


def test_ram_that_running_jobs_already_hold_is_not_counted_twice() -> None:
    book = ram_with(10 * GIB, er=4 * GIB)
    beside = [(JOBS[0], RamUse(now=3 * GIB)), (JOBS[1], RamUse(now=6 * GIB))]
    assert book.room(None, beside, held=RamUse()) == 9 * GIB - GIB
    assert book.room(None, beside, held=RamUse(now=2 * GIB)) == 9 * GIB - GIB + 2 * GIB


def test_expected_ram_is_guessed_until_a_run_of_the_kind_was_measured() -> None:
    book = RamBudget()
    assert book.expected(BIG) == PROCESS
    executor = Processes(2, book)
    executor.check(BIG)
    digits, small = data.load("synthetic"), book.expected(BIG)
    assert small > PROCESS + digits.train_x.nbytes
    book.record(BIG, RamUse(most=70 * MIB))
    book.record(BIG, RamUse(most=50 * MIB))
    other_seed, other_kind = replace(BIG, seed=7), replace(BIG, memory=7)
    assert book.expected(other_seed) == 70 * MIB
    assert book.expected(other_kind) == PROCESS


def test_a_finished_run_reports_its_ram_use(tmp_path: Path) -> None:
    executor = Processes(1)
    list(execute_all(JOBS[:1], RunOptions(tmp_path), executor))
    (took,) = executor.ram_budget.seen.values()
    assert 100 * MIB < took == executor.ram_budget.expected(JOBS[0]) < 4 * GIB


def test_free_and_used_ram_of_this_machine_are_plausible() -> None:
    free, now = free_bytes(None), ram_use("cpu")
    assert free is not None and 50 * MIB < free < 2**50
    assert 50 * MIB < now.now <= now.most < 2**40


# ---- too little RAM


@pytest.mark.parametrize(
    ("answer", "kills"),
    [(failed("memory"), (0, 0)), (KILLED, (0, 1)), (KILLED, (None, None))],
    ids=["out of memory", "killed for it", "killed, perhaps for it"],
)
def test_a_run_that_lacked_memory_beside_others_is_retried_alone(
    answer: Any, kills: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kills` are the kernel's counts of killed processes, before and after."""
    answers = [answer]
    stage = Stage(monkeypatch, {JOBS[0].folder_name: answers}, two_together)
    monkeypatch.setattr(slot, "count_oom_kills", lambda: kills[not answers])
    ended = stage.play(JOBS, tmp_path, Processes(2, ram_with(None)))
    assert all(isinstance(outcome, Result) for _, outcome in ended)
    assert stage.of(JOBS[0]) == [2, 1]
    (_, alone) = [attempt for attempt in stage.tries if attempt.job == JOBS[0]]
    assert alone.workers == 1, "an idle worker holds memory"


def test_a_worker_not_killed_for_lack_of_ram_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others_last(stage: Stage, this: Try) -> bool:
        return stage.most >= 2 if this.job == JOBS[0] else len(stage.of(JOBS[0])) == 2

    stage = Stage(monkeypatch, {JOBS[0].folder_name: [KILLED]}, others_last)
    monkeypatch.setattr(slot, "count_oom_kills", lambda: 3)
    stage.play(JOBS, tmp_path, Processes(2, ram_with(None)))
    assert stage.of(JOBS[0]) == [2, 2]


def test_a_run_whose_worker_is_killed_twice_is_reported_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(monkeypatch, {JOBS[0].folder_name: [KILLED, KILLED]})
    monkeypatch.setattr(slot, "count_oom_kills", lambda: 3)
    ended = dict(stage.play(JOBS, tmp_path, Processes(2, ram_with(None))))
    problem = ended.pop(0)
    assert isinstance(problem, TrainingError)
    assert all(word in str(problem) for word in ("killed", JOBS[0].folder_name, "--resume"))
    assert len(stage.of(JOBS[0])) == 2
    assert len(ended) == len(JOBS) - 1 and all(
        isinstance(outcome, Result) for outcome in ended.values()
    )


def test_a_run_that_lacks_memory_alone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {BIG.folder_name: [failed("memory"), failed("memory")]}
    stage = Stage(monkeypatch, answers, two_together)
    ended = stage.play([BIG, *JOBS], tmp_path, Processes(2, ram_with(None)))
    assert stage.of(BIG) == [2, 1]
    (problem,) = [outcome for _, outcome in ended if isinstance(outcome, Exception)]
    assert isinstance(problem, TooLargeError)


# ---- the queue


def picking(pick: Callable[[InOrder, Fits], int | None]) -> InOrder:
    queue = InOrder(JOBS)
    queue.take = lambda fits: pick(queue, fits)
    return queue


def test_the_queue_is_asked_when_a_slot_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's answer may therefore depend on the runs that have ended."""
    stage, calls = Stage(monkeypatch, {}), []

    def last_first(queue: InOrder, fits: Fits) -> int | None:
        calls.append(len(stage.tries))
        return queue.waiting.pop() if queue.waiting else None

    ended = stage.play(JOBS, tmp_path, Processes(1, ram_with(None)), picking(last_first))
    assert [index for index, _ in ended] == [3, 2, 1, 0]
    assert calls == [0, 1, 2, 3, 4]


def test_a_queue_without_a_job_is_asked_again_while_runs_are_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if no run ends meanwhile. With nothing running, None means the end."""
    stage, calls = Stage(monkeypatch, {}, two_together), []

    def hesitating(queue: InOrder, fits: Fits) -> int | None:
        calls.append(None)
        if len(queue.waiting) == 2:
            return None
        return InOrder.take(queue, fits) if len(calls) in (1, 5) else None

    ended = stage.play(JOBS, tmp_path, Processes(2, ram_with(None)), picking(hesitating))
    assert sorted(index for index, _ in ended) == [0, 1]
    assert stage.of(JOBS[1]) == [2]
