"""Tests of the user's own image folders: read exactly, split per class, or refused with a name."""

import os
import shutil
import socket
import struct
import zlib
from pathlib import Path

import formats
import numpy as np
import pytest
from child_process import in_child
from formats import noise, truncate
from PIL import EpsImagePlugin, Image
from read_datasets import holds, in_class_order, random_data, refused, write_cifar10_folders

import onepass
from onepass import DataError, InputError
from onepass.data.files import decode_image

NAMES = ("ant", "bee", "cow")


def own(folder, shape=(3, 6, 5), **options):
    images = noise(3, shape, train=4, test=2)
    formats.write_folders(folder, images, NAMES, **options)
    return in_class_order(images)


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_train_and_test_folders_are_read_exactly(tmp_path, test):
    images = own(tmp_path / "mine", test=test)
    data = onepass.load(str(tmp_path / "mine"))
    assert holds(data, images)
    assert data.class_names == NAMES
    assert data.name == "mine"


def test_greyscale_images_have_one_channel(tmp_path):
    images = own(tmp_path / "mine", shape=(1, 6, 5))
    assert holds(onepass.load(str(tmp_path / "mine")), images)


def test_your_own_images_are_normalised_by_their_own_statistics(tmp_path):
    images = own(tmp_path / "mine")
    data = onepass.load(str(tmp_path / "mine"))
    assert data.mean == pytest.approx(images.train_x.mean(axis=(0, 2, 3)) / 255)


def test_mirror_images_of_own_files_are_of_the_same_class_by_default(tmp_path):
    own(tmp_path / "mine")
    assert onepass.load(str(tmp_path / "mine")).mirror_is_same_class
    told = onepass.load(str(tmp_path / "mine"), mirror_is_same_class=False)
    assert not told.mirror_is_same_class


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
    assert holds(onepass.load(str(tmp_path / "mine")), images)


def test_files_that_are_not_images_are_ignored(tmp_path):
    images = own(tmp_path / "mine")
    for name in ("notes.txt", "Thumbs.db", ".DS_Store", "._00000.png"):
        (tmp_path / "mine" / "train" / "ant" / name).write_bytes(b"something")
    (tmp_path / "mine" / "train" / ".git").mkdir()
    (tmp_path / "mine" / "labels.csv").write_text("x")
    assert holds(onepass.load(str(tmp_path / "mine")), images)


def test_greyscale_images_among_colour_images_become_colour(tmp_path):
    images = own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train" / "bee").iterdir())[0]
    path.write_bytes(formats.encode(images.train_x[0, :1]))
    data = onepass.load(str(tmp_path / "mine"))
    assert np.array_equal(data.train_x[4], np.repeat(images.train_x[0, :1], 3, axis=0))
    assert np.array_equal(data.train_x[5:], images.train_x[5:])


def test_a_greyscale_first_file_leaves_the_others_in_colour(tmp_path):
    images = own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train" / "ant").iterdir())[0]
    path.write_bytes(formats.encode(images.train_x[0, :1]))
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


TURNED = {  # by EXIF orientation: the stored pixels of an upright picture x
    1: lambda x: x,
    2: lambda x: x[:, :, ::-1],
    3: lambda x: x[:, ::-1, ::-1],
    4: lambda x: x[:, ::-1],
    5: lambda x: x.transpose(0, 2, 1),
    6: lambda x: x.transpose(0, 2, 1)[:, ::-1],
    7: lambda x: x.transpose(0, 2, 1)[:, ::-1, ::-1],
    8: lambda x: x.transpose(0, 2, 1)[:, :, ::-1],
}


@pytest.mark.parametrize("orientation", TURNED)
def test_photos_are_upright(tmp_path, orientation):
    images = own(tmp_path / "mine")
    for path in (tmp_path / "mine").rglob("*.png"):
        with Image.open(path) as picture:
            upright = np.asarray(picture).transpose(2, 0, 1)
        stored = np.ascontiguousarray(TURNED[orientation](upright))
        path.write_bytes(formats.encode(stored, exif=formats.exif(orientation)))
    assert holds(onepass.load(tmp_path / "mine"), images)


def test_a_photo_with_damaged_exif_data_is_read(tmp_path):
    images = own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train" / "ant").iterdir())[0]
    for notes in (b"Exif\0\0nonsense", formats.exif(6)[:-9], formats.exif(99)):
        path.write_bytes(formats.encode(images.train_x[0], exif=notes))
        assert holds(onepass.load(tmp_path / "mine"), images)


