"""What the page of a report shows, as plain data: a summary, rows of the table, and every run.

The page must open in seconds however many runs there are: curves are thinned out, what was
measured is averaged over the seeds of a row, and large maps go first when there are many rows.
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
from onepass.report.html.rerun_command import rerun_command
from onepass.report.rows import Spread, group_by_row
from onepass.runs.result import Result
from onepass.runs.variant import Variant, shared
from onepass.version import __version__

NUMBERS = 400_000  # in all maps of one kind; there are four: ten megabytes at most
MOST_POINTS = 120  # of a curve
FEWEST_POINTS = 12
LONGEST_COMMAND = 2000
# Choices that make accuracies of two rows incomparable: what is learned, and what is tested.
PROTOCOL = (
    *("stream", "tasks", "batch", "class_order", "validation"),
    *("image_size", "test_fraction", "label"),
)
Map = list[list[float | None]]


def page_data(*paths: Path, where: Sequence[str] = ()) -> dict[str, Any]:
    """Everything, fit for JSON. Names and other words are plain text of bounded length."""
    runs, passed_over = read_runs(*paths, where=where)
    by_place = {run.found.where: run for run in runs}
    groups = group_by_row(finished_results(runs))
    room = NUMBERS // max(1, len(groups))
    places = {one.out: row for row, group in enumerate(groups) for one in group}
    common = shared([group[0].variant for group in groups])
    # a finished run that is of no row lies elsewhere too, and counts there
    once = [run for run in runs if run.result is None or run.found.where in places]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "onepass": __version__,
        "sources": [_word(str(path)) for path in paths],
        "passed_over": {_word(str(path)): count for path, count in passed_over.items()},
        "rows": [_row(group, by_place, common, room) for group in groups],
        "runs": [_run(run, places.get(run.found.where)) for run in once],
    }


# ---- one row: the runs of a method that differ in nothing but the seed


def _row(
    group: list[Result], by_place: dict[str, RecordedRun], common: Variant, room: int
) -> dict[str, Any]:
    first, runs = group[0], [by_place[one.out] for one in group]
    return {
        "name": _word(f"{first.method} {first.variant.beyond(common)}".rstrip()),
        "method": _word(first.method),
        "variant": _word(str(first.variant)),
        "dataset": _word(first.dataset),
        "memory": first.memory,
        "protocol": _word(str(first.variant.only(PROTOCOL))),
        "seeds": sorted(one.seed for one in group),
        "tasks": first.tasks,
        "accuracy": _spread(one.accuracy for one in group),
        "forgetting": _spread(one.forgetting for one in group),
        "anytime": _spread(one.anytime_accuracy for one in group),
        "seconds": fmean(one.seconds for one in group),
        "images": _images_trained(first),
        "kept": max((one.memory_bytes or 0) + one.copy_bytes for one in group),
        "devices": sorted({_word(one.gpu or one.device) for one in group}),
        "curve": _curve([run.points for run in runs if run.points], room),
        "task_map": _mean_map([one.accuracy_matrix for one in group], room),
        "class_map": _class_map(runs, room),
        "confusion": _confusion(group, runs, room),
        "balance": _balance(runs, room),
    }


def _spread(values: Iterable[float | None]) -> list[float | None] | None:
    """Mean and sample standard deviation."""
    spread = Spread.over(values)
    return None if spread is None else [spread.mean, spread.deviation]


def _images_trained(result: Result) -> float | None:
    """Through the network and back, in all; not known of older results."""
    if not (result.batch and result.steps and result.trained_per_sample):
        return None
    beside = sum(count.get("trained", 0) for count in result.images_beside_steps.values())
    return result.trained_per_sample * result.batch * result.steps + beside


def _curve(runs: list[list[Point]], room: int) -> dict[str, Any] | None:
    """Accuracy on the classes seen so far, at the steps at which all seeds were scored."""
    by_step: dict[int, list[float]] = {}
    for point in (point for points in runs for point in points):
        by_step.setdefault(point.step, []).append(point.accuracy)
    steps = [step for step, found in sorted(by_step.items()) if len(found) == len(runs)]
    if not steps:
        return None
    kept = thinned(steps, max(FEWEST_POINTS, min(MOST_POINTS, room // 4)))
    spreads = [Spread.over(by_step[step]) for step in kept]
    return {
        "steps": kept,
        "means": [_short(one.mean) for one in spreads if one],
        "deviations": [_short(one.deviation or 0.0) for one in spreads if one],
        "ends": [point.step for point in runs[0] if point.boundary],
    }


def thinned(values: list[int], most: int) -> list[int]:
    """At most so many, evenly; the first and the last are among them.

    >>> thinned(list(range(10)), 4)
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return values
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _class_map(runs: Sequence[RecordedRun], room: int) -> dict[str, Any] | None:
    """The accuracy of each class (rows) after each task (columns). Lines tell that of the end only.
    Classes stand in the order in which they came, if all seeds share one."""
    each = [_by_class(run.points) for run in runs if run.points]
    ends = [[[one] for one in run.result.class_accuracy] for run in runs if run.result]
    values = _mean_map(each or ends, room)
    if values is None:
        return None
    of_class = _task_of_class(runs)
    order = sorted(range(len(values)), key=lambda label: (of_class.get(label, 0), label))
    names = runs[0].class_names
    return {
        "names": [_word(names[one]) if one < len(names) else str(one) for one in order],
        "tasks": [of_class.get(one) for one in order],
        "values": [values[one] for one in order],
        "only_end": not each,
    }


