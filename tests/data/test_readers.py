"""Files of the published formats and of one's own: read to the last pixel, or refused by name."""

import logging
import os
import pickle
import re
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import formats
import numpy as np
import pytest
from formats import CIFAR10, CIFAR100, DIGITS, Images, by_class, cut, flip, noise
from PIL import Image

import onepass
from onepass import DataError, InputError, OnepassError
from onepass.data.catalogue import CATALOGUE
from onepass.data.files import decode

MNIST_FILES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("ONEPASS_DATA", raising=False)


@pytest.fixture(scope="module")
def tiny():
    return formats.tiny()


@pytest.fixture(scope="module")
def tiny_folder(tiny, tmp_path_factory):
    return formats.write_tiny(tmp_path_factory.mktemp("tiny") / formats.TINY_FOLDER, tiny)


@pytest.fixture
def broken_tiny(tmp_path):
    """One to damage."""
    return formats.write_tiny(tmp_path / formats.TINY_FOLDER, formats.tiny())


def same(data, images):
    """Whether a dataset holds exactly these samples, in this order."""
    return all(
        np.array_equal(getattr(data, part), getattr(images, part)) for part in Images._fields
    )


def in_class_order(images):
    return Images(
        *by_class(images.train_x, images.train_y), *by_class(images.test_x, images.test_y)
    )


def refused(name, *said, **options):
    """Loading is a DataError that says each of these things in one line."""
    with pytest.raises(DataError) as caught:
        onepass.load(str(name), **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "object at 0x" not in message
    for words in said:
        assert str(words) in message


def write_mnist_folders(folder, images):
    return formats.write_folders(folder, images, DIGITS)


def write_cifar10_folders(folder, images):
    return formats.write_folders(folder, images, CIFAR10)


def write_cifar100_folders(folder, images):
    return formats.write_folders(folder, images, CIFAR100)


WRITERS = {
    "mnist": (formats.write_idx, write_mnist_folders),
    "cifar10": (formats.write_cifar10, write_cifar10_folders),
    "cifar100": (formats.write_cifar100, write_cifar100_folders),
}


def example(name, **counts):
    entry = CATALOGUE[name]
    return noise(len(entry.train), entry.shape, **counts)


# ---- where the published datasets may lie


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in WRITERS for place in CATALOGUE[name].places]
)
def test_a_dataset_is_found_at_every_place_of_the_catalogue(tmp_path, name, place):
    images = example(name)
    WRITERS[name][0](tmp_path / place, images)
    data = onepass.load(name, root=tmp_path)
    assert same(data, images)
    assert data.name == name


@pytest.mark.parametrize("place", CATALOGUE["tiny-imagenet"].places)
def test_tiny_imagenet_is_found_at_every_place_of_the_catalogue(tmp_path, tiny_folder, place):
    if place.endswith(".zip"):
        formats.zipped(tiny_folder, tmp_path / place)
    else:
        shutil.copytree(tiny_folder, tmp_path / place)
    assert len(onepass.load("tiny-imagenet", root=tmp_path).train_y) == 200


@pytest.mark.parametrize("name", WRITERS)
def test_folders_of_classes_will_do_as_well(tmp_path, name):
    images = example(name)
    WRITERS[name][1](tmp_path / name, images)
    data = onepass.load(name, root=tmp_path)
    assert same(data, in_class_order(images))


def test_the_environment_says_where_the_data_are_unless_a_root_is_given(tmp_path, monkeypatch):
    near, far = example("mnist", seed=1), example("mnist", seed=2)
    formats.write_idx(tmp_path / "near" / "mnist", near)
    formats.write_idx(tmp_path / "far" / "mnist", far)
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "near"))
    assert same(onepass.load("mnist"), near)
    assert same(onepass.load("mnist", root=tmp_path / "far"), far)


