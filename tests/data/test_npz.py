"""Tests of the user's own .npz files: read exactly, or refused with their name."""

import io
import os
import re
import zipfile

import numpy as np
import pytest
from child_process import in_child
from formats import truncate
from read_datasets import TouchesFile, refused

import onepass
from onepass import DataError, InputError, OnepassError


def write_npz(path, compressed=False, **arrays):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def mine(x, y=None, **more):
    y = np.arange(len(x)) % 2 if y is None else np.asarray(y)
    return {"train_x": x, "train_y": y, "test_x": x[:4], "test_y": y[:4], **more}


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((8, 5, 6), None), ((8, 3, 5, 6), (0, 1, 2, 3)), ((8, 5, 6, 3), (0, 3, 1, 2))],
    ids=["(n,h,w)", "(n,c,h,w)", "(n,h,w,c)"],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_images_of_an_npz_are_read_exactly(tmp_path, shape, axes, compressed):
    x = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    write_npz(tmp_path / "mine.npz", compressed, **mine(x))
    data = onepass.load(str(tmp_path / "mine.npz"))
    wanted = x[:, None] if axes is None else x.transpose(axes)
    assert np.array_equal(data.train_x, wanted)
    assert np.array_equal(data.test_x, wanted[:4])
    assert data.name == "mine"
    assert data.is_images


def test_mirror_images_of_own_arrays_are_of_the_same_class_by_default(tmp_path):
    path = write_npz(tmp_path / "mine.npz", **mine(np.zeros((8, 5, 6), np.uint8)))
    assert onepass.load(path).mirror_is_same_class
    assert not onepass.load(path, mirror_is_same_class=False).mirror_is_same_class


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_that_come_first_stay_first_whatever_the_width(tmp_path, channels):
    x = RANDOM.integers(0, 256, (6, channels, 5, 3), dtype=np.uint8)
    data = onepass.load(str(write_npz(tmp_path / "mine.npz", **mine(x))))
    assert np.array_equal(data.train_x, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_vectors_of_an_npz_are_read_exactly(tmp_path, dtype):
    x = RANDOM.normal(size=(8, 5)).astype(dtype)
    data = onepass.load(str(write_npz(tmp_path / "mine.npz", **mine(x))))
    assert np.array_equal(data.train_x, x.astype(np.float32))
    assert not data.is_images


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32])
def test_labels_may_be_any_whole_numbers(tmp_path, dtype):
    y = np.array([30, 7, 200, 7, 30, 200, 0, 0], dtype=dtype)
    data = onepass.load(str(write_npz(tmp_path / "mine.npz", **mine(np.eye(8), y))))
    assert data.class_names == ("0", "7", "30", "200")
    assert data.train_y.tolist() == [2, 1, 3, 1, 2, 3, 0, 0]
    assert data.test_y.tolist() == [2, 1, 3, 1]


@pytest.mark.parametrize(
    ("y", "names", "numbers"),
    [
        ([-1, 1] * 4, ("-1", "1"), [0, 1] * 4),
        (["dog", "cat", "Bär", "cat"] * 2, ("Bär", "cat", "dog"), [2, 1, 0, 1] * 2),
        (["10", "9"] * 4, ("9", "10"), [1, 0] * 4),
        ([b"dog", "Bär".encode()] * 4, ("Bär", "dog"), [1, 0] * 4),
    ],
    ids=["negative", "text", "numbers as text", "bytes"],
)
@pytest.mark.parametrize("fraction", [None, 0.25])
def test_labels_of_any_kind_are_the_classes_in_their_order(tmp_path, y, names, numbers, fraction):
    whole = {"x": np.arange(8.0)[:, None], "y": np.array(y)}
    arrays = mine(whole["x"], whole["y"]) if fraction is None else whole
    data = onepass.load(str(write_npz(tmp_path / "mine.npz", **arrays)), test_fraction=fraction)
    assert data.class_names == names
    for part_x, part_y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert [numbers[int(place)] for place in part_x[:, 0]] == part_y.tolist()


@pytest.mark.parametrize("kind", [np.str_, np.bytes_])
def test_classes_may_have_names(tmp_path, kind):
    names = np.array(["cat", "dog"], dtype=kind)
    arrays = mine(np.eye(8), class_names=names)
    data = onepass.load(str(write_npz(tmp_path / "mine.npz", **arrays)))
    assert data.class_names == ("cat", "dog")


