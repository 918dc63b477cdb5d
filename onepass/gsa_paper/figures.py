"""The figures of the GSA paper, redrawn from runs, each with what the paper says to it and whether
the runs say the same."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onepass.base.errors import InputError, OnepassError, RunError
from onepass.base.fileio import write_text
from onepass.base.settings import format_setting
from onepass.base.text import printable
from onepass.gsa_paper import claims, proposition
from onepass.gsa_paper.claims import Claim, Observation, Trio
from onepass.gsa_paper.rates import GradientRates, has_probe_lines, mean_of_finite
from onepass.report.figures import STYLE, expect_picture_suffix, runs_by_row_name, save_figure
from onepass.report.rows import with_distinct_datasets
from onepass.report.table import Cell, Table, markdown
from onepass.runs.folder import DAMAGED
from onepass.runs.result import Result

SHOWN_TASKS = 4
TITLE = 60  # letters as wide as a panel
COLOURS = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
COLUMNS = ("paper", "it says", "measured")  # then one for each kind of run
STANDS_OUT = {"contradicted": 1, "undecided": 2}  # in bold, in italics
PROTOCOLS: dict[str, dict[str, int | None]] = {  # of the paper's section 4: er's settings
    "fig1": {"replay": 10, "balanced": None},
    "fig3": {"balanced": 20},
}
KINDS = {"adaptive": "gsa", "none": "gsa with weights=none"}  # of Fig. 7, by `weights`
Setting = tuple[str, int, str]  # dataset, memory, optimiser
Panel = dict[str, list[Result]]  # the runs of each row of the table, by name


def fig1(results: Sequence[Result], output: Path) -> list[Observation]:
    """PN of four tasks while later ones are learned, and the accuracy of these tasks."""
    rows = [(of, _courses(runs)) for of, runs in _rows(results)]
    figure, grid = _sheet(len(rows), 2)
    for axes, (of, courses) in zip(grid, rows, strict=True):
        rates = [rate for one in courses for t in range(one.tasks) for rate in one.pn_since(t)]
        edge = 1.1 * min(filter(math.isfinite, rates), default=-1.0)
        _over_tasks(axes[0], courses, GradientRates.pn_since, edge)
        axes[0].axhline(-1, color="0.4", linewidth=0.8)
        label = "PN (lowest: minus infinity)" if -math.inf in rates else "PN"
        axes[0].set(ylabel=label, title=of)
        _over_tasks(axes[1], courses, GradientRates.accuracy_since)
        axes[1].set(ylabel="accuracy (%)", ylim=(0, 102), title="accuracy of these tasks")
    _finish(figure, output)
    return [one for of, courses in rows for one in _judge_all("fig1", claims.FIG1, of, courses)]


def fig3(results: Sequence[Result], output: Path) -> list[Observation]:
    """A-PN of each class after the last task beside joint training; accuracy against A-PN."""
    panels = by_setting(results, joint=True)
    figure, grid = _sheet(len(panels), 2)
    found = []
    for axes, (setting, panel) in zip(grid, panels.items(), strict=True):
        _by_class(axes[0], panel)
        axes[0].set_title(_told(setting))
        _against_accuracy(axes[1], panel)
        for name, runs in panel.items():
            # what is said of joint training shares the column of the one method beside it, or has
            # one column, without a memory, beside methods with several
            column = _first_in_tasks(panel) if len(panel) == 2 else name
            of, courses = f"{_told(_setting(panel[column][0]))}: {column}", _courses(runs)
            if runs[0].tasks > 1:
                found += _judge_all("fig3", claims.FIG3, of, courses)
            else:
                found.append(claims.FIG3_JOINT.judge(of, courses))
    _finish(figure, output)
    return found


def fig7(results: Sequence[Result], output: Path) -> list[Observation]:
    """A-PN of each class with and without the GSA-CE loss, beside joint training."""
    panels = by_setting(results, joint=True)
    figure, grid = _sheet(len(panels), 1)
    found = []
    for (axes,), (setting, panel) in zip(grid, panels.items(), strict=True):
        _by_class(axes, panel)
        axes.set_title(_told(setting))
        for name, trios in _trios([result for runs in panel.values() for result in runs]).items():
            found += [claim.judge(f"{_told(setting)}: {name}", trios) for claim in claims.FIG7]
    _finish(figure, output)
    return found


def loss_curves(results: Sequence[Result], output: Path) -> list[Observation]:
    """Cross-entropy of the stream batch and of the replay batch while task 2 is learned."""
    rows = _rows(results)
    figure, grid = _sheet(len(rows), 1)
    found = []
    for (axes,), (of, runs) in zip(grid, rows, strict=True):
        for colour, batch in zip(COLOURS, ("stream", "replay"), strict=False):
            curves = [
                {line["step"]: line[batch] for line in claims.task_losses(run)} for run in runs
            ]
            _band(axes, curves, colour, f"{batch} batch")
        axes.set(xlabel="batches learned", ylabel="cross-entropy", title=f"{of}, task 2")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        found += [claim.judge(of, runs) for claim in claims.LOSSES]
    _finish(figure, output)
    return found


def proposition1(results: Sequence[Result], output: Path) -> list[Observation]:
    """The decomposed loss against the cross-entropy of trained samples, and their gap against its
    closed form."""
    rows = [
        (of, samples)
        for of, runs in _rows(results)
        if (samples := [one for run in runs for one in proposition.decompose_run(run)])
    ]
    if not rows:
        raise InputError(f"{results[0].method} trains no sample by a softmax: nothing to decompose")
    figure, grid = _sheet(len(rows), 2)
    found = []
    for axes, (of, samples) in zip(grid, rows, strict=True):
        for colour, side in zip(COLOURS, (True, False), strict=False):
            own = [one for one in samples if one.new is side]
            style: Any = {"s": 10, "alpha": 0.6, "linewidths": 0, "color": colour}
            ce, whole = [one.ce for one in own], [one.decomposed for one in own]
            axes[0].scatter(ce, whole, label="new classes" if side else "old classes", **style)
            gaps = [one.decomposed - one.ce for one in own]
            axes[1].scatter([one.gap for one in own], gaps, **style)
        for panel in axes:
            panel.axline((0, 0), slope=1, color="0.4", linewidth=0.8)
        axes[0].set(xlabel="cross-entropy", ylabel="decomposed loss", title=of)
        axes[0].legend(frameon=False)
        axes[1].set(xlabel="gap by its closed form", ylabel="gap as measured", title="the gap")
        found += proposition.observations(of, samples)
    _finish(figure, output)
    return found


Draw = Callable[[Sequence[Result], Path], list[Observation]]
PAPER_FIGURES: dict[str, tuple[Draw, str]] = {  # by which probe's lines
    "fig1": (fig1, "balance"),
    "fig3": (fig3, "balance"),
    "fig7": (fig7, "balance"),
    "loss-curves": (loss_curves, "losses"),
    "proposition1": (proposition1, "logits"),
}


def drawn(what: str, results: Sequence[Result], output: Path) -> str:
    """Draws a figure, and says in a file of its name, ending in .md, what follows from it. Runs
    that its probe did not watch are left out, which is said there, unless there are no others."""
    expect_picture_suffix(output)
    beside = output.with_suffix(".md")
    header = f"| {' | '.join(COLUMNS[:2])} |".encode()
    if beside.exists() and not beside.read_bytes().startswith(header):
        raise InputError(
            f"{beside} would be replaced, and is no page of a figure: name it otherwise"
        )
    draw, probe = PAPER_FIGURES[what]
    # joint training stands beside rates, and in no other figure
    results = [result for result in results if result.tasks > 1 or probe == "balance"]
    watched = [result for result in results if has_probe_lines(result, probe)]
    chosen = watched if any(result.tasks > 1 for result in watched) else results
    for result in chosen:
        _check_readable(result, probe)
    with mpl.rc_context(STYLE):
        found = draw(chosen, output)
    notes = [] if what == "proposition1" else [("", claims.VERDICT_RULES)]
    if strange := list(dict.fromkeys(one.runs for one in found if not one.by_protocol)):
        told = f"Not of the paper's protocol, which is {_protocol(what)}: {'; '.join(strange)}."
        notes.append(("", told))
    if others := len(results) - len(watched):
        told = f"Left out, since they were run without --probe {probe}: {others} of"
        notes.append(("", f"{told} {len(results)} runs."))
    text = as_markdown(found, notes)
    write_text(beside, text)
    return text


READ: dict[str, Callable[[Result], object]] = {  # what figures need of a probe's lines
    "balance": lambda result: GradientRates(result).read_all(),
    "losses": claims.task_losses,
    "logits": proposition.decompose_run,
}


def _check_readable(result: Result, probe: str) -> None:
    try:
        READ[probe](result)
    except OnepassError:
        raise
    except (*DAMAGED, IndexError):
        told = f"its result or {probe}.jsonl does not hold what it should"
        raise RunError(f"{result.out} is damaged: {told}") from None


def as_markdown(found: Sequence[Observation], notes: Sequence[tuple[str, str]] = ()) -> str:
    """A table with a line for each observation and a column for each kind of run."""
    runs = list(dict.fromkeys(one.runs for one in found))
    lines: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for one in found:
        told = f"{one.found}: {one.verdict}" if one.found else one.verdict
        cell = Cell(told, rank=STANDS_OUT.get(one.verdict, 0))
        lines.setdefault((one.section, one.claim, one.measured), {})[one.runs] = cell
    body = [[*line, *(cells.get(of, "-") for of in runs)] for line, cells in lines.items()]
    return markdown(Table((*COLUMNS, *runs), body, notes=notes))


# ---- which runs belong together


def by_setting(results: Sequence[Result], *, joint: bool = False) -> dict[Setting, Panel]:
    """The runs of each dataset, size of the memory and optimiser; joint training, which has no
    memory, stands beside each of them."""
    results = with_distinct_datasets(results)
    panels: dict[Setting, list[Result]] = {}
    for result in results:
        if result.tasks > 1:
            panels.setdefault(_setting(result), []).append(result)
    for result in results:
        for setting, inside in panels.items():
            if result.tasks == 1 and _setting(result)[::2] == setting[::2]:
                inside.append(result)
    if not panels:
        raise InputError("there is no run with more than one task")
    for setting, inside in panels.items():
        if joint and all(result.tasks > 1 for result in inside):
            raise _without_joint(setting, inside[0].dataset_identity)
    return {setting: runs_by_row_name(inside) for setting, inside in sorted(panels.items())}


def _rows(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Returns the runs of each setting and row of the table, with their name; no joint training."""
    panels = by_setting([result for result in results if result.tasks > 1])
    return [
        (f"{_told(setting)}: {name}", runs)
        for setting, panel in panels.items()
        for name, runs in panel.items()
    ]


