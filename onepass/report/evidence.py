"""What the paper observes of gradient imbalance, and what our runs say to it, in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from scipy.stats import spearmanr

from onepass import lines
from onepass.errors import InputError, RunError
from onepass.record import RunFolder
from onepass.result import Result

CLOSE = 0.1  # a rate that is so near to -1 is called balanced
MOST = 0.9  # a share that is called all of it
MUCH = 1.5  # a ratio that is called much higher
Of = TypeVar("Of")
Verdict = Literal["confirmed", "contradicted", "undecided", "not measured"]
# What a line of each probe says, as far as it is used here.
SAID = {
    "balance": {"p", "n", "pn", "a_pn", "pn_of_tasks"},
    "losses": {"task", "step", "stream", "replay"},
    "logits": {"task", "classes", "new", "batches"},
}


def heard(result: Result, probe: str) -> list[dict[str, Any]]:
    """The lines of a probe in a run's folder."""
    if file := lines.file_of(result.out):
        raise InputError(f"{file} holds no lines of probes: this figure is drawn from run folders")
    found = RunFolder(Path(result.out)).said_by(probe)
    if found is None:
        raise InputError(f"{result.out} was run without --probe {probe}")
    for lacking in (SAID[probe] - line.keys() for line in found):
        if lacking:
            raise RunError(f"{result.out}/{probe}.jsonl is damaged: a line has no {min(lacking)}")
    return found


@dataclass(frozen=True)
class Course:
    """The rates of one run as its tasks ended; tasks are counted from 0."""

    result: Result

    @cached_property
    def ends(self) -> list[dict[str, Any]]:
        """A line for each task. With fewer, another task would be taken for the last."""
        found = [line for line in heard(self.result, "balance") if line.get("ended", True)]
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
        return [_number(matrix[t][of]) for t in range(of, self.tasks)]

    def mean_gradient(self, name: Literal["p", "n"], t: int, of: int) -> float:
        """P or N(t, L(t')): the mean over the classes of a task."""
        return _mean_of_numbers([_number(self.ends[t][name][label]) for label in self.labels[of]])

    def rates_of_first_task(self) -> list[float]:
        return [_number(rate) for rate in self.ends[0]["pn"].values()]

    @cached_property
    def a_pn(self) -> list[float]:
        """A-PN after the last task, by class in order of arrival."""
        return [_number(rate) for rate in self.ends[-1]["a_pn"].values()]

    @cached_property
    def class_accuracy(self) -> list[float]:
        """Likewise, the accuracy."""
        found = self.result.class_accuracy
        return [_number(found[int(label)]) for label in self.ends[-1]["a_pn"]]

    @cached_property
    def a_pn_of_tasks(self) -> list[list[float]]:
        rates = self.ends[-1]["a_pn"]
        return [[_number(rates[label]) for label in group] for group in self.labels]


def _arrivals(ends: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The classes that each line tells of and the one before does not."""
    known = [list(line["pn"]) for line in ends]
    return [now[len(before) :] for before, now in zip([[], *known], known, strict=False)]


class Observation(NamedTuple):
    """One line: where the paper says what, what was measured of which runs, and what follows."""

    where: str
    claim: str
    runs: str
    measured: str
    verdict: Verdict


@dataclass(frozen=True)
class Claim(Generic[Of]):
    """A sentence of the paper as a number of something that has to lie above or below a bound."""

    where: str
    says: str
    number: str  # in words
    of: Callable[[Of], float]
    above: float | None = None
    below: float | None = None

    def judged(self, runs: str, of_all: Sequence[Of]) -> Observation:
        """By the mean; undecided if the bound is within two standard errors of it."""
        found = [value for one in of_all if math.isfinite(value := self.of(one))]
        if not found:
            return Observation(self.where, self.says, runs, self.number, "not measured")
        middle, error = mean(found), stdev(found) / len(found) ** 0.5 if found[1:] else 0.0
        sign, bound = (1, self.above) if self.above is not None else (-1, self.below or 0.0)
        spread = f" ± {error:.2g}" if found[1:] else ""
        wanted = f"{'>' if sign > 0 else '<'} {bound:g}"
        measured = f"{self.number}: {middle:.3g}{spread} (n={len(found)}; {wanted})"
        verdict: Verdict = "confirmed" if sign * (middle - bound) > 0 else "contradicted"
        if abs(middle - bound) < 2 * error:
            verdict = "undecided"
        return Observation(self.where, self.says, runs, measured, verdict)


# ---- numbers of a run


def imbalance(rates: Sequence[float]) -> float:
    """How far rates are from -1 on average.

    >>> imbalance([-1.0, -1.5, math.nan])
    0.25
    """
    known = [abs(rate + 1) for rate in rates if math.isfinite(rate)]
    return mean(known) if known else math.nan


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's, over pairs of numbers; minus infinity ranks lowest.

    >>> round(rank_correlation([1, 2, 3], [-1.0, -2.0, -math.inf]), 6)
    -1.0
    """
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if not (math.isnan(a) or math.isnan(b))]
    if len(pairs) < 3 or any(len(set(values)) == 1 for values in zip(*pairs, strict=True)):
        return math.nan
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def old_pairs(course: Course) -> list[float]:
    return [course.pn(t, of) for of in range(course.tasks) for t in range(of + 1, course.tasks)]


