"""Reads the lines that the probes of a run recorded: losses, logits, and rates of gradients.

P and N are the sums of the positive and of the negative gradients on a class's logit during a task,
divided by the task's trained samples. P pushes the logit down and N pulls it up. The rate PN is
P / N, which is -1 in balance. A-PN is the same ratio over all tasks.
"""

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

ROUNDING = 1e-12  # of a sum of gradients, relative to it
# The fields that figures need of each probe's lines.
FIELDS = {
    "balance": {"p", "n", "pn", "a_pn", "pn_of_tasks"},
    "losses": {"task", "step", "stream", "replay"},
    "logits": {"task", "classes", "new", "batches"},
}


def has_probe_lines(result: Result, probe: str) -> bool:
    """Returns whether the probe watched the whole run and its lines exist.

    A result from a results file has no probe lines.
    """
    if lines.file_of_line(result.out) or probe in result.dropped:
        return False
    return RunFolder(Path(result.out)).lines_file(probe).is_file()


def read_probe_lines(result: Result, probe: str) -> list[dict[str, Any]]:
    """Returns the lines of a probe in a run's folder. Raises an InputError if the result has no
    folder or its run lacked the probe, and a RunError if a line lacks a field that figures need."""
    if file := lines.file_of_line(result.out):
        raise InputError(f"{file} holds no lines of probes: this figure is drawn from run folders")
    probed = RunFolder(Path(result.out)).probe_lines(probe)
    if probed is None:
        raise InputError(f"{result.out} was run without --probe {probe}")
    for missing in (FIELDS[probe] - line.keys() for line in probed):
        if missing:
            raise RunError(f"{result.out}/{probe}.jsonl is damaged: a line has no {min(missing)}")
    return probed


@dataclass(frozen=True)
class GradientRates:
    """The gradient rates of one run at the ends of its tasks. Tasks count from 0.

    PN(t, t') is the rate of the classes of task t' during task t.
    """

    result: Result

    @cached_property
    def ends(self) -> list[dict[str, Any]]:
        """The balance line of each task's end. Raises a RunError if a task has none, because all
        later lines would be taken for those of other tasks."""
        found = [
            line for line in read_probe_lines(self.result, "balance") if line.get("ended", True)
        ]
        if len(found) != self.result.tasks:
            problem = f"{self.result.out}/balance.jsonl has the ends of {len(found)} tasks"
            raise RunError(f"{problem}, and the run had {self.result.tasks} tasks: run it again")
        self._expect_disjoint_tasks(_arrivals(found))
        return found

    def _expect_disjoint_tasks(self, arrived: list[list[str]]) -> None:
        """Raises an InputError if a class first comes in another task than its own, as in a blurry
        stream."""
        stream = (RunFolder(Path(self.result.out)).description() or {}).get("stream", {})
        tasks = [set(map(str, group)) for group in stream.get("classes", arrived)]
        if any(not task.issuperset(new) for task, new in zip(tasks, arrived, strict=True)):
            problem = f"{self.result.out}: classes come in other tasks than their own"
            raise InputError(f"{problem}, but the paper's observations need disjoint tasks")

    @property
    def tasks(self) -> int:
        return len(self.ends)

    @cached_property
    def labels(self) -> list[list[str]]:
        """The classes of each task, in order of arrival."""
        return _arrivals(self.ends)

    def pn(self, t: int, of: int) -> float:
        """Returns PN(t, t'), with t' = `of`.

        The rate is minus infinity if no gradient pulled the classes up. It is NaN if none pushed
        them down either: in a method without a softmax, or in a first task of a single class.
        """
        end = self.ends[t]
        if (rate := end["pn_of_tasks"][of]) is not None:
            return float(rate)
        down = any(end["p"][label] for label in self.labels[of])
        return -math.inf if down else math.nan

    def pn_since(self, of: int) -> list[float]:
        """Returns PN(t, t') for t = t' and all later tasks."""
        return [self.pn(t, of) for t in range(of, self.tasks)]

    def accuracy_since(self, of: int) -> list[float]:
        """Returns the accuracy on task `of` at its own end and after each later task."""
        matrix = self.result.accuracy_matrix
        return [as_number(matrix[t][of]) for t in range(of, self.tasks)]

    def mean_gradient(self, name: Literal["p", "n"], t: int, of: int) -> float:
        """Returns P(t, L(t')) or N(t, L(t')): the mean of P or N during task t over the classes of
        task t' = `of`."""
        return mean_of_finite([as_number(self.ends[t][name][label]) for label in self.labels[of]])

    def push(self, t: int, of: int, *, by_new: bool) -> float:
        """Returns how much of P(t, L(t')) is caused by samples of new classes, or by those of old
        classes. Both amounts add up to P.

        NaN for runs of an older version, which did not record it.
        """
        caused = self.ends[t].get("p_new", {})
        new = mean_of_finite([as_number(caused.get(label)) for label in self.labels[of]])
        total = self.mean_gradient("p", t, of)
        # A difference of this size is a rounding error.
        return new if by_new else (0.0 if abs(total - new) < ROUNDING * total else total - new)

    def mean_pull(self, t: int) -> float:
        """Returns how much a sample of task t pulls its class up in that task: the mean of 1 - p,
        where p is the probability of the sample's class.

        The mean does not depend on the number of samples, unlike N. NaN for runs of an older
        version, which did not count the samples of each class.
        """
        end, classes = self.ends[t], self.labels[t]
        count = sum(end["own"][label] for label in classes) if "own" in end else 0
        pull = (
            -sum(as_number(end["n"][label]) for label in classes) * end["samples"] if count else 0.0
        )
        return pull / count if count else math.nan

    def rates_of_first_task(self) -> list[float]:
        """Returns PN of each class at the end of the first task."""
        return [as_number(rate) for rate in self.ends[0]["pn"].values()]

    @cached_property
    def a_pn(self) -> list[float]:
        """A-PN after the last task, by class in order of arrival."""
        return [as_number(rate) for rate in self.ends[-1]["a_pn"].values()]

    @cached_property
    def class_accuracy(self) -> list[float]:
        """Final accuracy, by class in order of arrival."""
        accuracy = self.result.class_accuracy
        return [as_number(accuracy[int(label)]) for label in self.ends[-1]["a_pn"]]

    @cached_property
    def a_pn_of_tasks(self) -> list[list[float]]:
        """A-PN after the last task, by task and class."""
        rates = self.ends[-1]["a_pn"]
        return [[as_number(rates[label]) for label in group] for group in self.labels]

    def read_all(self) -> None:
        """Reads every number once, so that a damaged file raises its error before anything is
        drawn."""
        for t in range(self.tasks):
            self.pn_since(t), self.accuracy_since(t), self.mean_pull(t)
            for of in range(t + 1):
                self.mean_gradient("n", t, of), self.push(t, of, by_new=False)
        self.rates_of_first_task(), self.class_accuracy, self.a_pn_of_tasks


def _arrivals(ends: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns for each line the classes that the line before did not have."""
    known = [list(line["pn"]) for line in ends]
    return [now[len(before) :] for before, now in zip([[], *known], known, strict=False)]


def as_number(value: float | None) -> float:
    """Returns the value, with NaN for None, which stands for NaN in JSON."""
    return math.nan if value is None else float(value)


def mean_of_finite(values: Sequence[float]) -> float:
    """Returns the mean of the finite values, or NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return mean(finite) if finite else math.nan
