"""Validation of users' batches: samples and labels in, tensors and plain labels out, or an
InputError that says in one line what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.masked import MaskedTensor

from onepass.base import devices
from onepass.base.errors import InputError
from onepass.base.parts import Label
from onepass.base.text import quoted

Array = np.ndarray[Any, Any]
NUMBERS = "biufc"  # NumPy's dtype kinds of numbers and booleans
EXPECTED = (
    "expected images of shape (n, channels, height, width), uint8 or float, uint8 images of shape "
    "(n, height, width), or float feature vectors of shape (n, features)"
)


def _as_tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return _dense(values, what)
    if hasattr(values, "toarray"):  # a sparse matrix of SciPy
        raise InputError(f"{what} is a sparse matrix: give {what}.toarray()")
    array = _as_array(values, what)
    native = array.dtype.newbyteorder("=")  # torch refuses arrays of the other byte order
    try:
        if array.dtype.kind == "O":
            raise TypeError("it holds objects, not numbers: np.asarray(..., dtype='float32')")
        if array.dtype.kind in "US":
            raise TypeError("it holds text, not numbers")
        return torch.from_numpy(array.astype(native, copy=False))
    except (TypeError, ValueError) as problem:
        raise InputError(f"{what} cannot be read as an array: {problem}") from None


def _as_array(values: Any, what: str) -> Array:
    expect_no_mask(values, what)
    try:
        return np.array(values)
    except (TypeError, ValueError) as problem:
        raise InputError(f"{what} cannot be read as an array: {problem}") from None


def expect_no_mask(values: Any, what: str) -> None:
    """Raises an InputError for masked elements, in an array or in a list of arrays: the numbers
    below a mask mean nothing."""
    pieces = values if isinstance(values, list | tuple) else [values]
    masked = sum(int(np.ma.getmaskarray(piece).sum()) for piece in pieces if np.ma.is_masked(piece))
    if masked:
        raise InputError(
            f"{what} has {masked} masked elements: fill them, or leave their samples out"
        )


def _dense(tensor: Tensor, what: str) -> Tensor:
    """Returns the tensor detached. Raises an InputError if it is sparse, nested, quantized, masked,
    or on another device than the CPU or a GPU.

    A tensor made in inference mode is copied, because autograd cannot use it.
    """
    if isinstance(tensor, MaskedTensor):
        raise InputError(f"{what} is a masked tensor: give {what}.to_tensor(value)")
    dense = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if not dense or tensor.device.type not in ("cpu", "mps", "cuda"):
        odd = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        kind = f"{odd} tensor on {tensor.device.type!r}"
        raise InputError(
            f"{what} must be a plain tensor on the CPU or a GPU, not a {kind}: "
            f"{what}.to_dense() may help"
        )
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def as_samples(x: Any) -> Tensor:
    """Returns images (n, c, h, w) as uint8 or float32, or vectors (n, d) as float32.

    Grey uint8 images (n, h, w) get a channel. A list of lists of numbers becomes vectors. Raises an
    InputError for anything else, for an empty batch, and for NaN and infinity.

    >>> as_samples([[1, 2], [3, 4]]).dtype
    torch.float32
    """
    devices.expect_working_threads()  # before the first sum or comparison
    samples = _as_tensor(x, "x")
    if isinstance(x, list | tuple) and samples.ndim == 2 and samples.dtype == torch.int64:
        samples = samples.float()
    given = samples
    if samples.dtype == torch.uint8 and samples.ndim == 3:
        samples = samples.unsqueeze(1)
    images = (samples.dtype == torch.uint8 or samples.is_floating_point()) and samples.ndim == 4
    vectors = samples.is_floating_point() and samples.ndim == 2
    if not (images or vectors):
        raise InputError(f"x: {EXPECTED}; {_describe_given(given)}{_shape_hint(given)}")
    if images and samples.shape[1] > 4 and samples.shape[3] in (1, 3, 4):
        raise InputError(
            f"x: channels come first (n, channels, height, width); {_describe_given(given)}"
        )
    if samples.numel() == 0:
        raise InputError(f"x is empty: {_describe_given(given)}")
    if samples.dtype == torch.uint8:
        return samples
    samples = samples.float()
    if not bool(torch.isfinite(samples).all()):
        raise InputError("x holds NaN or infinity (or values too large for float32)")
    return samples


def _shape_hint(samples: Tensor) -> str:
    """Returns advice for two frequent mistakes; "" for other shapes."""
    if samples.ndim == 1:
        return "; give a single sample as x[None]"
    if samples.ndim == 2 and not samples.is_complex():
        return "; x.astype('float32') makes whole numbers features"
    return ""


def _describe_given(samples: Tensor) -> str:
    return f"got {_describe(tuple(samples.shape), samples.dtype)}"


def as_labels(y: Any, count: int) -> list[Label]:
    """Returns one label for each of `count` samples: all text, or all whole numbers. Raises an
    InputError for anything else; 7.0 counts as 7, and True as no number.

    >>> as_labels(["cat", "dog"], 2), as_labels(torch.tensor([-1, 7]), 2)
    (['cat', 'dog'], [-1, 7])
    >>> as_labels(["cat", 7], 2)
    Traceback (most recent call last):
    ...
    onepass.base.errors.InputError: y: labels are all text or all whole numbers, not 'cat' beside 7
    """
    given = _dense(y, "y") if isinstance(y, Tensor) else _as_array(y, "y")
    if given.ndim != 1 or len(given) != count:
        raise InputError(
            f"y must hold one label for each of the {count} samples; got shape {tuple(given.shape)}"
        )
    if isinstance(y, list | tuple):  # NumPy would turn ["cat", 7] into two strings
        return _expect_one_kind(y)
    if isinstance(given, Tensor) or given.dtype.kind in NUMBERS:
        return _integer_labels(given if isinstance(given, Tensor) else _as_tensor(given, "y"))
    return _expect_one_kind(_as_list(given))


def _as_list(array: Array) -> list[Any]:
    try:
        return list(array.tolist())
    except (ValueError, SystemError) as problem:  # a code point that is not a character
        raise InputError(f"y cannot be read as text: {problem}") from None


def _expect_one_kind(values: Iterable[Any]) -> list[Label]:
    labels = [_as_label(value) for value in values]
    kinds = {type(label): label for label in labels}
    if len(kinds) > 1:
        both = f"{quoted(kinds[str])} beside {kinds[int]}"
        raise InputError(f"y: labels are all text or all whole numbers, not {both}")
    return labels


def _as_label(value: Any) -> Label:
    label = value.item() if isinstance(value, np.generic | Tensor) else value
    if isinstance(label, str):
        return _expect_utf8(str(label))
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, bool) or not isinstance(label, int):
        raise InputError(f"y: labels are text or whole numbers, not {quoted(label)}")
    if not -(2**63) <= label < 2**63:
        raise InputError(f"y: labels are whole numbers of 64 bits, not {quoted(label)}")
    return int(label)


def _expect_utf8(label: str) -> str:
    """Returns the label; raises an InputError if a file or NumPy could not hold it. NumPy drops
    NULs at the end of a string."""
    if label.endswith("\0") or label.encode(errors="ignore").decode() != label:
        raise InputError(f"y: a label is UTF-8 text that does not end in NUL, not {label!a}")
    return label


def _integer_labels(labels: Tensor) -> list[Label]:
    if labels.is_complex() or labels.dtype == torch.bool:
        kind = str(labels.dtype).removeprefix("torch.")
        raise InputError(f"y: labels are text or whole numbers, not {kind}")
    labels = labels.cpu()
    if labels.is_floating_point():
        labels = labels.double()  # float8 tensors support almost no operations
        odd = ~torch.isfinite(labels) | (labels != labels.trunc())
        if bool(odd.any()):
            raise InputError(f"y: labels are text or whole numbers, not {float(labels[odd][0])}")
        too_large = labels.abs() >= 2.0**63
    elif labels.dtype == torch.uint64:
        too_large = labels.long() < 0
    else:
        return labels.tolist()
    if bool(too_large.any()):
        raise InputError("y: labels are whole numbers of 64 bits, below 2**63")
    return labels.long().tolist()


def expect_samples(samples: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises an InputError unless samples have the shape and dtype that the learner takes."""
    given = tuple(samples.shape[1:])
    if given != shape or samples.dtype != dtype:
        raise InputError(
            f"x: this learner takes {_describe(shape, dtype)} samples, "
            f"got {_describe(given, samples.dtype)}"
        )


def _describe(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
