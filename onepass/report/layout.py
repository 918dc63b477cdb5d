"""Makes a table of rows: chooses its columns, marks the best values, and adds paired tests,
published figures and notes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.text import format_bytes, format_rate, printable
from onepass.learning import registry
from onepass.learning.registry import COMMON
from onepass.report.pivot import pivot_rows
from onepass.report.rows import ROW_KEYS, Row, Spread
from onepass.report.significance import COLUMNS as TEST_COLUMNS
from onepass.report.significance import compare_paired, explain_columns
from onepass.report.table import Cell, Table
from onepass.runs.variant import PRESET, Variant, shared

COLUMNS = (
    *("method", "variant", "dataset", "memory"),
    *("accuracy", "forgetting", "learning", "newest", "any-time", "n"),
    *("seconds", "steps/s", "passes/sample", "kept", "device"),
)
HIDDEN = ("seconds", "device")  # displayed only if the user names them, or to programs
STEP_COSTS = ("seconds", "passes/sample")  # these leave out what a run spends between its steps
# The columns whose best values are marked. Forgetting is none of them: a method that learns
# nothing forgets nothing.
RANKED = ("accuracy", "any-time")
log = logging.getLogger("onepass")
# Returns the published figures for a row, and the reason to doubt them. Both may be empty.
PublishedLookup = Callable[[Row], tuple[str, str]]


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
    """Returns the rows as a table.

    Choices that all rows share stand above the table, not in each row. Raises an
    UnknownNameError for a column or a method of `against` that the rows do not have.

    Parameters
    ----------
    against:
        At most one method, or variant of a method (`gsa tuned`), to test every row against.
    numeric:
        For programs: more digits, deviations in columns of their own, all columns, no marks, and
        nothing moved above the table.
    per_run:
        Each row is one run: its seed and its folder stand in place of n and the deviations.
    columns:
        The columns to display. Empty: the usual ones, with the variant only if a row has one.
    pivot:
        The key (memory, dataset or stream) whose values stand side by side.
    published:
        A function that returns the published figures of a row, for a column beside ours.
    """
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
    common = Variant() if numeric else shared([row.variant for row in rows])
    if pivot:
        common = common.without(pivot)  # its values head the groups of columns
    for row, line in zip(rows, lines, strict=True):
        line["variant"] = printable(str(row.variant.beyond(common)))
    if pivot:
        missing = "" if numeric else "-"
        table = pivot_rows(
            rows, lines, pivot, common=common, columns=columns, missing=missing, notes=notes
        )
    else:
        table = _stack(lines, columns, notes, numeric)
    has_variants = pivot or not columns or "variant" in columns
    above = f"All rows: {printable(str(common))}" if common and has_variants else ""
    cost = _notes_on_scoring_cost(rows, table.header)
    return replace(table, above=above, notes=[*table.notes, *cost])


def preset_line(rows: Sequence[Row]) -> str:
    """Returns a line for above a table, which names the preset of rows whose variant names none;
    "" if there are none."""
    bare = any(PRESET not in row.variant for row in rows)
    return f"Preset: {COMMON}, where a row names no other" if bare else ""


def _stack(
    lines: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    notes: Sequence[tuple[str, str]],
    numeric: bool,
) -> Table:
    """Returns a table with one row for each of `lines`, which hold the cells by column."""
    hidden = [] if any(line["variant"] for line in lines) else ["variant"]
    hidden += [] if numeric else HIDDEN
    header = list(columns) or [name for name in lines[0] if name not in hidden]
    if note := _note_on_lookalikes(lines, header):
        if numeric:  # CSV has no room for notes
            log.warning(note)
        notes = [*notes, ("", note)]
    return Table(header, [[line[name] for name in header] for line in lines], notes=notes)


def _notes_on_scoring_cost(rows: Sequence[Row], header: Sequence[str]) -> list[tuple[str, str]]:
    """Returns a note for each method that trains when it is scored. Returns none if the table shows
    no column of `STEP_COSTS`."""
    if not any(name in header for name in STEP_COSTS):
        return []
    training: dict[str, list[Row]] = {}
    for row in rows:
        if row.trained_at_scores:
            training.setdefault(printable(row.method), []).append(row)
    return [
        (
            "",
            f"{method} also trains each time it is scored. The columns above leave that out. In a "
            f"run it is {_range(row.trained_at_scores for row in of_method)} images, and "
            f"{_range(round(_scoring_seconds(row), 1) for row in of_method)} s with the scoring.",
        )
        for method, of_method in training.items()
    ]


def _scoring_seconds(row: Row) -> float:
    return mean(result.scoring_seconds for result in row.results)


def _range(values: Iterable[float]) -> str:
    """Returns the lowest and the highest value as text, or the only one.

    >>> _range([258048, 28672]), _range([4.5, 4.5])
    ('28 672 to 258 048', '4.5')
    """
    known = list(values)
    ends = sorted({min(known), max(known)})
    return " to ".join(f"{end:,}".replace(",", " ") for end in ends)


def _note_on_lookalikes(lines: Sequence[Mapping[str, str]], header: Sequence[str]) -> str:
    """Returns a note if rows differ only in key columns that are not displayed, else "".

    Without the note, one configuration would seem to have two results.
    """
    keys = [name for name in (*ROW_KEYS, "seed") if name in lines[0]]
    first: dict[tuple[str, ...], Mapping[str, str]] = {}
    differing: dict[str, None] = {}
    for line in lines:
        other = first.setdefault(tuple(line[key] for key in keys if key in header), line)
        differing |= {key: None for key in keys if line[key] != other[key]}
    if not differing or not any(name in header for name in keys):
        return ""
    return f"Rows that look alike differ in {', '.join(differing)}: add that to --columns."


def _single_run_cells(row: Row, line: dict[str, str]) -> dict[str, str]:
    """Returns the cells of a row that is one run: the seed in place of n, no deviations, and the
    run's folder or line in the column `where`."""
    (seed,) = row.accuracies
    kept = {name: cell for name, cell in line.items() if not name.endswith(" sd")}
    renamed = {("seed" if name == "n" else name): cell for name, cell in kept.items()}
    return {**renamed, "seed": str(seed), "where": printable(row.first.out)}