def _without_joint(setting: Setting, data: str) -> InputError:
    dataset, _, optimizer = setting
    chosen = shlex.join(["--dataset", data, "--set", f"optimizer={optimizer}"])
    return InputError(
        f"there is no run of joint training on {dataset} by {optimizer} with --probe balance; "
        f"onepass run joint {chosen} --probe balance makes one"
    )


def _setting(result: Result) -> Setting:
    return result.dataset, result.memory, str(result.settings.get("optimizer", ""))


def _told(setting: Setting) -> str:
    dataset, memory, optimizer = setting
    return f"{dataset}, M={memory}, {optimizer}" if memory else f"{dataset}, {optimizer}"


def _first_in_tasks(panel: Panel) -> str:
    return next(name for name, runs in panel.items() if runs[0].tasks > 1)


def _judge_all(
    what: str, sentences: Sequence[Claim[GradientRates]], of: str, courses: Sequence[GradientRates]
) -> list[Observation]:
    by_protocol = all(
        course.result.method == "er" and PROTOCOLS[what].items() <= course.result.settings.items()
        for course in courses
    )
    return [claim.judge(of, courses)._replace(by_protocol=by_protocol) for claim in sentences]


def _protocol(what: str) -> str:
    settings = " ".join(
        f"{name}={format_setting(value)}" for name, value in PROTOCOLS[what].items()
    )
    return f"er with {settings}"


