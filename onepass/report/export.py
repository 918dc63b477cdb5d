"""Exports results to one file for other programs, with a row for each run.

Each field of a result is a column. `settings` and `stream_settings` have a column for each setting
(`settings.lr`). Lists stay lists in Parquet and become JSON in CSV. Other dictionaries become JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

from onepass.base.errors import InputError
from onepass.base.fileio import expect_suffix, write_output
from onepass.base.text import printable
from onepass.report.table import Table, comma_separated
from onepass.runs.result import Result

# Fields of a result that are numbers or None
FRACTIONS = {name for name, kind in get_type_hints(Result).items() if kind == float | None}


def export_results(results: Sequence[Result], output: Path) -> int:
    """Writes a .csv or .parquet file and returns its number of runs. Copies of a run in several
    folders or files count once. Raises an InputError for other suffixes."""
    ways = {".csv": _csv, ".parquet": _parquet}
    expect_suffix(output, "an export", *ways)
    rows = [_row(result) for result in _once(results)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    write_output(output, ways[output.suffix.lower()](columns))
    return len(rows)


def _once(results: Sequence[Result]) -> list[Result]:
    """Returns the first copy of each run."""
    runs: dict[tuple[Any, ...], Result] = {}
    for run in results:
        identity = (run.method, run.dataset_identity, run.memory, str(run.variant), run.seed)
        runs.setdefault((*identity, run.state_sha256, run.accuracy), run)
    return list(runs.values())


def _row(result: Result) -> dict[str, Any]:
    values = {**asdict(result), "variant": str(result.variant)}
    spread = {name: values[name] for name in ("settings", "stream_settings")}
    row = {name: _plain(value) for name, value in values.items() if name not in spread}
    row["other_versions"] = json.dumps(result.other_versions)
    for group, inside in spread.items():
        row |= {printable(f"{group}.{name}"): _plain(value) for name, value in inside.items()}
    return row


def _plain(value: Any) -> Any:
    """Returns a value as columns hold it: a dictionary as JSON, a text without control characters,
    a list of plain values."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def _csv(columns: dict[str, list[Any]]) -> bytes:
    body = [list(map(_cell, row)) for row in zip(*columns.values(), strict=True)]
    return comma_separated(Table(list(columns), body)).encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install pyarrow") from None

    def column(name: str, values: list[Any]) -> Any:
        """Returns a column. Its values become JSON if their types differ, as those of a setting
        that two methods have with different types."""
        # pyarrow infers other types, but a column of None alone would have the type null
        kind = pyarrow.float64() if name in FRACTIONS else None
        try:
            return pyarrow.array(values, kind)
        except (pyarrow.ArrowException, OverflowError):
            return pyarrow.array([None if value is None else json.dumps(value) for value in values])

    written = io.BytesIO()
    arrays = {name: column(name, values) for name, values in columns.items()}
    parquet.write_table(pyarrow.table(arrays), written)
    return written.getvalue()
