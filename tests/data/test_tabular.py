"""Tests of the user's own .csv and .parquet files: columns of numbers and one of labels."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from command import onepass as command
from command import refused

import onepass
from onepass import DataError, InputError

ROWS = 30
FLOWERS = pd.DataFrame(
    {
        "length": np.arange(ROWS) / 4,
        "species": ["iris", "aster", "rose"] * (ROWS // 3),
        "petals": np.arange(ROWS) * 3,
        "wild": [True, False] * (ROWS // 2),
    }
)


def written(table, path):
    table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_numbers_are_features_and_the_named_column_is_the_class(suffix, tmp_path):
    path = written(FLOWERS, tmp_path / f"flowers{suffix}")
    other = written(FLOWERS[["wild", "species", "petals", "length"]][:6], tmp_path / "other.csv")
    data = onepass.load(path, label="species", test=other)
    assert data.class_names == ("aster", "iris", "rose")
    assert data.train_y.tolist() == [1, 0, 2] * 10
    wanted = FLOWERS[["length", "petals", "wild"]].to_numpy(dtype=np.float32)
    assert np.array_equal(data.train_x, wanted)
    assert np.array_equal(data.test_x, wanted[:6])  # columns are matched by name, not by order
    assert data.mean == pytest.approx(wanted.mean(axis=0))
    assert data.std == pytest.approx(wanted.std(axis=0))


def test_the_same_fraction_of_each_class_is_always_held_out(tmp_path):
    path = written(FLOWERS, tmp_path / "flowers.csv")
    data, again = (onepass.load(path, label="species", test_fraction=0.2) for _ in range(2))
    assert torch.bincount(data.test_y).tolist() == [2, 2, 2]
    assert data.sha256() == again.sha256()
    both = torch.cat([data.train_x, data.test_x])
    assert sorted(both[:, 1].tolist()) == FLOWERS["petals"].tolist()


def test_numbers_are_classes_in_the_order_of_numbers(tmp_path):
    table = pd.DataFrame({"x": [0.5] * 6, "digit": [10, 9, 100] * 2})
    data = onepass.load(written(table, tmp_path / "a.csv"), label="digit", test=tmp_path / "a.csv")
    assert data.class_names == ("9", "10", "100")


def csv_of(labels, path):
    path.write_text("x,label\n" + "".join(f"{n}.5,{label}\n" for n, label in enumerate(labels)))
    return path


@pytest.mark.parametrize(
    "labels",
    [
        ["007", "07", "7"],
        ["1000", "1e3"],
        ["1", "1.0", "2"],
        ["false", "true"],
        ["01", "1", "x3"],
        ["18446744073709550000", "18446744073709550001", "18446744073709550002"],
        ["NA", "nan", "null"],
        ["-1", "-0", "0"],
    ],
    ids=" ".join,
)
def test_labels_of_a_csv_stay_what_the_file_says(labels, tmp_path):
    path = csv_of(labels * 4, tmp_path / "a.csv")
    data = onepass.load(path, label="label", test_fraction=0.5)
    assert sorted(data.class_names) == sorted(labels)
    assert torch.bincount(data.train_y).tolist() == [2] * len(labels)
    known = [data.class_names[k] for k in onepass.load(path, label="label", test=path).train_y]
    assert known == labels * 4


def test_the_rows_of_a_test_file_follow_the_rule_of_all_rows(tmp_path):
    train = csv_of(["01", "02", "x3"], tmp_path / "train.csv")
    test = csv_of(["01", "02"], tmp_path / "test.csv")
    data = onepass.load(train, label="label", test=test)
    assert [data.class_names[k] for k in data.test_y] == ["01", "02"]
    with pytest.raises(DataError, match="has the label '1', which"):
        onepass.load(train, label="label", test=csv_of(["1"], tmp_path / "other.csv"))


def test_numbers_of_a_parquet_and_of_a_csv_are_the_same_classes(tmp_path):
    train = pd.DataFrame({"x": [0.5] * 3, "label": [-1, 9, 10]})
    test = csv_of(["10", "-1"], tmp_path / "test.csv")
    data = onepass.load(written(train, tmp_path / "a.parquet"), label="label", test=test)
    assert data.class_names == ("-1", "9", "10")
    assert data.test_y.tolist() == [2, 0]


@pytest.mark.parametrize(
    "text", ['x,label\n1,"rose"\n2,"iris\n3,rose\n', 'x,"label\n1,rose\n', 'x,label\n1,a\n2,"b']
)
def test_a_quote_that_is_not_closed_is_named(text, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"a quote .* is not closed"):
        onepass.load(path, label="label", test_fraction=0.5)


def test_a_quote_inside_of_a_label_opens_nothing(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,label\n" + '1,5" pipe\n2,rose\n' * 2 + '3,5" pipe\n')
    assert onepass.load(path, label="label", test_fraction=0.5).class_names == ('5" pipe', "rose")


@pytest.mark.parametrize(
    ("encoding", "said"),
    [("latin-1", r"is not UTF-8 text \(Latin-1"), ("utf-16", "is UTF-16 text")],
)
def test_another_encoding_is_named(encoding, said, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("x,label\n1,caf\u00e9\n2,th\u00e9\n".encode(encoding))
    with pytest.raises(DataError, match=said):
        onepass.load(path, label="label", test_fraction=0.5)


@pytest.mark.parametrize(
    ("change", "asked", "said"),
    [
        ({"city": "Bonn", "day": "2026-01-02"}, {}, r"'city' \(string\), 'day' \(date32\[day\]\)"),
        ({"petals": [None, *range(ROWS - 1)]}, {}, "column 'petals' has no value in 1 rows"),
        ({"species": [None, *["rose"] * (ROWS - 1)]}, {}, "1 rows have no label"),
        ({"species": 0.5}, {}, "labels must be text or whole numbers, not fractions"),
        ({}, {"label": None}, "name the column of the label .* length, species, petals, wild"),
        ({}, {"label": "name"}, "no column 'name'; it has length"),
        ({}, {"test_fraction": None}, "needs test rows"),
        ({}, {"test": "other.csv"}, "give either another file"),
        ({}, {"test": "a\0.csv", "test_fraction": None}, "there is no a\0.csv"),
        ({}, {"image_size": 8}, "image_size is for images"),
        ({}, {"test_fraction": None, "test": "other.npz"}, "test must be a .csv or .parquet"),
    ],
)
def test_a_table_that_cannot_be_learned_is_a_one_line_error(change, asked, said, tmp_path):
    path = written(FLOWERS.assign(**change), tmp_path / "flowers.csv")
    with pytest.raises((DataError, InputError), match=said) as caught:
        onepass.load(path, **{"label": "species", "test_fraction": 0.2, **asked})
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_reported_before_missing_options(tmp_path):
    with pytest.raises(DataError, match=r"there is no .*none\.csv"):
        onepass.load(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"petals": None}, "other.csv has no column 'petals', which the training file has"),
        ({"species": "tulip"}, "has the label 'tulip', which .* lacks"),
    ],
)
def test_a_test_file_must_have_the_columns_and_classes_of_the_training_file(change, said, tmp_path):
    path = written(FLOWERS, tmp_path / "flowers.csv")
    other = FLOWERS.drop(columns=[name for name, value in change.items() if value is None])
    other = other.assign(**{name: value for name, value in change.items() if value is not None})
    with pytest.raises(DataError, match=said):
        onepass.load(path, label="species", test=written(other, tmp_path / "other.csv"))


def test_features_that_are_no_numbers_name_the_file_that_has_them(tmp_path):
    train = written(FLOWERS, tmp_path / "flowers.csv")
    test = written(FLOWERS.assign(length=np.inf), tmp_path / "other.csv")
    with pytest.raises(DataError, match=r"other\.csv: .*infinity"):
        onepass.load(train, label="species", test=test)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2,3\n", b"PAR1 nothing", b"\xff\xfe\x00,\n1\n"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_damaged_table_is_a_one_line_error(content, suffix, tmp_path):
    path = tmp_path / f"odd{suffix}"
    path.write_bytes(content)
    with pytest.raises((DataError, InputError), match="odd") as caught:
        onepass.load(path, label="a", test_fraction=0.5)
    assert "\n" not in str(caught.value)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = written(FLOWERS, tmp_path / "flowers.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install pyarrow"):
        onepass.load(path, label="species", test_fraction=0.5)


def test_a_table_is_run_by_its_path_and_unknown_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(FLOWERS, tmp_path / "flowers.csv")
    options = ("--label", "species", "--test-fraction", 0.2, "--checkpoint", "none", "--json")
    record = command("run", "er", "--dataset", "flowers.csv", "--tasks", 3, *options).record
    assert record["dataset"] == "flowers"
    (tmp_path / "flowers.tsv").write_text("a\tb\n")
    for spelled in ("flowers.tsv", "./flowers.tsv"):
        assert ".npz, .csv or .parquet file" in refused("run", "er", "--dataset", spelled)
    assert "label is for your own files" in refused("run", "er", "--label", "a")
    assert "label is for a .csv" in refused("run", "er", "--label", "a", "--dataset", "./x.npz")
