"""Redraws the figures of the GSA paper from runs, and judges what the paper claims about them."""

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

SHOWN_TASKS = 4  # curves of a panel of Fig. 1
TITLE = 60  # letters that fit the width of a panel
COLOURS = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
COLUMNS = ("paper", "it says", "measured")  # followed by a column for each group of runs
RANKS = {"contradicted": 1, "undecided": 2}  # in bold, and in italics
PROTOCOLS: dict[str, dict[str, int | None]] = {  # er's settings in the paper's section 4
    "fig1": {"replay": 10, "balanced": None},
    "fig3": {"balanced": 20},
}
# Fig. 7 compares gsa with its GSA-CE loss and without it: the setting `weights`, and a name.
KINDS = {"adaptive": "gsa", "none": "gsa with weights=none"}
Setting = tuple[str, int, str]  # dataset, memory, optimiser
Panel = dict[str, list[Result]]  # groups of runs that differ only in the seed, by their names


def fig1(results: Sequence[Result], output: Path) -> list[Observation]:
    """Draws PN of up to four tasks while later ones are learned, and the accuracy of these tasks.
    Returns the verdicts on the paper's claims, as all functions in `PAPER_FIGURES` do."""
    rows = [(of, _measure(runs)) for of, runs in _rows(results)]
    figure, grid = _sheet(len(rows), 2)
    for axes, (of, measured) in zip(grid, rows, strict=True):
        rates = [rate for run in measured for t in range(run.tasks) for rate in run.pn_since(t)]
        edge = 1.1 * min(filter(math.isfinite, rates), default=-1.0)
        _over_tasks(axes[0], measured, GradientRates.pn_since, edge)
        axes[0].axhline(-1, color="0.4", linewidth=0.8)
        label = "PN (lowest: minus infinity)" if -math.inf in rates else "PN"
        axes[0].set(ylabel=label, title=of)
        _over_tasks(axes[1], measured, GradientRates.accuracy_since)
        axes[1].set(ylabel="accuracy (%)", ylim=(0, 102), title="accuracy of these tasks")
    _finish(figure, output)
    return [
        observation
        for of, measured in rows
        for observation in _judge_all("fig1", claims.FIG1, of, measured)
    ]


def fig3(results: Sequence[Result], output: Path) -> list[Observation]:
    """Draws A-PN of each class, in the methods and in joint training, and accuracy against A-PN."""
    panels = by_setting(results, joint=True)
    colours = _colours(panels)
    figure, grid = _sheet(len(panels), 2)
    found = []
    for axes, (setting, panel) in zip(grid, panels.items(), strict=True):
        _by_class(axes[0], panel, colours)
        axes[0].set_title(_setting_name(setting))
        _against_accuracy(axes[1], panel, colours)
        for name, runs in panel.items():
            # In the table of verdicts, joint training shares the column of a single method beside
            # it. Beside several methods it has a column of its own.
            column = _first_in_tasks(panel) if len(panel) == 2 else name
            of, measured = f"{_setting_name(_setting(panel[column][0]))}: {column}", _measure(runs)
            if runs[0].tasks > 1:
                found += _judge_all("fig3", claims.FIG3, of, measured)
            else:
                found.append(claims.FIG3_JOINT.judge(of, measured))
    _finish(figure, output)
    return found


def fig7(results: Sequence[Result], output: Path) -> list[Observation]:
    """Draws A-PN of each class with and without the GSA-CE loss, beside joint training."""
    panels = by_setting(results, joint=True)
    colours = _colours(panels)
    figure, grid = _sheet(len(panels), 1)
    found = []
    for (axes,), (setting, panel) in zip(grid, panels.items(), strict=True):
        _by_class(axes, panel, colours)
        axes.set_title(_setting_name(setting))
        for name, trios in _trios([result for runs in panel.values() for result in runs]).items():
            found += [
                claim.judge(f"{_setting_name(setting)}: {name}", trios) for claim in claims.FIG7
            ]
    _finish(figure, output)
    return found


