"""What the paper observes of gradient imbalance, and what our runs say to it, in numbers."""

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

BALANCED = 0.1  # a rate that is so near to -1 is called balanced
NEARLY_ALL = 0.9  # a share that is called all of it
MUCH_HIGHER = 1.5  # a ratio that is called much higher
NO_CORRELATION = 0.1  # a rank correlation that is so near to 0 is called none
QUANTILE = 0.975  # either side of an interval of 95 %
VERDICT_RULES = (
    "The mean over seeds ± its standard error (how many). Undecided: the mean is on the bound, the "
    "bound is inside of the mean's confidence interval of 95 % (Student's t), or a rank "
    f"correlation is nearer to 0 than {NO_CORRELATION:g}. One run has no interval: its verdict is "
    "about it alone."
)
Subject = TypeVar("Subject")
Verdict = Literal["confirmed", "contradicted", "undecided", "not measured"]


class Observation(NamedTuple):
    """Where the paper says what, what is measured, of which runs, how much it is, what follows, and
    whether the paper says it of such runs."""

    section: str
    claim: str
    measured: str
    runs: str
    found: str
    verdict: Verdict
    by_protocol: bool = True


@dataclass(frozen=True)
class Claim(Generic[Subject]):
    """A sentence of the paper as a number of something that has to lie above or below a bound."""

    section: str
    sentence: str
    quantity: str  # in words
    measure: Callable[[Subject], float]
    above: float | None = None
    below: float | None = None
    near: float = 0.0  # what is nearer to the bound lies on neither side of it

    def judge(self, runs: str, of_all: Sequence[Subject]) -> Observation:
        """As `HOW` says."""
        values = [value for one in of_all if math.isfinite(value := self.measure(one))]
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


def old_pairs(course: GradientRates) -> list[float]:
    return [course.pn(t, of) for of in range(course.tasks) for t in range(of + 1, course.tasks)]


def share_suppressed(rates: Sequence[float]) -> float:
    known = [rate for rate in rates if not math.isnan(rate)]
    return sum(rate < -1 for rate in known) / len(known) if known else math.nan


def last_task_suppressed(course: GradientRates) -> float:
    return share_suppressed([course.pn(t, t - 1) for t in range(1, course.tasks)])


def mean_trend(course: GradientRates, of_one: Callable[[int], Sequence[float]]) -> float:
    """The mean over tasks t' of the rank correlation of something with t > t'."""
    found = [
        rank_correlation(range(of + 1, course.tasks), of_one(of)[1:])
        for of in range(course.tasks - 1)
    ]
    return mean_of_finite(found)


def trend_of_pn(course: GradientRates) -> float:
    return mean_trend(course, course.pn_since)


def trend_of_pull(course: GradientRates) -> float:
    def pulls(of: int) -> list[float]:
        return [-course.mean_gradient("n", t, of) for t in range(of, course.tasks)]

    return mean_trend(course, pulls)


def share_pushed_by_new(course: GradientRates) -> float:
    """Of what pushes old classes down, how much is by samples of new ones."""
    found = []
    for t in range(1, course.tasks):
        new, old = (
            sum(course.push(t, of, by_new=by_new) for of in range(t)) for by_new in (True, False)
        )
        found.append(new / (new + old) if new + old else math.nan)
    return mean_of_finite(found)


def trend_of_push_by_old(course: GradientRates) -> float:
    """In the first task there are no old classes."""
    tasks = range(1, course.tasks)
    return rank_correlation(tasks, [course.push(t, t, by_new=False) for t in tasks])


def trend_of_accuracy_with_pn(course: GradientRates) -> float:
    """While tasks are old: the fall of both when the next one comes would make any two agree."""
    return mean_of_finite(
        [
            rank_correlation(course.pn_since(of)[1:], course.accuracy_since(of)[1:])
            for of in range(course.tasks - 1)
        ]
    )


def trend_of_newest_imbalance(course: GradientRates) -> float:
    """After the first task, in which every sample is of its classes: there PN(1, 1) is -1 whatever
    the method, since the gradients of a sample add up to 0."""
    tasks = range(1, course.tasks)
    return rank_correlation(tasks, [abs(course.pn(t, t) + 1) for t in tasks])


def excess_imbalance_of_last(course: GradientRates) -> float:
    *others, last = (imbalance(rates) for rates in course.a_pn_of_tasks)
    known = [one for one in others if not math.isnan(one)]
    return last - max(known) if known else math.nan


def gradient_ratio(course: GradientRates, name: Literal["p", "n"]) -> float:
    """Of the last task's classes in their task, against the first task's in theirs; not a number
    where these had no rival, and no gradient."""
    last, first = course.tasks - 1, course.mean_gradient(name, 0, 0)
    return course.mean_gradient(name, last, last) / first if first else math.nan


