"""Whatever labels a file holds, each row gets the class that the file names, and no two classes
become one; or the file is refused for one of the reasons listed here."""

from __future__ import annotations

import csv
import os
import random
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow
from formats import encode
from fuzzing import fuzz, without_bars
from pyarrow import parquet

import onepass
from onepass import DataError

Label = str | int | float | bool
Rows = Sequence[Label]  # the label of each row; its feature is the number of the row

DECIMALS = (
    *("0", "7", "07", "007", "10", "010", "1000", "\u0667", "\uff17", "9" * 400),
    *map(str, (2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, *range(10**19, 10**19 + 4))),
)
LIKE_NUMBERS = (
    *("7", "7.0", "7.5", "+7", "-7", "-07", "-0", "0x7", "7e0", "1000", "1e3", "1_000", "1,000"),
    *(" 7", "7 ", "\u00b2", "7\u0332", "inf", "-inf", "nan", "1e400", "1e-400"),
    *map(str, (-(2**63), -(2**63) - 1)),
)
WORDS = (
    *("true", "false", "True", "FALSE", "yes", "NA", "N/A", "NaN", "null", "None", "NULL", "#N/A"),
    *("cat", "Cat", "CAT", "cat ", " cat", "caf\u00e9", "cafe\u0301", "\ufb01n", "fin"),
    *("stra\u00dfe", "STRASSE", "\u0130", "i", "I", "\u0131", "\u1fb3\u0301", "\u1fb4", "\u03c3"),
    *("a,b", 'a"b', '"', "'", "a;b", "=1+1", "#", "-", "_", "\\", "\u732b", "\U0001f469\u200d"),
    *("\u200b", "\u202e", "\ufeffx", "a\tb", "a\nb", "a\r\nb", "2026-01-02", "12:30"),
    *("%s", "{0}", "[b]", "\x1b[2J", "x" * 200, "\u212b", "\xc5", "A\u030a", "\xa0", "\u2028"),
)
WHOLE = (0, 1, 7, 10, -7, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
LARGE = (0, 7, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1)  # unsigned


def texts(chance: random.Random) -> list[Label]:
    """Returns different labels as text, of one pool or of all."""
    letters = "".join(chr(chance.randrange(0x20, 0x3000)) for _ in range(chance.randint(1, 4)))
    pool = chance.choice([DECIMALS, LIKE_NUMBERS, WORDS, DECIMALS + LIKE_NUMBERS + WORDS])
    return chance.sample(list(dict.fromkeys([*pool, letters])), k=chance.randint(2, 6))


def numbers(chance: random.Random) -> list[Label]:
    pool = chance.choice([WHOLE, LARGE, (False, True), (0.0, 7.0, 1e3, 1e300, -7.0)])
    return chance.sample(pool, k=min(len(pool), chance.randint(2, 6)))


def name(label: Label) -> str:
    """Returns how a class is called: text as it is written, and numbers as Python writes them."""
    if isinstance(label, bool):
        return str(label).lower()
    return label if isinstance(label, str) else str(int(label))


def rows_of(chance: random.Random, labels: Sequence[Label], least: int) -> list[Label]:
    rows = [label for label in labels for _ in range(chance.randint(least, least + 3))]
    chance.shuffle(rows)
    return rows


# ---- files


def write_csv(chance: random.Random, path: Path, rows: Rows) -> None:
    quoted = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    encoding = chance.choice(["utf-8", "utf-8", "utf-8-sig"])
    label_first = chance.random() < 0.5
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, quoting=quoted, lineterminator=chance.choice(["\n", "\r\n"]))
        for row in (("x", "label"), *enumerate(rows)):
            writer.writerow(row[::-1] if label_first else row)


def write_parquet(chance: random.Random, path: Path, rows: Rows) -> None:
    kinds = {str: ["string", "large_string", "dictionary"], int: ["int64", "uint64"]}
    kind = chance.choice(kinds.get(type(rows[0]), [None]))
    if kind == "dictionary":
        column = pyarrow.array(rows).dictionary_encode()
    elif isinstance(rows[0], int):
        lowest, highest = min(rows), max(rows)
        kind = "uint64" if highest >= 2**63 or (kind == "uint64" and lowest >= 0) else "int64"
        column = pyarrow.array(rows, kind if type(rows[0]) is int else "bool")
    else:
        column = pyarrow.array(rows, kind)
    parquet.write_table(pyarrow.table({"x": range(len(rows)), "label": column}), path)


def write_table(chance: random.Random, path: Path, rows: Rows) -> None:
    (write_csv if path.suffix == ".csv" else write_parquet)(chance, path, rows)


def a_suffix(chance: random.Random, labels: Sequence[Label]) -> str:
    return chance.choice(
        [".csv", ".csv", ".parquet"] if isinstance(labels[0], str) else [".parquet"]
    )


def names_by_row(data: onepass.Dataset) -> list[tuple[int, str]]:
    """Returns the number of each row and the name of its class, training rows first."""
    x = [int(value) for part in (data.train_x, data.test_x) for value in part.flatten(1)[:, 0]]
    y = [data.class_names[label] for part in (data.train_y, data.test_y) for label in part]
    return list(zip(x, y, strict=True))


