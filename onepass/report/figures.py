"""Draws pictures of finished runs, and the map of a stream."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onepass.base.errors import InputError
from onepass.base.fileio import expect_suffix, write_output
from onepass.base.text import printable
from onepass.evaluation.points import Point
from onepass.report.rows import Spread, group_by_row, summarise
from onepass.runs import lines
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.variant import REVISION, shared

if TYPE_CHECKING:
    from onepass.streams import Stream

KINDS = ("both", "bars", "curves")
FEW = 6  # rows that fit in a picture of the usual width, with the legend inside
WIDER = 0.4  # inches for each further row
# With more legend rows than this the legend is as high as the picture, so panels are stacked.
MANY = 12
ENTRY = 0.22  # inches; the height of one text line of the legend
LINE = 24  # letters after which a name wraps
MOST_COLUMNS = 200  # of a stream's map; in longer streams a column holds several batches
GREYS = ("0.2", "0.4")  # for references; darker than the grey in the palette of the methods
# The marker and the hatch of each dataset and size of the memory
PLACES = (("o", ""), ("s", "///"), ("^", "..."), ("D", "xxx"), ("v", "|||"), ("P", "---"))
MARKED = 8  # points of a curve that have its marker
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.5,
    "grid.alpha": 0.3,
    "savefig.dpi": 150,
    "svg.hashsalt": "onepass",
    "text.parse_math": False,  # names may have dollars in them
    "text.usetex": False,
}


def draw_accuracy(results: Sequence[Result], output: Path, kind: str = "both") -> None:
    """Draws the final accuracy as `bars`, the accuracy on the classes seen so far as `curves`, or
    `both`. Bars and curves show the mean over seeds and the standard deviation.

    Runs on a single task, such as joint training, are references: grey beside other runs, with a
    dashed curve. The curves leave out runs whose events file is incomplete. Raises an InputError if
    curves are wanted of results from a results file, because it holds no points.
    """
    expect_picture_suffix(output)
    groups = runs_by_row_name(results)
    if kind != "bars":
        _check_points(groups)
    panels = {"both": 2, "bars": 1, "curves": 1}[kind]
    with mpl.rc_context(STYLE):
        figure, axes = _panels(groups, panels)
        if kind != "bars":
            _curves(axes[0], groups)
        if kind != "curves":
            _bars(axes[-1], groups)
        save_figure(figure, output)


def _panels(names: Collection[str], count: int) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` panels: side by side, or stacked if the legend is long."""
    entries = sum(len(fill(name, LINE).splitlines()) for name in names)
    if entries > MANY:
        size, shape = (10.0, count * max(3.6, 0.6 + ENTRY * entries)), (count, 1)
    else:
        width = 4.5 + WIDER * max(0, len(names) - FEW)
        size, shape = (1 + width * count, 4.4 if _wraps(names) else 3.6), (1, count)
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(*shape, squeeze=False).flat)


def _wraps(names: Collection[str]) -> bool:
    """Returns whether a name is longer than a line, in the legend or below a bar."""
    return any(len(name) > LINE for name in names)


