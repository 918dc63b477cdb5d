"""Puts rows side by side that differ in one key only, as the paper shows sizes of the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onepass.base.text import printable
from onepass.report.rows import ROW_KEYS, Row
from onepass.report.table import Table
from onepass.runs.spec import Job
from onepass.runs.variant import Variant

PIVOTS = ("memory", "dataset", "stream")
# The group of methods without a memory. Their only row is repeated below every size.
NO_MEMORY = "M=0"
SPREAD = "± is the standard deviation over n seeds."


def pivot_rows(
    rows: Sequence[Row],
    lines: Sequence[Mapping[str, str]],
    over: str,
    *,
    common: Variant,
    columns: Sequence[str],
    missing: str,
    notes: Sequence[tuple[str, str]],
) -> Table:
    """Returns a table in which all rows that differ only in `over` are one row. `over` is memory,
    dataset or stream, and `lines` holds the cells of each row by column.

    Each value of `over` heads a group with the measured columns, or with those of `columns`.
    `missing` fills the cells without a run. The choices in `common`, which all rows share, are left
    out of the variants.
    """
    split = [
        _group_and_keys(row, line, over, common) for row, line in zip(rows, lines, strict=True)
    ]
    by_key: dict[tuple[str, ...], dict[str, Mapping[str, str]]] = {}
    for line, (group, keys) in zip(lines, split, strict=True):
        by_key.setdefault(tuple(keys.values()), {})[group] = line
    groups = _groups(rows, [group for group, _ in split], over)
    names = [name for name in columns or _measured(lines[0]) if name not in ROW_KEYS]
    body = [
        [
            *key,
            *(cells.get(name, missing) for cells in _in_groups(inside, groups) for name in names),
        ]
        for key, inside in by_key.items()
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


def _in_groups(
    inside: Mapping[str, Mapping[str, str]], groups: Sequence[str]
) -> list[Mapping[str, str]]:
    """Returns the cells of one row for each group; an empty dictionary if a group has no run."""
    return [inside.get(group) or inside.get(NO_MEMORY) or {} for group in groups]


def _groups(rows: Sequence[Row], names: Sequence[str], over: str) -> list[str]:
    """Returns the headings of the groups: sizes of the memory in ascending order, others as they
    first appear. Size 0 is one of them only if no row has a memory."""
    if over != "memory":
        return list(dict.fromkeys(names))
    sizes = sorted({row.memory for row in rows})
    return [f"M={size}" for size in sizes if size or len(sizes) == 1]


def _measured(line: Mapping[str, str]) -> list[str]:
    """Returns the usual columns of a group: accuracy, n, and those of comparisons and of published
    figures, which come after `device`."""
    *_, own = [number for number, name in enumerate(line) if name == "device"]
    return [n for n in ("accuracy", "accuracy sd", "n") if n in line] + list(line)[own + 1 :]


def _group_and_keys(
    row: Row, line: Mapping[str, str], over: str, common: Variant
) -> tuple[str, dict[str, str]]:
    """Returns the row's group of columns and its remaining keys."""
    keys = {name: line[name] for name in ROW_KEYS}
    if over == "memory":
        return f"M={keys.pop('memory')}", keys
    if over == "dataset":
        return keys.pop("dataset"), keys
    keys["variant"] = printable(str(row.variant.without("stream").beyond(common)))
    return printable(row.variant.get("stream", Job.stream)), keys