def test_without_either_they_are_in_the_folder_data(tmp_path, monkeypatch):
    images = example("mnist")
    formats.write_idx(tmp_path / "data" / "mnist", images)
    monkeypatch.chdir(tmp_path)
    assert same(onepass.load("mnist"), images)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_missing_dataset_says_where_to_put_it_and_how_to_get_it(tmp_path, name):
    refused(
        name,
        name,
        tmp_path,
        CATALOGUE[name].places[0],
        "ONEPASS_DATA",
        "onepass[hub]",
        f"onepass data cache {name} --download",
        root=tmp_path,
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_options_for_your_own_files_are_not_for_published_ones(tmp_path, name):
    for option in ({"image_size": 8}, {"test_fraction": 0.5}):
        with pytest.raises(InputError, match=next(iter(option))):
            onepass.load(name, root=tmp_path, **option)


def test_a_dataset_that_is_not_whole_is_told_of(tmp_path, caplog):
    formats.write_cifar10(tmp_path / "cifar10", example("cifar10", train=2, test=1))
    with caplog.at_level(logging.WARNING):
        onepass.load("cifar10", root=tmp_path)
    assert "cifar10 is not whole: 20 training images of 50000" in caplog.text
    assert "cifar10 is not whole: 10 test images of 10000" in caplog.text


@pytest.mark.parametrize("name", WRITERS)
def test_published_datasets_are_normalised_by_published_constants(tmp_path, name):
    WRITERS[name][0](tmp_path / name, example(name))
    data = onepass.load(name, root=tmp_path)
    assert (data.mean, data.std) == (CATALOGUE[name].mean, CATALOGUE[name].std)


# ---- idx


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("dot", ["-", "."], ids=["dash", "dot"])
def test_idx_files_are_read_under_both_spellings_packed_or_not(tmp_path, dot, packed):
    images = example("mnist", train=3, test=2)
    formats.write_idx(tmp_path / "mnist", images, dot=dot, packed=packed)
    data = onepass.load("mnist", root=tmp_path)
    assert same(data, images)
    assert data.class_names == DIGITS
    assert data.train_x.shape == (30, 1, 28, 28)


@pytest.mark.parametrize("file", MNIST_FILES)
def test_a_truncated_idx_file_is_named(tmp_path, file):
    cut(formats.write_idx(tmp_path / "mnist", example("mnist")) / file)
    refused("mnist", tmp_path / "mnist" / file, "truncated", root=tmp_path)


@pytest.mark.parametrize("size", [0, 3, 4, 7, 15])
def test_an_idx_file_that_ends_in_its_header_is_named(tmp_path, size):
    path = formats.write_idx(tmp_path / "mnist", example("mnist")) / MNIST_FILES[0]
    path.write_bytes(path.read_bytes()[:size])
    refused("mnist", path, root=tmp_path)


def test_an_idx_file_with_something_after_its_end_is_named(tmp_path):
    path = formats.write_idx(tmp_path / "mnist", example("mnist")) / MNIST_FILES[3]
    path.write_bytes(path.read_bytes() + b"\0")
    refused("mnist", path, root=tmp_path)


@pytest.mark.parametrize("magic", [(0, 0, 8, 1), (0, 0, 13, 3), (1, 0, 8, 3), (8, 3, 0, 0)])
def test_a_wrong_magic_number_is_named(tmp_path, magic):
    path = formats.write_idx(tmp_path / "mnist", example("mnist")) / MNIST_FILES[0]
    path.write_bytes(bytes(magic) + path.read_bytes()[4:])
    refused("mnist", path, "magic number", root=tmp_path)


def test_labels_in_the_place_of_images_are_named(tmp_path):
    folder = formats.write_idx(tmp_path / "mnist", example("mnist"))
    shutil.copy(folder / MNIST_FILES[1], folder / MNIST_FILES[0])
    refused("mnist", folder / MNIST_FILES[0], "magic number", root=tmp_path)


@pytest.mark.parametrize("file", MNIST_FILES)
@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"not gz")])
def test_a_damaged_gz_file_is_named(tmp_path, file, damage):
    path = formats.write_idx(tmp_path / "mnist", example("mnist"), packed=True) / f"{file}.gz"
    damage(path)
    refused("mnist", path, root=tmp_path)


@pytest.mark.parametrize(("part", "file"), [("train", MNIST_FILES[1]), ("test", MNIST_FILES[3])])
def test_as_many_labels_as_images_are_needed(tmp_path, part, file):
    images = example("mnist")
    folder = formats.write_idx(tmp_path / "mnist", images)
    (folder / file).write_bytes(formats.idx(np.zeros(7)))
    refused("mnist", folder, part, "7 labels", root=tmp_path)


@pytest.mark.parametrize("file", MNIST_FILES[1:])
def test_a_missing_idx_file_is_named(tmp_path, file):
    folder = formats.write_idx(tmp_path / "mnist", example("mnist"))
    (folder / file).unlink()
    refused("mnist", folder, file, root=tmp_path)


def test_labels_that_are_no_digits_are_refused_with_their_file(tmp_path):
    images = example("mnist")
    images.train_y[3] = 77
    folder = formats.write_idx(tmp_path / "mnist", images)
    refused("mnist", folder, "77", root=tmp_path)


def test_idx_files_without_any_images_are_refused(tmp_path):
    images = example("mnist")
    folder = formats.write_idx(
        tmp_path / "mnist", images._replace(train_x=images.train_x[:0], train_y=images.train_y[:0])
    )
    refused("mnist", folder, root=tmp_path)


def test_images_of_another_size_are_not_mnist(tmp_path):
    folder = formats.write_idx(tmp_path / "mnist", noise(10, (1, 20, 28)))
    refused("mnist", folder, "28", root=tmp_path)


# ---- CIFAR


