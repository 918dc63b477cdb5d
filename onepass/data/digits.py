"""The 8x8 handwritten digits that scikit-learn ships: real data without a download."""

from __future__ import annotations

import torch

from onepass.data.base import Dataset
from onepass.data.registry import dataset


@dataset("digits", classes=10, mirror_is_same_class=False)
def digits() -> Dataset:
    """Loads 1797 images; every fifth of each class is a test image, so the split needs no seed."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # its pixels are 0 … 16
    x = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    y = torch.from_numpy(bunch.target).long()
    test = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        test[torch.nonzero(y == label).flatten()[4::5]] = True
    return Dataset(
        name="digits",
        train_x=x[~test],
        train_y=y[~test],
        test_x=x[test],
        test_y=y[test],
        class_names=tuple(str(label) for label in range(10)),
        mirror_is_same_class=False,
    )
