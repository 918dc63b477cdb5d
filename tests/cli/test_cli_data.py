"""`onepass data`, and runs on a user's own files."""

import json
from pathlib import Path

import formats
import numpy as np
import pytest
from command import onepass


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ONEPASS_DATA", raising=False)


@pytest.fixture
def root(tmp_path) -> Path:
    images = formats.noise(10, (1, 28, 28), train=6, test=3)
    formats.write_idx(tmp_path / "data" / "mnist", images)
    return tmp_path / "data"


def test_list_says_what_is_here_and_how_to_get_the_rest(root):
    done = onepass("data", "list", "--data-root", root, "--json")
    rows = {row["dataset"]: row for row in map(json.loads, done.out.splitlines())}
    assert done.status == 0
    assert "idx files" in rows["mnist"]["found"]
    assert rows["cifar10"]["found"] == "missing"
    assert "cifar10" in rows["cifar10"]["how to get it"]


def test_check_names_every_class_that_is_not_whole(root):
    done = onepass("data", "check", "mnist", "--data-root", root)
    assert done.status == 2
    assert "WRONG  60 training images in 10 classes: 0 6 of 5923" in done.out
    assert "mnist is damaged or incomplete" in done.error


def test_check_of_a_missing_dataset_says_where_to_put_it(tmp_path):
    done = onepass("data", "check", "cifar100", "--data-root", tmp_path)
    assert done.status == 2
    assert "cifar-100-python" in done.error and "--download" in done.error


def test_cache_decodes_once(root, monkeypatch):
    first = onepass("data", "cache", "mnist", "--data-root", root)
    assert first.status == 0 and "60 training and 30 test images" in first.out
    monkeypatch.setattr("onepass.data.idx._read_array", None)
    assert onepass("data", "cache", "mnist", "--data-root", root).status == 0


def test_an_unknown_dataset_is_named_with_the_nearest():
    done = onepass("data", "check", "mnits")
    assert done.status == 2 and "Did you mean 'mnist'?" in done.error


def test_a_published_dataset_is_run_by_name(root, tmp_path):
    done = onepass(
        "run", "er", "--dataset", "mnist", "--data-root", root, "--out", tmp_path, "--json"
    )
    assert done.status == 0
    assert done.record["dataset"] == "mnist" and done.record["steps"] == 10


def test_a_folder_of_ones_own_is_run_at_any_size(tmp_path):
    images = formats.noise(4, (3, 9, 7), train=8, test=4)
    x, y = (
        np.concatenate([images.train_x, images.test_x]),
        np.concatenate([images.train_y, images.test_y]),
    )
    formats.write_classes(tmp_path / "pets", x, y, ["ant", "bee", "cat", "dog"])
    arguments = ["--dataset", tmp_path / "pets", "--image-size", 8, "--test-fraction", 0.25]
    done = onepass("run", "gsa", *arguments, "--tasks", 2, "--out", tmp_path / "runs", "--json")
    assert done.status == 0, done.err
    assert done.record["dataset"] == "pets"
    named = json.loads((Path(done.record["out"]) / "run.json").read_text())["class_names"]
    assert named == ["ant", "bee", "cat", "dog"]


def test_vectors_of_ones_own_are_run(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat([3, 7, 9, 12], 100)
    x = rng.normal(size=(400, 6)) + 3 * rng.normal(size=(4, 6)).repeat(100, axis=0)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    arguments = ["--dataset", tmp_path / "mine.npz", "--test-fraction", 0.25, "--tasks", 2]
    done = onepass("run", "er", *arguments, "--out", tmp_path / "runs", "--json")
    assert done.status == 0, done.err
    assert done.record["dataset"] == "mine" and done.record["accuracy"] > 60


@pytest.mark.parametrize("spec", ["blurry:n=50,m=10", "long-tail:rho=10", "class-incremental"])
def test_a_stream_can_be_drawn(spec, tmp_path):
    done = onepass("figure", "stream", spec, "-o", tmp_path / "stream.png")
    assert done.status == 0, done.err
    assert (tmp_path / "stream.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("spec", "named"),
    [("blury", "blurry"), ("blurry:q=3", "q"), ("blurry:n=x", "n"), ("long-tail:rho=0", "rho")],
)
def test_a_bad_stream_is_one_clear_line(spec, named, tmp_path):
    done = onepass("run", "er", "--stream", spec, "--out", tmp_path)
    assert done.status == 2 and named in done.error
    assert not list(tmp_path.glob("er-*"))