def test_images_are_scaled_to_the_size_asked_for(tmp_path):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train" / "bee").iterdir())[0]
    path.write_bytes(formats.encode(np.full((3, 20, 9), 77, np.uint8)))
    data = onepass.load(str(tmp_path / "mine"), image_size=8)
    assert data.train_x.shape == (12, 3, 8, 8)
    assert (data.train_x[4] == 77).all()
    with Image.open(sorted((tmp_path / "mine" / "train" / "ant").iterdir())[0]) as picture:
        wanted = np.asarray(picture.resize((8, 8), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(data.train_x[0], wanted)


def test_two_image_sizes_are_two_datasets(tmp_path):
    own(tmp_path / "mine")
    shapes = [
        onepass.load(str(tmp_path / "mine"), image_size=n).train_x.shape[2] for n in (8, 9, 8)
    ]
    assert shapes == [8, 9, 8]


def test_mixed_sizes_need_an_image_size(tmp_path):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "test" / "bee").iterdir())[1]
    path.write_bytes(formats.encode(np.zeros((3, 6, 7), np.uint8)))
    refused(tmp_path / "mine", path, "7x6", "5x6", "--image-size")


@pytest.mark.parametrize("size", [0, -4, 2.5, "8", True, 10**6, 10**30])
def test_an_invalid_image_size_is_refused(tmp_path, size):
    own(tmp_path / "mine")
    with pytest.raises(InputError, match="image_size"):
        onepass.load(str(tmp_path / "mine"), image_size=size)


@pytest.fixture
def one_folder(tmp_path):
    """Writes 20, 10 and 3 images of three classes; the pixels of each are its number."""
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
    assert held != [*range(6), *range(20, 23), 30]  # at random, not the first of each class


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, float("nan"), "0.2"])
def test_an_invalid_fraction_is_refused(one_folder, fraction):
    with pytest.raises(InputError, match="fraction"):
        onepass.load(str(one_folder), test_fraction=fraction)


def test_one_folder_needs_a_test_fraction(one_folder):
    refused(one_folder, one_folder, "test fraction")


def test_a_class_of_one_image_cannot_be_split(one_folder):
    for path in sorted((one_folder / "cow").iterdir())[1:]:
        path.unlink()
    refused(one_folder, one_folder / "cow", test_fraction=0.5)


def test_a_test_fraction_is_refused_for_folders_with_test_images(tmp_path):
    own(tmp_path / "mine")
    with pytest.raises(InputError, match="test fraction"):
        onepass.load(str(tmp_path / "mine"), test_fraction=0.5)


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_class_is_named(tmp_path, part):
    own(tmp_path / "mine")
    for path in (tmp_path / "mine" / part / "bee").iterdir():
        path.unlink()
    refused(tmp_path / "mine", tmp_path / "mine" / part, "'bee'")


def test_a_class_with_test_images_only_is_named(tmp_path):
    own(tmp_path / "mine")
    shutil.rmtree(tmp_path / "mine" / "test" / "cow")
    refused(tmp_path / "mine", tmp_path / "mine" / "test", "'cow'")
    shutil.copytree(tmp_path / "mine" / "train" / "cow", tmp_path / "mine" / "test" / "cow")
    shutil.rmtree(tmp_path / "mine" / "train" / "ant")
    refused(tmp_path / "mine", tmp_path / "mine" / "test", "'ant'")


def test_a_published_dataset_in_folders_that_lacks_a_class_is_refused(tmp_path):
    write_cifar10_folders(tmp_path / "cifar10", random_data("cifar10"))
    for part in ("train", "test"):
        shutil.rmtree(tmp_path / "cifar10" / part / "frog")
    refused("cifar10", tmp_path / "cifar10", "10 classes", root=tmp_path)


@pytest.mark.parametrize("other", ["Ant", "ANT", "ant "])
def test_two_classes_of_the_same_name_are_refused(tmp_path, other):
    own(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine" / "train" / "ant", tmp_path / "mine" / "train" / other)
    refused(tmp_path / "mine", tmp_path / "mine" / "train", "differ only in case", repr(other))


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_corrupt_png_is_named(tmp_path, part, place):
    own(tmp_path / "mine", shape=(3, 30, 30))
    path = sorted((tmp_path / "mine" / part).rglob("*.png"))[place]
    truncate(path)
    refused(tmp_path / "mine", path, "damaged")


@pytest.mark.parametrize("content", [b"<html>not found</html>", b""])
@pytest.mark.parametrize("place", [0, 5])
def test_a_png_file_of_other_content_is_named(tmp_path, content, place):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train").rglob("*.png"))[place]
    path.write_bytes(content)
    refused(tmp_path / "mine", path, "damaged")


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("side", [10_000, 100_000])
def test_a_png_that_claims_to_be_enormous_is_named(tmp_path, place, side):
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train").rglob("*.png"))[place]
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", side, side)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    refused(tmp_path / "mine", path, "pixels", image_size=8)


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("form", ["EPS", "PPM", "ICO", "PCX", "TGA", "SGI"])
def test_no_other_format_is_tried_for_a_png_file(tmp_path, form, place, monkeypatch):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("it was run"))
    own(tmp_path / "mine")
    path = sorted((tmp_path / "mine" / "train").rglob("*.png"))[place]
    path.write_bytes(formats.encode(np.zeros((3, 6, 5), np.uint8), form))
    refused(tmp_path / "mine", path, "its format is unknown")