@pytest.mark.parametrize(("name", "names"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_cifar_as_python_2_wrote_it(tmp_path, name, names):
    images = example(name, train=5, test=2)
    WRITERS[name][0](tmp_path / name, images)
    data = onepass.load(name, root=tmp_path)
    assert same(data, images)
    assert data.class_names == tuple(names)


def test_the_pickles_written_here_are_like_the_published_ones(tmp_path):
    folder = formats.write_cifar10(tmp_path, example("cifar10"))
    content = (folder / "data_batch_1").read_bytes()
    assert content.startswith(b"\x80\x02}(U\x0bbatch_labelU\x15training batch 1 of 5U\x06labels](K")
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in content
    assert list(pickle.loads(content, encoding="bytes")) == [
        b"batch_label",
        b"labels",
        b"data",
        b"filenames",
    ]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_cifar_as_python_3_writes_it(tmp_path, protocol):
    images = example("cifar10")
    folder = formats.write_cifar10(tmp_path / "cifar10", images)
    for path in folder.iterdir():
        entries = pickle.loads(path.read_bytes(), encoding="latin1")
        path.write_bytes(pickle.dumps(entries, protocol=protocol))
    assert same(onepass.load("cifar10", root=tmp_path), images)


def test_labels_of_cifar_may_be_an_array(tmp_path):
    images = example("cifar10")
    folder = formats.write_cifar10(tmp_path / "cifar10", images)
    entries = {"data": images.test_x.reshape(10, -1), "labels": images.test_y}
    (folder / "test_batch").write_bytes(formats.python2_pickle(entries))
    assert same(onepass.load("cifar10", root=tmp_path), images)


CIFAR_FILES = [
    ("cifar10", "data_batch_1"),
    ("cifar10", "data_batch_4"),
    ("cifar10", "test_batch"),
    ("cifar10", "batches.meta"),
    ("cifar100", "train"),
    ("cifar100", "test"),
    ("cifar100", "meta"),
]


@pytest.fixture(params=CIFAR_FILES, ids=lambda one: one[1])
def cifar_file(request, tmp_path):
    name, file = request.param
    return name, WRITERS[name][0](tmp_path / name, example(name)) / file


def gadgets(marker):
    """Calls that leave a file behind when they are run: module, name, arguments."""
    touch = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    return {
        "a command": (os.system.__module__, "system", (f"touch {marker}",)),
        "eval": ("builtins", "eval", (touch,)),
        "exec": ("builtins", "exec", (touch,)),
        "numpy savetxt": ("numpy", "savetxt", (str(marker), (1,))),
        "numpy memmap": ("numpy", "memmap", (str(marker), "u1", "w+", 0, (1,))),
        "numpy testing": ("numpy.testing._private.utils", "runstring", (touch, {})),
        "numpy through a module": ("numpy.lib._npyio_impl", "savetxt", (str(marker), (1,))),
    }


def call(module, name, arguments):
    """A pickle that calls a function when it is loaded, by the opcodes `__reduce__` would give."""
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    given = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x04}(U\x04data" + texts + b"\x93" + given + b"Ru."


def call_of_python_2(module, name, arguments):
    given = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02}(U\x04datac" + f"{module}\n{name}\n".encode() + given + b"Ru."


@pytest.mark.parametrize("write", [call, call_of_python_2])
@pytest.mark.parametrize("gadget", gadgets(Path()))
def test_a_pickle_that_asks_for_code_is_refused_and_runs_nothing(tmp_path, gadget, write):
    marker = tmp_path / "marker"
    module, name, arguments = gadgets(marker)[gadget]
    content = write(module, name, arguments)
    pickle.loads(content)  # it would have worked
    marker.unlink()
    path = formats.write_cifar10(tmp_path / "cifar10", example("cifar10")) / "data_batch_2"
    path.write_bytes(content)
    refused("cifar10", path, "refused", f"{module}.{name}", root=tmp_path)
    assert not marker.exists()


class Touch:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_every_cifar_file_is_read_without_running_anything(cifar_file, tmp_path):
    name, path = cifar_file
    marker = tmp_path / "marker"
    path.write_bytes(pickle.dumps({b"data": Touch(marker)}))
    refused(name, path, "refused", root=tmp_path)
    assert not marker.exists()


def test_an_attribute_of_something_admitted_is_not_admitted(tmp_path):
    path = formats.write_cifar10(tmp_path / "cifar10", example("cifar10")) / "data_batch_1"
    for name in ("ndarray.tofile", "ndarray.dump", "dtype.__class__"):
        path.write_bytes(call("numpy", name, ()))
        refused("cifar10", path, "refused", f"numpy.{name}", root=tmp_path)


def test_a_truncated_cifar_file_is_named(cifar_file, tmp_path):
    name, path = cifar_file
    cut(path)
    refused(name, path, "not a whole CIFAR file", root=tmp_path)


def test_an_empty_cifar_file_is_named(cifar_file, tmp_path):
    name, path = cifar_file
    path.write_bytes(b"")
    refused(name, path, root=tmp_path)


def test_a_missing_cifar_file_is_named(tmp_path):
    for name, file in CIFAR_FILES:
        path = WRITERS[name][0](tmp_path / file / name, example(name)) / file
        if file not in ("data_batch_1", "train"):  # these are how the folder is known
            path.unlink()
            refused(name, path, root=tmp_path / file)


def test_a_cifar_file_that_holds_something_else_is_named(cifar_file, tmp_path):
    name, path = cifar_file
    for content in ([1, 2], {"something": "else"}, {}):
        path.write_bytes(formats.python2_pickle(content))
        refused(name, path, root=tmp_path)


def rewritten(path, **entries):
    content = pickle.loads(path.read_bytes(), encoding="latin1")
    path.write_bytes(formats.python2_pickle({**content, **entries}))
    return path


@pytest.mark.parametrize(
    "entries",
    [
        {"labels": [1, 2, 3]},
        {"data": np.zeros((4, 3071), dtype=np.uint8)},
        {"data": np.zeros((4, 3072), dtype=np.int64)},
        {"data": "no array"},
        {"labels": [0, 1, 2, 10]},
        {"labels": ["cat", "dog", "cat", "dog"]},
    ],
    ids=["few labels", "short rows", "whole numbers", "text", "class 10", "named labels"],
)
def test_a_batch_that_is_not_images_with_labels_is_named(tmp_path, entries):
    folder = formats.write_cifar10(tmp_path / "cifar10", example("cifar10"))
    path = rewritten(folder / "data_batch_3", **entries)
    refused("cifar10", folder, root=tmp_path)
    if "labels" not in entries or len(entries["labels"]) == 3:
        refused("cifar10", path, root=tmp_path)


@pytest.mark.parametrize(("name", "meta"), [("cifar10", "batches.meta"), ("cifar100", "meta")])
def test_two_cifar_classes_of_one_name_are_refused(tmp_path, name, meta):
    names = [
        "cat" if place in (3, 7) else str(place) for place in range(len(CATALOGUE[name].train))
    ]
    folder = WRITERS[name][0](tmp_path / name, example(name), names)
    refused(name, folder / meta, "one name", root=tmp_path)


def test_cifar_with_another_number_of_classes_is_refused(tmp_path):
    folder = formats.write_cifar10(tmp_path / "cifar10", example("cifar10"), CIFAR10[:9])
    refused("cifar10", folder, "10", root=tmp_path)


# ---- TinyImageNet


@pytest.fixture(params=["folder", "zip"])
def whole_tiny(request, tmp_path, tiny_folder):
    if request.param == "folder":
        shutil.copytree(tiny_folder, tmp_path / "tiny-imagenet")
    else:
        formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    return onepass.load("tiny-imagenet", root=tmp_path)


def test_tiny_imagenet_has_its_classes_in_the_order_of_wnids(whole_tiny, tiny):
    assert whole_tiny.class_names == tuple(tiny.wnids)
    assert list(whole_tiny.class_names) != sorted(whole_tiny.class_names)
    assert whole_tiny.train_y.tolist() == list(range(200))
    assert whole_tiny.test_y.tolist() == list(reversed(range(200)))


def test_tiny_imagenet_has_the_pixels_of_its_files(whole_tiny, tiny):
    for x, y, colours in (
        (whole_tiny.train_x, whole_tiny.train_y, tiny.train),
        (whole_tiny.test_x, whole_tiny.test_y, tiny.val),
    ):
        assert x.shape == (200, 3, 64, 64)
        wanted = colours[y.numpy(), :, None, None].astype(int)
        assert np.abs(x.numpy().astype(int) - wanted).max() <= 2


def test_tiny_imagenet_is_decoded_as_pillow_does(whole_tiny, tiny_folder):
    for label in (0, 1, 57, 199):
        wnid = whole_tiny.class_names[label]
        path = tiny_folder / "train" / wnid / "images" / f"{wnid}_0.JPEG"
        with Image.open(path) as picture:
            wanted = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
        assert np.array_equal(whole_tiny.train_x[label], wanted)


def test_greyscale_files_of_tiny_imagenet_have_three_like_channels(whole_tiny, tiny):
    grey = whole_tiny.train_x[: tiny.grey]
    assert (grey == grey[:, :1]).all()
    assert not (whole_tiny.train_x[tiny.grey :] == whole_tiny.train_x[tiny.grey :, :1]).all()


def refused_tiny(folder, *said):
    """As a folder, and as a zip of the same."""
    refused("tiny-imagenet", folder, *said, root=folder.parent)
    path = formats.zipped(folder, folder.parent / "packed" / f"{formats.TINY_FOLDER}.zip")
    refused("tiny-imagenet", path, *said, root=path.parent)


def test_a_class_of_tiny_imagenet_without_images_is_named(broken_tiny):
    wnid = (broken_tiny / "wnids.txt").read_text().split()[3]
    for path in (broken_tiny / "train" / wnid / "images").iterdir():
        path.unlink()
    refused_tiny(broken_tiny, wnid)
    shutil.rmtree(broken_tiny / "train" / wnid)
    refused("tiny-imagenet", wnid, root=broken_tiny.parent)


def test_a_wnid_that_stands_twice_is_refused(broken_tiny):
    path = broken_tiny / "wnids.txt"
    path.write_text(path.read_text() + path.read_text().split()[0] + "\n")
    refused_tiny(broken_tiny, "wnids.txt", "twice")


def test_annotations_of_an_absent_image_are_refused(broken_tiny):
    (broken_tiny / "val" / "images" / "val_2.JPEG").unlink()
    refused_tiny(broken_tiny, "val_annotations.txt", "val_2.JPEG")


def test_annotations_of_an_unknown_class_are_refused(broken_tiny):
    path = broken_tiny / "val" / "val_annotations.txt"
    wnid = (broken_tiny / "wnids.txt").read_text().split()[1]
    path.write_text(path.read_text().replace(wnid, "n99999999"))
    refused_tiny(broken_tiny, "val_annotations.txt", "n99999999")


@pytest.mark.parametrize("line", ["val_0.JPEG", "val_0.JPEG n01443537 0 32 44 62", "\\"])
def test_annotations_that_are_not_columns_are_refused(broken_tiny, line):
    path = broken_tiny / "val" / "val_annotations.txt"
    path.write_text(path.read_text() + line + "\n")
    refused_tiny(broken_tiny, "val_annotations.txt")


def test_empty_annotations_are_refused(broken_tiny):
    (broken_tiny / "val" / "val_annotations.txt").write_text("")
    refused_tiny(broken_tiny, "val_annotations.txt")


def test_missing_annotations_are_named(broken_tiny):
    (broken_tiny / "val" / "val_annotations.txt").unlink()
    refused_tiny(broken_tiny, "val_annotations.txt")


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_corrupt_jpeg_is_named(broken_tiny, part):
    path = sorted((broken_tiny / part).rglob("*.JPEG"))[2]
    cut(path)
    refused("tiny-imagenet", path.relative_to(broken_tiny), "whole", root=broken_tiny.parent)
    zipped = formats.zipped(broken_tiny, broken_tiny.parent / "packed" / "tiny-imagenet-200.zip")
    refused("tiny-imagenet", path.relative_to(broken_tiny), "whole", root=zipped.parent)


def test_a_jpeg_of_another_size_is_named(broken_tiny):
    path = sorted(broken_tiny.glob("train/*/images/*.JPEG"))[1]
    path.write_bytes(formats.encoded(np.zeros((3, 32, 64), np.uint8), "JPEG"))
    refused("tiny-imagenet", path.name, "64x32", "64x64", root=broken_tiny.parent)


def test_a_number_of_classes_that_is_not_tiny_imagenets_is_refused(tmp_path):
    folder = formats.write_tiny(tmp_path / formats.TINY_FOLDER, formats.tiny(classes=5))
    refused_tiny(folder, "200 classes", "5")


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.9])
def test_a_zip_cut_short_is_named(tmp_path, tiny_folder, keep):
    path = formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    cut(path, keep)
    refused("tiny-imagenet", path, root=tmp_path)