def test_a_fraction_of_an_npz_may_be_held_out(tmp_path):
    x, y = np.arange(30.0)[:, None], np.repeat([5, 9], [20, 10])
    path = str(write_npz(tmp_path / "mine.npz", x=x, y=y))
    data, again = (onepass.load(path, test_fraction=0.2) for _ in range(2))
    assert np.bincount(data.test_y).tolist() == [4, 2]
    held, kept = data.test_x[:, 0].tolist(), data.train_x[:, 0].tolist()
    assert sorted(held + kept) == list(range(30))
    assert [y[int(number)] for number in held] == [(5, 9)[label] for label in data.test_y]
    assert np.array_equal(data.test_x, again.test_x)
    assert held[:4] != [0, 1, 2, 3]


@pytest.mark.parametrize("fraction", [0, 1, 2.0, float("nan"), "0.2"])
def test_an_invalid_fraction_of_an_npz_is_refused(tmp_path, fraction):
    path = write_npz(tmp_path / "mine.npz", x=np.eye(8), y=np.arange(8) % 2)
    with pytest.raises(InputError, match="fraction"):
        onepass.load(str(path), test_fraction=fraction)


def test_a_fraction_is_refused_for_an_npz_with_test_samples(tmp_path):
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8)))
    with pytest.raises(InputError, match="fraction"):
        onepass.load(str(path), test_fraction=0.5)


def test_an_image_size_is_refused_for_an_npz(tmp_path):
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8)))
    with pytest.raises(InputError, match="image_size"):
        onepass.load(str(path), image_size=8)


@pytest.mark.parametrize("key", ["train_x", "train_y", "test_x", "test_y"])
def test_a_missing_key_is_named(tmp_path, key):
    arrays = mine(np.eye(8))
    del arrays[key]
    path = write_npz(tmp_path / "mine.npz", **arrays)
    refused(path, path, key)


def test_a_missing_label_key_is_named_with_a_test_fraction(tmp_path):
    path = write_npz(tmp_path / "mine.npz", x=np.eye(8))
    refused(path, path, " y", test_fraction=0.5)


def test_pickled_objects_in_an_npz_are_refused_unrun(tmp_path):
    marker = tmp_path / "marker"
    objects = np.array([TouchesFile(marker)] * 8, dtype=object)
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8), class_names=objects))
    refused(path, path, "allow_pickle=False")
    assert not marker.exists()


def test_arrays_of_a_machine_of_the_other_byte_order_are_read(tmp_path):
    x, y = RANDOM.normal(size=(8, 5)), np.arange(8) % 2
    arrays = mine(x.astype(x.dtype.newbyteorder()), y.astype(y.dtype.newbyteorder()))
    data = onepass.load(write_npz(tmp_path / "mine.npz", **arrays))
    assert np.array_equal(data.train_x, x.astype(np.float32))
    assert np.array_equal(data.train_y, y)


def test_names_in_bytes_are_utf_8(tmp_path):
    names = np.array([b"Katze", "Bär".encode()])
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8), class_names=names))
    assert onepass.load(path).class_names == ("Katze", "Bär")


BAD_ARRAYS = {
    "NaN": {"train_x": np.full((8, 3), np.nan)},
    "infinity in the test part": {"test_x": np.full((4, 8), np.inf)},
    "too few labels": {"train_y": np.zeros(7, int)},
    "labels in columns": {"train_y": np.zeros((8, 1), int)},
    "fractional labels": {"train_y": np.arange(8) / 2},
    "text for training, numbers for testing": {"train_y": np.array(list("01010101"))},
    "labels in bytes that are not UTF-8": {"train_y": np.array([b"caf\xe9", b"b"] * 4)},
    "an unknown test label": {"test_y": np.array([0, 1, 0, 5])},
    "long images": {"train_x": np.ones((8, 3, 4, 4), int), "test_x": np.ones((4, 3, 4, 4), int)},
    "whole-number vectors": {"train_x": np.eye(8, dtype=int), "test_x": np.eye(8, dtype=int)[:4]},
    "no samples": {"test_x": np.zeros((0, 8)), "test_y": np.zeros(0, int)},
    "no samples to learn": {"train_x": np.zeros((0, 8)), "train_y": np.zeros(0, int)},
    "two shapes": {"test_x": np.zeros((4, 9))},
    "two kinds": {"test_x": np.zeros((4, 8, 8), np.uint8)},
    "three names for two classes": {"class_names": np.array(["a", "b", "c"])},
    "two classes of one name": {"class_names": np.array(["a", "a"])},
    "one name for all": {"class_names": np.array("ab")},
    "names that are not UTF-8": {"class_names": np.array([b"caf\xe9", b"b"])},
    "half a character": {"class_names": np.array(["a", "\ud800"])},
    "no character at all": {"class_names": np.array([97, 2**31 - 1], np.uint32).view("U1")},
    "names in rows": {"class_names": np.array([["a"], ["b"]])},
}