def runs_by_row_name(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Returns the runs of each row of the table by the row's name. The name is the method and the
    choices in which the rows differ. If there are several datasets or sizes of the memory, they
    follow in brackets."""
    groups = group_by_row(results)
    firsts = [group[0] for group in groups]
    keeping = {first.method for first in firsts if first.memory}  # the others have no size
    several_data = len({first.dataset for first in firsts}) > 1
    several_sizes = len({first.memory for first in firsts if first.method in keeping}) > 1
    common = shared([first.variant for first in firsts]).without(REVISION)
    named = {}
    for first, group in zip(firsts, groups, strict=True):
        data = first.dataset if several_data else ""
        size = f"M={first.memory}" if several_sizes and first.method in keeping else ""
        place = ", ".join(filter(None, [data, size]))
        words = [first.method, str(first.variant.beyond(common)), f"({place})" if place else ""]
        named[printable(" ".join(filter(None, words)))] = group
    return named


def _check_points(groups: dict[str, list[Result]]) -> None:
    """Raises an InputError if a result comes from a results file, which has no points."""
    for result in (result for group in groups.values() for result in group):
        if file := lines.file_of_line(result.out):
            raise InputError(
                f"{file} is a results file, which holds no points for curves: use --kind bars, or "
                "name run folders instead"
            )


@dataclass(frozen=True)
class Look:
    """The look of a row: a colour for its method and variant, and a marker and a hatch for its
    dataset and memory, which are empty if all rows share these or if it keeps nothing."""

    colour: Any
    marker: str
    hatch: str


def _looks(groups: dict[str, list[Result]]) -> list[Look]:
    """Returns the look of each group. References are grey, unless all groups are references."""
    firsts = [group[0] for group in groups.values()]
    several_data = len({first.dataset for first in firsts}) > 1
    places = {(first.dataset, first.memory) for first in firsts if several_data or first.memory}
    marks = dict(zip(sorted(places), cycle(PLACES), strict=False)) if len(places) > 1 else {}
    names = {(first.method, str(first.variant)): first.tasks == 1 for first in firsts}
    palette = cycle(mpl.colormaps["tab10" if len(names) <= 10 else "tab20"].colors)  # type: ignore[attr-defined]
    greys = palette if all(names.values()) else cycle(GREYS)
    colours = {name: next(greys if single else palette) for name, single in names.items()}
    return [
        Look(
            colours[first.method, str(first.variant)],
            *marks.get((first.dataset, first.memory), ("", "")),
        )
        for first in firsts
    ]


def _curves(axes: Axes, groups: dict[str, list[Result]]) -> None:
    ends: set[int] = set()
    for look, (name, group) in zip(_looks(groups), groups.items(), strict=True):
        by_step: dict[int, list[float]] = {}
        runs = [(RunFolder(Path(result.out)), result) for result in group]
        seen = [run.points() for run, result in runs if run.has_all_points(result)]
        for points in seen:
            for point in points:
                by_step.setdefault(point.step, []).append(point.accuracy)
            ends.update(_inner_boundaries(points))
        # A mean over fewer runs would make the curve jump.
        steps = sorted(step for step, values in by_step.items() if len(values) == len(seen))
        spreads = [Spread.over(by_step[step]) for step in steps]
        middle = [spread.mean for spread in spreads if spread is not None]
        wide = [spread.deviation or 0.0 for spread in spreads if spread is not None]
        single = group[0].tasks == 1
        axes.plot(
            steps,
            middle,
            label=fill(name, LINE),
            color=look.colour,
            linestyle="--" if single else "-",
            marker=look.marker or ("" if len(steps) > 1 else "o"),
            markevery=max(1, len(steps) // MARKED),
            markersize=5,
        )
        low = [m - w for m, w in zip(middle, wide, strict=True)]
        high = [m + w for m, w in zip(middle, wide, strict=True)]
        axes.fill_between(steps, low, high, color=look.colour, alpha=0.15, linewidth=0)
    for end in sorted(ends):
        axes.axvline(end, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xlabel="batches learned", ylabel="accuracy on classes seen so far (%)", ylim=(0, 102))
    large = len(groups) > FEW or _wraps(groups)
    beside: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if large else {}
    axes.legend(frameon=False, fontsize=9, **beside)


def _inner_boundaries(points: Sequence[Point]) -> list[int]:
    """Returns the steps at which a task ends and another one follows."""
    return [point.step for point in points if point.boundary][:-1]


def _bars(axes: Axes, groups: dict[str, list[Result]]) -> None:
    rows = [summarise(group)[0] for group in groups.values()]
    for index, (row, look) in enumerate(zip(rows, _looks(groups), strict=True)):
        error = row.accuracy.deviation
        style: Any = {"color": look.colour, "hatch": look.hatch, "edgecolor": "white"}
        axes.bar(index, row.accuracy.mean, yerr=error, width=0.7, capsize=4, **style)
        label, top = f"{row.accuracy.mean:.1f}", row.accuracy.mean + (error or 0.0)
        axes.text(index, top + 1, label, ha="center", va="bottom", fontsize=9)
    fewest, most = (of(len(row.results) for row in rows) for of in (min, max))
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    seeds = "1 run" if most == 1 else f"mean and spread of {count} runs"
    axes.set_xticks(
        range(len(groups)),
        [fill(name, LINE) for name in groups],
        rotation=45 if _wraps(groups) else 20,  # lines of two flatter labels would overlap
        ha="right",
    )
    axes.set(ylabel="final accuracy (%)", ylim=(0, 112), title=seeds)
    axes.set_yticks(range(0, 101, 20))
    axes.title.set_fontsize(9)
    axes.grid(visible=False, axis="x")


def draw_stream_map(shown_stream: Stream, output: Path) -> None:
    """Draws the map of a stream: the samples (colour) of each class (row) in each batch (column).

    A column of a long stream holds several batches. Dotted lines mark the starts of tasks.
    """
    expect_picture_suffix(output)
    columns = min(len(shown_stream), MOST_COLUMNS)
    counts = np.zeros((shown_stream.dataset.classes, columns))
    for step in range(len(shown_stream)):
        labels = shown_stream.dataset.train_y[shown_stream.indices(step)].numpy()
        came = np.bincount(labels, minlength=shown_stream.dataset.classes)
        counts[:, step * columns // len(shown_stream)] += came
    shown = np.ma.masked_equal(counts, 0)
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        extent = (0, len(shown_stream), shown_stream.dataset.classes - 0.5, -0.5)
        picture = axes.imshow(shown, aspect="auto", extent=extent, interpolation="nearest")
        figure.colorbar(picture, ax=axes, label="samples")
        for step in range(1, len(shown_stream)):
            if shown_stream.starts_task(step):
                axes.axvline(step, color="0.5", linewidth=0.6, linestyle=":")
        known = "boundaries told" if shown_stream.boundaries else "boundaries not told"
        axes.set(xlabel="batches", ylabel="class", title=f"{shown_stream.spec['stream']}, {known}")
        save_figure(figure, output)


def save_figure(figure: Figure, output: Path) -> None:
    """Writes the figure in the format of the file's suffix. If writing fails, an existing file
    stays as it was."""
    drawn = io.BytesIO()  # matplotlib reports a full disk by other errors than `write_output`
    figure.savefig(drawn, format=output.suffix[1:].lower())
    write_output(output, drawn.getbuffer())


def expect_picture_suffix(output: Path) -> None:
    expect_suffix(output, "a picture", ".png", ".svg", ".pdf")
