"""The paper's claims about gradient imbalance and losses, each as a quantity of our runs.

A claim compares its quantity, averaged over the seeds, with a bound, and gets a verdict. The module
`rates` defines P, N, PN and A-PN. L(t) are the classes of task t. PN(t, t') is the PN of the
classes of task t' while task t is learned. The texts count tasks from 1, and the code counts from 0
(`t`, and `of` for t').
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, mean, stdev
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from scipy.stats import spearmanr
from scipy.stats import t as student_t

from onepass.gsa_paper.rates import GradientRates, as_number, mean_of_finite, read_probe_lines
from onepass.runs.result import Result

# Our reading of the paper's words
BALANCED = 0.1  # a rate is balanced if it is nearer than this to -1, where pushes cancel
NEARLY_ALL = 0.9  # a share is "all" if it is larger
MUCH_HIGHER = 1.5  # a ratio is "much higher" if it is larger
NO_CORRELATION = 0.1  # a rank correlation nearer to 0 is none
QUANTILE = 0.975  # of Student's t, for a two-sided interval of 95 %
VERDICT_RULES = (
    "The mean over seeds ± its standard error (n seeds). Undecided: the mean equals the bound, the "
    "bound lies inside the 95 % confidence interval of the mean (Student's t), or a rank "
    f"correlation is nearer to 0 than {NO_CORRELATION:g}. One run has no interval, so its verdict "
    "holds for that run alone."
)
Subject = TypeVar("Subject")
Verdict = Literal["confirmed", "contradicted", "undecided", "not measured"]


class Observation(NamedTuple):
    """The verdict on a claim of the paper from one group of runs, which differ only in the seed."""

    section: str  # of the paper
    claim: str  # in the paper's words
    measured: str  # the quantity and its bound
    runs: str  # the name of the group
    found: str  # the value of the quantity; "" if no run has one
    verdict: Verdict
    by_protocol: bool = True  # whether the runs follow the paper's protocol for this claim


@dataclass(frozen=True)
class Claim(Generic[Subject]):
    """A sentence of the paper, as a quantity of a run that must lie above a bound or below one.
    Either `above` or `below` is set."""

    section: str  # of the paper
    sentence: str
    quantity: str  # in words
    measure: Callable[[Subject], float]
    above: float | None = None
    below: float | None = None
    near: float = 0.0  # a mean that is nearer than this to the bound is undecided

    def judge(self, runs: str, subjects: Sequence[Subject]) -> Observation:
        """Returns the verdict over the seeds, by `VERDICT_RULES`. `runs` names the group of runs.
        A run whose quantity is NaN or infinite is left out."""
        values = [value for subject in subjects if math.isfinite(value := self.measure(subject))]
        sign, bound = (1, self.above) if self.above is not None else (-1, self.below or 0.0)
        measured = f"{self.quantity} ({'>' if sign > 0 else '<'} {bound:g})"
        if not values:
            return Observation(self.section, self.sentence, measured, runs, "", "not measured")
        n, middle = len(values), mean(values)
        error = stdev(values) / n**0.5 if n > 1 else 0.0
        found = f"{middle:.3g} ± {error:.2g} (n={n})" if n > 1 else f"{middle:.3g} (one run)"
        verdict: Verdict = "confirmed" if sign * (middle - bound) > 0 else "contradicted"
        interval = error * float(student_t.ppf(QUANTILE, n - 1)) if n > 1 else 0.0
        if abs(middle - bound) <= max(interval, self.near):
            verdict = "undecided"
        return Observation(self.section, self.sentence, measured, runs, found, verdict)


# ---- quantities of a run


def imbalance(rates: Sequence[float]) -> float:
    """Returns the mean distance of the finite rates from -1; NaN if there are none.

    >>> imbalance([-1.0, -1.5, math.nan])
    0.25
    """
    known = [abs(rate + 1) for rate in rates if math.isfinite(rate)]
    return mean(known) if known else math.nan


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Returns Spearman's rank correlation over the pairs without NaN; minus infinity ranks lowest.
    Returns NaN for fewer than three pairs, and if x or y is constant.

    >>> round(rank_correlation([1, 2, 3], [-1.0, -2.0, -math.inf]), 6)
    -1.0
    """
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if not (math.isnan(a) or math.isnan(b))]
    if len(pairs) < 3 or any(len(set(values)) == 1 for values in zip(*pairs, strict=True)):
        return math.nan
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def old_pairs(run: GradientRates) -> list[float]:
    """Returns the PN(t, t') of all pairs with t > t': of each old task while a later one is
    learned."""
    return [run.pn(t, of) for of in range(run.tasks) for t in range(of + 1, run.tasks)]