def _courses(runs: Sequence[Result]) -> list[GradientRates]:
    return [GradientRates(run) for run in runs]


def _trios(results: Sequence[Result]) -> dict[str, list[Trio]]:
    """With the GSA-CE loss, without it, and joint training, by seed: for each method and variant
    that was run with and without, differing in nothing else."""
    kinds: dict[str, dict[str, dict[int, GradientRates]]] = {kind: {} for kind in KINDS}
    joint: dict[int, GradientRates] = {}
    for result in results:
        if result.tasks == 1:
            if joint.setdefault(result.seed, course := GradientRates(result)) is not course:
                raise InputError(f"there are two runs of joint training with seed {result.seed}")
        elif (kind := str(result.settings.get("weights"))) in kinds:
            name = printable(f"{result.method} {result.variant.without('weights')}".rstrip())
            of_kind = kinds[kind].setdefault(name, {})
            if of_kind.setdefault(result.seed, course := GradientRates(result)) is not course:
                raise InputError(f"there are two runs of {name} with seed {result.seed}")
    found = {
        name: [
            Trio(adaptive[seed], without[seed], joint[seed])
            for seed in sorted(adaptive.keys() & without.keys() & joint.keys())
        ]
        for name, adaptive in kinds["adaptive"].items()
        if (without := kinds["none"].get(name))
    }
    if not any(found.values()):
        raise _without_trio([KINDS[kind] for kind, runs in kinds.items() if not runs])
    return {name: trios for name, trios in found.items() if trios}


def _without_trio(missing: Sequence[str]) -> InputError:
    kinds = ", ".join(f"of {kind}" for kind in KINDS.values())
    needed = f"this figure needs runs {kinds} and of joint that share a seed"
    if missing:
        return InputError(f"{needed}: there is no run of {' and none of '.join(missing)}")
    return InputError(f"{needed}, and those of gsa all other settings: there are no such three")


# ---- what is drawn