def _task_of_class(runs: Sequence[RecordedRun]) -> dict[int, int]:
    """The task in which each class comes, if it is the same one for all seeds."""
    shared = all(run.tasks == runs[0].tasks for run in runs)
    tasks = runs[0].tasks if shared else []
    return {label: task for task, group in enumerate(tasks) for label in group}


def _by_class(points: Sequence[Point]) -> Map:
    ends = [point for point in points if point.boundary]
    return [
        [100 * p.correct[label] / p.total[label] if p.total[label] else None for p in ends]
        for label in range(min((len(point.total) for point in ends), default=0))
    ]


def _confusion(
    group: Sequence[Result], runs: Sequence[RecordedRun], room: int
) -> dict[str, Any] | None:
    """Of the test images of each task, the percentage taken for a class of each task, at the end;
    and after each task, how many of the old classes' were taken for new ones, and the reverse."""
    end = _mean_map([_percentages(one.task_confusion) for one in group], room)
    if end is None:
        return None
    ends = [[p for p in run.points if p.boundary and p.confusion] for run in runs if run.points]
    return {
        "end": end,
        "over_time": _mean_map([[_mistaken(one) for one in points] for points in ends], room) or [],
    }


def _percentages(counts: Sequence[Sequence[int]]) -> Map:
    return [[100 * one / sum(row) if sum(row) else None for one in row] for row in counts]


def _mistaken(point: Point) -> list[float | None]:
    """The percentages of old taken for new, and of new taken for old: new are the classes of the
    task that has just ended."""
    new = point.task
    old_rows = point.confusion[:new]
    old, fell = sum(map(sum, old_rows)), sum(sum(row[new:]) for row in old_rows)
    own = point.confusion[new] if new < len(point.confusion) else ()
    return [
        100 * fell / old if old else None,
        100 * sum(own[:new]) / sum(own) if new and sum(own) else None,
    ]


def _balance(runs: Sequence[RecordedRun], room: int) -> dict[str, Any] | None:
    """PN of each task's classes after each task, and A-PN of each class at the end."""
    said = [run.balance for run in runs if run.balance]
    over_time = [[_rates(line.get("pn_of_tasks")) for line in lines] for lines in said]
    last = [lines[-1].get("a_pn") for lines in said]
    per_class = [one for one in last if isinstance(one, dict)]
    pn = _mean_map(over_time, room)
    if pn is None:
        return None
    labels = _in_order({label for one in per_class for label in one}, _task_of_class(runs))
    means = [_mean(_rates([one.get(label) for one in per_class])) for label in labels]
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


def _rates(found: Any) -> list[float | None]:
    """A file from elsewhere may hold anything in their place."""
    known = found if isinstance(found, list) else []
    return [one if isinstance(one, int | float) else None for one in known]


def _in_order(labels: set[str], of_class: dict[int, int]) -> list[str]:
    """As they came, task by task; inside of one numbers by their size, then words."""
    tasks = {str(label): task for label, task in of_class.items()}

    def place(one: str) -> tuple[int, bool, int, str]:
        number = one.isdecimal()
        return tasks.get(one, len(tasks)), not number, len(one) * number, one

    return sorted(labels, key=place)


# ---- one run


def _run(run: RecordedRun, row: int | None) -> dict[str, Any]:
    found, result = run.found, run.result
    known = {**vars(result), "variant": str(result.variant)} if result else found.values
    said = {name: found.description.get(name) for name in ("onepass", "torch", "started")}
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
        "versions": {name: _word(str(one)) for name, one in said.items() if one},
        "command": _command(run, known),
    }


def _command(run: RecordedRun, known: dict[str, Any]) -> str:
    """Nothing where too little is known; one that is very long is cut, and ends in dots."""
    said = {name: run.found.description.get(name) for name in ("probes", "imports")}
    try:
        whole = rerun_command({**known, **said})
    except (KeyError, TypeError):
        return ""
    return whole if len(whole) <= LONGEST_COMMAND else f"{whole[:LONGEST_COMMAND]} ..."


# ---- small things


def _word(text: str) -> str:
    return shortened(printable(text))


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _short(value: float) -> float:
    """Four digits, which no eye can tell from all."""
    return float(f"{value:.4g}")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(fmean(known)) if known else None


def _mean_map(maps: Sequence[Map], room: int) -> Map | None:
    """The mean of each cell over those of one shape: that of the first which has any cells. Nothing
    if it has none, or more than there is room for."""
    shaped = [(one, list(map(len, one))) for one in maps if any(one)]
    if not shaped or sum(shaped[0][1]) > room:
        return None
    same = [one for one, shape in shaped if shape == shaped[0][1]]
    return [[_mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*same, strict=True)]
