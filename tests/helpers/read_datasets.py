"""Writers for each dataset and checks of loading, shared by the tests of the file readers."""

from pathlib import Path

import formats
import numpy as np
import pytest
from formats import CIFAR10, CIFAR100, DIGITS, SplitImages, by_class, noise

import onepass
from onepass import DataError
from onepass.data.catalogue import CATALOGUE


def holds(data, images):
    """Returns whether a dataset holds exactly these samples, in this order."""
    return all(
        np.array_equal(getattr(data, part), getattr(images, part)) for part in SplitImages._fields
    )


def in_class_order(images):
    return SplitImages(
        *by_class(images.train_x, images.train_y), *by_class(images.test_x, images.test_y)
    )


def refused(name, *said, **options):
    """Expects loading to raise a DataError of one line with all these words."""
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


def random_data(name, **counts):
    entry = CATALOGUE[name]
    return noise(len(entry.train), entry.shape, **counts)


class TouchesFile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)