def test_a_zip_with_a_damaged_member_is_named(tmp_path, broken_tiny):
    path = formats.zipped(broken_tiny, tmp_path / "packed" / "tiny-imagenet-200.zip")
    with zipfile.ZipFile(path) as archive:
        member = next(one for one in archive.infolist() if re.search("train.*JPEG", one.filename))
    content = bytearray(path.read_bytes())
    content[member.header_offset + 30 + len(member.filename) + 40] ^= 0xFF
    path.write_bytes(content)
    refused("tiny-imagenet", path, Path(member.filename).name, root=path.parent)


def test_a_zip_that_asks_for_a_password_is_named(tmp_path, tiny_folder):
    path = formats.zipped(tiny_folder, tmp_path / "tiny-imagenet-200.zip")
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for match in re.finditer(re.escape(mark), bytes(content)):
            content[match.start() + place] |= 1
    path.write_bytes(content)
    refused("tiny-imagenet", path, root=tmp_path)


def test_a_zip_of_something_else_is_named(tmp_path):
    path = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused("tiny-imagenet", path, "wnids.txt", root=tmp_path)


# ---- your own folders


NAMES = ("ant", "bee", "cow")


def own(folder, shape=(3, 6, 5), **options):
    images = noise(3, shape, train=4, test=2)
    formats.write_folders(folder, images, NAMES, **options)
    return in_class_order(images)


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_train_and_test_folders_are_read_exactly(tmp_path, test):
    images = own(tmp_path / "mine", test=test)
    data = onepass.load(str(tmp_path / "mine"))
    assert same(data, images)
    assert data.class_names == NAMES
    assert data.name == "mine"