def share_suppressed(course: Course) -> float:
    rates = [rate for rate in old_pairs(course) if not math.isnan(rate)]
    return sum(rate < -1 for rate in rates) / len(rates) if rates else math.nan


def over_tasks(course: Course, of_one: Callable[[int], Sequence[float]]) -> float:
    """The mean over tasks t' of the rank correlation of something with t > t'."""
    found = [
        rank_correlation(range(of + 1, course.tasks), of_one(of)[1:])
        for of in range(course.tasks - 1)
    ]
    return _mean_of_numbers(found)


def trend_of_pn(course: Course) -> float:
    return over_tasks(course, course.pn_since)


def trend_of_pull(course: Course) -> float:
    def pulls(of: int) -> list[float]:
        return [-course.mean_gradient("n", t, of) for t in range(of, course.tasks)]

    return over_tasks(course, pulls)


def accuracy_follows(course: Course) -> float:
    return _mean_of_numbers(
        [
            rank_correlation(course.pn_since(of), course.accuracy_since(of))
            for of in range(course.tasks - 1)
        ]
    )


def newest_gets_worse(course: Course) -> float:
    own = [abs(course.pn(t, t) + 1) for t in range(course.tasks)]
    return rank_correlation(range(course.tasks), own)


def last_against_worst(course: Course) -> float:
    *others, last = (imbalance(rates) for rates in course.a_pn_of_tasks)
    known = [one for one in others if not math.isnan(one)]
    return last - max(known) if known else math.nan


def drop(course: Course, name: Literal["p", "n"]) -> float:
    """Of the last task's classes in their task, against the first task's in theirs; not a number
    where these had no rival, and no gradient."""
    last, first = course.tasks - 1, course.mean_gradient(name, 0, 0)
    return course.mean_gradient(name, last, last) / first if first else math.nan


def ahead(course: Course) -> float:
    """By how many points the last task is ahead of the others, on average."""
    *others, last = course.result.accuracy_matrix[-1]
    return _number(last) - mean(map(_number, others)) if others else math.nan