def pull_per_sample_ratio(course: GradientRates) -> float:
    """As `drop` of N, for each sample: in a balanced batch classes have fewer of them with every
    task, and N falls by that alone."""
    first = course.mean_pull(0)
    return course.mean_pull(course.tasks - 1) / first if first else math.nan


def lead_of_last_task(course: GradientRates) -> float:
    """By how many points the last task is ahead of the others, on average."""
    *others, last = course.result.accuracy_matrix[-1]
    return as_number(last) - mean(map(as_number, others)) if others else math.nan


FIG1: tuple[Claim[GradientRates], ...] = (
    Claim(
        "4.1 (1)",
        "while a new task is learned, the PN rates of old tasks are smaller than -1",
        "share of pairs (t, t' < t) with PN(t, t') < -1",
        lambda course: share_suppressed(old_pairs(course)),
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
    lambda course: imbalance(course.a_pn),
    below=BALANCED,
)
FIG3: tuple[Claim[GradientRates], ...] = (
    Claim(
        "4.2",
        "gradients are out of balance even where every class has the same share of the samples",
        "mean |A-PN + 1|",
        lambda course: imbalance(course.a_pn),
        above=BALANCED,
    ),
    Claim(
        "4.2 (1)",
        "all classes are balanced while the first task is learned",
        "mean |PN(1, c) + 1|",
        lambda course: imbalance(course.rates_of_first_task()),
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
        lambda course: gradient_ratio(course, "n"),
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
        lambda course: gradient_ratio(course, "p") / (gradient_ratio(course, "n") or math.nan),
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
        lambda course: rank_correlation(course.a_pn, course.class_accuracy),
        below=0,
        near=NO_CORRELATION,
    ),
    Claim(
        "4.2 (3)",
        "the negative gradients of new classes prevail (A-PN > -1)",
        "mean A-PN of the last task's classes",
        lambda course: mean_of_finite(course.a_pn_of_tasks[-1]),
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
    """What the losses probe said of a task, where both batches had samples. A line is a mean over
    as many `batches` as were learned since the line before it: fewer where a task begins or ends.
    """
    found = read_probe_lines(result, "losses")
    steps = pairwise([0, *(line["step"] for line in found)])
    weighed = [
        {**line, "batches": now - before}
        for line, (before, now) in zip(found, steps, strict=True)
        if line["task"] == task
    ]
    return [line for line in weighed if None not in (line["stream"], line["replay"])]


def share_above(result: Result) -> float:
    return _mean_over_batches(result, lambda line: line["stream"] > line["replay"])


def ratio_of_losses(result: Result) -> float:
    stream, replay = (_mean_over_batches(result, itemgetter(name)) for name in ("stream", "replay"))
    return stream / replay if replay else math.nan


def _mean_over_batches(result: Result, of_line: Callable[[dict[str, Any]], float]) -> float:
    found = task_losses(result)
    if not found:
        return math.nan
    return fmean(map(of_line, found), weights=[line["batches"] for line in found])


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


# ---- Fig. 7: with and without, beside joint training


class Trio(NamedTuple):
    """Runs of one seed: with the GSA-CE loss, without it, and joint training."""

    adaptive: GradientRates
    plain: GradientRates
    joint: GradientRates


def change_of_high_rates(trio: Trio) -> float:
    return _change(trio, lambda rate: rate > -1)


def change_of_low_rates(trio: Trio) -> float:
    return _change(trio, lambda rate: rate < -1)


def _change(trio: Trio, chosen: Callable[[float], bool]) -> float:
    """The mean change by the loss over those classes whose rates of both runs are so on average.
    Chosen by the rate without it, classes that were high by chance would fall, and low ones rise,
    whatever the loss does (regression to the mean; this way out of it is Oldham's, 1962)."""
    pairs = paired_rates(trio.adaptive, trio.plain)
    return mean_of_finite([now - before for now, before in pairs if chosen((now + before) / 2)])


def paired_rates(one: GradientRates, other: GradientRates) -> list[tuple[float, float]]:
    """A-PN of both."""
    theirs = dict(zip(other.ends[-1]["a_pn"], other.a_pn, strict=True))
    own = zip(one.ends[-1]["a_pn"], one.a_pn, strict=True)
    return [(rate, theirs[label]) for label, rate in own]


def rate_distance(one: GradientRates, other: GradientRates) -> float:
    """The mean difference of A-PN, class by class."""
    return mean_of_finite([abs(rate - theirs) for rate, theirs in paired_rates(one, other)])


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