def test_greyscale_images_have_one_channel(tmp_path):
    images = own(tmp_path / "mine", shape=(1, 6, 5))
    assert same(onepass.load(str(tmp_path / "mine")), images)


def test_your_own_images_are_normalised_by_their_own_statistics(tmp_path):
    images = own(tmp_path / "mine")
    data = onepass.load(str(tmp_path / "mine"))
    assert data.mean == pytest.approx(images.train_x.mean(axis=(0, 2, 3)) / 255)


@pytest.mark.parametrize(
    ("form", "suffix"),
    [("BMP", ".bmp"), ("TIFF", ".tif"), ("PPM", ".ppm"), ("PNG", ".PNG"), ("WEBP", ".webp")],
)
def test_other_lossless_formats_are_read_exactly(tmp_path, form, suffix):
    images = own(tmp_path / "mine")
    for path in list((tmp_path / "mine").rglob("*.png")):
        with Image.open(path) as picture:
            options = {"lossless": True} if form == "WEBP" else {}
            picture.save(path.with_name(f"{path.stem}-new{suffix}"), form, **options)
        path.unlink()
    assert same(onepass.load(str(tmp_path / "mine")), images)


def test_files_that_are_no_images_are_passed_over(tmp_path):
    images = own(tmp_path / "mine")
    for name in ("notes.txt", "Thumbs.db", ".DS_Store", "._00000.png"):
        (tmp_path / "mine" / "train" / "ant" / name).write_bytes(b"something")
    (tmp_path / "mine" / "train" / ".git").mkdir()
    (tmp_path / "mine" / "labels.csv").write_text("x")
    assert same(onepass.load(str(tmp_path / "mine")), images)