def share_suppressed(rates: Sequence[float]) -> float:
    """Returns the share of the rates that are below -1, without NaN; NaN if there are no others."""
    known = [rate for rate in rates if not math.isnan(rate)]
    return sum(rate < -1 for rate in known) / len(known) if known else math.nan


def last_task_suppressed(run: GradientRates) -> float:
    """Returns the share of tasks during which PN of the task just before is below -1."""
    return share_suppressed([run.pn(t, t - 1) for t in range(1, run.tasks)])


def mean_trend(run: GradientRates, values: Callable[[int], Sequence[float]]) -> float:
    """Returns how values change as later tasks are learned, averaged over the tasks t'.

    `values(t')` has a value for t = t' and each later t. The change is the rank correlation of the
    values with t; the first value, at t = t', is left out.
    """
    trends = [
        rank_correlation(range(of + 1, run.tasks), values(of)[1:]) for of in range(run.tasks - 1)
    ]
    return mean_of_finite(trends)


def trend_of_pn(run: GradientRates) -> float:
    """Returns the trend of PN of old tasks (`mean_trend`)."""
    return mean_trend(run, run.pn_since)


def trend_of_pull(run: GradientRates) -> float:
    """Returns the trend of |N| of old tasks (`mean_trend`); N is never above 0."""

    def pulls(of: int) -> list[float]:
        return [-run.mean_gradient("n", t, of) for t in range(of, run.tasks)]

    return mean_trend(run, pulls)


def share_pushed_by_new(run: GradientRates) -> float:
    """Returns the share of P of old classes that samples of new classes cause, averaged over the
    tasks."""
    shares = []
    for t in range(1, run.tasks):
        new, old = (
            sum(run.push(t, of, by_new=by_new) for of in range(t)) for by_new in (True, False)
        )
        shares.append(new / (new + old) if new + old else math.nan)
    return mean_of_finite(shares)


def trend_of_push_by_old(run: GradientRates) -> float:
    """Returns the rank correlation of t with P of the current classes, as far as samples of old
    classes cause it.

    The first task is left out, because it has no old classes.
    """
    tasks = range(1, run.tasks)
    return rank_correlation(tasks, [run.push(t, t, by_new=False) for t in tasks])


def trend_of_accuracy_with_pn(run: GradientRates) -> float:
    """Returns the rank correlation of PN and accuracy of a task while later tasks are learned,
    averaged over the tasks.

    The values at the task's own end are left out. PN and accuracy both fall when the next task
    comes, so with them even unrelated values would correlate.
    """
    return mean_of_finite(
        [
            rank_correlation(run.pn_since(of)[1:], run.accuracy_since(of)[1:])
            for of in range(run.tasks - 1)
        ]
    )


def trend_of_newest_imbalance(run: GradientRates) -> float:
    """Returns the rank correlation of t with the imbalance |PN(t, t) + 1| of the current classes.

    The first task is left out. There the gradients of each sample add up to 0 over the classes, so
    PN(1, 1) is -1 whatever the method.
    """
    tasks = range(1, run.tasks)
    return rank_correlation(tasks, [abs(run.pn(t, t) + 1) for t in tasks])


def excess_imbalance_of_last(run: GradientRates) -> float:
    """Returns the imbalance of A-PN of the last task's classes, less that of the other task where
    it is largest."""
    *others, last = (imbalance(rates) for rates in run.a_pn_of_tasks)
    known = [other for other in others if not math.isnan(other)]
    return last - max(known) if known else math.nan


def gradient_ratio(run: GradientRates, name: Literal["p", "n"]) -> float:
    """Returns P (or N) of the last task's classes in their own task, divided by P (or N) of the
    first task's classes in theirs.

    NaN if the first task has a single class, and therefore no gradient.
    """
    last, first = run.tasks - 1, run.mean_gradient(name, 0, 0)
    return run.mean_gradient(name, last, last) / first if first else math.nan


def pull_per_sample_ratio(run: GradientRates) -> float:
    """Returns the ratio of N as `gradient_ratio` does, but for each sample of the classes.

    In balanced batches each class has fewer samples with every task, and N falls for that reason
    alone.
    """
    first = run.mean_pull(0)
    return run.mean_pull(run.tasks - 1) / first if first else math.nan


def lead_of_last_task(run: GradientRates) -> float:
    """Returns the final accuracy of the last task less the mean of the others, in percentage
    points; NaN for a single task."""
    *others, last = run.result.accuracy_matrix[-1]
    return as_number(last) - mean(map(as_number, others)) if others else math.nan