def loss_curves(results: Sequence[Result], output: Path) -> list[Observation]:
    """Draws the cross-entropy of the stream batch and of the replay batch in task 2."""
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
    """Draws the decomposed loss of trained samples against their cross-entropy, and the difference
    of both against its closed form. Raises an InputError if no run trained a sample by a
    softmax."""
    rows = [
        (of, samples)
        for of, runs in _rows(results)
        if (samples := [sample for run in runs for sample in proposition.decompose_run(run)])
    ]
    if not rows:
        raise InputError(f"{results[0].method} trains no sample by a softmax: nothing to decompose")
    figure, grid = _sheet(len(rows), 2)
    found = []
    for axes, (of, samples) in zip(grid, rows, strict=True):
        for colour, side in zip(COLOURS, (True, False), strict=False):
            own = [sample for sample in samples if sample.new is side]
            style: Any = {"s": 10, "alpha": 0.6, "linewidths": 0, "color": colour}
            ce, both = [sample.ce for sample in own], [sample.decomposed for sample in own]
            axes[0].scatter(ce, both, label="new classes" if side else "old classes", **style)
            gaps = [sample.decomposed - sample.ce for sample in own]
            axes[1].scatter([sample.gap for sample in own], gaps, **style)
        for panel in axes:
            panel.axline((0, 0), slope=1, color="0.4", linewidth=0.8)
        axes[0].set(xlabel="cross-entropy", ylabel="decomposed loss", title=of)
        axes[0].legend(frameon=False)
        axes[1].set(xlabel="gap by its closed form", ylabel="gap as measured", title="the gap")
        found += proposition.observations(of, samples)
    _finish(figure, output)
    return found


Draw = Callable[[Sequence[Result], Path], list[Observation]]
# The function that draws each figure, and the probe whose lines it needs
PAPER_FIGURES: dict[str, tuple[Draw, str]] = {
    "fig1": (fig1, "balance"),
    "fig3": (fig3, "balance"),
    "fig7": (fig7, "balance"),
    "loss-curves": (loss_curves, "losses"),
    "proposition1": (proposition1, "logits"),
}


def draw_paper_figure(name: str, results: Sequence[Result], output: Path) -> str:
    """Draws a figure, writes its verdicts to a .md file of the same name, and returns their text.

    Runs without the figure's probe are left out, with a note. Raises an InputError if only joint
    training had the probe, or none, and if the .md file holds something else.
    """
    expect_picture_suffix(output)
    verdicts = output.with_suffix(".md")
    header = f"| {' | '.join(COLUMNS[:2])} |".encode()
    if verdicts.exists() and not verdicts.read_bytes().startswith(header):
        raise InputError(
            f"{verdicts} would be overwritten, but does not hold verdicts: choose another name for "
            "the figure"
        )
    draw, probe = PAPER_FIGURES[name]
    # Only the figures of gradient rates draw joint training.
    results = [result for result in results if result.tasks > 1 or probe == "balance"]
    watched = [result for result in results if has_probe_lines(result, probe)]
    # Without a watched run all are chosen, and reading their lines raises the error.
    chosen = watched if any(result.tasks > 1 for result in watched) else results
    for result in chosen:
        _check_readable(result, probe)
    with mpl.rc_context(STYLE):
        found = draw(chosen, output)
    notes = [] if name == "proposition1" else [("", claims.VERDICT_RULES)]
    other_protocol = dict.fromkeys(claim.runs for claim in found if not claim.by_protocol)
    if other_protocol:
        kinds = "; ".join(other_protocol)
        notes.append(("", f"Not the paper's protocol, which is {_protocol(name)}: {kinds}."))
    if unwatched := len(results) - len(watched):
        note = f"Left out, because they ran without --probe {probe}: {unwatched} of"
        notes.append(("", f"{note} {len(results)} runs."))
    text = as_markdown(found, notes)
    write_text(verdicts, text)
    return text


# For each probe, a function that reads all that the figures need of a run's lines
READ: dict[str, Callable[[Result], object]] = {
    "balance": lambda result: GradientRates(result).read_all(),
    "losses": claims.task_losses,
    "logits": proposition.decompose_run,
}


def _check_readable(result: Result, probe: str) -> None:
    """Raises an error if the probe's lines or the result lack a value that figures need."""
    try:
        READ[probe](result)
    except OnepassError:
        raise
    except (*DAMAGED, IndexError):
        problem = f"a value in its result.json or {probe}.jsonl is missing or not valid"
        raise RunError(f"{result.out} is damaged: {problem}") from None