FIG1 = (
    Claim(
        "4.1 (1)",
        "while a new task is learned, the PN rates of old tasks are smaller than -1",
        "share of pairs (t, t' < t) with PN(t, t') < -1",
        share_suppressed,
        above=MOST,
    ),
    Claim(
        "4.1 (1)",
        "and tend to decrease",
        "rank correlation of PN(t, t') with t > t', mean over t'",
        trend_of_pn,
        below=0,
    ),
    Claim(
        "4.1 (1)",
        "since replay pulls old classes up less and less",
        "rank correlation of |N(t, L(t'))| with t > t', mean over t'",
        trend_of_pull,
        below=0,
    ),
    Claim(
        "4.1 (2)",
        "the accuracy of old tasks has the tendency of their PN rates",
        "rank correlation of PN(t, t') and the accuracy on t', mean over t'",
        accuracy_follows,
        above=0,
    ),
)
FIG3_JOINT: Claim[Course] = Claim(
    "4.2 (1)",
    "A-PN is close to -1 when all classes are trained jointly",
    "mean |A-PN + 1|",
    lambda course: imbalance(course.a_pn),
    below=CLOSE,
)
FIG3: tuple[Claim[Course], ...] = (
    Claim(
        "4.2 (1)",
        "all classes are balanced while the first task is learned",
        "mean |PN(1, c) + 1|",
        lambda course: imbalance(course.rates_of_first_task()),
        below=CLOSE,
    ),
    Claim(
        "4.2 (2)",
        "the imbalance of the current task's classes gets worse with every task",
        "rank correlation of |PN(t, t) + 1| with t",
        newest_gets_worse,
        above=0,
    ),
    Claim(
        "4.2 (2)",
        "the classes of the last task have the highest imbalance",
        "mean |A-PN + 1| of the last task less the largest of the other tasks",
        last_against_worst,
        above=0,
    ),
    Claim(
        "4.2 (2)",
        "negative gradients on the current classes get less",
        "N(T, L(T)) / N(1, L(1))",
        lambda course: drop(course, "n"),
        below=1,
    ),
    Claim(
        "4.2 (2)",
        "and positive ones get still less",
        "P(T, L(T)) / P(1, L(1)) over N(T, L(T)) / N(1, L(1))",
        lambda course: drop(course, "p") / (drop(course, "n") or math.nan),
        below=1,
    ),
    Claim(
        "4.2 (3)",
        "classes of higher A-PN have lower accuracy",
        "rank correlation of A-PN and accuracy over classes",
        lambda course: rank_correlation(course.a_pn, course.class_accuracy),
        below=0,
    ),
    Claim(
        "4.2 (3)",
        "the negative gradients of new classes prevail (A-PN > -1)",
        "mean A-PN of the last task's classes",
        lambda course: _mean_of_numbers(course.a_pn_of_tasks[-1]),
        above=-1,
    ),
    Claim(
        "4.2 (3)",
        "which biases the model towards new classes",
        "accuracy of the last task less that of the others, in points",
        ahead,
        above=0,
    ),
)


def task_losses(result: Result, task: int = 1) -> list[dict[str, Any]]:
    """What the losses probe said of a task, where both batches had samples."""
    found = [line for line in heard(result, "losses") if line["task"] == task]
    return [line for line in found if None not in (line["stream"], line["replay"])]


def share_above(result: Result) -> float:
    found = task_losses(result)
    return mean(line["stream"] > line["replay"] for line in found) if found else math.nan


def ratio_of_losses(result: Result) -> float:
    found = task_losses(result)
    if not found:
        return math.nan
    stream, replay = (mean(line[name] for line in found) for name in ("stream", "replay"))
    return float(stream / replay) if replay else math.nan


LOSSES = (
    Claim(
        "4.2 (2)",
        "in task 2 the loss of the new batch is above that of the replay batch all the time",
        "share of the curve where it is",
        share_above,
        above=MOST,
    ),
    Claim("4.2 (2)", "and much higher", "ratio of the means", ratio_of_losses, above=MUCH),
)


# ---- Fig. 7: with and without, beside joint training


class Trio(NamedTuple):
    """Runs of one seed: with the GSA-CE loss, without it, and joint training."""

    adaptive: Course
    plain: Course
    joint: Course


def falls(trio: Trio) -> float:
    return _change(trio, lambda rate: rate > -1)


def rises(trio: Trio) -> float:
    return _change(trio, lambda rate: rate < -1)


def _change(trio: Trio, chosen: Callable[[float], bool]) -> float:
    """The mean change by the loss over those classes whose rate without it is so."""
    pairs = zip(trio.adaptive.a_pn, trio.plain.a_pn, strict=True)
    return _mean_of_numbers([now - before for now, before in pairs if chosen(before)])


def distance(one: Course, other: Course) -> float:
    """The mean difference of A-PN, class by class."""
    theirs = dict(zip(other.ends[-1]["a_pn"], other.a_pn, strict=True))
    own = zip(one.ends[-1]["a_pn"], one.a_pn, strict=True)
    return _mean_of_numbers([abs(rate - theirs[label]) for label, rate in own])


