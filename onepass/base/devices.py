"""Devices: the choice of one, free GPU memory, CPU cores and threads, numerical settings, and
errors for a lack of RAM or GPU memory.

Each function imports torch itself, so that commands which do not compute start without it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from onepass.base.errors import InputError, TooLargeError
from onepass.base.text import quoted

if TYPE_CHECKING:
    import torch

SMALLEST_FLOAT = math.ulp(0.0)  # equals 0 only while this thread treats subnormals as 0
AUTOCAST = ("cpu", "cuda", "mps")
IMPORTING_PROCESS = os.getpid()
LARGE = 10_000  # a setting at least this large is named when RAM or GPU memory runs out
SAMPLE = "values in a sample"
PER_STEP = (
    "batch",
    "replay",
    "current",
    "mix",
    "candidates",
    "fit_batch",
)  # samples that a step takes
# torch reports a lack of RAM, and sizes that overflow, in errors of general types with these texts.
OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "Storage size calculation overflowed",
    "integer multiplication overflow",
    "Overflow when unpacking long",
    "too big to convert",
    "without overflow",
    "cannot be represented as a SymInt",
)


def resolve_device(name: str) -> torch.device:
    """Returns the device of this name: `auto` is an NVIDIA GPU if there is one, else the CPU; `mps`
    is Apple's GPU. Raises an InputError if the name is invalid or torch does not see the device.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch("cuda(:[0-9]{1,3})?", name):
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not seen:
            raise InputError(f"device {name!r} is missing: torch sees no GPU; use cpu or auto")
        if int(name.partition(":")[2] or 0) >= seen:
            raise InputError(f"device {name!r} is missing: the last one is cuda:{seen - 1}")
    elif name == "mps":
        if not torch.backends.mps.is_available():
            raise InputError("device 'mps' is missing: torch sees no Apple GPU; use cpu")
    elif name != "cpu":
        raise InputError(f"device must be auto, cpu, mps, cuda or cuda:N, not {quoted(name)}")
    return torch.device(name)


def device_type(name: str) -> str:
    """Returns a device's name without its number: runs on cuda:0 and cuda:1 are the same run.

    >>> device_type("cuda:1"), device_type("cpu")
    ('cuda', 'cpu')
    """
    return name.partition(":")[0]


def selected_gpu(name: str) -> AbstractContextManager[object]:
    """Returns a context in which this GPU is the default for CUDA streams, graphs and kernels that
    name no GPU. The context does nothing for a device without a number, or if there is no GPU."""
    if device_type(name) == name:
        return nullcontext()
    import torch

    return torch.cuda.device(name) if torch.cuda.is_available() else nullcontext()


def own_precision() -> AbstractContextManager[object]:
    """Keeps the caller's autocast and default dtype out of the body: a learner computes in the
    precision that its own settings say."""
    import torch

    casting = [kind for kind in AUTOCAST if torch.is_autocast_enabled(kind)]
    dtype = torch.get_default_dtype()
    if not casting and dtype is torch.float32:  # the usual case, which must cost a step little
        return nullcontext()
    return _in_float32(casting, dtype)


@contextmanager
def _in_float32(casting: list[str], dtype: torch.dtype) -> Iterator[None]:
    import torch

    with ExitStack() as contexts:
        for kind in casting:
            contexts.enter_context(torch.autocast(kind, enabled=False))
        torch.set_default_dtype(torch.float32)
        contexts.callback(torch.set_default_dtype, dtype)
        yield


def expect_working_threads() -> None:
    """Raises an InputError in a process that was forked after onepass was imported, if torch is to
    use several threads. A fork does not copy threads: where the parent has computed with some, the
    child would wait for them forever."""
    import torch

    if os.getpid() != IMPORTING_PROCESS and torch.get_num_threads() > 1:
        raise InputError(
            "this process was forked, and torch's threads are not copied by a fork: call "
            "torch.set_num_threads(1) in it first, or start it with multiprocessing's 'spawn'"
        )


@contextmanager
def no_subnormals() -> Iterator[None]:
    """Rounds subnormal floats (nearest to 0) to 0 in the body. A CPU computes with them many times
    slower, and they are too small to change a result. Adam's moments become subnormal within a
    thousand steps if a weight gets no gradient, as those of the pixels around a digit.

    Changes nothing if torch uses several threads. The mode belongs to a thread, and a worker thread
    inherits it from whichever thread started it, so the bits would depend on that.
    """
    import torch

    # if the caller flushes subnormals already, the mode must stay on afterwards
    if torch.get_num_threads() > 1 or SMALLEST_FLOAT == 0:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def widest_float(device: torch.device) -> torch.dtype:
    """Returns the most precise float dtype of a device: Apple's GPU has no float64."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def free_gpu_bytes(device: torch.device) -> int | None:
    """Returns the bytes of GPU memory left for tensors of this process; None unless the device is a
    CUDA GPU.

    >>> free_gpu_bytes(resolve_device("cpu")) is None
    True
    """
    import torch

    if device.type != "cuda":
        return None
    # torch's allocator holds this memory, but no tensor uses it
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def is_on_host(value: torch.Tensor) -> bool:
    """Returns whether a tensor's value can be read at once, without waiting for a GPU. Subclasses
    of Tensor count as False, because a fake tensor of torch.compile has no value."""
    import torch

    return value.device.type == "cpu" and type(value) is torch.Tensor


def usable_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux; a container may have fewer cores than the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def naming_large_settings(numbers: Callable[[], Mapping[str, object]]) -> Iterator[None]:
    """Replaces a lack of RAM or GPU memory in the body by a TooLargeError; other errors pass. Its
    message names those of `numbers()` (settings, `batch`, `values in a sample`) that are 10,000 or
    more, or says what makes a step smaller."""
    import torch

    try:
        yield
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as problem:
        lacking = isinstance(problem, MemoryError | torch.OutOfMemoryError)
        if not lacking and not any(words in str(problem) for words in OUT_OF_MEMORY_TEXTS):
            raise
        found = {name: value for name, value in numbers().items() if isinstance(value, int)}
        raise TooLargeError(_describe_lack(problem, found)) from None


def _describe_lack(problem: Exception, numbers: Mapping[str, int]) -> str:
    large = {name: value for name, value in numbers.items() if value >= LARGE}
    refused = str(problem) if type(problem) is MemoryError else ""  # by `ram.expect_ram`
    lack = refused or (
        "this machine does not have enough RAM or GPU memory for "
        f"{_as_text(large) if large else 'a step'}"
    )
    if not refused and large.keys() - {SAMPLE}:
        return lack
    counts = {name: numbers[name] for name in PER_STEP if numbers.get(name)}
    fewer = f", or fewer samples in a step ({_as_text(counts)})" if counts else ""
    return f"{lack}: choose smaller images (--image-size), a smaller net (net=resnet18-slim){fewer}"


def _as_text(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in numbers.items())


def allow_determinism() -> None:
    """Sets the environment variable that deterministic cuBLAS needs, unless it is set. It takes
    effect only before the first use of a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def threads_and_determinism(threads: int, deterministic: bool) -> Iterator[None]:
    """Sets torch's number of CPU threads for the body, and deterministic algorithms if wanted;
    restores both afterwards. `CUBLAS_WORKSPACE_CONFIG` stays set."""
    import torch

    before, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    if deterministic:
        allow_determinism()
    if deterministic and not strict:  # the call imports torch's compiler, a second or two
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if deterministic and not strict:
            torch.use_deterministic_algorithms(False)