def as_markdown(found: Sequence[Observation], notes: Sequence[tuple[str, str]] = ()) -> str:
    """Returns a markdown table with a row for each claim and a column for each group of runs."""
    kinds = list(dict.fromkeys(observation.runs for observation in found))
    rows: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for section, claim, measured, kind, value, verdict, _ in found:
        cell = Cell(f"{value}: {verdict}" if value else verdict, rank=RANKS.get(verdict, 0))
        rows.setdefault((section, claim, measured), {})[kind] = cell
    body = [[*row, *(cells.get(kind, "-") for kind in kinds)] for row, cells in rows.items()]
    return markdown(Table((*COLUMNS, *kinds), body, notes=notes))


# ---- which runs belong together


def by_setting(results: Sequence[Result], *, joint: bool = False) -> dict[Setting, Panel]:
    """Returns the runs of each dataset, size of the memory and optimiser.

    Joint training has no memory and joins every size. Raises an InputError if all runs are joint
    training, or, with `joint`, if a setting lacks it.
    """
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
    """Returns the groups of runs that differ only in the seed, each with the name of its setting
    and its own. Joint training is left out."""
    panels = by_setting([result for result in results if result.tasks > 1])
    return [
        (f"{_setting_name(setting)}: {name}", runs)
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


def _setting_name(setting: Setting) -> str:
    dataset, memory, optimizer = setting
    return f"{dataset}, M={memory}, {optimizer}" if memory else f"{dataset}, {optimizer}"


def _first_in_tasks(panel: Panel) -> str:
    """Returns the name of the first group that is not joint training."""
    return next(name for name, runs in panel.items() if runs[0].tasks > 1)


def _judge_all(
    what: str, sentences: Sequence[Claim[GradientRates]], of: str, measured: Sequence[GradientRates]
) -> list[Observation]:
    """Returns a verdict on each claim of the figure `what`; `of` names the group of runs."""
    by_protocol = all(
        course.result.method == "er" and PROTOCOLS[what].items() <= course.result.settings.items()
        for course in measured
    )
    return [claim.judge(of, measured)._replace(by_protocol=by_protocol) for claim in sentences]


def _protocol(what: str) -> str:
    """Returns the paper's method and settings for the figure `what`, as text."""
    settings = " ".join(
        f"{name}={format_setting(value)}" for name, value in PROTOCOLS[what].items()
    )
    return f"er with {settings}"


def _measure(runs: Sequence[Result]) -> list[GradientRates]:
    return [GradientRates(run) for run in runs]


def _trios(results: Sequence[Result]) -> dict[str, list[Trio]]:
    """Returns the runs of Fig. 7 in threes: for each seed gsa, gsa without its GSA-CE loss, and
    joint training.

    The keys are the methods and variants (without `weights`) that have all three. Raises an
    InputError if none has, or if a seed has two runs of one kind.
    """
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
    by_name = {
        name: [
            Trio(adaptive[seed], without[seed], joint[seed])
            for seed in sorted(adaptive.keys() & without.keys() & joint.keys())
        ]
        for name, adaptive in kinds["adaptive"].items()
        if (without := kinds["none"].get(name))
    }
    if not any(by_name.values()):
        raise _without_trio([KINDS[kind] for kind, runs in kinds.items() if not runs])
    return {name: trios for name, trios in by_name.items() if trios}


def _without_trio(missing: Sequence[str]) -> InputError:
    """Returns the error for runs without a `Trio`; `missing` names the kinds without any run."""
    kinds = ", ".join(f"of {kind}" for kind in KINDS.values())
    needed = f"this figure needs runs {kinds} and of joint that share a seed"
    if missing:
        return InputError(f"{needed}: there is no run of {' and none of '.join(missing)}")
    return InputError(f"{needed}, with all other settings of gsa equal: no three runs fit")


# ---- drawing


def _sheet(rows: int, columns: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(1 + 4.6 * columns, 0.4 + 3.0 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _finish(figure: Figure, output: Path) -> None:
    for axes in figure.axes:
        axes.set_title(fill(axes.get_title(), TITLE), fontsize=9)
    save_figure(figure, output)


def _whole_numbers(axes: Axes) -> None:
    """Sets ticks at 1, 2, 5 or 10 times a power of ten, which suit tasks and classes."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _over_tasks(
    axes: Axes,
    measured: Sequence[GradientRates],
    values: Callable[[GradientRates, int], list[float]],
    edge: float = 0.0,
) -> None:
    """Draws a curve over the seeds for each of up to four tasks, from the task's own end on. The
    last task has no curve, because no task follows it. Minus infinity is drawn at `edge`."""
    count = measured[0].tasks
    shown = sorted({round(index * (count - 1) / SHOWN_TASKS) for index in range(SHOWN_TASKS)})
    for colour, of in zip(COLOURS, shown, strict=False):
        curves = [
            {of + 1 + later: value for later, value in enumerate(values(course, of))}
            for course in measured
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
    """Draws the mean and the standard deviation of curves, at the positions that all of them have.

    A mean of minus infinity is drawn at `edge`.
    """
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[step] for step in steps] for curve in curves])
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        middle, wide = values.mean(axis=0), values.std(axis=0, ddof=1 if len(curves) > 1 else 0)
    infinite = np.isneginf(middle)
    middle[infinite], wide[infinite] = edge, 0.0
    axes.plot(steps, middle, color=colour, label=label, **style)
    axes.fill_between(steps, middle - wide, middle + wide, color=colour, alpha=0.15, linewidth=0)


def _colours(panels: dict[Setting, Panel]) -> dict[str, Any]:
    """Returns a colour for each name, the same in all panels."""
    names = dict.fromkeys(name for panel in panels.values() for name in panel)
    return dict(zip(names, cycle(COLOURS), strict=False))


def _by_class(axes: Axes, panel: Panel, colours: dict[str, Any]) -> None:
    """Draws A-PN by class in order of arrival: means over the seeds as dots, and their moving
    average as a line."""
    order = _order(panel)
    for name, runs in panel.items():
        colour = colours[name]
        rates = _mean_by_label(runs)
        values = np.array([rates[label] for label in order])
        axes.plot(values, ".", color=colour, alpha=0.5, markersize=5)
        axes.plot(_moving_average(values), color=colour, label=name)
    axes.axhline(-1, color="0.4", linewidth=0.8)
    half = _half(len(order))
    average = f" (lines: moving average over {2 * half + 1})" if half else ""
    axes.set(xlabel=f"class, in order of arrival{average}", ylabel="A-PN after the last task")
    _whole_numbers(axes)
    axes.legend(frameon=False, fontsize=8)


def _against_accuracy(axes: Axes, panel: Panel, colours: dict[str, Any]) -> None:
    """Draws a dot for each class of each run: its accuracy against its A-PN."""
    for name, runs in panel.items():
        measured = _measure(runs)
        rates = [rate for course in measured for rate in course.a_pn]
        scores = [score for course in measured for score in course.class_accuracy]
        each = [claims.rank_correlation(run.a_pn, run.class_accuracy) for run in measured]
        label = f"{name}: rank correlation {mean_of_finite(each):.2f}"
        axes.scatter(rates, scores, s=10, alpha=0.6, linewidths=0, color=colours[name], label=label)
    axes.axvline(-1, color="0.4", linewidth=0.8)
    axes.set(xlabel="A-PN of a class", ylabel="its accuracy (%)", ylim=(-2, 102))
    # The legend stands above the panel. Inside it, the legend's dots would look like classes.
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _order(panel: Panel) -> list[str]:
    """Returns the classes in order of arrival, from the group of runs with the most tasks.

    Raises an InputError if the tasks of its seeds have different classes: rates are averaged class
    by class.
    """
    runs = max(panel.values(), key=lambda runs: runs[0].tasks)
    measured = _measure(runs)
    if any(list(map(set, run.labels)) != list(map(set, measured[0].labels)) for run in measured):
        raise InputError(
            f"the tasks of {runs[0].method} have other classes from seed to seed, so there is no "
            "common order of arrival to draw: use runs of one class order"
        )
    return list(measured[0].ends[-1]["a_pn"])


def _mean_by_label(runs: Sequence[Result]) -> dict[str, float]:
    """Returns A-PN of each class, averaged over the runs."""
    by_label: dict[str, list[float]] = {}
    for course in _measure(runs):
        for label, rate in zip(course.ends[-1]["a_pn"], course.a_pn, strict=True):
            by_label.setdefault(label, []).append(rate)
    return {label: float(np.mean(rates)) for label, rates in by_label.items()}


def _half(classes: int) -> int:
    """Returns how many classes on either side of a class its moving average takes in."""
    return classes // 20


def _moving_average(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the averages of the values over a tenth of the classes around each, fewer at both
    ends. NaN, a class without a rate, is left out.

    Up to nineteen classes stay as they are, because an average would mix tasks.
    """
    half = _half(len(values))
    pieces = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return np.array(
        [np.nanmean(piece) if not np.isnan(piece).all() else math.nan for piece in pieces]
    )
