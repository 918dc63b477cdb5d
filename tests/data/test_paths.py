"""Tests of the paths of published datasets, and of the message if they are missing."""

import logging
import shutil

import formats
import pytest
from read_datasets import (
    WRITERS,
    holds,
    in_class_order,
    random_data,
    refused,
)

import onepass
from onepass import InputError
from onepass.data.catalogue import CATALOGUE


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in WRITERS for place in CATALOGUE[name].paths]
)
def test_a_dataset_is_found_at_every_path_of_the_catalogue(tmp_path, name, place):
    images = random_data(name)
    WRITERS[name][0](tmp_path / place, images)
    data = onepass.load(name, root=tmp_path)
    assert holds(data, images)
    assert data.name == name


@pytest.mark.parametrize("place", CATALOGUE["tiny-imagenet"].paths)
def test_tiny_imagenet_is_found_at_every_path_of_the_catalogue(tmp_path, tiny_folder, place):
    if place.endswith(".zip"):
        formats.zipped(tiny_folder, tmp_path / place)
    else:
        shutil.copytree(tiny_folder, tmp_path / place)
    assert len(onepass.load("tiny-imagenet", root=tmp_path).train_y) == 200


@pytest.mark.parametrize("name", WRITERS)
def test_a_catalogue_dataset_is_also_read_from_class_folders(tmp_path, name):
    images = random_data(name)
    WRITERS[name][1](tmp_path / name, images)
    data = onepass.load(name, root=tmp_path)
    assert holds(data, in_class_order(images))


def test_the_environment_sets_the_data_root_unless_one_is_given(tmp_path, monkeypatch):
    near, far = random_data("mnist", seed=1), random_data("mnist", seed=2)
    formats.write_idx(tmp_path / "near" / "mnist", near)
    formats.write_idx(tmp_path / "far" / "mnist", far)
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "near"))
    assert holds(onepass.load("mnist"), near)
    assert holds(onepass.load("mnist", root=tmp_path / "far"), far)


def test_the_default_data_root_is_the_folder_data(tmp_path, monkeypatch):
    images = random_data("mnist")
    formats.write_idx(tmp_path / "data" / "mnist", images)
    monkeypatch.chdir(tmp_path)
    assert holds(onepass.load("mnist"), images)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_missing_dataset_says_where_to_put_it_and_how_to_get_it(tmp_path, name):
    refused(
        name,
        name,
        tmp_path,
        CATALOGUE[name].paths[0],
        "ONEPASS_DATA",
        "pip install datasets",
        f"onepass data cache {name} --download",
        root=tmp_path,
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_options_for_own_files_are_refused_for_published_datasets(tmp_path, name):
    for option in ({"image_size": 8}, {"test_fraction": 0.5}):
        with pytest.raises(InputError, match=next(iter(option))):
            onepass.load(name, root=tmp_path, **option)


def test_an_incomplete_dataset_is_a_warning(tmp_path, caplog):
    formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10", train=2, test=1))
    with caplog.at_level(logging.WARNING):
        onepass.load("cifar10", root=tmp_path)
    assert "20 training images instead of 50000" in caplog.text
    assert "10 test images instead of 10000" in caplog.text


@pytest.mark.parametrize("name", WRITERS)
def test_published_datasets_are_normalised_by_published_constants(tmp_path, name):
    WRITERS[name][0](tmp_path / name, random_data(name))
    data = onepass.load(name, root=tmp_path)
    assert (data.mean, data.std) == (CATALOGUE[name].mean, CATALOGUE[name].std)