def holds(data: onepass.Dataset, train: Rows, test: Rows = ()) -> None:
    """Checks that each row has the class that its file names, and each name is a class."""
    wanted = [*enumerate(map(name, train)), *enumerate(map(name, test))]
    assert sorted(names_by_row(data)) == sorted(wanted)
    assert sorted(data.class_names) == sorted(set(map(name, train)))
    assert set(data.train_y.tolist()) == set(range(len(data.class_names)))


def expect(load: Callable[[], onepass.Dataset], check: Callable[[Any], None], *why: str) -> None:
    """Loads and checks; if there are reasons to refuse, the file is refused for one of them."""
    try:
        data = load()
    except DataError as problem:
        assert "\n" not in str(problem)
        assert any(reason in str(problem) for reason in why), problem
        return
    assert not why, f"it must be refused: {why}"
    check(data)


# ---- cases


def reasons(rows: Rows) -> list[str]:
    """Returns why the labels of a table are refused: all are numbers, and one is a fraction."""
    try:
        values = [float(label) for label in rows]
    except (ValueError, OverflowError):
        return []
    finite = all(value - value == 0 for value in values)
    return ["fractions"] if finite and not all(map(float.is_integer, values)) else []


def one_table(chance: random.Random, folder: Path) -> None:
    labels = chance.choice([texts, texts, numbers])(chance)
    rows = rows_of(chance, labels, least=2)
    path = folder / f"train{a_suffix(chance, labels)}"
    write_table(chance, path, rows)
    fraction = chance.choice([0.2, 0.5])
    expect(
        lambda: onepass.load(path, label="label", test_fraction=fraction),
        lambda data: holds(data, rows),
        *reasons(rows),
    )


def two_tables(chance: random.Random, folder: Path) -> None:
    """Labels of a test file are classes of the training file, or are refused, by their text."""
    labels = chance.choice([texts, texts, numbers])(chance)
    train = rows_of(chance, labels, least=1)
    others = chance.choice([labels, labels, texts(chance)])
    test = rows_of(chance, chance.sample(others, k=chance.randint(1, len(others))), least=1)
    paths = []
    for part, rows in (("train", train), ("test", test)):
        paths.append(folder / f"{part}{a_suffix(chance, rows)}")
        write_table(chance, paths[-1], rows)
    strange = set(map(name, test)) - set(map(name, train))
    expect(
        lambda: onepass.load(paths[0], label="label", test=paths[1]),
        lambda data: holds(data, train, test),
        *reasons(train),
        *reasons(test),
        *["has the label"] * bool(strange),
    )


def arrays(chance: random.Random, folder: Path) -> None:
    labels = chance.choice([texts, numbers])(chance)
    rows = rows_of(chance, labels, least=2)
    path = folder / "mine.npz"
    np.savez(path, x=np.arange(len(rows))[:, None] / 1.0, y=np.array(rows))
    expect(
        lambda: onepass.load(path, test_fraction=0.5),
        lambda data: holds(data, rows),
        *["64 bits"] * (not isinstance(rows[0], str) and max(rows) >= 2**63),
        *["not bool"] * isinstance(rows[0], bool),
    )


def folders(chance: random.Random, folder: Path) -> None:
    """Names of class folders are told apart, or refused where a reader takes two for one."""
    names = [label for label in map(str, texts(chance)) if usable(label)]
    others = [chance.choice([label, label, label, respelled(chance, label)]) for label in names]
    others = list(dict.fromkeys(others))  # one may be respelled as another is
    split = chance.random() < 0.5
    number = 0
    pairs: list[tuple[int, str]] = []
    for part, labels in (("train", names), ("test", others)) if split else (("", names),):
        for label in labels:
            place = folder / "mine" / part / label
            place.mkdir(parents=True)
            for _ in range(2):
                pixels = np.full((1, 2, 2), number, np.uint8)
                (place / f"{number}.png").write_bytes(encode(pixels, "PNG"))
                pairs.append((number, label))
                number += 1
    same = [pair for pair in combinations(names, 2) if looks(pair[0]) == looks(pair[1])]
    respelt = sorted(names) != sorted(others) and split

    def check(data: onepass.Dataset) -> None:
        assert sorted(names_by_row(data)) == pairs
        assert sorted(data.class_names) == sorted(names)

    expect(
        lambda: onepass.load(folder / "mine", test_fraction=None if split else 0.5),
        check,
        *["differ only in case"] * bool(same),
        *["spells a class otherwise", "differ only in case", "which train does not"] * respelt,
        *["has no class folders"] * (not names),
    )


def usable(label: str) -> bool:
    """Returns whether a folder can have this name, and is not hidden by it."""
    return "/" not in label and not label.startswith(".") and len(label.encode()) < 256


def respelled(chance: random.Random, label: str) -> str:
    form = chance.choice(["NFC", "NFD"])
    return chance.choice([label.upper(), label.lower(), unicodedata.normalize(form, label)])


def looks(label: str) -> str:
    """Returns what names share that readers, or file systems, take for one."""
    folded = unicodedata.normalize("NFD", label).casefold().strip()
    return unicodedata.normalize("NFC", folded)


def a_case(chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as place, without_bars(), patch.dict(os.environ):
        os.environ["ONEPASS_CACHE"] = f"{place}/cache"
        chance.choice([one_table, two_tables, arrays, folders])(chance, Path(place))


def test_every_class_is_called_as_its_file_calls_it() -> None:
    fuzz("labels", a_case, few=100)
