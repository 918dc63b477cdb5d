"""Rows that differ in one thing only, side by side: as the paper has its sizes of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onepass.base.text import printable
from onepass.report.rows import ROW_KEYS, Row
from onepass.report.table import Table
from onepass.runs.spec import Job

PIVOTS = ("memory", "dataset", "stream")
NONE = "M=0"  # a method that keeps nothing is the same run for every memory
SPREAD = "± is the standard deviation over n seeds."


def pivot_rows(
    rows: Sequence[Row],
    lines: Sequence[Mapping[str, str]],
    over: str,
    *,
    columns: Sequence[str],
    missing: str,
    notes: Sequence[tuple[str, str]],
) -> Table:
    """One row for all that differ in nothing but their memory (dataset, stream). `columns` chooses
    among the measured ones, of which each group has its own; `missing` stands where there is no
    run."""
    split = [_split(row, line, over) for row, line in zip(rows, lines, strict=True)]
    found: dict[tuple[str, ...], dict[str, Mapping[str, str]]] = {}
    for line, (group, keys) in zip(lines, split, strict=True):
        found.setdefault(tuple(keys.values()), {})[group] = line
    groups = _groups(rows, [group for group, _ in split], over)
    names = [name for name in columns or _measured(lines[0]) if name not in ROW_KEYS]
    body = [
        [
            *key,
            *(cells.get(name, missing) for cells in _side_by_side(one, groups) for name in names),
        ]
        for key, one in found.items()
    ]
    own = list(split[0][1])
    header = [*own, *names * len(groups)]
    above = [""] * len(own) + [group for group in groups for _ in names]
    kept = [n for n, name in enumerate(header) if name != "variant" or any(row[n] for row in body)]
    spread = [("", SPREAD)] if any("±" in cell for row in body for cell in row) else []
    return Table(
        [header[n] for n in kept],
        [[row[n] for n in kept] for row in body],
        groups=[above[n] for n in kept],
        notes=[*spread, *notes],
    )


def _side_by_side(
    found: Mapping[str, Mapping[str, str]], groups: Sequence[str]
) -> list[Mapping[str, str]]:
    return [found.get(group) or found.get(NONE) or {} for group in groups]


def _groups(rows: Sequence[Row], found: Sequence[str], over: str) -> list[str]:
    """Memories by size, whatever else as it comes."""
    if over != "memory":
        return list(dict.fromkeys(found))
    sizes = sorted({row.memory for row in rows})
    return [f"M={size}" for size in sizes if size or len(sizes) == 1]


def _measured(line: Mapping[str, str]) -> list[str]:
    """What is shown of each group if nobody chooses: accuracy, n, and what was put beside them."""
    *_, own = [number for number, name in enumerate(line) if name == "device"]
    return [n for n in ("accuracy", "accuracy sd", "n") if n in line] + list(line)[own + 1 :]


def _split(row: Row, line: Mapping[str, str], over: str) -> tuple[str, dict[str, str]]:
    """Returns the row's column group and its remaining keys."""
    keys = {name: line[name] for name in ROW_KEYS}
    if over == "memory":
        return f"M={keys.pop('memory')}", keys
    if over == "dataset":
        return keys.pop("dataset"), keys
    keys["variant"] = printable(str(row.variant.without("stream")))
    return printable(row.variant.get("stream", Job.stream)), keys