def _mark_best_per_column(rows: Sequence[Row], lines: Sequence[dict[str, str]]) -> None:
    """Marks the best and the second-best cell of each ranked column.

    Rows compete if they share stream and memory. Methods that see all classes at once (joint
    training) do not compete.
    """
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
    """Returns the cells, the highest with rank 1 and, among three or more, the second with rank 2.

    Equal values share a rank. If all values are equal, none is ranked. Ranks compare the rounded
    means, so that cells that look equal rank equal.

    >>> [getattr(cell, "rank", 0) for cell in mark_best(["3.1", "-", "9.0 ± 1.0", "3.1"])]
    [2, 0, 1, 2]
    """
    values = [None if cell == "-" else float(cell.split()[0]) for cell in cells]
    known = sorted({value for value in values if value is not None}, reverse=True)
    if len(known) < 2:
        return list(cells)
    first = {value: rank for rank, value in enumerate(known[:2], start=1)}
    many = sum(value is not None for value in values) > 2
    ranks = [0 if value is None else first.get(value, 0) for value in values]
    return [
        Cell(cell, rank=rank) if rank == 1 or (rank and many) else cell
        for cell, rank in zip(cells, ranks, strict=True)
    ]


# ---- comparisons


def _add_comparison(
    rows: Sequence[Row],
    lines: Sequence[dict[str, str]],
    against: Sequence[str],
    columns: Sequence[str],
    numeric: bool,
) -> list[tuple[str, str]]:
    """Adds the columns of the paired tests against the name in `against`. Returns notes on those of
    them that are displayed. Without a name it adds and returns nothing."""
    if len(set(against)) > 1:
        raise InputError(f"a table is tested against one method, not {len(set(against))}: name one")
    notes: list[tuple[str, str]] = []
    for name in against[:1]:
        left_out = _add_comparison_columns(rows, lines, name, numeric)
        explanation = explain_columns(columns or TEST_COLUMNS)
        if explanation:
            notes += [("", f"Compared with {name}. {explanation}"), *left_out]
    return notes


def _add_published(
    rows: Sequence[Row], lines: Sequence[dict[str, str]], published: PublishedLookup, numeric: bool
) -> list[tuple[str, str]]:
    """Adds the column of published figures, and returns a note for each reason to doubt some. For
    programs the reasons are in a column `doubt` instead."""
    letters = NoteLetters()
    for row, line in zip(rows, lines, strict=True):
        figures, doubts = published(row)
        note = letters[doubts] if doubts and not numeric else ""
        line["published"] = Cell(figures or "-", note=note)
        if numeric:
            line["doubt"] = doubts
    return letters.notes


class NoteLetters(dict[str, str]):
    """Letters of notes, by text. A text gets the next letter when it is first looked up.

    >>> letters = NoteLetters()
    >>> letters["one"], letters["other"], letters["one"]
    ('a', 'b', 'a')
    """

    def __missing__(self, text: str) -> str:
        self[text] = chr(ord("a") + len(self))
        return self[text]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """The letter and the text of each note; every text is a reason to doubt a value."""
        return [(letter, f"doubtful: {text}.") for text, letter in self.items()]