def test_greyscale_among_colour_becomes_colour(tmp_path):
    images = own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train" / "bee").iterdir())[0]
    path.write_bytes(formats.encoded(images.train_x[0, :1]))
    data = onepass.load(str(tmp_path / "mine"))
    assert np.array_equal(data.train_x[4], np.repeat(images.train_x[0, :1], 3, axis=0))
    assert np.array_equal(data.train_x[5:], images.train_x[5:])


def test_a_greyscale_file_that_comes_first_takes_no_colour_from_the_others(tmp_path):
    images = own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train" / "ant").iterdir())[0]
    path.write_bytes(formats.encoded(images.train_x[0, :1]))
    data = onepass.load(str(tmp_path / "mine"))
    assert data.train_x.shape[1] == 3
    assert np.array_equal(data.train_x[1:], images.train_x[1:])


def test_sixteen_bit_greyscale_keeps_its_picture(tmp_path):
    values = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    for part in ("train", "test"):
        (tmp_path / "mine" / part / "one").mkdir(parents=True)
        Image.fromarray(values).save(tmp_path / "mine" / part / "one" / "deep.png")
    data = onepass.load(str(tmp_path / "mine"))
    assert np.abs(data.train_x[0, 0].numpy().astype(int) - values // 256).max() <= 1


def test_images_are_scaled_to_the_size_asked_for(tmp_path):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train" / "bee").iterdir())[0]
    path.write_bytes(formats.encoded(np.full((3, 20, 9), 77, np.uint8)))
    data = onepass.load(str(tmp_path / "mine"), image_size=8)
    assert data.train_x.shape == (12, 3, 8, 8)
    assert (data.train_x[4] == 77).all()
    with Image.open(sorted((tmp_path / "mine" / "train" / "ant").iterdir())[0]) as picture:
        wanted = np.asarray(picture.resize((8, 8), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(data.train_x[0], wanted)


def test_one_size_and_another_are_two_datasets(tmp_path):
    own(tmp_path / "mine")
    shapes = [
        onepass.load(str(tmp_path / "mine"), image_size=n).train_x.shape[2] for n in (8, 9, 8)
    ]
    assert shapes == [8, 9, 8]


def test_mixed_sizes_need_an_image_size(tmp_path):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "test" / "bee").iterdir())[1]
    path.write_bytes(formats.encoded(np.zeros((3, 6, 7), np.uint8)))
    refused(tmp_path / "mine", path, "7x6", "5x6")


@pytest.mark.parametrize("size", [0, -4, 2.5, "8", True])
def test_an_image_size_that_is_none_is_refused(tmp_path, size):
    own(tmp_path / "mine")
    with pytest.raises(InputError, match="image_size"):
        onepass.load(str(tmp_path / "mine"), image_size=size)


@pytest.fixture
def one_folder(tmp_path):
    """Twenty of the first class, ten of the second, three of the third; pixels are numbers."""
    y = np.repeat(np.arange(3), [20, 10, 3])
    x = np.broadcast_to(np.arange(33, dtype=np.uint8)[:, None, None, None], (33, 1, 4, 4))
    return formats.write_classes(tmp_path / "mine", x, y, NAMES)


@pytest.mark.parametrize(
    ("fraction", "held"),
    [(0.2, [4, 2, 1]), (0.5, [10, 5, 2]), (0.01, [1, 1, 1]), (0.99, [19, 9, 2])],
)
def test_a_test_fraction_is_held_out_of_every_class(one_folder, fraction, held):
    data = onepass.load(str(one_folder), test_fraction=fraction)
    assert np.bincount(data.test_y).tolist() == held
    numbers = [x[:, 0, 0, 0].tolist() for x in (data.train_x, data.test_x)]
    assert sorted(numbers[0] + numbers[1]) == list(range(33))
    labels = np.repeat(np.arange(3), [20, 10, 3])
    assert data.train_y.tolist() == labels[numbers[0]].tolist()
    assert data.test_y.tolist() == labels[numbers[1]].tolist()


def test_what_is_held_out_is_the_same_every_time(one_folder, tmp_path, monkeypatch):
    first = onepass.load(str(one_folder), test_fraction=0.3)
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "another"))
    again = onepass.load(str(one_folder), test_fraction=0.3)
    assert np.array_equal(first.test_x, again.test_x)
    held = first.test_x[:, 0, 0, 0].tolist()
    assert held != [*range(6), *range(20, 23), 30]  # drawn, and not the first of each class


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, float("nan"), "0.2"])
def test_a_fraction_that_is_none_is_refused(one_folder, fraction):
    with pytest.raises(InputError, match="fraction"):
        onepass.load(str(one_folder), test_fraction=fraction)


