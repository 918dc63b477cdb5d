"""What probes said of a run: their lines, and the rates of gradients task by task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from onepass.base.errors import InputError, RunError
from onepass.runs import lines
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result

ROUNDING = 1e-12
# What a line of each probe says, as far as it is used here.
FIELDS = {
    "balance": {"p", "n", "pn", "a_pn", "pn_of_tasks"},
    "losses": {"task", "step", "stream", "replay"},
    "logits": {"task", "classes", "new", "batches"},
}


def has_probe_lines(result: Result, probe: str) -> bool:
    """Whether this probe saw the whole run, and its lines are there: a line of results has none."""
    if lines.file_of_line(result.out) or probe in result.dropped:
        return False
    return RunFolder(Path(result.out)).lines_file(probe).is_file()


def read_probe_lines(result: Result, probe: str) -> list[dict[str, Any]]:
    """The lines of a probe in a run's folder."""
    if file := lines.file_of_line(result.out):
        raise InputError(f"{file} holds no lines of probes: this figure is drawn from run folders")
    found = RunFolder(Path(result.out)).probe_lines(probe)
    if found is None:
        raise InputError(f"{result.out} was run without --probe {probe}")
    for lacking in (FIELDS[probe] - line.keys() for line in found):
        if lacking:
            raise RunError(f"{result.out}/{probe}.jsonl is damaged: a line has no {min(lacking)}")
    return found


@dataclass(frozen=True)
class GradientRates:
    """The rates of one run as its tasks ended; tasks are counted from 0."""

    result: Result

    @cached_property
    def ends(self) -> list[dict[str, Any]]:
        """A line for each task. With fewer, another task would be taken for the last."""
        found = [
            line for line in read_probe_lines(self.result, "balance") if line.get("ended", True)
        ]
        if len(found) != self.result.tasks:
            told = f"{self.result.out}/balance.jsonl tells of {len(found)} tasks"
            raise RunError(f"{told}, and the run had {self.result.tasks}")
        self._check_tasks(_arrivals(found))
        return found

    def _check_tasks(self, arrived: list[list[str]]) -> None:
        stream = (RunFolder(Path(self.result.out)).description() or {}).get("stream", {})
        tasks = [set(map(str, group)) for group in stream.get("classes", arrived)]
        if any(not task.issuperset(new) for task, new in zip(tasks, arrived, strict=True)):
            told = f"{self.result.out}: classes come in other tasks than their own"
            raise InputError(f"{told}, and the paper's observations are of tasks")

    @property
    def tasks(self) -> int:
        return len(self.ends)

    @cached_property
    def labels(self) -> list[list[str]]:
        """The classes of each task, in order of arrival."""
        return _arrivals(self.ends)

    def pn(self, t: int, of: int) -> float:
        """PN(t, t'); minus infinity where classes had nothing that pushed them up, and not a number
        where nothing pushed them down either: no softmax, or no rival."""
        end = self.ends[t]
        if (rate := end["pn_of_tasks"][of]) is not None:
            return float(rate)
        down = any(end["p"][label] for label in self.labels[of])
        return -math.inf if down else math.nan

    def pn_since(self, of: int) -> list[float]:
        """PN(t, t') for t = t' and all later ones."""
        return [self.pn(t, of) for t in range(of, self.tasks)]

    def accuracy_since(self, of: int) -> list[float]:
        matrix = self.result.accuracy_matrix
        return [as_number(matrix[t][of]) for t in range(of, self.tasks)]

    def mean_gradient(self, name: Literal["p", "n"], t: int, of: int) -> float:
        """P or N(t, L(t')): the mean over the classes of a task."""
        return mean_of_finite([as_number(self.ends[t][name][label]) for label in self.labels[of]])

    def push(self, t: int, of: int, *, by_new: bool) -> float:
        """P(t, L(t')) as far as samples of new classes make it, or as far as those of old ones do.
        Not a number if that was not counted, by an older version."""
        told = self.ends[t].get("p_new", {})
        new = mean_of_finite([as_number(told.get(label)) for label in self.labels[of]])
        whole = self.mean_gradient("p", t, of)
        # what rounding leaves of two equal sums is nobody's push
        return new if by_new else (0.0 if abs(whole - new) < ROUNDING * whole else whole - new)

    def mean_pull(self, t: int) -> float:
        """The mean of 1 - p over the samples of the classes of task t in their own task: by how
        much each pulls its class up, however many there are. Not a number if they were not counted,
        by an older version."""
        end, classes = self.ends[t], self.labels[t]
        count = sum(end["own"][label] for label in classes) if "own" in end else 0
        pull = (
            -sum(as_number(end["n"][label]) for label in classes) * end["samples"] if count else 0.0
        )
        return pull / count if count else math.nan

    def rates_of_first_task(self) -> list[float]:
        return [as_number(rate) for rate in self.ends[0]["pn"].values()]

    @cached_property
    def a_pn(self) -> list[float]:
        """A-PN after the last task, by class in order of arrival."""
        return [as_number(rate) for rate in self.ends[-1]["a_pn"].values()]

    @cached_property
    def class_accuracy(self) -> list[float]:
        """Likewise, the accuracy."""
        found = self.result.class_accuracy
        return [as_number(found[int(label)]) for label in self.ends[-1]["a_pn"]]

    @cached_property
    def a_pn_of_tasks(self) -> list[list[float]]:
        rates = self.ends[-1]["a_pn"]
        return [[as_number(rates[label]) for label in group] for group in self.labels]

    def read_all(self) -> None:
        """Every number once, so that what is damaged is found before anything is drawn."""
        for t in range(self.tasks):
            self.pn_since(t), self.accuracy_since(t), self.mean_pull(t)
            for of in range(t + 1):
                self.mean_gradient("n", t, of), self.push(t, of, by_new=False)
        self.rates_of_first_task(), self.class_accuracy, self.a_pn_of_tasks


def _arrivals(ends: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The classes that each line tells of and the one before does not."""
    known = [list(line["pn"]) for line in ends]
    return [now[len(before) :] for before, now in zip([[], *known], known, strict=False)]


def as_number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def mean_of_finite(values: Sequence[float]) -> float:
    found = [value for value in values if math.isfinite(value)]
    return mean(found) if found else math.nan