def _add_comparison_columns(
    rows: Sequence[Row], lines: Sequence[dict[str, str]], name: str, numeric: bool
) -> list[tuple[str, str]]:
    """Adds the columns of paired tests against a method or one variant of it, and returns notes on
    the rows without a test.

    `gsa` names all variants of gsa, `gsa common` the one with all defaults. Raises an
    UnknownNameError if no row fits the name.
    """
    method, _, variant = name.partition(" ")
    references = [
        row for row in rows if row.method == method and variant in ("", str(row.variant) or COMMON)
    ]
    if not references:
        valid = {"published"} | {f"{row.method} {row.variant}".rstrip() for row in rows}
        raise UnknownNameError("row to compare with", name, valid)
    several = False
    for row, line in zip(rows, lines, strict=True):
        partners = _rows_to_compare_with(row, references)
        several = several or len(partners) > 1
        other = partners[0] if len(partners) == 1 else None
        line.update(_comparison_cells(row, None if other is row else other, numeric))
    notes = _notes_on_own_variants(references)
    if several:
        note = (
            f"A row is not compared if several variants of {method} fit it and none is its own, or "
            f"if it has no memory and {method} has several sizes. "
            f"--against '{method} VARIANT' names a variant."
        )
        notes.append(("", note))
    return notes


def _notes_on_own_variants(references: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns a note if the reference method has several variants. Each variant is the reference of
    its own rows, so the variants are not compared with each other."""
    variants = {
        str(row.variant)
        for row in references
        for other in _rows_of_same_stream(row, references)
        if other.variant != row.variant
    }
    if not variants:
        return []
    names = [
        printable(f"{references[0].method} {variant or COMMON}") for variant in sorted(variants)
    ]
    note = f"Not compared with each other: {', '.join(names)}."
    return [("", f"{note} --against '{names[0]}' compares all with that one.")]


def _rows_to_compare_with(row: Row, references: Sequence[Row]) -> list[Row]:
    """Returns the reference rows of the same stream and variant; without any, all those of the same
    stream."""
    same_stream = _rows_of_same_stream(row, references)
    return [other for other in same_stream if other.variant == row.variant] or same_stream


def _rows_of_same_stream(row: Row, references: Sequence[Row]) -> list[Row]:
    """Returns the reference rows of the same stream and memory. A row without memory fits any."""
    return [
        other
        for other in references
        if other.stream == row.stream
        and (other.memory == row.memory or 0 in (other.memory, row.memory))
    ]


def _comparison_cells(row: Row, other: Row | None, numeric: bool) -> dict[str, str]:
    """Returns the cells of the paired tests of a row against another; empty ones without it."""
    comparison = compare_paired(row.accuracies, other.accuracies if other else {})
    spread = Spread.over(comparison.differences)
    pairs = str(len(comparison.differences) or "")
    tests = {"p (t-test)": comparison.t_test, "p (Wilcoxon)": comparison.wilcoxon}
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
    """Returns a p-value with three decimals, or "-" if there is none.

    >>> format_p_value(None), format_p_value(0.0123), format_p_value(1e-6)
    ('-', '0.012', '<0.001')
    """
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def expect_columns(names: Iterable[str], valid: Iterable[str]) -> None:
    """Raises an UnknownNameError for the first name that is not valid."""
    known = list(valid)
    for name in names:
        if name not in known:
            raise UnknownNameError("column", name, known)


def _cells(row: Row, numeric: bool) -> dict[str, str]:
    """Returns the cells of a row by column, those of comparisons excepted."""
    measured = {
        "accuracy": row.accuracy,
        "forgetting": row.over("forgetting"),
        "learning": row.over("learning_accuracy"),
        "newest": row.over("newest_accuracy"),
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
    """Returns the spread of a value as text. If some of the `runs` lack the value, the number of
    those that have it follows.

    >>> _with_count(Spread(5.0, None, 1), 3), _with_count(None, 3)
    ('5.0 (1 of 3)', '-')
    """
    if spread is None:
        return "-"
    return str(spread) if spread.n == runs else f"{spread} ({spread.n} of {runs})"


def _costs(row: Row) -> dict[str, str]:
    speed, trained, scored = _speed(row), row.first.trained_per_sample, row.first.scored_per_sample
    # trained + scored: a trained image costs more, so the two are not added up
    passes = [f"{trained:.1f}"] if trained is not None else ["-"]
    passes += [f"{scored:.1f}"] if scored else []
    return {
        "steps/s": "-" if speed is None else format_rate(speed),
        "passes/sample": " + ".join(passes),
        "kept": format_bytes(row.kept or 0),
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


def _numeric_cells(measured: dict[str, Spread | None]) -> dict[str, str]:
    numbers: dict[str, float | None] = {}
    for name, spread in measured.items():
        numbers[name] = spread.mean if spread else None
        numbers[f"{name} sd"] = spread.deviation if spread else None
    return {name: "" if value is None else f"{value:.4f}" for name, value in numbers.items()}