def test_one_folder_needs_a_test_fraction(one_folder):
    refused(one_folder, one_folder, "test fraction")


def test_a_class_of_one_image_cannot_be_split(one_folder):
    for path in sorted((one_folder / "cow").iterdir())[1:]:
        path.unlink()
    refused(one_folder, one_folder / "cow", test_fraction=0.5)


def test_a_test_fraction_is_not_for_folders_that_have_a_test_part(tmp_path):
    own(tmp_path / "mine")
    with pytest.raises(InputError, match="test fraction"):
        onepass.load(str(tmp_path / "mine"), test_fraction=0.5)


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_class_is_named(tmp_path, part):
    own(tmp_path / "mine")
    for path in (tmp_path / "mine" / part / "bee").iterdir():
        path.unlink()
    refused(tmp_path / "mine", tmp_path / "mine" / part, "'bee'")


def test_a_class_that_only_one_part_has_is_named(tmp_path):
    own(tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine" / "test" / "cow")
    refused(tmp_path / "mine", tmp_path / "mine" / "test", "'cow'")
    shutil.copytree(tmp_path / "mine" / "train" / "cow", tmp_path / "mine" / "test" / "cow")
    shutil.rmtree(tmp_path / "mine" / "train" / "ant")
    refused(tmp_path / "mine", tmp_path / "mine" / "test", "'ant'")


def test_a_published_dataset_in_folders_that_lacks_a_class_is_refused(tmp_path):
    write_cifar10_folders(tmp_path / "cifar10", example("cifar10"))
    for part in ("train", "test"):
        shutil.rmtree(tmp_path / "cifar10" / part / "frog")
    refused("cifar10", tmp_path / "cifar10", "10 classes", root=tmp_path)


@pytest.mark.parametrize("other", ["Ant", "ANT", "ant "])
def test_two_classes_of_one_name_are_refused(tmp_path, other):
    own(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine" / "train" / "ant", tmp_path / "mine" / "train" / other)
    refused(tmp_path / "mine", tmp_path / "mine" / "train", "one name", repr(other))


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_corrupt_png_is_named(tmp_path, part, place):
    own(tmp_path / "mine", shape=(3, 30, 30))
    path = sorted((tmp_path / "mine" / part).rglob("*.png"))[place]
    cut(path)
    refused(tmp_path / "mine", path, "whole")


@pytest.mark.parametrize("content", [b"<html>not found</html>", b""])
@pytest.mark.parametrize("place", [0, 5])
def test_a_png_that_is_none_is_named(tmp_path, content, place):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train").rglob("*.png"))[place]
    path.write_bytes(content)
    refused(tmp_path / "mine", path, "whole")


@pytest.mark.parametrize("place", [0, 5])
def test_a_png_that_claims_to_be_enormous_is_named(tmp_path, place):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train").rglob("*.png"))[place]
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 100_000, 100_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    refused(tmp_path / "mine", path, image_size=8)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_no_damage_to_an_image_is_worse_than_a_data_error(form):
    source = np.random.default_rng(0)
    whole = np.frombuffer(formats.encoded(noise(1, (3, 9, 7)).train_x[0], form), np.uint8)
    for _ in range(200):
        damaged = whole.copy()
        damaged[source.integers(0, len(whole), 3)] = source.integers(0, 256, 3)
        content = damaged[: source.integers(len(whole) // 2, 2 * len(whole))].tobytes()
        try:
            assert decode(content, "some/file", (3, 9, 7), resize=True).shape == (3, 9, 7)
        except DataError as problem:
            assert "some/file" in str(problem)


def test_an_empty_folder_is_named(tmp_path):
    (tmp_path / "mine").mkdir()
    refused(tmp_path / "mine", tmp_path / "mine")
    refused(tmp_path / "mine", tmp_path / "mine", test_fraction=0.5)
    (tmp_path / "mine" / "train").mkdir()
    (tmp_path / "mine" / "test").mkdir()
    refused(tmp_path / "mine", tmp_path / "mine" / "train")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    refused(tmp_path / "mine", tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", tmp_path / "file")


# ---- .npz


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


@pytest.mark.parametrize("kind", [np.str_, np.bytes_])
def test_classes_may_have_names(tmp_path, kind):
    names = np.array(["cat", "dog"], dtype=kind)
    arrays = mine(np.eye(8), class_names=names)
    data = onepass.load(str(write_npz(tmp_path / "mine.npz", **arrays)))
    assert data.class_names == ("cat", "dog")


def test_a_part_of_an_npz_may_be_held_out(tmp_path):
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
def test_a_fraction_of_an_npz_that_is_none_is_refused(tmp_path, fraction):
    path = write_npz(tmp_path / "mine.npz", x=np.eye(8), y=np.arange(8) % 2)
    with pytest.raises(InputError, match="fraction"):
        onepass.load(str(path), test_fraction=fraction)


def test_a_fraction_is_not_for_an_npz_with_a_test_part(tmp_path):
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8)))
    with pytest.raises(InputError, match="fraction"):
        onepass.load(str(path), test_fraction=0.5)


def test_an_image_size_is_not_for_an_npz(tmp_path):
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8)))
    with pytest.raises(InputError, match="image_size"):
        onepass.load(str(path), image_size=8)