@pytest.mark.parametrize("bad", BAD_ARRAYS)
def test_bad_arrays_are_refused_with_their_file(tmp_path, bad):
    path = write_npz(tmp_path / "mine.npz", **{**mine(np.eye(8)), **BAD_ARRAYS[bad]})
    refused(path, path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_an_npz_cut_short_is_named(tmp_path, compressed, keep):
    path = write_npz(tmp_path / "mine.npz", compressed, **mine(RANDOM.normal(size=(8, 9))))
    refused(truncate(path, keep), path)


def test_a_flipped_byte_in_an_npz_is_an_error_or_harmless(tmp_path):
    path, x = tmp_path / "mine.npz", np.random.default_rng(1).normal(size=(4, 9))
    write_npz(path, compressed=True, **mine(x))
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            data = onepass.load(str(path))
        except DataError as problem:
            assert str(path) in str(problem)
        else:
            assert np.array_equal(data.train_x, x.astype(np.float32))


def with_member(path, name, content, packing=zipfile.ZIP_STORED, claimed=None):
    """Writes a valid .npz in which one member is replaced by other content."""
    arrays = mine(np.eye(8), class_names=np.array(["a", "b"]))
    with zipfile.ZipFile(path, "w") as archive:
        for key in arrays:
            file = io.BytesIO()
            np.save(file, arrays[key])
            archive.writestr(f"{key}.npy", content if key == name else file.getvalue(), packing)
        archive.getinfo(f"{name}.npy").file_size = claimed or len(content)
    return path


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1073741824, 268435456), }\n"
FOREIGN = {
    "no array": b"something else",
    "nothing": b"",
    "a shape that no memory holds": header(HUGE),
    "nested brackets": header("(" * 5000),
    "half a line": header("{'descr': '''"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_member_of_an_npz_is_refused_with_its_file(tmp_path, kind):
    path = with_member(tmp_path / "mine.npz", "train_x", FOREIGN[kind])
    refused(path, path)


def test_an_npz_that_unpacks_to_more_than_the_ram_is_refused_unread(tmp_path):
    path = with_member(tmp_path / "mine.npz", "train_x", b"much", claimed=2**45)
    refused(path, path, "of RAM")


def test_an_npz_is_read_on_systems_that_do_not_tell_their_ram(tmp_path, monkeypatch):
    """Windows is such a system; hostile files are still refused there."""
    monkeypatch.delattr(os, "sysconf")
    whole = onepass.load(write_npz(tmp_path / "mine.npz", **mine(np.eye(8))))
    assert (len(whole.train_y), len(whole.test_y)) == (8, 4)
    packed = with_member(tmp_path / "packed.npz", "train_x", bytes(10**6), zipfile.ZIP_BZIP2)
    refused(packed, packed, "compressed")


def test_an_npz_that_can_only_be_unpacked_at_once_is_refused(tmp_path):
    path = with_member(tmp_path / "mine.npz", "train_x", bytes(10**6), zipfile.ZIP_BZIP2)
    refused(path, path, "compressed")


def test_a_pipe_is_refused_as_an_npz_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "mine.npz")
    in_child(lambda: refused(tmp_path / "mine.npz", tmp_path / "mine.npz", "a pipe"), seconds=5)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"\x93NUMPY"])
def test_an_npz_file_of_other_content_is_named(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    refused(path, path)


def test_a_single_array_under_the_name_of_an_npz_is_named(tmp_path):
    path = tmp_path / "mine.npz"
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    refused(path, path)


def test_a_missing_npz_is_named(tmp_path):
    refused(tmp_path / "mine.npz", tmp_path / "mine.npz")


def test_unknown_options_for_own_files_are_named(tmp_path):
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8)))
    with pytest.raises(OnepassError, match=re.escape("'classes'")):
        onepass.load(str(path), classes=3)
