"""The front door: what a batch must be, and one clear line when it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.errors import InputError

EXPECTED = (
    "expected images of shape (n, channels, height, width), uint8 or float, uint8 images of shape "
    "(n, height, width), or float feature vectors of shape (n, features)"
)


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return _plain(values, what)
    if hasattr(values, "toarray"):  # SciPy's
        raise InputError(f"{what} is a sparse matrix: give {what}.toarray()")
    try:
        array = np.array(values)
        if array.dtype.kind == "O":
            raise TypeError("it holds objects, not numbers: np.asarray(..., dtype='float32')")
        if array.dtype.kind in "US":
            raise TypeError("it holds text, not numbers")
        native = array.dtype.newbyteorder("=")  # files may come from a machine of the other order
        return torch.from_numpy(array.astype(native, copy=False))
    except (TypeError, ValueError) as problem:
        raise InputError(f"{what} cannot be read as an array: {problem}") from None


def _plain(tensor: Tensor, what: str) -> Tensor:
    """The numbers of a tensor, if it has them: those of a sparse one are not all there, those on
    the meta device are none. What was made in inference mode is copied: a step cannot use it."""
    dense = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if not dense or tensor.device.type not in ("cpu", "cuda"):
        odd = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        kind = f"{odd} tensor on {tensor.device.type!r}"
        raise InputError(
            f"{what} must be a plain tensor on the host or a GPU, not a {kind}: "
            f"{what}.to_dense() may help"
        )
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def as_samples(x: Any) -> Tensor:
    """Images (n, c, h, w) as uint8 or float32, vectors (n, d) as float32; lists of numbers are
    vectors.

    >>> as_samples([[1, 2], [3, 4]]).dtype
    torch.float32
    """
    samples = _tensor(x, "x")
    if isinstance(x, list | tuple) and samples.ndim == 2 and samples.dtype == torch.int64:
        samples = samples.float()
    got = f"got {str(samples.dtype).removeprefix('torch.')} {tuple(samples.shape)}"
    if samples.dtype == torch.uint8 and samples.ndim == 3:
        samples = samples.unsqueeze(1)
    images = (samples.dtype == torch.uint8 or samples.is_floating_point()) and samples.ndim == 4
    vectors = samples.is_floating_point() and samples.ndim == 2
    if not (images or vectors):
        raise InputError(f"x: {EXPECTED}; {got}")
    if images and samples.shape[1] > 4 and samples.shape[3] in (1, 3, 4):
        raise InputError(f"x: channels come first (n, channels, height, width); {got}")
    if samples.numel() == 0:
        raise InputError(f"x is empty: {got}")
    if samples.dtype == torch.uint8:
        return samples
    samples = samples.float()
    if not bool(torch.isfinite(samples).all()):
        raise InputError("x holds NaN or infinity (or values too large for float32)")
    return samples


def as_labels(y: Any, count: int) -> Tensor:
    """Whole, non-negative numbers, one for each of `count` samples, as int64 on the host."""
    labels = _tensor(y, "y")
    if labels.ndim != 1 or len(labels) != count:
        raise InputError(
            f"y must hold one label for each of the {count} samples; got shape "
            f"{tuple(labels.shape)}"
        )
    if labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"y must hold whole numbers, not {labels.dtype}")
    labels = labels.cpu()
    if labels.is_floating_point():
        labels = labels.double()  # some of the small kinds cannot compute
    whole = labels.long()
    if labels.is_floating_point():
        fractional = ~torch.isfinite(labels) | (labels != labels.trunc())
        if bool(fractional.any()):
            raise InputError(f"labels must be whole numbers, not {float(labels[fractional][0])}")
        too_large = labels >= 2.0**63
    else:
        too_large = (whole < 0) & (labels.dtype == torch.uint64)
    if bool(too_large.any()):
        raise InputError("labels must be below 2**63")
    if bool((whole < 0).any()):
        raise InputError(f"labels must not be negative, got {int(whole.min())}")
    return whole


def expect(samples: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuses samples of another shape or dtype than the learner's."""
    given = tuple(samples.shape[1:])
    if given != shape or samples.dtype != dtype:
        raise InputError(
            f"x: this learner takes {_describe(shape, dtype)} samples, "
            f"got {_describe(given, samples.dtype)}"
        )


def _describe(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
