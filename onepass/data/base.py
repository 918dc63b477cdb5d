"""The class `Dataset`: images or vectors, labels and class names, without an order in time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from onepass.base.checksum import sha256
from onepass.base.errors import InputError
from onepass.base.seeds import generator, permutation
from onepass.base.text import html_table, quoted, shortened


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples with labels 0 … C-1.

    Images are uint8 or float32 of shape (n, channels, height, width); feature vectors are float32
    of shape (n, features). `mean` and `std` are per channel or per feature, in units of the
    network's input (uint8 images: pixel / 255). By default they are computed from the training
    images; vectors without them are not normalised. `mirror_is_same_class` says whether the mirror
    image of an image has the same class: true for photos, false for digits.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    mirror_is_same_class: bool = True

    def __post_init__(self) -> None:
        for part, x, y in (
            ("train", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            self._check(part, x, y)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise InputError(
                f"dataset {self.name!r}: train samples have shape {tuple(self.train_x.shape[1:])}, "
                f"test samples {tuple(self.test_x.shape[1:])}"
            )
        if (self.mean is None) != (self.std is None):
            raise InputError(f"dataset {self.name!r}: give both mean and std, or neither")
        if self.is_images and self.mean is None:
            mean, std = statistics(self.train_x)
            # the dataclass is frozen
            object.__setattr__(self, "mean", mean)
            object.__setattr__(self, "std", std)

    def _check(self, part: str, x: Tensor, y: Tensor) -> None:
        """Raises an InputError if the training or test samples or their labels are invalid."""
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(
                f"dataset {self.name!r}: {part} samples and labels must be tensors; "
                "torch.as_tensor converts arrays"
            )
        images = x.dtype in (torch.uint8, torch.float32) and x.ndim == 4
        vectors = x.dtype == torch.float32 and x.ndim == 2
        if not (images or vectors):
            raise InputError(
                f"dataset {self.name!r}: {part} samples must be uint8 or float32 (n, channels, "
                f"height, width), or float32 (n, features), not {x.dtype} {tuple(x.shape)}"
            )
        if y.dtype != torch.int64 or y.shape != x.shape[:1] or not len(y):
            raise InputError(
                f"dataset {self.name!r}: {part} labels must be int64, one for each of the "
                f"{len(x)} samples (at least one), not {y.dtype} {tuple(y.shape)}"
            )
        if int(y.min()) < 0 or int(y.max()) >= len(self.class_names):
            raise InputError(
                f"dataset {self.name!r}: {part} labels run from {int(y.min())} to {int(y.max())}, "
                f"but there are {len(self.class_names)} class names"
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"dataset {self.name!r}: {part} samples hold NaN or infinity")

    def __repr__(self) -> str:
        return f"<Dataset {quoted(self.name)}: {self._samples}, {self.classes} classes>"

    def _repr_html_(self) -> str:
        names = shortened(", ".join(self.class_names))
        return html_table(
            self.name,
            {"samples": self._samples, "classes": self.classes, "their names": names},
        )

    @property
    def _samples(self) -> str:
        kind, size = "images" if self.is_images else "vectors", self.train_x.shape[1:]
        counts = f"{len(self.train_y)} training and {len(self.test_y)} test"
        return f"{counts} {kind} of {'x'.join(map(str, size))}"

    def sha256(self) -> str:
        """Returns a checksum of class names, shapes, labels and all samples."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        """The SHA-256 of labels and CRC-32 values of the samples. CRC-32 is about ten times as fast
        and detects accidental changes."""
        samples = [zlib.crc32(x.contiguous().numpy().data) for x in (self.train_x, self.test_x)]
        shapes = [list(x.shape) for x in (self.train_x, self.test_x)]
        return sha256([self.class_names, shapes, samples, self.train_y, self.test_y])

    @property
    def is_images(self) -> bool:
        return self.train_x.ndim == 4

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def samples_of_each_class(self) -> list[list[int]]:
        """Returns the number of samples of each class, for training and for testing."""
        labels = (self.train_y, self.test_y)
        return [torch.bincount(y, minlength=self.classes).tolist() for y in labels]

    def hold_out(self, fraction: float, seed: int = 0) -> Dataset:
        """Returns a dataset made of the training data alone, with a fraction of each class as its
        test samples, for choosing settings without the test set.

        At least one sample of each class is held out; a class with a single sample keeps it for
        training. Mean and standard deviation stay those of the whole training data.

        >>> from onepass.data import load
        >>> data = load("digits").hold_out(0.2)
        >>> len(data.train_y), len(data.test_y)
        (1157, 285)
        """
        if not 0 < fraction < 1:
            raise InputError(f"the held-out fraction must lie between 0 and 1, not {fraction}")
        rng = generator(seed, "validation")
        kept, held = [], []
        for label in range(self.classes):
            index = torch.nonzero(self.train_y == label).flatten()
            index = index[permutation(len(index), rng)]
            cut = max(1, int(len(index) * fraction)) if len(index) > 1 else 0
            held.append(index[:cut])
            kept.append(index[cut:])
        train, test = torch.cat(kept).sort().values, torch.cat(held).sort().values
        return replace(
            self,
            train_x=self.train_x[train],
            train_y=self.train_y[train],
            test_x=self.train_x[test],
            test_y=self.train_y[test],
        )


def statistics(samples: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the mean and standard deviation of samples: per channel of images, in units of
    pixel / 255 for uint8; per feature of vectors. A constant channel has standard deviation 1.

    >>> statistics(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))  # the second feature is constant
    ((2.0, 5.0), (1.0, 1.0))
    """
    if samples.dtype == torch.uint8:
        mean, std = channel_statistics(samples)
    else:
        exact, others = samples.double(), [0, *range(2, samples.ndim)]
        middle = exact.mean(dim=others, keepdim=True)
        spread = (exact - middle).square().mean(dim=others).sqrt()
        mean, std = tuple(middle.flatten().tolist()), tuple(spread.tolist())
    return mean, tuple(value or 1.0 for value in std)  # normalising divides by them


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the mean and standard deviation per channel of uint8 images, in units of pixel / 255.
    A constant channel has standard deviation 0.

    They are exact, because they come from counts of the 256 values. The images are read in pieces
    of a thousand, because a memory-mapped dataset may be larger than RAM.
    """
    counts = torch.zeros(images.shape[1], 256, dtype=torch.float64)
    for piece in torch.split(images, 1000):
        for channel, pixels in enumerate(piece.unbind(1)):
            counts[channel] += torch.bincount(pixels.flatten(), minlength=256)
    share = counts / counts.sum(dim=1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ values
    std = (share @ values**2 - mean**2).clamp(min=0).sqrt()  # rounding may make it negative
    return tuple(mean.tolist()), tuple(std.tolist())
