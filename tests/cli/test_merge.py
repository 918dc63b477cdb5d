"""`onepass merge` adds what closed-form learners learned; `onepass prove` compares it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import onepass, refused, untouched

import onepass as package

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 40)).astype(np.float32)
Y = RNG.integers(0, 5, 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes learners: three parts of the samples, all of them, and others that do not fit."""
    folder = tmp_path_factory.mktemp("learners")
    parts = {"a": slice(0, 100), "b": slice(100, 170), "c": slice(170, 300), "all": slice(0, 300)}
    for name, part in parts.items():
        learned(X[part], Y[part]).save(folder / f"{name}.pt")
    learned(X, Y, package.NCM()).save(folder / "ncm.pt")
    learned(X, Y.astype(str)).save(folder / "text.pt")
    learned(X[:, :33], Y).save(folder / "short.pt")
    learned(X, Y, package.Ridge(halflife=50)).save(folder / "fading.pt")
    learned(X, Y, package.ER(memory=10)).save(folder / "er.pt")
    (folder / "notes.pt").write_text("no learner")
    return folder


def learned(x: np.ndarray, y: np.ndarray, learner: package.Learner | None = None):
    learner = package.Ridge() if learner is None else learner
    learner.learn(x, y)
    return learner


def test_merged_files_have_the_bits_of_one_learner_in_any_order(
    folder: Path, tmp_path: Path
) -> None:
    hashes = set()
    for index, order in enumerate(("abc", "cab", "bca")):
        out = tmp_path / f"{index}.pt"
        done = onepass("merge", *(folder / f"{name}.pt" for name in order), "-o", out, "--json")
        assert done.status == 0, done.err
        hashes.add(done.record["sums_sha256"])
        assert done.record["samples"] == 300
        assert done.record["classes"] == 5
        assert done.record["method"] == "ridge"
    whole = package.open(folder / "all.pt")
    assert hashes == {whole.sums_sha256()}
    merged = package.open(tmp_path / "0.pt")
    assert np.array_equal(merged.scores(X), whole.scores(X))


def test_a_merged_learner_learns_on(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "ab.pt"
    done = onepass("merge", folder / "a.pt", folder / "b.pt", "-o", out)
    assert done.status == 0, done.err
    merged = package.open(out)
    assert f"sums_sha256 {merged.sums_sha256()}" in done.out
    merged.learn(X[170:], Y[170:])
    assert merged.sums_sha256() == package.open(folder / "all.pt").sums_sha256()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", "two or more files"),
        ("a a", "a.pt is given twice"),
        ("a b ../*/a", "is given twice"),
        ("a ncm", "ncm.pt: ridge can only be merged with ridge, not with ncm"),
        ("a text", "text.pt: "),
        ("a short", "samples is float32 [40] here and float32 [33] there"),
        ("a fading", "halflife is None here and 50"),
        ("fading fading2", "sums"),
        ("a er", "er.pt holds 'er', which trains a network"),
        ("er a", "er.pt holds 'er', which trains a network"),
        ("a notes", "notes.pt is not a whole onepass checkpoint"),
        ("a none", "there is no file"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line_and_nothing_is_written(
    folder: Path, given: str, expected: str
) -> None:
    (folder / "fading2.pt").write_bytes((folder / "fading.pt").read_bytes())
    names = [name.replace("*", folder.name) for name in given.split()]
    with untouched(folder):
        files = [folder / f"{name}.pt" for name in names]
        assert expected in refused("merge", *files, "-o", folder / "new.pt")


def test_a_file_to_merge_is_not_written_over(folder: Path) -> None:
    with untouched(folder):
        line = refused("merge", folder / "a.pt", folder / "b.pt", "-o", folder / "b.pt")
    assert "is one of the files to merge" in line


def test_classes_of_other_names_are_not_merged(tmp_path: Path) -> None:
    for name in ("cat", "bird"):
        learner = learned(X[:20], Y[:20] % 2)
        learner.class_names = ["dog", name]
        learner.save(tmp_path / f"{name}.pt")
    with untouched(tmp_path):
        line = refused(
            "merge", tmp_path / "cat.pt", tmp_path / "bird.pt", "-o", tmp_path / "both.pt"
        )
    assert "class 1 is 'cat' here and 'bird' there" in line


# ---- prove


def test_equal_sums_are_proved_by_their_hash(folder: Path, tmp_path: Path) -> None:
    backwards = learned(X[::-1].copy(), Y[::-1].copy())
    backwards.save(tmp_path / "backwards.pt")
    done = onepass("prove", folder / "all.pt", tmp_path / "backwards.pt")
    assert done.status == 0, done.err
    assert f"sums_sha256 {backwards.sums_sha256()}" in done.out
    found = onepass("prove", folder / "all.pt", tmp_path / "backwards.pt", "--json").record
    assert found["equal"]
    assert found["sums_sha256"] == [backwards.sums_sha256()] * 2


def test_an_unlearned_learner_is_proved_equal_to_one_that_never_saw(
    folder: Path, tmp_path: Path
) -> None:
    learner = package.open(folder / "all.pt")
    learner.unlearn(X[100:], Y[100:])
    learner.save(tmp_path / "less.pt")
    assert onepass("prove", tmp_path / "less.pt", folder / "a.pt").status == 0


def test_classes_that_differ_are_named(tmp_path: Path) -> None:
    whole = learned(X, Y)
    other = learned(X, Y)
    other.unlearn(X[Y == 1][:2], [1, 1])
    other.unlearn(X[Y == 3], Y[Y == 3])
    changed = X[Y == 4][:1] * np.linspace(1, 2, 40, dtype=np.float32)
    other.unlearn(X[Y == 4][:1], [4])
    other.learn(changed, [4])
    whole.save(tmp_path / "whole.pt")
    other.save(tmp_path / "other.pt")
    done = onepass("prove", tmp_path / "whole.pt", tmp_path / "other.pt")
    counts = np.bincount(Y)
    assert done.status == 1
    assert [line for line in done.out.splitlines() if line.startswith("class")] == [
        f"class 1: {counts[1]} and {counts[1] - 2} samples",
        f"class 3: {counts[3]} and 0 samples",
        f"class 4: {counts[4]} in both, other samples",
    ]
    found = onepass("prove", tmp_path / "other.pt", tmp_path / "whole.pt", "--json").record
    assert not found["equal"]
    assert [item["class"] for item in found["classes"]] == [1, 3, 4]
    assert found["classes"][1]["samples"] == [0, counts[3]]


def test_equal_sums_of_classes_with_other_products_differ(tmp_path: Path) -> None:
    """Two samples of one class, by two ways that have the same sum and the same squares."""
    one, two = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)
    one[:, :2] = [[1, 1], [-1, -1]]
    two[:, :2] = [[1, -1], [-1, 1]]
    for name, x in (("one", one), ("two", two)):
        learned(x, np.array([0, 0])).save(tmp_path / f"{name}.pt")
    done = onepass("prove", tmp_path / "one.pt", tmp_path / "two.pt")
    assert done.status == 1
    assert "products of features are not" in done.out


def test_sums_that_mean_something_else_are_not_compared_by_class(folder: Path) -> None:
    done = onepass("prove", folder / "all.pt", folder / "ncm.pt")
    assert done.status == 1
    assert "method: ridge and ncm" in done.out
    assert "class " not in done.out


def test_a_network_proves_nothing(folder: Path) -> None:
    assert "trains a network" in refused("prove", folder / "er.pt", folder / "a.pt")
