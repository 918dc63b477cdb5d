"""The datasets of the GSA paper: where their files may be, and what they must contain."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from onepass.base.errors import DataError

# images of the digits 0 … 9
MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
CIFAR10_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR10_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)


@dataclass(frozen=True)
class CatalogueEntry:
    """A dataset of the GSA paper.

    `shape` is that of an image (channels, height, width). `train` and `test` are the published
    numbers of samples per class. `mean` and `std` are those of the paper's protocol, which
    normalises both CIFARs by the constants of CIFAR10. `tasks` is the number of tasks in the paper.
    `paths` are tried below the data root, in this order. `hub` is its repository on Hugging Face,
    and `md5` the published checksum of each file by name.
    """

    name: str
    shape: tuple[int, int, int]
    train: tuple[int, ...]
    test: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror_is_same_class: bool
    tasks: int
    paths: tuple[str, ...]
    hub: str
    md5: dict[str, str]

    @property
    def classes(self) -> int:
        return len(self.train)

    def missing(self, root: Path) -> DataError:
        """Returns the error to raise if the dataset is not below the data root; it says how to get
        the dataset."""
        return DataError(
            f"dataset {self.name!r} is not below {root.resolve()}: put its files into "
            f"{' or '.join(self.paths[:2])} there (--data-root or ONEPASS_DATA set the root), or "
            f"download it: pip install datasets, then onepass data cache {self.name} "
            "--download"
        )


def data_root(chosen: str | Path | None) -> Path:
    """Returns the folder of datasets: the chosen one, else `ONEPASS_DATA`, else `data`."""
    return Path(chosen or os.environ.get("ONEPASS_DATA") or "data")


ENTRIES = (
    CatalogueEntry(
        name="mnist",
        shape=(1, 28, 28),
        train=MNIST_TRAIN,
        test=MNIST_TEST,
        mean=(0.1307,),
        std=(0.3081,),
        mirror_is_same_class=False,
        tasks=5,
        paths=("mnist", "MNIST/raw", "mnist/MNIST/raw", "mnist/raw", "MNIST"),
        hub="ylecun/mnist",
        md5={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    CatalogueEntry(
        name="cifar10",
        shape=(3, 32, 32),
        train=(5000,) * 10,
        test=(1000,) * 10,
        mean=CIFAR10_MEAN,
        std=CIFAR10_STD,
        mirror_is_same_class=True,
        tasks=5,
        paths=("cifar10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
        hub="uoft-cs/cifar10",
        md5={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    CatalogueEntry(
        name="cifar100",
        shape=(3, 32, 32),
        train=(500,) * 100,
        test=(100,) * 100,
        mean=CIFAR10_MEAN,
        std=CIFAR10_STD,
        mirror_is_same_class=True,
        tasks=10,
        paths=("cifar100", "cifar-100-python", "cifar100/cifar-100-python"),
        hub="uoft-cs/cifar100",
        md5={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    ),
    CatalogueEntry(
        name="tiny-imagenet",
        shape=(3, 64, 64),
        train=(500,) * 200,
        test=(50,) * 200,
        mean=(0.4802, 0.4480, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        mirror_is_same_class=True,
        tasks=100,
        paths=(
            "tiny-imagenet",
            "tiny-imagenet-200",
            "tiny-imagenet/tiny-imagenet-200",
            "tiny-imagenet-200.zip",
            "tiny-imagenet/tiny-imagenet-200.zip",
        ),
        hub="zh-plus/tiny-imagenet",
        md5={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    ),
)
CATALOGUE = {entry.name: entry for entry in ENTRIES}
