"""Reads a `.csv` or `.parquet` file of the user's own: columns of numbers and one of labels."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from onepass.base import inputs
from onepass.base.errors import DataError, InputError, OnepassError
from onepass.base.parts import Label
from onepass.base.text import describe_encoding, error_in_one_line, printable, shortened
from onepass.data.base import Dataset, statistics
from onepass.data.files import Array, decode_class_name, regular_file_size
from onepass.data.labels import class_numbers, sorted_classes
from onepass.data.npz import held_out_mask


class LabelledRows(NamedTuple):
    """Features (n, d), and a label for each row, text or a whole number."""

    x: Array
    labels: list[Label]


def read_table(
    path: Path,
    label: str | None = None,
    *,
    test: Path | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Returns the dataset in a table. `label` names the column of labels; all others are features,
    to be normalised by the mean and standard deviation of the training rows.

    The test rows come from another file, or are a fraction of each class of this one.
    """
    if not path.exists():
        raise DataError(f"there is no {path}")
    if (test is None) == (test_fraction is None):
        raise InputError(
            f"{path} needs test rows: give either another file (--test FILE) or a fraction of this "
            "one (--test-fraction 0.2)"
        )
    if test is not None and not test.exists():
        raise DataError(f"there is no {test}")
    features, train = _read_rows(path, label)
    tables = [train, train if test is None else _read_rows(test, label, features)[1]]
    tables = _with_labels_of_one_kind(tables)
    names = sorted_classes(tables[0].labels)
    if strange := set(tables[1].labels).difference(names):
        raise DataError(f"{test} has the label {sorted_classes(strange)[0]!r}, which {path} lacks")
    # [training, test]; the same table twice if a fraction of it is held out
    files = [path, path if test is None else test]
    xs = [_as_samples(file, table.x) for file, table in zip(files, tables, strict=True)]
    ys = [class_numbers(table.labels, names) for table in tables]
    if test_fraction is not None:
        held = held_out_mask(ys[0], test_fraction)
        xs, ys = [xs[0][~held], xs[0][held]], [ys[0][~held], ys[0][held]]
    mean, std = statistics(xs[0])
    return Dataset(
        name=path.stem,
        train_x=xs[0],
        train_y=ys[0],
        test_x=xs[1],
        test_y=ys[1],
        class_names=tuple(decode_class_name(str(name), path) for name in names),
        mean=mean,
        std=std,
    )


def _read_rows(
    path: Path, label: str | None, features: list[str] | None = None
) -> tuple[list[str], LabelledRows]:
    """Returns the names of the features, in the order of the file or as given, and the rows. Raises
    an OnepassError for a damaged file or wrong columns."""
    regular_file_size(path)
    try:
        return _select_columns(path, _load_with_pyarrow(path, label), label, features)
    except OnepassError:
        raise
    except Exception as problem:  # a damaged or foreign file may raise anything
        if path.suffix.lower() == ".csv":
            _expect_csv_text(path)
        raise DataError(
            f"{path} is damaged, or not a {path.suffix} file: {error_in_one_line(problem)}"
        ) from None


def _expect_csv_text(path: Path) -> None:
    """Raises a DataError if the file is not UTF-8 text or ends inside quotes. Only a file with an
    odd number of quotes can: one within quotes is written as two."""
    quotes = 0
    try:
        with path.open(encoding="utf-8", newline="") as file:
            while piece := file.read(1 << 20):
                quotes += piece.count('"')
            if quotes % 2:
                file.seek(0)
                for _ in csv.reader(file, strict=True):  # a quote inside a value opens nothing
                    pass
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} {describe_encoding(problem)}") from None
    except csv.Error:
        raise DataError(
            f'{path} has a quote (") that is not closed: rows after it would be lost'
        ) from None


