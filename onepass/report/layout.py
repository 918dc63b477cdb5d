"""Rows as the cells of a table: which columns there are, what stands out, what stands beside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.text import format_rate, printable
from onepass.learning import registry
from onepass.report.pivot import pivot_rows
from onepass.report.rows import ROW_KEYS, Row, Spread
from onepass.report.significance import COLUMNS as COMPARING
from onepass.report.significance import compare_paired, explain_columns
from onepass.report.table import Cell, Table
from onepass.runs.spec import COMMON

COLUMNS = (
    *("method", "variant", "dataset", "memory", "accuracy", "forgetting", "any-time", "n"),
    *("seconds", "steps/s", "passes/sample", "kept", "device"),
)
HIDDEN = ("seconds", "device")  # of which these are shown only if they are asked for
STEP_COSTS = ("seconds", "passes/sample")  # what a run spends beside its steps is not in these
RANKED = ("accuracy", "any-time")  # not forgetting: who learns nothing has nothing to forget
log = logging.getLogger("onepass")
PublishedLookup = Callable[
    [Row], tuple[str, str]
]  # what others found for a row, and why to doubt it


def make_table(
    rows: Sequence[Row],
    *,
    against: Sequence[str] = (),
    numeric: bool = False,
    per_run: bool = False,
    columns: Sequence[str] = (),
    pivot: str | None = None,
    published: PublishedLookup | None = None,
) -> Table:
    """Returns rows as cells: of these columns, or of the usual ones, with a column of variants only
    if there are any. `published` gives figures to stand beside ours; `beside` is a method (or one
    variant: `gsa tuned`) to compare with. `apart` puts means and deviations in columns of their
    own, for programs to read; `per_run`: each row is of one run. `pivot` puts what differs in that
    side by side."""
    lines = [_cells(row, numeric) for row in rows]
    if per_run:
        lines = [_single_run_cells(row, line) for row, line in zip(rows, lines, strict=True)]
    elif not numeric:
        _mark_best_per_column(rows, lines)
    notes = []
    if published:
        doubts = _add_published(rows, lines, published, numeric)
        notes += doubts if "published" in (columns or ["published"]) else []
    notes += _add_comparison(rows, lines, against, columns, numeric)
    expect_columns(columns, lines[0])
    if pivot:
        missing = "" if numeric else "-"
        made = pivot_rows(rows, lines, pivot, columns=columns, missing=missing, notes=notes)
    else:
        made = _stack(rows, lines, columns, notes, numeric)
    return replace(made, notes=[*made.notes, *_notes_on_scoring_cost(rows, made.header)])


def _stack(
    rows: Sequence[Row],
    lines: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    notes: Sequence[tuple[str, str]],
    numeric: bool,
) -> Table:
    hidden = [] if any(row.variant for row in rows) else ["variant"]
    hidden += [] if numeric else HIDDEN
    header = list(columns) or [name for name in lines[0] if name not in hidden]
    if said := _note_on_lookalikes(lines, header):
        if numeric:  # where there is no room for notes
            log.warning(said)
        notes = [*notes, ("", said)]
    return Table(header, [[line[name] for name in header] for line in lines], notes=notes)


def _notes_on_scoring_cost(rows: Sequence[Row], shown: Sequence[str]) -> list[tuple[str, str]]:
    """Says what the cost of a method leaves out that trains for its scores."""
    if not any(name in shown for name in STEP_COSTS):
        return []
    training: dict[str, list[Row]] = {}
    for row in rows:
        if row.trained_at_scores:
            training.setdefault(printable(row.method), []).append(row)
    return [
        (
            "",
            f"{method} also trains when it is scored, which is not counted here: in a run "
            f"{_range(row.trained_at_scores for row in found)} images, "
            f"{_range(round(_scoring_seconds(row), 1) for row in found)} s with the scores.",
        )
        for method, found in training.items()
    ]


def _scoring_seconds(row: Row) -> float:
    return mean(result.scoring_seconds for result in row.results)


def _range(values: Iterable[float]) -> str:
    """>>> _range([258048, 28672]), _range([4.5, 4.5])
    ('28 672 to 258 048', '4.5')
    """
    found = list(values)
    ends = sorted({min(found), max(found)})
    return " to ".join(f"{one:,}".replace(",", " ") for one in ends)


def _note_on_lookalikes(lines: Sequence[Mapping[str, str]], shown: Sequence[str]) -> str:
    """Rows that are told apart by what is not shown look as if one thing had two results."""
    keys = [name for name in (*ROW_KEYS, "seed") if name in lines[0]]
    seen: dict[tuple[str, ...], Mapping[str, str]] = {}
    differing: dict[str, None] = {}
    for line in lines:
        other = seen.setdefault(tuple(line[key] for key in keys if key in shown), line)
        differing |= {key: None for key in keys if line[key] != other[key]}
    if not differing or not any(name in shown for name in keys):
        return ""
    return f"Rows that look alike differ in {', '.join(differing)}: add that to --columns."


def _single_run_cells(row: Row, line: dict[str, str]) -> dict[str, str]:
    """With the seed in the place of n, no deviations, and where the run is."""
    (seed,) = row.accuracies
    kept = {name: cell for name, cell in line.items() if not name.endswith(" sd")}
    renamed = {("seed" if name == "n" else name): cell for name, cell in kept.items()}
    return {**renamed, "seed": str(seed), "where": printable(row.first.out)}


def _mark_best_per_column(rows: Sequence[Row], lines: Sequence[dict[str, str]]) -> None:
    """The best and the second of each column, among rows of one stream and memory; references that
    are not online are no rivals."""
    rivals: dict[tuple[str, int], list[int]] = {}
    for number, row in enumerate(rows):
        method = registry.facts(row.method)
        if not (method and method.one_task):
            rivals.setdefault((row.stream, row.memory), []).append(number)
    for group in rivals.values():
        for name in RANKED:
            cells = mark_best([lines[number][name] for number in group])
            for number, cell in zip(group, cells, strict=True):
                lines[number][name] = cell


def mark_best(cells: Sequence[str]) -> list[str]:
    """The same cells, of which the highest is known as such, and the second if there is a third;
    by the means as they are shown, so that what looks the same ranks the same.

    >>> [getattr(cell, "rank", 0) for cell in mark_best(["3.1", "-", "9.0 ± 1.0", "3.1"])]
    [2, 0, 1, 2]
    """
    values = [None if cell == "-" else float(cell.split()[0]) for cell in cells]
    known = sorted({one for one in values if one is not None}, reverse=True)
    if len(known) < 2:
        return list(cells)
    first = {value: rank for rank, value in enumerate(known[:2], start=1)}
    many = sum(one is not None for one in values) > 2
    ranks = [0 if value is None else first.get(value, 0) for value in values]
    return [
        Cell(cell, rank=rank) if rank == 1 or (rank and many) else cell
        for cell, rank in zip(cells, ranks, strict=True)
    ]


# ---- beside other figures


def _add_comparison(
    rows: Sequence[Row],
    lines: Sequence[dict[str, str]],
    against: Sequence[str],
    columns: Sequence[str],
    numeric: bool,
) -> list[tuple[str, str]]:
    """Adds columns, and returns notes on those that are shown: all, if none is chosen."""
    if len(set(against)) > 1:
        raise InputError(f"a table is tested against one method, not {len(set(against))}")
    notes: list[tuple[str, str]] = []
    for name in against[:1]:
        left_out = _add_comparison_columns(rows, lines, name, numeric)
        said = explain_columns(columns or COMPARING)
        notes += [("", f"Compared with {name}. {said}"), *left_out] if said else []
    return notes


def _add_published(
    rows: Sequence[Row], lines: Sequence[dict[str, str]], published: PublishedLookup, numeric: bool
) -> list[tuple[str, str]]:
    """Adds a column, and returns notes on what is doubtful in it."""
    letters = NoteLetters()
    for row, line in zip(rows, lines, strict=True):
        figures, doubts = published(row)
        note = letters[doubts] if doubts and not numeric else ""
        line["published"] = Cell(figures or "-", note=note)
        if numeric:
            line["doubt"] = doubts
    return letters.notes


class NoteLetters(dict[str, str]):
    """A letter for each text, in the order in which they are first asked for.

    >>> letters = NoteLetters()
    >>> letters["one"], letters["other"], letters["one"]
    ('a', 'b', 'a')
    """

    def __missing__(self, text: str) -> str:
        self[text] = chr(ord("a") + len(self))
        return self[text]

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(letter, f"doubtful: {text}.") for text, letter in self.items()]


def _add_comparison_columns(
    rows: Sequence[Row], lines: Sequence[dict[str, str]], name: str, numeric: bool
) -> list[tuple[str, str]]:
    """Adds the columns of paired tests against the rows of a method, or against one variant of it
    (`gsa common` is the one that has nothing otherwise than by default), and says which rows they
    leave out."""
    method, _, variant = name.partition(" ")
    theirs = [
        row for row in rows if row.method == method and variant in ("", str(row.variant) or COMMON)
    ]
    if not theirs:
        valid = {"published"} | {f"{row.method} {row.variant}".rstrip() for row in rows}
        raise UnknownNameError("row to compare with", name, valid)
    several = False
    for row, line in zip(rows, lines, strict=True):
        found = _rows_to_compare_with(row, theirs)
        several = several or len(found) > 1
        other = found[0] if len(found) == 1 else None
        line.update(_comparison_cells(row, None if other is row else other, numeric))
    notes = _notes_on_own_variants(theirs)
    if several:
        told = (
            f"{method} has several variants here: where none is that of the row itself, there is "
            "no comparison, and none of a row without memory with several sizes of memory. "
        )
        notes.append(("", f"{told}--against '{method} VARIANT' names a variant."))
    return notes


def _notes_on_own_variants(theirs: Sequence[Row]) -> list[tuple[str, str]]:
    """Says that variants of the method that others are compared with have no comparison."""
    variants = {
        str(row.variant)
        for row in theirs
        for one in _rows_of_same_stream(row, theirs)
        if one.variant != row.variant
    }
    if not variants:
        return []
    names = [printable(f"{theirs[0].method} {variant or COMMON}") for variant in sorted(variants)]
    told = f"Not compared with each other: {', '.join(names)}."
    return [("", f"{told} --against '{names[0]}' compares all with that one.")]


def _rows_to_compare_with(row: Row, theirs: Sequence[Row]) -> list[Row]:
    """Those of the same stream; of several, those of the same variant."""
    found = _rows_of_same_stream(row, theirs)
    return [one for one in found if one.variant == row.variant] or found


def _rows_of_same_stream(row: Row, theirs: Sequence[Row]) -> list[Row]:
    """Those that learned it with the same memory, or with none."""
    return [
        one
        for one in theirs
        if one.stream == row.stream and (one.memory == row.memory or 0 in (one.memory, row.memory))
    ]


def _comparison_cells(row: Row, other: Row | None, numeric: bool) -> dict[str, str]:
    found = compare_paired(row.accuracies, other.accuracies if other else {})
    spread = Spread.over(found.differences)
    pairs = str(len(found.differences) or "")
    tests = {"p (t-test)": found.t_test, "p (Wilcoxon)": found.wilcoxon}
    if numeric:
        p_values = {name: "" if p is None else f"{p:.4g}" for name, p in tests.items()}
        return {**_numeric_cells({"difference": spread}), "pairs": pairs, **p_values}
    shown = f"{'+' if spread.mean >= 0 else ''}{spread}" if spread else "-"
    return {
        "difference": shown,
        "pairs": pairs or "-",
        **{name: format_p_value(p) for name, p in tests.items()},
    }


def format_p_value(p: float | None) -> str:
    """>>> probability(None), probability(0.0123), probability(1e-6)
    ('-', '0.012', '<0.001')
    """
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def expect_columns(names: Iterable[str], valid: Iterable[str]) -> None:
    known = list(valid)
    for name in names:
        if name not in known:
            raise UnknownNameError("column", name, known)


def _cells(row: Row, numeric: bool) -> dict[str, str]:
    measured = {
        "accuracy": row.accuracy,
        "forgetting": row.over("forgetting"),
        "any-time": row.over("anytime_accuracy"),
    }
    shown = {name: _with_count(spread, len(row.results)) for name, spread in measured.items()}
    seconds = row.over("seconds")
    return {
        "method": printable(row.method),
        "variant": printable(str(row.variant)),
        "dataset": printable(row.dataset),
        "memory": str(row.memory),
        **(_numeric_cells(measured) if numeric else shown),
        "n": str(len(row.results)),
        **(_numeric_cells({"seconds": seconds}) if numeric else {"seconds": str(seconds or "-")}),
        **(_numeric_costs(row) if numeric else _costs(row)),
        "device": printable(row.device),
    }


def _with_count(spread: Spread | None, runs: int) -> str:
    """With how many of the runs have it, if it is not all.

    >>> _with_count(Spread(5.0, None, 1), 3), _with_count(None, 3)
    ('5.0 (1 of 3)', '-')
    """
    if spread is None:
        return "-"
    return str(spread) if spread.n == runs else f"{spread} ({spread.n} of {runs})"


def _costs(row: Row) -> dict[str, str]:
    speed, trained, scored = _speed(row), row.first.trained_per_sample, row.first.scored_per_sample
    passes = [f"{trained:.1f}"] if trained is not None else ["-"]
    passes += [f"{scored:.1f}"] if scored else []
    return {
        "steps/s": "-" if speed is None else format_rate(speed),
        "passes/sample": " + ".join(passes),
        "kept": _size(row.kept or 0),
    }


def _numeric_costs(row: Row) -> dict[str, str]:
    speed, trained, scored = _speed(row), row.first.trained_per_sample, row.first.scored_per_sample
    return {
        "steps/s": "" if speed is None else f"{speed:.4f}",
        "trained/sample": "" if trained is None else f"{trained:.1f}",
        "scored/sample": "" if scored is None else f"{scored:.1f}",
        "kept bytes": "" if row.kept is None else str(row.kept),
    }


def _speed(row: Row) -> float | None:
    spread = row.over("steps_per_second")
    return spread.mean if spread else None


def _size(count: int) -> str:
    """Bytes, for people.

    >>> _size(0), _size(7200), _size(3_080_000)
    ('-', '7.2 kB', '3.1 MB')
    """
    if not count:
        return "-"
    unit, name = (1e6, "MB") if count >= 1e6 else (1e3, "kB")
    return f"{count / unit:.1f} {name}"


def _numeric_cells(measured: dict[str, Spread | None]) -> dict[str, str]:
    numbers: dict[str, float | None] = {}
    for name, spread in measured.items():
        numbers[name] = spread.mean if spread else None
        numbers[f"{name} sd"] = spread.deviation if spread else None
    return {name: "" if value is None else f"{value:.4f}" for name, value in numbers.items()}
