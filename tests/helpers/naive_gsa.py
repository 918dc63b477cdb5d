"""A second implementation of GSA from its equations, with loops over samples and classes.

It is slow on purpose, works in double precision and shares nothing with the package. A batch is a
list of (logits, y, weight), classes are sets of numbers, w and v are dictionaries.
"""

import math
from collections import defaultdict

Sample = tuple[list[float], int, float]
Batch = list[Sample]


def log_sum_exp(values: list[float]) -> float:
    largest = max(values)
    return largest + math.log(sum(math.exp(value - largest) for value in values))


def counted(batch: Batch) -> Batch:
    return [(o, y, weight) for o, y, weight in batch if weight != 0]


def average(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def cross_entropy(o: list[float], y: int, among: set[int]) -> float:
    return log_sum_exp([o[c] for c in among]) - o[y]


class Sums:
    """S+ and S- of this task and of all tasks, and the rates that follow from them."""

    def __init__(self) -> None:
        self.task_positive = defaultdict(float)
        self.task_negative = defaultdict(float)
        self.positive = defaultdict(float)
        self.negative = defaultdict(float)

    def new_task(self) -> None:
        self.task_positive.clear()
        self.task_negative.clear()

    def add(self, batch: Batch, seen: set[int]) -> None:
        for o, y, _ in counted(batch):
            total = log_sum_exp([o[c] for c in seen])
            for c in seen:
                p = math.exp(o[c] - total)
                if c == y:
                    self.task_negative[c] += p - 1
                    self.negative[c] += p - 1
                else:
                    self.task_positive[c] += p
                    self.positive[c] += p

    def w(self, c: int) -> float:
        up, down = -self.negative[c], self.positive[c]
        if up == 0:
            return 2 / (1 + math.exp(-1)) if down == 0 else 2.0
        return 2 / (1 + math.exp(-down / up))

    def v(self, c: int) -> float:
        up, down = -self.task_negative[c], self.task_positive[c]
        return 1.0 if down == 0 else up / down

    def released_w(self, c: int) -> float:
        up, down = -self.negative[c], self.positive[c]
        if down == 0:
            return 1.0 if up == 0 else 2.0
        return 2 / (1 + math.exp(1 - up / down))


def rivals(
    o: list[float], y: int, old: set[int], new: set[int], v: dict[int, float], arrived: set[int]
) -> dict:
    """Returns, for T3, the logits (plus log v) of the classes in the denominator other than y.

    `arrived` is S(X^new).
    """
    if y in arrived:
        return {c: o[c] for c in old}
    return {c: o[c] + math.log(v[c]) for c in new - {y} if v[c] > 0}


def terms(
    first: Batch, mixed: Batch, old: set[int], new: set[int], w: dict, v: dict, arrived: set[int]
) -> tuple[float, float, float]:
    t1 = [cross_entropy(o, y, new) for o, y, _ in counted(first) if y in new]
    t2 = [w[y] * cross_entropy(o, y, old) for o, y, _ in counted(mixed) if y in old]
    t3 = []
    for o, y, _ in counted(mixed):
        against = list(rivals(o, y, old, new, v, arrived).values())
        t3.append(w[y] * (log_sum_exp([*against, o[y]]) - o[y]))
    return average(t1), average(t2), average(t3)


def gradients(
    first: Batch, mixed: Batch, old: set[int], new: set[int], w: dict, v: dict, arrived: set[int]
) -> list[list[float]]:
    """Returns d (T1 + T2 + T3) / d logits in closed form, a row per sample of both batches."""
    n1 = sum(y in new for _, y, _ in counted(first))
    n2 = sum(y in old for _, y, _ in counted(mixed))
    n3 = len(counted(mixed))
    rows = []
    for o, y, weight in first:
        row = [0.0] * len(o)
        if weight and y in new:
            for c in new:
                row[c] = math.exp(o[c] - log_sum_exp([o[k] for k in new])) / n1
            row[y] -= 1 / n1
        rows.append(row)
    for o, y, weight in mixed:
        row = [0.0] * len(o)
        if weight and y in old:
            for c in old:
                row[c] = w[y] * math.exp(o[c] - log_sum_exp([o[k] for k in old])) / n2
            row[y] -= w[y] / n2
        if weight:
            against = rivals(o, y, old, new, v, arrived)
            total = log_sum_exp([*against.values(), o[y]])
            for c, logit in against.items():
                row[c] += w[y] * math.exp(logit - total) / n3
            row[y] += w[y] * (math.exp(o[y] - total) - 1) / n3
        rows.append(row)
    return rows


def finite_differences(
    first: Batch, mixed: Batch, *facts: set[int] | dict, h: float = 1e-5
) -> list[list[float]]:
    """Returns the same gradient by central differences, with w and v held fixed."""
    rows = []
    for o, _, _ in first + mixed:
        row = []
        for c in range(len(o)):
            value, ends = o[c], []
            for sign in (1, -1):
                o[c] = value + sign * h
                ends.append(sum(terms(first, mixed, *facts)))
            o[c] = value
            row.append((ends[0] - ends[1]) / (2 * h))
        rows.append(row)
    return rows