def a_folder(path):
    path.mkdir()


def a_pipe(path):
    os.mkfifo(path)


def a_device(path):
    path.symlink_to("/dev/zero")


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))


@pytest.mark.parametrize("make", [a_folder, a_pipe, a_device, a_socket])
@pytest.mark.parametrize("name", ["0.png", "z.png"])
def test_pipes_devices_and_folders_are_refused_unopened(tmp_path, make, name, monkeypatch):
    own(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine" / "train" / "ant")  # a socket's path must be short
    make(Path(name))
    path = Path.cwd() / name
    in_child(lambda: refused(tmp_path / "mine", path, make.__name__.replace("_", " ")), seconds=5)


@pytest.mark.parametrize("target", ["/proc/self/mem", "nowhere", "z.png"])
def test_an_image_that_cannot_be_read_is_named_and_not_the_cache(tmp_path, target):
    own(tmp_path / "mine")
    path = tmp_path / "mine" / "train" / "ant" / "z.png"
    path.symlink_to(target)  # an error of the disk, a link to nothing, a link to itself
    refused(tmp_path / "mine", path)


def test_a_file_whose_name_is_not_utf_8_is_read(tmp_path):
    images = own(tmp_path / "mine")
    for path in (tmp_path / "mine").rglob("*.png"):
        path.rename(path.with_name(f"caf\udce9 {path.name}"))
    assert holds(onepass.load(tmp_path / "mine"), images)


@pytest.mark.parametrize("options", [{}, {"test_fraction": 0.5}])
def test_a_class_whose_name_is_not_utf_8_is_named(tmp_path, options):
    folder = tmp_path / "mine"
    own(folder)
    for part in ("train", "test"):
        (folder / part / "bee").rename(folder / part / "caf\udce9")
    whole = folder / "train" if options else folder
    refused(whole, folder / "train", "'caf\\udce9'", "not UTF-8", **options)


def test_folders_that_contain_themselves_are_read_once(tmp_path):
    images = own(tmp_path / "mine")
    for place in ("", "train", "train/ant"):
        for name in ("again", "and again"):
            if place != "train":
                (tmp_path / "mine" / place / name).symlink_to(tmp_path / "mine")
    in_child(lambda: onepass.load(tmp_path / "mine"), seconds=10)
    assert holds(onepass.load(tmp_path / "mine"), images)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_damaged_image_is_decoded_or_a_data_error(form):
    source = np.random.default_rng(0)
    whole = np.frombuffer(formats.encode(noise(1, (3, 9, 7)).train_x[0], form), np.uint8)
    for _ in range(200):
        damaged = whole.copy()
        damaged[source.integers(0, len(whole), 3)] = source.integers(0, 256, 3)
        content = damaged[: source.integers(len(whole) // 2, 2 * len(whole))].tobytes()
        try:
            assert decode_image(content, "some/file", (3, 9, 7), resize=True).shape == (3, 9, 7)
        except DataError as problem:
            assert "some/file" in str(problem)


def test_an_empty_folder_is_named(tmp_path):
    (tmp_path / "mine").mkdir()
    refused(tmp_path / "mine", tmp_path / "mine")
    refused(tmp_path / "mine", tmp_path / "mine", test_fraction=0.5)
    (tmp_path / "mine" / "train").mkdir()
    (tmp_path / "mine" / "test").mkdir()
    refused(tmp_path / "mine", tmp_path / "mine" / "train")


def test_a_missing_folder_is_named(tmp_path):
    refused(tmp_path / "mine", tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", tmp_path / "file")


# ---- names that look the same


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"  # Unicode's NFC and NFD
ALPHAS = ("\u1fb4", "\u1fb3\u0301")  # with two accents, one of which has a case


@pytest.mark.parametrize("pair", [("Cat", "CAT"), (COMPOSED, DECOMPOSED), ALPHAS], ids=ascii)
def test_two_folders_that_look_the_same_are_refused(pair, tmp_path):
    formats.write_folders(tmp_path / "mine", noise(3, (3, 6, 5), train=4, test=2), (*pair, "dog"))
    if len(list((tmp_path / "mine/train").iterdir())) < 3:
        pytest.skip("this file system takes the two names for one")
    with pytest.raises(DataError, match="differ only in case") as caught:
        onepass.load(str(tmp_path / "mine"))
    assert all(ascii(name) in str(caught.value) for name in pair)


def test_a_test_folder_that_spells_a_class_otherwise_is_refused(tmp_path):
    formats.write_folders(tmp_path / "mine", noise(2, (3, 6, 5), train=4, test=2), (COMPOSED, "x"))
    (tmp_path / "mine/test" / COMPOSED).rename(tmp_path / "mine/test" / DECOMPOSED)
    with pytest.raises(DataError, match="spells a class otherwise than train") as caught:
        onepass.load(str(tmp_path / "mine"))
    assert ascii(COMPOSED) in str(caught.value) and ascii(DECOMPOSED) in str(caught.value)