FIG7: tuple[Claim[Trio], ...] = (
    Claim(
        "6.3",
        "the GSA-CE loss reduces the imbalance of A-PN",
        "mean |A-PN + 1| with it less that without it",
        lambda trio: imbalance(trio.adaptive.a_pn) - imbalance(trio.plain.a_pn),
        below=0,
    ),
    Claim(
        "6.3",
        "by lowering the A-PN rates that are bigger than -1",
        "mean change of these classes",
        falls,
        below=0,
    ),
    Claim(
        "6.3",
        "and raising those that are smaller",
        "mean change of these classes",
        rises,
        above=0,
    ),
    Claim(
        "6.3",
        "and makes the curve more similar to that of joint training",
        "mean distance to it, class by class, with the loss less that without it",
        lambda trio: distance(trio.adaptive, trio.joint) - distance(trio.plain, trio.joint),
        below=0,
    ),
)


# ---- Proposition 1


class Decomposed(NamedTuple):
    """Of one sample: the cross-entropy, the decomposed loss, and the gap by its closed form."""

    ce: float
    decomposed: float
    gap: float
    new: bool
    task: int


def decomposed(logits: Sequence[float], y: int, new: Sequence[bool], task: int = 0) -> Decomposed:
    """L_ce = -log e_y / sum_all; L_decom = -log e_y / A - log e_y / B, with A the sum of e^o over
    y's own side and B that over the other side and y; their difference is

        log(1 + (A - e_y)(B - e_y) / (e_y (A + B - e_y))) >= 0

    >>> round(math.exp(decomposed([0.0, 0.0, 0.0], 0, [True, True, False]).gap), 6)  # 1 + 1/3
    1.333333
    """
    o = np.asarray(logits, dtype=np.float64) - logits[y]  # then e_y = 1
    own = np.asarray(new) == new[y]
    a, b = np.logaddexp.reduce(o[own]), np.logaddexp.reduce(np.append(o[~own], 0.0))  # log A, log B
    rest_a, rest_b = (np.expm1(one) for one in (a, b))  # A - e_y and B - e_y
    gap = np.log1p(rest_a * rest_b / (1 + rest_a + rest_b))
    return Decomposed(float(np.logaddexp.reduce(o)), float(a + b), float(gap), bool(new[y]), task)


def decompositions(result: Result) -> list[Decomposed]:
    """Of every sample that the logits probe kept and that was trained."""
    found = []
    for line in heard(result, "logits"):
        classes = line["classes"]
        new = [label in line["new"] for label in classes]
        for batch in line["batches"]:
            rows = zip(batch["logits"], batch["y"], batch["weight"], strict=True)
            found += [
                decomposed(logits, classes.index(y), new, line["task"])
                for logits, y, weight in rows
                if weight
            ]
    return found


def proposition_1(runs: str, samples: Sequence[Decomposed]) -> list[Observation]:
    gaps = [one.decomposed - one.ce for one in samples]
    error = max(abs(gap - one.gap) for gap, one in zip(gaps, samples, strict=True))
    rounding = 1e-12 * max(1.0, *(one.decomposed for one in samples))
    sides = [
        mean([one.gap for one in samples if one.new is side] or [0.0]) for side in (True, False)
    ]
    of = f"{len(samples)} samples"
    return [
        Observation(
            "5.1, Prop. 1",
            "L_decom >= L_ce for every sample",
            runs,
            f"smallest gap {min(gaps):.2g} of {of}; "
            f"mean {sides[0]:.3g} (new), {sides[1]:.3g} (old)",
            "confirmed" if min(gaps) >= -rounding else "contradicted",
        ),
        Observation(
            "5.1, Prop. 1",
            "L_decom - L_ce = log(1 + (A - e)(B - e) / (e (A + B - e)))",
            runs,
            f"largest difference {error:.2g} over {of} (< 1e-6)",
            "confirmed" if error < 1e-6 else "contradicted",
        ),
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _mean_of_numbers(values: Sequence[float]) -> float:
    found = [value for value in values if math.isfinite(value)]
    return mean(found) if found else math.nan
