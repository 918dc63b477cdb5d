"""The front door: what a batch must be, and one clear line when it is not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.base.parts import Label
from onepass.base.text import quoted

Array = np.ndarray[Any, Any]
NUMBERS = "biufc"  # kinds of NumPy's
EXPECTED = (
    "expected images of shape (n, channels, height, width), uint8 or float, uint8 images of shape "
    "(n, height, width), or float feature vectors of shape (n, features)"
)


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return _plain(values, what)
    if hasattr(values, "toarray"):  # SciPy's
        raise InputError(f"{what} is a sparse matrix: give {what}.toarray()")
    array = _array(values, what)
    native = array.dtype.newbyteorder("=")  # files may come from a machine of the other order
    try:
        if array.dtype.kind == "O":
            raise TypeError("it holds objects, not numbers: np.asarray(..., dtype='float32')")
        if array.dtype.kind in "US":
            raise TypeError("it holds text, not numbers")
        return torch.from_numpy(array.astype(native, copy=False))
    except (TypeError, ValueError) as problem:
        raise InputError(f"{what} cannot be read as an array: {problem}") from None


def _array(values: Any, what: str) -> Array:
    try:
        return np.array(values)
    except (TypeError, ValueError) as problem:
        raise InputError(f"{what} cannot be read as an array: {problem}") from None


def _plain(tensor: Tensor, what: str) -> Tensor:
    """The numbers of a tensor, if it has them: those of a sparse one are not all there, those on
    the meta device are none. What was made in inference mode is copied: a step cannot use it."""
    dense = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if not dense or tensor.device.type not in ("cpu", "mps", "cuda"):
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
    given = samples
    if samples.dtype == torch.uint8 and samples.ndim == 3:
        samples = samples.unsqueeze(1)
    images = (samples.dtype == torch.uint8 or samples.is_floating_point()) and samples.ndim == 4
    vectors = samples.is_floating_point() and samples.ndim == 2
    if not (images or vectors):
        raise InputError(f"x: {EXPECTED}; {_got(given)}{_remedy(given)}")
    if images and samples.shape[1] > 4 and samples.shape[3] in (1, 3, 4):
        raise InputError(f"x: channels come first (n, channels, height, width); {_got(given)}")
    if samples.numel() == 0:
        raise InputError(f"x is empty: {_got(given)}")
    if samples.dtype == torch.uint8:
        return samples
    samples = samples.float()
    if not bool(torch.isfinite(samples).all()):
        raise InputError("x holds NaN or infinity (or values too large for float32)")
    return samples


def _remedy(samples: Tensor) -> str:
    """What one or the other of two frequent mistakes wants; nothing, if it is neither."""
    if samples.ndim == 1:
        return "; a batch of one sample is x[None]"
    if samples.ndim == 2 and not samples.is_complex():
        return "; x.astype('float32') says that whole numbers are features"
    return ""


def _got(samples: Tensor) -> str:
    return f"got {_describe(tuple(samples.shape), samples.dtype)}"


def as_labels(y: Any, count: int) -> list[Label]:
    """One for each of `count` samples: all of them text, or all whole numbers.

    >>> as_labels(["cat", "dog"], 2), as_labels(torch.tensor([-1, 7]), 2)
    (['cat', 'dog'], [-1, 7])
    >>> as_labels(["cat", 7], 2)
    Traceback (most recent call last):
    ...
    onepass.base.errors.InputError: y: labels are all text or all whole numbers, not 'cat' beside 7
    """
    given = _plain(y, "y") if isinstance(y, Tensor) else _array(y, "y")
    if given.ndim != 1 or len(given) != count:
        raise InputError(
            f"y must hold one label for each of the {count} samples; got shape {tuple(given.shape)}"
        )
    if isinstance(y, list | tuple):  # NumPy makes text of numbers that stand beside text
        return _of_one_kind(y)
    if isinstance(given, Tensor) or given.dtype.kind in NUMBERS:
        return _whole_numbers(given if isinstance(given, Tensor) else _tensor(given, "y"))
    return _of_one_kind(_values(given))


def _values(array: Array) -> list[Any]:
    try:
        return list(array.tolist())
    except (ValueError, SystemError) as problem:  # a number that stands for no character
        raise InputError(f"y cannot be read as text: {problem}") from None


def _of_one_kind(values: Iterable[Any]) -> list[Label]:
    labels = [_label(one) for one in values]
    kinds = {type(one): one for one in labels}
    if len(kinds) > 1:
        both = f"{quoted(kinds[str])} beside {kinds[int]}"
        raise InputError(f"y: labels are all text or all whole numbers, not {both}")
    return labels


def _label(value: Any) -> Label:
    one = value.item() if isinstance(value, np.generic | Tensor) else value
    if isinstance(one, str):
        return _text(str(one))
    if isinstance(one, float) and one.is_integer():
        one = int(one)
    if isinstance(one, bool) or not isinstance(one, int):
        raise InputError(f"y: labels are text or whole numbers, not {quoted(one)}")
    if not -(2**63) <= one < 2**63:
        raise InputError(f"y: labels are numbers that 64 bits can hold, not {quoted(one)}")
    return int(one)


def _text(label: str) -> str:
    """What files can hold, and what NumPy can, which takes NULs at the end for none."""
    if label.endswith("\0") or label.encode(errors="ignore").decode() != label:
        raise InputError(f"y: a label is text in UTF-8 that no NUL ends, not {label!a}")
    return label


def _whole_numbers(labels: Tensor) -> list[Label]:
    if labels.is_complex() or labels.dtype == torch.bool:
        kind = str(labels.dtype).removeprefix("torch.")
        raise InputError(f"y: labels are text or whole numbers, not {kind}")
    labels = labels.cpu()
    if labels.is_floating_point():
        labels = labels.double()  # some of the small kinds cannot compute
        odd = ~torch.isfinite(labels) | (labels != labels.trunc())
        if bool(odd.any()):
            raise InputError(f"y: labels are text or whole numbers, not {float(labels[odd][0])}")
        too_large = labels.abs() >= 2.0**63
    elif labels.dtype == torch.uint64:
        too_large = labels.long() < 0
    else:
        return labels.tolist()
    if bool(too_large.any()):
        raise InputError("y: labels are numbers that 64 bits can hold, below 2**63")
    return labels.long().tolist()


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