FIG1: tuple[Claim[GradientRates], ...] = (
    Claim(
        "4.1 (1)",
        "while a new task is learned, the PN rates of old tasks are smaller than -1",
        "share of pairs (t, t' < t) with PN(t, t') < -1",
        lambda run: share_suppressed(old_pairs(run)),
        above=NEARLY_ALL,
    ),
    Claim(
        "4.1 (1)",
        "(at least that of the task before the new one; not the paper's words)",
        "share of pairs (t, t - 1) with PN(t, t - 1) < -1",
        last_task_suppressed,
        above=NEARLY_ALL,
    ),
    Claim(
        "4.1 (1)",
        "since the new data give high positive gradients to old classes",
        "share of P(t, L(t')), t > t', that samples of new classes make, mean over t",
        share_pushed_by_new,
        above=0.5,
    ),
    Claim(
        "4.1 (1)",
        "they tend to decrease",
        "rank correlation of PN(t, t') with t > t', mean over t'",
        trend_of_pn,
        below=0,
        near=NO_CORRELATION,
    ),
    Claim(
        "4.1 (1)",
        "since replay pulls old classes up less and less",
        "rank correlation of |N(t, L(t'))| with t > t', mean over t'",
        trend_of_pull,
        below=0,
        near=NO_CORRELATION,
    ),
    Claim(
        "4.1 (2)",
        "the accuracy of old tasks has the tendency of their PN rates",
        "rank correlation of PN(t, t') and the accuracy on t' over t > t', mean over t'",
        trend_of_accuracy_with_pn,
        above=0,
        near=NO_CORRELATION,
    ),
)
FIG3_JOINT: Claim[GradientRates] = Claim(
    "4.2 (1)",
    "A-PN is close to -1 when all classes are trained jointly",
    "mean |A-PN + 1|",
    lambda run: imbalance(run.a_pn),
    below=BALANCED,
)
FIG3: tuple[Claim[GradientRates], ...] = (
    Claim(
        "4.2",
        "gradients are out of balance even where every class has the same share of the samples",
        "mean |A-PN + 1|",
        lambda run: imbalance(run.a_pn),
        above=BALANCED,
    ),
    Claim(
        "4.2 (1)",
        "all classes are balanced while the first task is learned",
        "mean |PN(1, c) + 1|",
        lambda run: imbalance(run.rates_of_first_task()),
        below=BALANCED,
    ),
    Claim(
        "4.2 (2)",
        "the imbalance of the current task's classes gets worse with every task",
        "rank correlation of |PN(t, t) + 1| with t > 1",
        trend_of_newest_imbalance,
        above=0,
        near=NO_CORRELATION,
    ),
    Claim(
        "4.2 (2)",
        "the classes of the last task have the highest imbalance",
        "mean |A-PN + 1| of the last task less the largest of the other tasks",
        excess_imbalance_of_last,
        above=0,
    ),
    Claim(
        "4.2 (2)",
        "negative gradients on the current classes get less",
        "N(T, L(T)) / N(1, L(1))",
        lambda run: gradient_ratio(run, "n"),
        below=1,
    ),
    Claim(
        "4.2 (2)",
        "since earlier tasks make new classes easier to learn",
        "the same for each sample of these classes, of which the last task's have fewer",
        pull_per_sample_ratio,
        below=1,
    ),
    Claim(
        "4.2 (2)",
        "and positive ones get still less",
        "P(T, L(T)) / P(1, L(1)) over N(T, L(T)) / N(1, L(1))",
        lambda run: gradient_ratio(run, "p") / (gradient_ratio(run, "n") or math.nan),
        below=1,
    ),
    Claim(
        "4.2 (2)",
        "since replayed samples give the current classes less and less positive gradients",
        "rank correlation with t > 1 of P(t, L(t)) as far as samples of old classes make it",
        trend_of_push_by_old,
        below=0,
        near=NO_CORRELATION,
    ),
    Claim(
        "4.2 (3)",
        "classes of higher A-PN have lower accuracy",
        "rank correlation of A-PN and accuracy over classes",
        lambda run: rank_correlation(run.a_pn, run.class_accuracy),
        below=0,
        near=NO_CORRELATION,
    ),
    Claim(
        "4.2 (3)",
        "the negative gradients of new classes prevail (A-PN > -1)",
        "mean A-PN of the last task's classes",
        lambda run: mean_of_finite(run.a_pn_of_tasks[-1]),
        above=-1,
    ),
    Claim(
        "4.2 (3)",
        "which biases the model towards new classes",
        "accuracy of the last task less that of the others, in points",
        lead_of_last_task,
        above=0,
    ),
)


