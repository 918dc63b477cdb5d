"""Tests of atomic writing, locks, strict JSON and checksums of nested values."""

import errno
import io
import json
import os
import threading
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.base import fileio
from onepass.base.checksum import sha256

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


# ---- writing


def test_write_atomically_writes_the_file_and_nothing_else(tmp_path):
    fileio.write_atomically(tmp_path / "a", lambda file: file.write(b"new"))
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("problem", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failing_writer_leaves_the_old_file_and_no_other(tmp_path, problem):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the ne")
        raise problem

    with pytest.raises(type(problem)):
        fileio.write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path, found = tmp_path / "a", []
    path.write_bytes(b"old")

    def write(file):
        file.write(b"new")
        file.flush()
        found.append(path.read_bytes())

    fileio.write_atomically(path, write)
    assert found == [b"old"]
    assert path.read_bytes() == b"new"


def test_content_is_flushed_to_disk_before_the_rename(tmp_path, monkeypatch):
    path, found = tmp_path / "a", []
    monkeypatch.setattr(fileio.os, "fsync", lambda number: found.append(path.exists()))
    fileio.write_atomically(path, lambda file: file.write(b"new"))
    assert found[0] is False


def test_a_link_under_a_predictable_temporary_name_is_not_followed(tmp_path):
    """An earlier version named its temporary file by the target, the process and the thread."""
    path, precious = tmp_path / "a", tmp_path / "precious"
    precious.write_text("precious")
    for place in (path, tmp_path / f".a.{os.getpid()}.{threading.get_ident()}.partial"):
        place.symlink_to(precious)
    fileio.write_atomically(path, lambda file: file.write(b"new"))
    assert precious.read_text() == "precious"
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "1e999", '"\\ud800"', "9" * 400, "9" * 5000, "[" * 100_000, "{'a': 1}"],
    ids=lambda text: text[:10],
)
def test_json_that_only_python_accepts_is_refused(text):
    with pytest.raises(ValueError):
        fileio.parse_json(text)


def test_a_path_of_any_bytes_can_be_read_again(tmp_path):
    path, name = tmp_path / "a.json", os.fsdecode(b"caf\xe9")
    fileio.write_json(path, {"out": name})
    assert fileio.parse_json(path.read_text()) == {"out": name}


def test_content_that_is_no_json_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    fileio.write_json(path, {"n": 1})
    with pytest.raises(TypeError):
        fileio.write_json(path, {"n": object()})
    assert json.loads(path.read_text()) == {"n": 1}


# ---- locks


@pytest.mark.parametrize("missing", [False, True], ids=["of the system", "none in the system"])
def test_a_lock_has_one_holder_with_and_without_system_locks(missing, tmp_path, monkeypatch):
    def lock(number, **how):
        raise OSError(errno.ENOSYS, "there are no locks")

    if missing:
        monkeypatch.setattr("filelock.lock_descriptor", lock)
    path = tmp_path / ".lock"
    with fileio.locked_file(path, wait=False), pytest.raises(BlockingIOError), ExitStack() as again:
        again.enter_context(fileio.locked_file(path, wait=False))
    with fileio.locked_file(path, wait=False):
        fileio.append_line(tmp_path / "lines.jsonl", "{}")
    assert {entry.name for entry in tmp_path.iterdir()} == {".lock", "lines.jsonl"}


# ---- fingerprints

leaves = st.one_of(st.integers(), st.text(max_size=3), st.none())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def copied(tree):
    """Returns the same tree as new objects, with its dicts filled in reverse order."""
    if isinstance(tree, dict):
        return {key: copied(tree[key]) for key in reversed(tree)}
    return [copied(item) for item in tree] if isinstance(tree, list) else tree


@PROPERTY
@given(trees)
def test_equal_content_has_an_equal_fingerprint(tree):
    assert sha256(tree) == sha256(copied(tree))


@PROPERTY
@given(trees, trees)
def test_different_content_has_different_fingerprints(first, second):
    assert (sha256(first) == sha256(second)) == (first == second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 23], [12, 3]),
        ([[1], 2], [[1, 2]]),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}),
        ({"a": 1, "b": 2}, {"a:1{b": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 2}),
        ([], {}),
        (["1"], [1]),
    ],
)
def test_the_nesting_of_values_counts(first, second):
    assert sha256(first) != sha256(second)


def test_name_dtype_shape_and_value_of_a_tensor_count():
    base = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    variants = [
        {"w": base},
        {"v": base},
        {"w": base.float()},
        {"w": base.view(torch.float32)},
        {"w": base.flatten()},
        {"w": base.view(1, 4)},
        {"w": base.T},
        {"w": base + torch.tensor([[0, 0], [0, 1]], dtype=torch.int32)},
        {"w": torch.tensor(1)},
        {"w": torch.zeros(0)},
        {"w": torch.zeros(0, 2)},
        {"w": torch.tensor([0.0])},
        {"w": torch.tensor([-0.0])},
        {"w": torch.tensor([True])},
    ]
    assert len({sha256(variant) for variant in variants}) == len(variants)


def test_the_layout_in_memory_does_not_count():
    base = torch.arange(6).view(2, 3)
    strided = torch.arange(12).view(2, 6)[:, ::2] // 2 + torch.tensor([[0], [0]])
    assert torch.equal(base, strided)
    assert sha256(base) == sha256(base.T.contiguous().T) == sha256(strided)
    assert sha256(base.float()) == sha256(base.float().requires_grad_())


def test_a_fingerprint_survives_saving(tmp_path):
    tree = {"w": torch.randn(3, generator=torch.Generator().manual_seed(0)), "n": [1, 2.5, "a"]}
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    buffer.seek(0)
    assert sha256(torch.load(buffer, weights_only=True)) == sha256(tree)


def test_threads_that_write_the_same_file_never_mix_content(tmp_path):
    path, problems = tmp_path / "file", []

    def write(text):
        try:
            for _ in range(30):
                fileio.write_atomically(path, lambda file: file.write(text * 50_000))
                if len(set(path.read_bytes())) != 1:
                    problems.append("torn")
        except OSError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=write, args=(text,)) for text in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
