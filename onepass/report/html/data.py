"""Collects the data of a report's page, fit for JSON: its sources, the rows of the table, and every
run.

The page must open in seconds, however many runs there are. So curves are thinned out, measurements
are averaged over the seeds of a row, and with many rows the large maps are dropped. A *map* is a
list of lists of numbers, for example the accuracy of each class after each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from onepass.base.text import printable, shortened
from onepass.evaluation.points import Point
from onepass.report.html.recorded_runs import RecordedRun, finished_results, read_runs
from onepass.report.rows import Spread, group_by_row
from onepass.runs.rerun_command import rerun_command
from onepass.runs.result import Result
from onepass.runs.variant import Variant, shared
from onepass.version import __version__

# A row has four maps: by task, by class, confusion and balance. The maps of all rows together may
# have this many numbers of each: ten megabytes at most.
NUMBERS = 400_000
MOST_POINTS = 120  # of a curve
FEWEST_POINTS = 12  # of a curve, however many rows there are
LONGEST_COMMAND = 2000  # characters
# Options of a run that make two accuracies incomparable: what is learned, and what is tested.
PROTOCOL = (
    *("stream", "tasks", "batch", "class_order", "validation"),
    *("image_size", "test_fraction", "label"),
)
Map = list[list[float | None]]


def page_data(*paths: Path, where: Sequence[str] = ()) -> dict[str, Any]:
    """Returns all data of the page, about the runs in `paths` that meet every condition of `where`.
    The texts have no control characters and a bounded length."""
    runs, passed_over = read_runs(*paths, where=where)
    by_path = {run.found.where: run for run in runs}
    groups = group_by_row(finished_results(runs))
    room = NUMBERS // max(1, len(groups))
    row_of = {result.out: row for row, group in enumerate(groups) for result in group}
    common = shared([group[0].variant for group in groups])
    # A finished run without a row is a copy of another run, which is in a row.
    distinct = [run for run in runs if run.result is None or run.found.where in row_of]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "onepass": __version__,
        "sources": [_word(str(path)) for path in paths],
        "passed_over": {_word(str(path)): count for path, count in passed_over.items()},
        "rows": [_row(group, by_path, common, room) for group in groups],
        "runs": [_run(run, row_of.get(run.found.where)) for run in distinct],
    }


# ---- one row: the runs of a method that differ in nothing but the seed


def _row(
    group: list[Result], by_path: dict[str, RecordedRun], common: Variant, room: int
) -> dict[str, Any]:
    """Returns a row of the table; each of its maps holds at most `room` numbers."""
    first, runs = group[0], [by_path[result.out] for result in group]
    return {
        "name": _word(f"{first.method} {first.variant.beyond(common)}".rstrip()),
        "method": _word(first.method),
        "series": _word(f"{first.method} {first.variant.without(*PROTOCOL)}".rstrip()),
        "variant": _word(str(first.variant)),
        "dataset": _word(first.dataset),
        "memory": first.memory,
        "protocol": _word(str(first.variant.only(PROTOCOL))),
        "seeds": sorted(result.seed for result in group),
        "tasks": first.tasks,
        "accuracy": _spread(result.accuracy for result in group),
        "forgetting": _spread(result.forgetting for result in group),
        "learning": _spread(result.learning_accuracy for result in group),
        "newest": _spread(result.newest_accuracy for result in group),
        "anytime": _spread(result.anytime_accuracy for result in group),
        "seconds": fmean(result.seconds for result in group),
        "images": _images_trained(first),
        "kept": max((result.memory_bytes or 0) + result.copy_bytes for result in group),
        "devices": sorted({_word(result.gpu or result.device) for result in group}),
        "curve": _curve([run.points for run in runs if run.points], room),
        "task_map": _mean_map([result.accuracy_matrix for result in group], room),
        "class_map": _class_map(runs, room),
        "confusion": _confusion(group, runs, room),
        "balance": _balance(runs, room),
    }


def _spread(values: Iterable[float | None]) -> list[float | None] | None:
    """Returns the mean and the sample standard deviation (None for a single value); None if no
    value is known."""
    spread = Spread.over(values)
    return None if spread is None else [spread.mean, spread.deviation]


def _images_trained(result: Result) -> float | None:
    """Returns how many images a run sent forward and backward through the network; None for an
    older result, which did not count them."""
    if not (result.batch and result.steps and result.trained_per_sample):
        return None
    beside = sum(count.get("trained", 0) for count in result.images_beside_steps.values())
    return result.trained_per_sample * result.batch * result.steps + beside


def _curve(runs: list[list[Point]], room: int) -> dict[str, Any] | None:
    """Returns the accuracy on the classes seen so far, at the steps that all runs have: means,
    deviations, and the ends of tasks. None if there is no common step."""
    by_step: dict[int, list[float]] = {}
    for point in (point for points in runs for point in points):
        by_step.setdefault(point.step, []).append(point.accuracy)
    steps = [step for step, values in sorted(by_step.items()) if len(values) == len(runs)]
    if not steps:
        return None
    kept = thinned(steps, max(FEWEST_POINTS, min(MOST_POINTS, room // 4)))
    spreads = [Spread.over(by_step[step]) for step in kept]
    return {
        "steps": kept,
        "means": [_short(spread.mean) for spread in spreads if spread],
        "deviations": [_short(spread.deviation or 0.0) for spread in spreads if spread],
        "ends": [point.step for point in runs[0] if point.boundary],
    }


def thinned(values: list[int], most: int) -> list[int]:
    """Returns at most `most` values, evenly spaced, with the first and the last.

    >>> thinned(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return values
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


def _class_map(runs: Sequence[RecordedRun], room: int) -> dict[str, Any] | None:
    """Returns the accuracy of each class (rows) after each task (columns).

    Lines of a results file know the last column only. Classes stand in the order of their arrival
    if all seeds share it.
    """
    each = [_by_class(run.points) for run in runs if run.points]
    ends = [[[value] for value in run.result.class_accuracy] for run in runs if run.result]
    values = _mean_map(each or ends, room)
    if values is None:
        return None
    task_of = _task_of_class(runs)
    order = sorted(range(len(values)), key=lambda label: (task_of.get(label, 0), label))
    names = runs[0].class_names
    return {
        "names": [_word(names[label]) if label < len(names) else str(label) for label in order],
        "tasks": [task_of.get(label) for label in order],
        "values": [values[label] for label in order],
        "only_end": not each,
    }


def _task_of_class(runs: Sequence[RecordedRun]) -> dict[int, int]:
    """Returns the task in which each class comes; empty if it differs between seeds."""
    same = all(run.tasks == runs[0].tasks for run in runs)
    tasks = runs[0].tasks if same else []
    return {label: task for task, group in enumerate(tasks) for label in group}


def _by_class(points: Sequence[Point]) -> Map:
    """Returns the accuracy of each class (rows) at the end of each task (columns)."""
    ends = [point for point in points if point.boundary]
    return [
        [100 * p.correct[label] / p.total[label] if p.total[label] else None for p in ends]
        for label in range(min((len(point.total) for point in ends), default=0))
    ]


def _confusion(
    group: Sequence[Result], runs: Sequence[RecordedRun], room: int
) -> dict[str, Any] | None:
    """Returns how often classes of one task are taken for those of another, in percent.

    `end`, after the last task: the true task (rows) against the predicted task (columns).
    `over_time`, after each task: old classes taken for new ones, and new for old. None without the
    map of the end.
    """
    end = _mean_map([_percentages(result.task_confusion) for result in group], room)
    if end is None:
        return None
    ends = [[p for p in run.points if p.boundary and p.confusion] for run in runs if run.points]
    return {
        "end": end,
        "over_time": _mean_map([[_mistaken(point) for point in points] for points in ends], room)
        or [],
    }


def _percentages(counts: Sequence[Sequence[int]]) -> Map:
    return [[100 * count / sum(row) if sum(row) else None for count in row] for row in counts]


def _mistaken(point: Point) -> list[float | None]:
    """Returns the percentages of old classes taken for new ones, and of new ones taken for old.

    The new classes are those of the task that has just ended.
    """
    new = point.task
    old_rows = point.confusion[:new]
    old, taken_for_new = sum(map(sum, old_rows)), sum(sum(row[new:]) for row in old_rows)
    own = point.confusion[new] if new < len(point.confusion) else ()
    return [
        100 * taken_for_new / old if old else None,
        100 * sum(own[:new]) / sum(own) if new and sum(own) else None,
    ]


def _balance(runs: Sequence[RecordedRun], room: int) -> dict[str, Any] | None:
    """Returns PN of each task's classes after each task, and A-PN of each class at the end.

    PN is the ratio of the positive to the negative gradients on the classes' logits in a task, and
    A-PN the ratio over all tasks. None if no run had the probe.
    """
    recorded = [run.balance for run in runs if run.balance]
    over_time = [[_rates(line.get("pn_of_tasks")) for line in lines] for lines in recorded]
    last = [lines[-1].get("a_pn") for lines in recorded]
    per_class = [rates for rates in last if isinstance(rates, dict)]
    pn = _mean_map(over_time, room)
    if pn is None:
        return None
    labels = _in_order({label for rates in per_class for label in rates}, _task_of_class(runs))
    means = [_mean(_rates([rates.get(label) for rates in per_class])) for label in labels]
    names = runs[0].class_names

    def name(label: str) -> str:
        known = label.isdecimal() and len(label) < 6 and int(label) < len(names)
        return _word(names[int(label)] if known else label)

    fits = len(labels) <= room
    return {
        "pn_of_tasks": pn,
        "labels": [name(label) for label in labels] if fits else [],
        "a_pn": means if fits else [],
    }


def _rates(values: Any) -> list[float | None]:
    """Returns a list of numbers and None. A damaged file may hold other values: those in a list
    become None, and anything else becomes an empty list."""
    known = values if isinstance(values, list) else []
    return [value if isinstance(value, int | float) else None for value in known]


def _in_order(labels: set[str], task_of: dict[int, int]) -> list[str]:
    """Returns the labels task by task. Within a task, numbers in ascending order come before
    words."""
    tasks = {str(label): task for label, task in task_of.items()}

    def order(label: str) -> tuple[int, bool, int, str]:
        number = label.isdecimal()
        return tasks.get(label, len(tasks)), not number, len(label) * number, label

    return sorted(labels, key=order)


# ---- one run


def _run(run: RecordedRun, row: int | None) -> dict[str, Any]:
    """Returns what the page shows of one run; `row` is the index of its row, if it has one."""
    found, result = run.found, run.result
    known = {**vars(result), "variant": str(result.variant)} if result else found.values
    versions = {name: found.description.get(name) for name in ("onepass", "torch", "started")}
    number = {name: _number(known.get(name)) for name in ("memory", "seed", "accuracy", "seconds")}
    text = {name: _word(str(known.get(name) or "")) for name in ("method", "variant", "dataset")}
    return {
        **text,
        **number,
        "anytime": _number(known.get("anytime_accuracy")),
        "forgetting": _number(known.get("forgetting")),
        "row": row,
        "where": _word(found.where),
        "state": found.state,
        "problem": _word(found.problem),
        "notes": run.notes,
        "done": _number(found.values.get("steps_done")),
        "steps": _number(known.get("steps")),
        "device": _word(str(known.get("gpu") or known.get("device") or "")),
        "commit": _word(str(known.get("commit") or "")),
        "versions": {name: _word(str(value)) for name, value in versions.items() if value},
        "command": _command(run, known),
    }


def _command(run: RecordedRun, known: dict[str, Any]) -> str:
    """Returns the command that repeats the run, cut if it is long, or "" if too little is known."""
    described = {name: run.found.description.get(name) for name in ("probes", "imports")}
    try:
        text = rerun_command({**known, **described})
    except (KeyError, TypeError):
        return ""
    return text if len(text) <= LONGEST_COMMAND else f"{text[:LONGEST_COMMAND]} ..."


# ---- texts, numbers, means


def _word(text: str) -> str:
    return shortened(printable(text))


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _short(value: float) -> float:
    """Returns the value with four significant digits, which suffice for a picture."""
    return float(f"{value:.4g}")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(fmean(known)) if known else None


def _mean_map(maps: Sequence[Map], room: int) -> Map | None:
    """Returns the mean of each cell over the maps with the shape of the first map that is not
    empty.

    None if all maps are empty, or if that first one has more than `room` cells.
    """
    shaped = [(cells, list(map(len, cells))) for cells in maps if any(cells)]
    if not shaped or sum(shaped[0][1]) > room:
        return None
    same = [cells for cells, shape in shaped if shape == shaped[0][1]]
    return [[_mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*same, strict=True)]