def _sheet(rows: int, columns: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(1 + 4.6 * columns, 0.4 + 3.0 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _finish(figure: Figure, output: Path) -> None:
    for axes in figure.axes:
        axes.set_title(fill(axes.get_title(), TITLE), fontsize=9)
    save_figure(figure, output)


def _whole_numbers(axes: Axes) -> None:
    """Ticks in steps that tasks and classes come in: not 15, 30, 45 of a hundred classes."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _over_tasks(
    axes: Axes,
    courses: Sequence[GradientRates],
    values: Callable[[GradientRates, int], list[float]],
    edge: float = 0.0,
) -> None:
    """A curve for each of four tasks, from when it is learned, over the seeds."""
    count = courses[0].tasks
    shown = sorted({round(place * (count - 1) / SHOWN_TASKS) for place in range(SHOWN_TASKS)})
    for colour, of in zip(COLOURS, shown, strict=False):
        curves = [
            {of + 1 + later: value for later, value in enumerate(values(course, of))}
            for course in courses
        ]
        _band(axes, curves, colour, f"task {of + 1}", edge, marker="o", markersize=3)
    axes.set_xlabel("tasks learned")
    _whole_numbers(axes)
    axes.legend(frameon=False, fontsize=8)


def _band(
    axes: Axes,
    curves: Sequence[dict[int, float]],
    colour: Any,
    label: str,
    edge: float = 0.0,
    **style: Any,
) -> None:
    """Mean and standard deviation of curves over what they have in common; minus infinity stands at
    the edge."""
    places = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[place] for place in places] for curve in curves])
    with np.errstate(invalid="ignore"):  # infinity less infinity
        middle, wide = values.mean(axis=0), values.std(axis=0, ddof=1 if len(curves) > 1 else 0)
    infinite = np.isneginf(middle)
    middle[infinite], wide[infinite] = edge, 0.0
    axes.plot(places, middle, color=colour, label=label, **style)
    axes.fill_between(places, middle - wide, middle + wide, color=colour, alpha=0.15, linewidth=0)


def _by_class(axes: Axes, panel: Panel) -> None:
    """A-PN by class in order of arrival: means over the seeds, and their moving average."""
    order = _order(panel)
    for colour, (name, runs) in zip(cycle(COLOURS), panel.items(), strict=False):
        rates = _mean_by_label(runs)
        values = np.array([rates[label] for label in order])
        axes.plot(values, ".", color=colour, alpha=0.5, markersize=5)
        axes.plot(_moving_average(values), color=colour, label=name)
    axes.axhline(-1, color="0.4", linewidth=0.8)
    half = _half(len(order))
    told = f" (lines: moving average over {2 * half + 1})" if half else ""
    axes.set(xlabel=f"class, in order of arrival{told}", ylabel="A-PN after the last task")
    _whole_numbers(axes)
    axes.legend(frameon=False, fontsize=8)


def _against_accuracy(axes: Axes, panel: Panel) -> None:
    for colour, (name, runs) in zip(cycle(COLOURS), panel.items(), strict=False):
        courses = _courses(runs)
        rates = [rate for course in courses for rate in course.a_pn]
        scores = [score for course in courses for score in course.class_accuracy]
        each = [claims.rank_correlation(one.a_pn, one.class_accuracy) for one in courses]
        label = f"{name}: rank correlation {mean_of_finite(each):.2f}"
        axes.scatter(rates, scores, s=10, alpha=0.6, linewidths=0, color=colour, label=label)
    axes.axvline(-1, color="0.4", linewidth=0.8)
    axes.set(xlabel="A-PN of a class", ylabel="its accuracy (%)", ylim=(-2, 102))
    # above the panel: inside of it the dots of a legend look like classes
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _order(panel: Panel) -> list[str]:
    """Classes as they arrive where they do so in tasks, which have to be the same for all seeds:
    rates are averaged class by class."""
    runs = max(panel.values(), key=lambda runs: runs[0].tasks)
    courses = _courses(runs)
    if any(list(map(set, one.labels)) != list(map(set, courses[0].labels)) for one in courses):
        raise InputError(
            f"{runs[0].method} has other classes in a task from seed to seed, and no order of "
            "arrival that could be drawn"
        )
    return list(courses[0].ends[-1]["a_pn"])


def _mean_by_label(runs: Sequence[Result]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for course in _courses(runs):
        for label, rate in zip(course.ends[-1]["a_pn"], course.a_pn, strict=True):
            found.setdefault(label, []).append(rate)
    return {label: float(np.mean(rates)) for label, rates in found.items()}


def _half(classes: int) -> int:
    return classes // 20


def _moving_average(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Over a tenth of the classes, fewer at the ends; classes without a rate do not count. Up to
    nineteen are left as they are: among them an average would mix tasks."""
    half = _half(len(values))
    pieces = [values[max(0, place - half) : place + half + 1] for place in range(len(values))]
    return np.array(
        [np.nanmean(piece) if not np.isnan(piece).all() else math.nan for piece in pieces]
    )
