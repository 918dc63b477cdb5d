"""Views, the inputs of a network: raw samples normalised, joined by their mirror images if wanted,
and augmented for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.functional.augment import (
    AREA,
    CONTRASTIVE_AREA,
    FLIPPED_AREA,
    DrawCrops,
    ReflectedCrops,
    WholePixelCrops,
    contrastive_view,
    crop_grey,
    crop_grey_flip,
    pixel_centres,
)

BuiltInAugment = Literal[
    "crop-grey", "crop-grey-reflected", "crop-grey-flip", "contrastive", "none"
]
AugmentFunction = Callable[[Tensor, torch.Generator], Tensor]
Augment = BuiltInAugment | AugmentFunction
AREAS = {"contrastive": CONTRASTIVE_AREA, "crop-grey-flip": FLIPPED_AREA}


class Views:
    """Makes the network's inputs from raw samples.

    Training calls the object: each call draws a new augmentation. Prediction uses `normalise`. A
    method that needs training views without augmentation uses `plain`. If the network has its own
    `preprocess`, it replaces mean and std and runs before the augmentation. Vectors are never
    mirrored, and are augmented only by a function of the user's.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        augment: Augment,
        mirror: bool,
        rng: torch.Generator,
        preprocess: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        device = rng.device
        self.preprocess = preprocess
        if preprocess is not None:  # augmentation and mirroring work on its output
            shape = tuple(preprocess(torch.zeros(1, *shape, device=device)).shape[1:])
            mean = std = None
        images = len(shape) == 3
        self.augment = augment if images or callable(augment) else "none"
        if self.augment == "contrastive" and preprocess is not None:
            raise InputError(
                "augment 'contrastive' changes the colours of pixels, which cannot be recovered "
                "after this network's preprocessing: choose 'crop-grey' or 'none'"
            )
        self.per_sample = 2 if mirror and images else 1
        self.rng = rng
        self.white = torch.tensor(255.0, dtype=torch.float32)  # whatever torch's default dtype is
        self.centres = pixel_centres(shape[1], shape[2], device) if images else None
        self.draw_crops = _crop_sampler(self.augment, shape, device)
        self.mean = self.std = self.scale = self.shift = None
        if mean is not None and std is not None:  # x * scale + shift is one fused operation
            self.mean = _per_channel("mean", mean, shape, device)
            self.std = _per_channel("std", std, shape, device)
            self.scale = 1 / self.std
            self.shift = -self.mean * self.scale

    def normalise(self, x: Tensor) -> Tensor:
        """Returns (x - mean) / std, or the network's own preprocessing of x; uint8 pixels are
        divided by 255 first."""
        inputs = x / self.white if x.dtype == torch.uint8 else x
        if self.preprocess is not None:
            return self.preprocess(inputs)
        if self.shift is None or self.scale is None:
            return inputs
        return torch.addcmul(self.shift, inputs, self.scale)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Returns inputs * std + mean, which undoes `normalise` up to the division by 255; without
        mean and std, the inputs unchanged."""
        if self.mean is None or self.std is None:
            return inputs
        return torch.addcmul(self.mean, inputs, self.std)

    def plain(self, x: Tensor) -> Tensor:
        """Returns normalised samples, followed by their mirror images if samples are mirrored."""
        inputs = self.normalise(x)
        return torch.cat([inputs, inputs.flip(3)]) if self.per_sample == 2 else inputs

    def augmented(self, inputs: Tensor) -> Tensor:
        """Returns normalised inputs after a newly drawn augmentation. Colours are changed as pixels
        in [0, 1]."""
        if callable(self.augment):
            return self._by_function(self.augment, inputs)
        if self.centres is None or self.draw_crops is None:
            return inputs
        drawn = self.rng, self.centres, self.draw_crops
        if self.augment == "contrastive":
            return self.normalise(contrastive_view(self.pixels(inputs), *drawn))
        if self.augment == "crop-grey-flip":
            return crop_grey_flip(inputs, *drawn)
        return crop_grey(inputs, *drawn)

    def _by_function(self, function: AugmentFunction, inputs: Tensor) -> Tensor:
        """Returns inputs augmented by the user's function, which gets copies and so may work in
        place.

        The function gets samples before mean and std, or the output of the network's own
        preprocessing. Raises an InputError if it returns another shape or dtype.
        """
        given = self.pixels(inputs)
        given = given.clone() if given is inputs else given
        shape, dtype = given.shape, given.dtype
        made = function(given, self.rng)
        if not isinstance(made, Tensor) or (made.shape, made.dtype) != (shape, dtype):
            what = f"{made.dtype} {tuple(made.shape)}" if isinstance(made, Tensor) else type(made)
            raise InputError(f"augment must return {dtype} {tuple(shape)}, but it returned {what}")
        return made if self.preprocess is not None else self.normalise(made)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns augmented samples, followed by their mirror images (augmented by other draws) if
        samples are mirrored."""
        return self.augmented(self.plain(x))

    def cut(self, rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Returns the rows of each batch, from rows for the views of several batches that were
        joined. `sizes` are the numbers of samples of the batches.

        The mirror images follow all samples, so each batch takes its rows from both halves.
        """
        if self.per_sample == 1:
            return list(rows.split_with_sizes(list(sizes)))
        # (views, samples of all batches, ...): split the samples, then join the views of each batch
        by_copy = rows.view(self.per_sample, -1, *rows.shape[1:])
        return [piece.flatten(0, 1) for piece in torch.split(by_copy, list(sizes), dim=1)]


def expect_pixels(augment: Augment, samples: Tensor) -> None:
    """Raises an InputError for float images outside [0, 1] if the augmentation is `contrastive`,
    which changes colours."""
    if augment != "contrastive" or samples.dtype == torch.uint8 or samples.ndim != 4:
        return
    low, high = (float(extreme) for extreme in samples.aminmax())
    if low < 0 or high > 1:
        raise InputError(
            "augment 'contrastive' changes the colours of pixels between 0 and 1, and x has values "
            f"from {low:.4g} to {high:.4g}: give pixels, with mean and std, or choose 'crop-grey'"
        )


def can_be_captured(augment: Augment) -> bool:
    """Returns whether a CUDA graph can capture the augmentation; a user's function must say so by
    an attribute `capturable`."""
    return isinstance(augment, str) or bool(getattr(augment, "capturable", False))


def _crop_sampler(
    augment: Augment, shape: tuple[int, ...], device: torch.device
) -> DrawCrops | None:
    """Returns the function that draws the windows of a built-in augmentation; None if it does not
    crop."""
    if augment == "none" or not isinstance(augment, str):
        return None
    if augment == "crop-grey-reflected":
        return ReflectedCrops(AREA)
    return WholePixelCrops(shape[1], shape[2], AREAS.get(augment, AREA), device)


def mean_over_views(values: Tensor, samples: int) -> Tensor:
    """Returns the mean over the views of each sample, (samples, ...), from values of all views in
    the order of `plain`."""
    if len(values) == samples:
        return values
    return values.view(-1, samples, *values.shape[1:]).mean(dim=0)


def _per_channel(
    name: str, values: tuple[float, ...], shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """Returns the values as a tensor that broadcasts over samples: (C, 1, 1) for images, (d) for
    vectors. Raises an InputError unless there is one value, or one per channel or feature."""
    if len(values) not in (1, shape[0]):
        what = "channels" if len(shape) == 3 else "features"
        raise InputError(f"{name} has {len(values)} values, but samples have {shape[0]} {what}")
    tensor = torch.tensor(values, dtype=torch.float32, device=device)
    return tensor.view(-1, 1, 1) if len(shape) == 3 else tensor
