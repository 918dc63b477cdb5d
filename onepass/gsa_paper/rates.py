"""Reads the probe lines of a run: its losses, logits, and rates of gradients task by task.

P and N are the positive and the negative gradients on a class's logit, averaged over the samples of
a task. P pushes the logit down and N pulls it up. PN = P / N is -1 in balance. A-PN is the same
ratio over all tasks.
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

ROUNDING = 1e-12
# The fields that figures need of each probe's lines.
FIELDS = {
    "balance": {"p", "n", "pn", "a_pn", "pn_of_tasks"},
    "losses": {"task", "step", "stream", "replay"},
    "logits": {"task", "classes", "new", "batches"},
}


def has_probe_lines(result: Result, probe: str) -> bool:
    """Returns whether the probe watched the whole run and its lines exist.

    A line of a results file has no probe lines.
    """
    if lines.file_of_line(result.out) or probe in result.dropped:
        return False
    return RunFolder(Path(result.out)).lines_file(probe).is_file()


def read_probe_lines(result: Result, probe: str) -> list[dict[str, Any]]:
    """Returns the lines of a probe in a run's folder, each with the fields that figures need."""
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
        """The balance line of each task's end. All must be there, or the last would be another."""
        found = [
            line for line in read_probe_lines(self.result, "balance") if line.get("ended", True)
        ]
        if len(found) != self.result.tasks:
            problem = f"{self.result.out}/balance.jsonl has {len(found)} tasks"
            raise RunError(f"{problem}, and the run had {self.result.tasks}")
        self._expect_disjoint_tasks(_arrivals(found))
        return found

    def _expect_disjoint_tasks(self, arrived: list[list[str]]) -> None:
        """Raises InputError if classes arrive outside their own task, as in a blurry stream."""
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

        It is minus infinity where nothing pulled the classes up. It is NaN where nothing pushed
        them down either, without a softmax or without a rival class.
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
        matrix = self.result.accuracy_matrix
        return [as_number(matrix[t][of]) for t in range(of, self.tasks)]

    def mean_gradient(self, name: Literal["p", "n"], t: int, of: int) -> float:
        """Returns P or N(t, L(t')), the mean over the classes of task t' = `of`."""
        return mean_of_finite([as_number(self.ends[t][name][label]) for label in self.labels[of]])

    def push(self, t: int, of: int, *, by_new: bool) -> float:
        """Returns the share of P(t, L(t')) that samples of new classes cause, or of old classes.

        NaN for runs of an older version, which did not count it.
        """
        caused = self.ends[t].get("p_new", {})
        new = mean_of_finite([as_number(caused.get(label)) for label in self.labels[of]])
        total = self.mean_gradient("p", t, of)
        # a difference this small is rounding
        return new if by_new else (0.0 if abs(total - new) < ROUNDING * total else total - new)

    def mean_pull(self, t: int) -> float:
        """Returns the mean of 1 - p over the samples of task t in their own task.

        It says how much a sample pulls its class up, whatever the number of samples. NaN for runs
        of an older version, which did not count the samples.
        """
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
        """Final accuracy, by class in order of arrival."""
        accuracy = self.result.class_accuracy
        return [as_number(accuracy[int(label)]) for label in self.ends[-1]["a_pn"]]

    @cached_property
    def a_pn_of_tasks(self) -> list[list[float]]:
        rates = self.ends[-1]["a_pn"]
        return [[as_number(rates[label]) for label in group] for group in self.labels]

    def read_all(self) -> None:
        """Reads every number once, so that damage shows before anything is drawn."""
        for t in range(self.tasks):
            self.pn_since(t), self.accuracy_since(t), self.mean_pull(t)
            for of in range(t + 1):
                self.mean_gradient("n", t, of), self.push(t, of, by_new=False)
        self.rates_of_first_task(), self.class_accuracy, self.a_pn_of_tasks


def _arrivals(ends: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns the classes that are new in each line, compared with the line before."""
    known = [list(line["pn"]) for line in ends]
    return [now[len(before) :] for before, now in zip([[], *known], known, strict=False)]


def as_number(value: float | None) -> float:
    """Returns the value, with NaN for None, which stands for NaN in JSON."""
    return math.nan if value is None else float(value)


def mean_of_finite(values: Sequence[float]) -> float:
    """Returns the mean of the finite values, or NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return mean(finite) if finite else math.nan