def task_losses(result: Result, task: int = 1) -> list[dict[str, Any]]:
    """Returns the lines that the probe `losses` recorded in a task (counted from 0), without those
    in which the stream or the replay had no samples.

    Each line holds means over the batches since the line before. Their number is added to it as
    `batches`; the last line of a task has fewer.
    """
    recorded = read_probe_lines(result, "losses")
    steps = pairwise([0, *(line["step"] for line in recorded)])
    weighed = [
        {**line, "batches": now - before}
        for line, (before, now) in zip(recorded, steps, strict=True)
        if line["task"] == task
    ]
    return [line for line in weighed if None not in (line["stream"], line["replay"])]


def share_above(result: Result) -> float:
    """Returns the share of the batches of task 2 in lines whose stream loss is above the replay
    loss."""
    return _mean_over_batches(result, lambda line: line["stream"] > line["replay"])


def ratio_of_losses(result: Result) -> float:
    """Returns the mean stream loss divided by the mean replay loss, over the batches of task 2."""
    stream, replay = (_mean_over_batches(result, itemgetter(name)) for name in ("stream", "replay"))
    return stream / replay if replay else math.nan


def _mean_over_batches(result: Result, of_line: Callable[[dict[str, Any]], float]) -> float:
    """Returns the mean of a value of the lines of task 2, weighted by their numbers of batches."""
    losses = task_losses(result)
    if not losses:
        return math.nan
    return fmean(map(of_line, losses), weights=[line["batches"] for line in losses])


LOSSES = (
    Claim(
        "4.2 (2)",
        "in task 2 the loss of the new batch is above that of the replay batch all the time",
        "share of the curve where it is",
        share_above,
        above=NEARLY_ALL,
    ),
    Claim("4.2 (2)", "and much higher", "ratio of the means", ratio_of_losses, above=MUCH_HIGHER),
)


# ---- Fig. 7: with and without the GSA-CE loss, beside joint training


class Trio(NamedTuple):
    """Three runs of one seed: gsa with its GSA-CE loss (`adaptive`), gsa without it (`plain`), and
    joint training."""

    adaptive: GradientRates
    plain: GradientRates
    joint: GradientRates


def change_of_high_rates(trio: Trio) -> float:
    """Returns the mean change by the loss of those A-PN that are above -1."""
    return _change(trio, lambda rate: rate > -1)


def change_of_low_rates(trio: Trio) -> float:
    """Returns the mean change by the loss of those A-PN that are below -1."""
    return _change(trio, lambda rate: rate < -1)


def _change(trio: Trio, chosen: Callable[[float], bool]) -> float:
    """Returns A-PN with the GSA-CE loss less A-PN without it, averaged over classes. `chosen` tells
    from the mean of a class's two rates whether the class counts.

    A choice by the rate without the loss would be biased. Classes that are high by chance would
    fall, and low ones rise, whatever the loss does (regression to the mean; Oldham, 1962).
    """
    pairs = paired_rates(trio.adaptive, trio.plain)
    return mean_of_finite([now - before for now, before in pairs if chosen((now + before) / 2)])


def paired_rates(first: GradientRates, second: GradientRates) -> list[tuple[float, float]]:
    """Returns the A-PN of each class in two runs, in the first run's order of classes."""
    theirs = dict(zip(second.ends[-1]["a_pn"], second.a_pn, strict=True))
    own = zip(first.ends[-1]["a_pn"], first.a_pn, strict=True)
    return [(rate, theirs[label]) for label, rate in own]


def rate_distance(first: GradientRates, second: GradientRates) -> float:
    """Returns the absolute difference of A-PN in two runs, averaged over the classes."""
    return mean_of_finite([abs(rate - theirs) for rate, theirs in paired_rates(first, second)])


FIG7: tuple[Claim[Trio], ...] = (
    Claim(
        "6.2",
        "the GSA-CE loss reduces the imbalance of A-PN",
        "mean |A-PN + 1| with it less that without it",
        lambda trio: imbalance(trio.adaptive.a_pn) - imbalance(trio.plain.a_pn),
        below=0,
    ),
    Claim(
        "6.2",
        "by lowering the A-PN rates that are bigger than -1",
        "mean change of classes with a mean of both rates above -1",
        change_of_high_rates,
        below=0,
    ),
    Claim(
        "6.2",
        "and raising those that are smaller",
        "mean change of classes with a mean of both rates below -1",
        change_of_low_rates,
        above=0,
    ),
    Claim(
        "6.2",
        "and makes the curve more similar to that of joint training",
        "mean distance to it, class by class, with the loss less that without it",
        lambda trio: (
            rate_distance(trio.adaptive, trio.joint) - rate_distance(trio.plain, trio.joint)
        ),
        below=0,
    ),
)
