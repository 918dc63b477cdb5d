"""Tests of downloads: folders of parquet files with the columns and splits of the repositories."""

import sys
from dataclasses import replace

import formats
import numpy as np
import pytest
from formats import noise

import onepass
from onepass import DataError
from onepass.data import files, hub
from onepass.data.catalogue import CATALOGUE
from onepass.data.files import Undecoded, split_of_arrays
from onepass.data.loading import download_dataset, reorder_classes, tiny_imagenet_wnids

SCHEMAS = {
    "mnist": {"image": "image", "label": "label", "test": "test"},
    "cifar10": {"image": "img", "label": "label", "test": "test"},
    "cifar100": {"image": "img", "label": "fine_label", "test": "test"},
    "tiny-imagenet": {"image": "image", "label": "label", "test": "valid"},
}
ARRAYS = ("train_x", "train_y", "test_x", "test_y")


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Returns the library `datasets`, offline, with an empty cache and no progress bars."""
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hugging")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return datasets


def write(library, folder, parts, names=None, image="image", label="label"):
    """Writes `data/<split>-00000-of-00001.parquet`, as on the hub, from encoded images and
    labels."""
    kind = library.ClassLabel(names=list(names)) if names else library.Value("int64")
    columns = {image: library.Image(), label: kind}
    (folder / "data").mkdir(parents=True)
    for part, (contents, y) in parts.items():
        table = {image: [{"bytes": content, "path": None} for content in contents], label: list(y)}
        if label == "fine_label":
            columns["coarse_label"] = library.ClassLabel(names=formats.COARSE)
            table["coarse_label"] = [label_of_row // 5 for label_of_row in y]
        rows = library.Dataset.from_dict(table, features=library.Features(columns))
        rows.to_parquet(folder / "data" / f"{part}-00000-of-00001.parquet")
    return folder


def repository(library, folder, name, images):
    """Writes a folder with the schema of a published dataset; its class names are unsorted."""
    schema = SCHEMAS[name]
    parts = {
        "train": ([formats.encode(x) for x in images.train_x], images.train_y.tolist()),
        schema["test"]: ([formats.encode(x) for x in images.test_x], images.test_y.tolist()),
    }
    return write(library, folder, parts, class_names(name), schema["image"], schema["label"])


def class_names(name):
    return [f"class {7 * label % 1000}" for label in range(len(CATALOGUE[name].train))]


def example(name, **options):
    return noise(len(CATALOGUE[name].train), CATALOGUE[name].shape, train=1, test=1, **options)


def at(folder, name):
    return replace(CATALOGUE[name], hub=str(folder))


def filled(part):
    array = np.zeros((len(part.labels), *part.shape), np.uint8)
    part.fill(array, lambda done: None)
    return array


def same(data, images):
    return all(np.array_equal(getattr(data, name), getattr(images, name)) for name in ARRAYS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_repository_is_read_to_the_last_pixel(library, tmp_path, name):
    images = example(name)
    fetched = hub.download_from_hub(
        repository(library, tmp_path / name, name, images), images[0].shape[1:]
    )
    source = fetched.undecoded
    assert source.class_names == tuple(class_names(name))
    assert np.array_equal(filled(source.train), images.train_x)
    assert np.array_equal(filled(source.test), images.test_x)
    assert source.train.labels.tolist() == images.train_y.tolist()
    assert source.test.labels.tolist() == images.test_y.tolist()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_downloaded_dataset_is_loaded_by_name_afterwards(library, tmp_path, name, monkeypatch):
    images = example(name)
    first = download_dataset(at(repository(library, tmp_path / name, name, images), name))
    assert same(first, images)
    monkeypatch.setattr(files, "decode_image", lambda *_, **__: pytest.fail("an image was decoded"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    data = onepass.load(name, root=tmp_path / "nothing here")
    assert same(data, images)
    assert data.class_names == tuple(class_names(name))
    assert (data.mean, data.std) == (CATALOGUE[name].mean, CATALOGUE[name].std)


def test_files_below_the_root_take_precedence_over_a_download(library, tmp_path):
    fetched, near = example("mnist", seed=1), example("mnist", seed=2)
    download_dataset(at(repository(library, tmp_path / "hub", "mnist", fetched), "mnist"))
    formats.write_idx(tmp_path / "mnist", near)
    assert same(onepass.load("mnist", root=tmp_path), near)


def test_downloading_again_decodes_nothing(library, tmp_path, monkeypatch):
    images = example("mnist")
    entry = at(repository(library, tmp_path / "hub", "mnist", images), "mnist")
    download_dataset(entry)
    monkeypatch.setattr(files, "decode_image", lambda *_, **__: pytest.fail("an image was decoded"))
    assert same(download_dataset(entry), images)


def test_another_version_of_a_repository_is_decoded_again(library, tmp_path):
    first, second = example("mnist", seed=1), example("mnist", seed=2)
    download_dataset(at(repository(library, tmp_path / "one", "mnist", first), "mnist"))
    entry = at(repository(library, tmp_path / "two", "mnist", second), "mnist")
    assert same(download_dataset(entry), second)
    assert same(onepass.load("mnist", root=tmp_path / "nothing here"), second)


def test_greyscale_files_of_a_repository_become_colour(library, tmp_path):
    images = example("tiny-imagenet")
    images.train_x[:] = images.train_x[:, :1]
    parts = {
        "train": ([formats.encode(x[:1]) for x in images.train_x], images.train_y),
        "valid": ([formats.encode(x) for x in images.test_x], images.test_y),
    }
    folder = write(library, tmp_path / "hub", parts, class_names("tiny-imagenet"))
    assert same(download_dataset(at(folder, "tiny-imagenet")), images)


def test_plain_whole_numbers_are_labels_too(library, tmp_path):
    contents = [formats.encode(np.full((1, 4, 4), value, np.uint8)) for value in range(6)]
    parts = {"train": (contents, [5, 2, 9, 9, 2, 5]), "test": (contents[:2], [9, 5])}
    source = hub.download_from_hub(write(library, tmp_path / "hub", parts), (1, 4, 4)).undecoded
    assert source.class_names == ("2", "5", "9")
    assert source.train.labels.tolist() == [1, 0, 2, 2, 0, 1]
    assert source.test.labels.tolist() == [2, 1]


# ---- what goes wrong


def refused(folder, *said, shape=(1, 4, 4)):
    with pytest.raises(DataError) as caught:
        source = hub.download_from_hub(folder, shape).undecoded
        filled(source.train), filled(source.test)
    for words in (folder, *said):
        assert str(words) in str(caught.value)


GOOD = ([formats.encode(np.zeros((1, 4, 4), np.uint8))] * 3, [0, 1, 0])


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install datasets"):
        download_dataset(CATALOGUE["mnist"])


def test_a_missing_repository_is_named(library, tmp_path):
    refused(tmp_path / "none")


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_repository_without_a_split_is_named(library, tmp_path, part):
    refused(write(library, tmp_path / "hub", {part: GOOD}, "ab"), part)


@pytest.mark.parametrize("columns", [{"image": "picture"}, {"label": "target"}])
def test_a_repository_of_other_columns_is_named(library, tmp_path, columns):
    folder = write(library, tmp_path / "hub", {"train": GOOD, "test": GOOD}, "ab", **columns)
    refused(folder, *columns.values())


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_damaged_image_is_named_with_its_repository(library, tmp_path, part):
    damaged = ([*GOOD[0][:2], GOOD[0][2][:40]], GOOD[1])
    parts = {"train": GOOD, "test": GOOD, part: damaged}
    refused(write(library, tmp_path / "hub", parts, "ab"), "2", "damaged")


def test_an_image_of_another_size_is_named_with_its_repository(library, tmp_path):
    folder = write(library, tmp_path / "hub", {"train": GOOD, "test": GOOD}, "ab")
    refused(folder, "4x4", "5x5", shape=(1, 5, 5))


def test_a_damaged_parquet_file_is_named(library, tmp_path):
    folder = write(library, tmp_path / "hub", {"train": GOOD, "test": GOOD}, "ab")
    formats.truncate(next((folder / "data").iterdir()))
    refused(folder)


@pytest.mark.parametrize("names", ["ab", None], ids=["named", "plain"])
def test_a_label_that_train_does_not_have_is_named_with_its_repository(library, tmp_path, names):
    """A test split with secret labels has -1 everywhere."""
    parts = {"train": GOOD, "test": (GOOD[0], [-1, -1, -1])}
    refused(write(library, tmp_path / "hub", parts, names), "-1")


def test_the_classes_of_tiny_imagenet_come_in_the_order_of_wnids_txt():
    official = tiny_imagenet_wnids()
    assert len(official) == len(set(official)) == 200
    assert official != tuple(sorted(official))
    images = np.arange(200, dtype=np.uint8).reshape(200, 1, 1, 1)
    part = split_of_arrays(images, np.arange(200))
    ordered = reorder_classes(Undecoded(tuple(sorted(official)), part, part), official)
    assert ordered.class_names == official
    named = [official[label] for label in ordered.train.labels]
    assert named == sorted(official)


def test_other_classes_keep_their_order():
    part = split_of_arrays(np.zeros((2, 1, 1, 1), np.uint8), np.arange(2))
    source = Undecoded(("cat", "ant"), part, part)
    assert reorder_classes(source, ("ant", "bee")) is source
