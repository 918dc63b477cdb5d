"""Tests of MNIST's idx files: read exactly, or refused with their name."""

import gzip
import resource
import shutil
from pathlib import Path

import formats
import numpy as np
import pytest
from child_process import in_child
from formats import DIGITS, flip_byte, noise, truncate
from read_datasets import holds, random_data, refused

import onepass

MNIST_FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("dot", ["-", "."], ids=["dash", "dot"])
def test_idx_files_are_read_under_both_spellings_packed_or_not(tmp_path, dot, packed):
    images = random_data("mnist", train=3, test=2)
    formats.write_idx(tmp_path / "mnist", images, dot=dot, packed=packed)
    data = onepass.load("mnist", root=tmp_path)
    assert holds(data, images)
    assert data.class_names == DIGITS
    assert data.train_x.shape == (30, 1, 28, 28)
    assert not data.mirror_is_same_class


@pytest.mark.parametrize("file", MNIST_FILES)
def test_a_truncated_idx_file_is_named(tmp_path, file):
    truncate(formats.write_idx(tmp_path / "mnist", random_data("mnist")) / file)
    refused("mnist", tmp_path / "mnist" / file, "truncated", root=tmp_path)


@pytest.mark.parametrize("size", [0, 3, 4, 7, 15])
def test_an_idx_file_that_ends_in_its_header_is_named(tmp_path, size):
    path = formats.write_idx(tmp_path / "mnist", random_data("mnist")) / MNIST_FILES[0]
    path.write_bytes(path.read_bytes()[:size])
    refused("mnist", path, root=tmp_path)


def test_an_idx_file_with_something_after_its_end_is_named(tmp_path):
    path = formats.write_idx(tmp_path / "mnist", random_data("mnist")) / MNIST_FILES[3]
    path.write_bytes(path.read_bytes() + b"\0")
    refused("mnist", path, root=tmp_path)


@pytest.mark.parametrize("magic", [(0, 0, 8, 1), (0, 0, 13, 3), (1, 0, 8, 3), (8, 3, 0, 0)])
def test_a_wrong_magic_number_is_named(tmp_path, magic):
    path = formats.write_idx(tmp_path / "mnist", random_data("mnist")) / MNIST_FILES[0]
    path.write_bytes(bytes(magic) + path.read_bytes()[4:])
    refused("mnist", path, "magic number", root=tmp_path)


def test_a_label_file_under_the_name_of_images_is_refused(tmp_path):
    folder = formats.write_idx(tmp_path / "mnist", random_data("mnist"))
    shutil.copy(folder / MNIST_FILES[1], folder / MNIST_FILES[0])
    refused("mnist", folder / MNIST_FILES[0], "magic number", root=tmp_path)


@pytest.mark.parametrize("file", MNIST_FILES)
@pytest.mark.parametrize("damage", [truncate, flip_byte, lambda path: path.write_bytes(b"not gz")])
def test_a_damaged_gz_file_is_named(tmp_path, file, damage):
    path = formats.write_idx(tmp_path / "mnist", random_data("mnist"), packed=True) / f"{file}.gz"
    damage(path)
    refused("mnist", path, root=tmp_path)


def with_little_memory(act):
    """Limits this process to its present size and a quarter of a gigabyte."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    act()


def test_a_gz_file_is_not_unpacked_beyond_its_announced_size(tmp_path):
    folder = formats.write_idx(tmp_path / "mnist", random_data("mnist"), packed=True)
    path = folder / f"{MNIST_FILES[0]}.gz"
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(2**24)) * 64)  # 1 GiB packed into 1 MB
    in_child(lambda: with_little_memory(lambda: refused("mnist", path, "too long", root=tmp_path)))


def test_impossibly_large_sizes_are_refused(tmp_path):
    path = formats.write_idx(tmp_path / "mnist", random_data("mnist")) / MNIST_FILES[0]
    path.write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12)
    refused("mnist", path, "impossible sizes", root=tmp_path)


def test_idx_files_are_read_below_a_folder_whose_name_is_not_utf_8(tmp_path):
    images = random_data("mnist")
    formats.write_idx(tmp_path / "caf\udce9" / "mnist", images)
    assert holds(onepass.load("mnist", root=tmp_path / "caf\udce9"), images)


@pytest.mark.parametrize(("part", "file"), [("train", MNIST_FILES[1]), ("test", MNIST_FILES[3])])
def test_as_many_labels_as_images_are_needed(tmp_path, part, file):
    images = random_data("mnist")
    folder = formats.write_idx(tmp_path / "mnist", images)
    (folder / file).write_bytes(formats.idx_bytes(np.zeros(7)))
    refused("mnist", folder, part, "7 labels", root=tmp_path)


@pytest.mark.parametrize("file", MNIST_FILES[1:])
def test_a_missing_idx_file_is_named(tmp_path, file):
    folder = formats.write_idx(tmp_path / "mnist", random_data("mnist"))
    (folder / file).unlink()
    refused("mnist", folder, file, root=tmp_path)


def test_labels_that_are_not_digits_are_refused_with_their_file(tmp_path):
    images = random_data("mnist")
    images.train_y[3] = 77
    folder = formats.write_idx(tmp_path / "mnist", images)
    refused("mnist", folder, "77", root=tmp_path)


def test_idx_files_without_any_images_are_refused(tmp_path):
    images = random_data("mnist")
    folder = formats.write_idx(
        tmp_path / "mnist", images._replace(train_x=images.train_x[:0], train_y=images.train_y[:0])
    )
    refused("mnist", folder, root=tmp_path)


def test_images_of_another_size_are_not_mnist(tmp_path):
    folder = formats.write_idx(tmp_path / "mnist", noise(10, (1, 20, 28)))
    refused("mnist", folder, "28", root=tmp_path)