@pytest.mark.parametrize("key", ["train_x", "train_y", "test_x", "test_y"])
def test_a_missing_key_is_named(tmp_path, key):
    arrays = mine(np.eye(8))
    del arrays[key]
    path = write_npz(tmp_path / "mine.npz", **arrays)
    refused(path, path, key)


def test_a_missing_label_key_is_named_when_a_part_is_held_out(tmp_path):
    path = write_npz(tmp_path / "mine.npz", x=np.eye(8))
    refused(path, path, " y", test_fraction=0.5)


def test_pickled_objects_in_an_npz_are_refused_unrun(tmp_path):
    marker = tmp_path / "marker"
    objects = np.array([Touch(marker)] * 8, dtype=object)
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8), class_names=objects))
    refused(path, path, "allow_pickle=False")
    assert not marker.exists()


BAD_ARRAYS = {
    "NaN": {"train_x": np.full((8, 3), np.nan)},
    "infinity in the test part": {"test_x": np.full((4, 8), np.inf)},
    "too few labels": {"train_y": np.zeros(7, int)},
    "labels in columns": {"train_y": np.zeros((8, 1), int)},
    "fractional labels": {"train_y": np.arange(8) / 2},
    "named labels": {"train_y": np.array(list("abababab"))},
    "negative labels": {"train_y": np.arange(8) - 4},
    "an unknown test label": {"test_y": np.array([0, 1, 0, 5])},
    "float images": {"train_x": np.zeros((8, 3, 4, 4)), "test_x": np.zeros((4, 3, 4, 4))},
    "whole-number vectors": {"train_x": np.eye(8, dtype=int), "test_x": np.eye(8, dtype=int)[:4]},
    "no samples": {"test_x": np.zeros((0, 8)), "test_y": np.zeros(0, int)},
    "no samples to learn": {"train_x": np.zeros((0, 8)), "train_y": np.zeros(0, int)},
    "two shapes": {"test_x": np.zeros((4, 9))},
    "two kinds": {"test_x": np.zeros((4, 8, 8), np.uint8)},
    "three names for two classes": {"class_names": np.array(["a", "b", "c"])},
    "two classes of one name": {"class_names": np.array(["a", "a"])},
    "one name for all": {"class_names": np.array("ab")},
}


@pytest.mark.parametrize("bad", BAD_ARRAYS)
def test_bad_arrays_are_refused_with_their_file(tmp_path, bad):
    path = write_npz(tmp_path / "mine.npz", **{**mine(np.eye(8)), **BAD_ARRAYS[bad]})
    refused(path, path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_an_npz_cut_short_is_named(tmp_path, compressed, keep):
    path = write_npz(tmp_path / "mine.npz", compressed, **mine(RANDOM.normal(size=(8, 9))))
    refused(cut(path, keep), path)


def test_a_byte_turned_over_in_an_npz_is_an_error_or_harmless(tmp_path):
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


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"\x93NUMPY"])
def test_an_npz_that_is_none_is_named(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    refused(path, path)


def test_a_single_array_under_the_name_of_an_npz_is_named(tmp_path):
    path = tmp_path / "mine.npz"
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    refused(path, path)


def test_an_npz_that_is_not_there_is_named(tmp_path):
    refused(tmp_path / "mine.npz", tmp_path / "mine.npz")


def test_options_that_your_own_files_do_not_have_are_named(tmp_path):
    path = write_npz(tmp_path / "mine.npz", **mine(np.eye(8)))
    with pytest.raises(OnepassError, match=re.escape("'classes'")):
        onepass.load(str(path), classes=3)