def _select_columns(
    path: Path, table: Any, label: str | None, features: list[str] | None
) -> tuple[list[str], LabelledRows]:
    """Returns the names of the features and the rows of a pyarrow table, as `_read_rows` does."""
    columns = list(table.column_names)
    if twice := {name for name in columns if columns.count(name) > 1}:
        raise DataError(f"{path} has two columns {min(twice)!r}")
    if label not in columns:
        advice = (
            "name the column of the label (--label)" if label is None else f"no column {label!r}"
        )
        raise InputError(f"{path}: {advice}; it has {printable(shortened(', '.join(columns)))}")
    wanted = [name for name in columns if name != label] if features is None else features
    if missing := [name for name in wanted if name not in columns]:
        raise DataError(f"{path} has no column {missing[0]!r}, which the training file has")
    if not wanted or not table.num_rows:
        raise DataError(f"{path} must have at least one row, and one feature beside the label")
    return wanted, LabelledRows(
        _feature_array(path, table.select(wanted)), _label_list(path, table.column(label))
    )


def _load_with_pyarrow(path: Path, label: str | None) -> Any:
    """Returns the table of a file. The labels of a .csv are text: pyarrow would make one number of
    `007` and `7`, and would round numbers beyond 64 bits."""
    try:
        from pyarrow import csv as tables
        from pyarrow import parquet, string
    except ImportError:
        raise DataError(f"{path} needs pyarrow: pip install pyarrow") from None
    if path.suffix.lower() != ".csv":
        return parquet.read_table(str(path))
    if label is None:
        return tables.read_csv(str(path))
    as_text = tables.ConvertOptions(column_types={label: string()})
    table = tables.read_csv(str(path), convert_options=as_text)
    _expect_csv_text(path)
    return table


def _feature_array(path: Path, table: Any) -> Array:
    from pyarrow import types

    checks = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    odd = [
        field for field in table.schema if not any(is_number(field.type) for is_number in checks)
    ]
    if odd:
        columns = ", ".join(f"{field.name!r} ({field.type})" for field in odd)
        raise DataError(
            f"{path}: features must be numbers, but these columns are not: "
            f"{printable(shortened(columns))}; remove them from the file, or make them numbers"
        )
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise DataError(
                f"{path}: column {name!r} has no value in {column.null_count} rows; "
                "fill them or remove the rows"
            )
    return np.stack([column.cast("float64").to_numpy() for column in table.columns], axis=1)


def _label_list(path: Path, column: Any) -> list[Label]:
    """Returns the labels as the file has them; raises a DataError for a missing label, a fraction,
    and whatever is neither text nor a number."""
    values = column.to_pylist()
    if empty := sum(value is None or value == "" for value in values):
        raise DataError(f"{path}: {empty} rows have no label")
    if isinstance(values[0], bool):
        return [str(value).lower() for value in values]
    numbers = _as_floats(values) if isinstance(values[0], int | float | str) else None
    if numbers is not None and not all(map(float.is_integer, numbers)):
        raise DataError(f"{path}: labels must be text or whole numbers, not fractions")
    if isinstance(values[0], str):
        return values  # type: ignore[no-any-return]
    if numbers is None:
        raise DataError(f"{path}: labels must be text or whole numbers, not {column.type}")
    return [int(value) for value in values]


def _as_floats(values: list[Any]) -> list[float] | None:
    """Returns all values as finite floats, or None if one is no number."""
    try:
        numbers = [float(value) for value in values]
    except (ValueError, OverflowError):
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _with_labels_of_one_kind(tables: list[LabelledRows]) -> list[LabelledRows]:
    """Returns the training and test rows with labels as numbers if every label is written as Python
    writes a whole number, and as text otherwise."""
    labels = [label for table in tables for label in table.labels]
    kind = int if all(map(_is_whole_number, labels)) else str
    return [table._replace(labels=[kind(label) for label in table.labels]) for table in tables]


def _is_whole_number(label: Label) -> bool:
    """Returns whether a label is a whole number, or text that Python would write for it.

    >>> [_is_whole_number(label) for label in (7, "7", "-7", "07", "1e3", "7.0", "seven")]
    [True, True, True, False, False, False, False]
    """
    return isinstance(label, int) or re.fullmatch("0|-?[1-9][0-9]{0,999}", label) is not None


def _as_samples(path: Path, x: Array) -> torch.Tensor:
    try:
        return inputs.as_samples(x)
    except InputError as problem:
        raise DataError(f"{path}: {str(problem).removeprefix('x ')}") from None
