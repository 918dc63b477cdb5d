"""Measures how fast a method's step is on this machine, relative to a bare training step.

The bare step is the least that the method's step must do. It repeats the method's forward passes
one by one, with the same number of images, mode, precision, network and engine, on fixed inputs.
Then it takes the cross-entropy of the passes that have a gradient, one backward pass for all of
them and one optimiser step. It does not ask whether the method could do with fewer passes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.base import devices
from onepass.base.errors import InputError
from onepass.base.parts import Step
from onepass.base.settings import construct, parse_settings, setting_names
from onepass.learning import execution, registry
from onepass.learning.memory_contents import stores_of
from onepass.learning.network_learner import NetworkLearner, expect_network
from onepass.memory import Store
from onepass.nets import optimisers
from onepass.tools.forward_counter import ForwardPass, record_forwards

WARM_UP_STEPS = 20
BLOCKS = 5  # blocks of the method's steps, each followed by a block of bare steps
FILL_CHUNK = 500  # samples that enter the memory at once


@dataclass(frozen=True)
class BenchCase:
    """A method to time on random data of one shape.

    The learner knows all classes, half of them from an earlier task, and its memory is full.
    """

    method: str
    memory: int = 1000
    classes: int = 100
    shape: tuple[int, ...] = (3, 32, 32)
    batch: int = 10
    settings: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    steps: int = 200

    def learner(self) -> NetworkLearner:
        """Returns a new learner in the common setting, with `settings` on top. Raises InputError if
        they have seed, device or memory, or if the method trains no network."""
        info = registry.get(self.method)
        expect_network(construct(info.learner), "a bench")  # before settings that others lack
        for name in ("seed", "device", "memory"):
            if name in self.settings:
                raise InputError(
                    f"--set takes no {name} here: --memory and --device set those, the seed is 0"
                )
        chosen = info.common.settings | parse_settings(info.learner, self.settings)
        if "memory" in setting_names(info.learner):
            chosen["memory"] = self.memory
        learner = construct(info.learner, device=self.device, seed=0, **chosen)
        return expect_network(learner, "a bench")


@dataclass(frozen=True)
class Speed:
    """Rates of the method's steps and of bare steps, and image counts per step.

    `images_per_second` counts trained and scored images. `fraction_of_bare` is the method's rate
    divided by that of bare steps. `peak_megabytes` (of 2^20 bytes) is the peak RAM of this process
    or, on a GPU, the peak that torch allocated there, both before the bare steps. It is None if the
    system does not report it.
    """

    steps_per_second: float
    images_per_second: float
    trained_images: int
    scored_images: int
    bare_steps_per_second: float
    fraction_of_bare: float
    peak_megabytes: float | None


def measure(case: BenchCase) -> dict[str, Any]:
    """Times a case; returns the fields of `BenchCase` and of `Speed` in one dictionary.

    Blocks of the method's steps and of bare steps alternate. The fastest block of each counts,
    because a disturbance can only make a block slower.
    """
    learner = case.learner()
    sizes = {**learner.get_params(), "classes": case.classes, "batch": case.batch}
    sizes[devices.SAMPLE] = math.prod(case.shape)
    with devices.naming_large_settings(lambda: sizes), devices.selected_gpu(case.device):
        return _measure(case, learner)


def _measure(case: BenchCase, learner: NetworkLearner) -> dict[str, Any]:
    batches = RandomBatches(case)
    learner.prepare(case.shape, batches.x.dtype)
    if devices.device_type(case.device) == "cuda":
        torch.cuda.reset_peak_memory_stats()
    batches.introduce(learner)
    for _ in range(WARM_UP_STEPS):
        batches.learn(learner)
    peak = _peak_bytes(case.device)
    bare = _make_bare_step(learner, case, _record_step_passes(case))
    for _ in range(WARM_UP_STEPS):
        bare()
    count = max(1, case.steps // BLOCKS)
    pairs = [
        (
            _seconds_of(lambda: batches.learn(learner), count, case.device),
            _seconds_of(bare, count, case.device),
        )
        for _ in range(BLOCKS)
    ]
    rate, bare_rate = (count / min(taken) for taken in zip(*pairs, strict=True))
    images = learner.images_per_batch(case.batch)
    speed = Speed(
        steps_per_second=rate,
        images_per_second=rate * (images.trained + images.scored),
        trained_images=images.trained,
        scored_images=images.scored,
        bare_steps_per_second=bare_rate,
        fraction_of_bare=rate / bare_rate,
        peak_megabytes=None if peak is None else peak / 2**20,
    )
    return {**asdict(case), **asdict(speed)}


class RandomBatches:
    """Random samples with random labels, in batches, repeated without end."""

    def __init__(self, case: BenchCase) -> None:
        rng = torch.Generator().manual_seed(0)
        self.case, self.next = case, 0
        # at least FILL_CHUNK samples, because `introduce` stores the first FILL_CHUNK of them
        count = case.batch * max(200, -(-FILL_CHUNK // case.batch))
        x = torch.randint(256, (count, *case.shape), generator=rng, dtype=torch.uint8)
        self.x = (x if len(case.shape) == 3 else x.float() / 255).to(case.device)
        self.y = torch.randint(case.classes, (count,), generator=rng)

    def learn(self, learner: NetworkLearner) -> Step:
        """Teaches the next batch; returns the step."""
        chosen = slice(self.next, self.next + self.case.batch)
        self.next = (self.next + self.case.batch) % len(self.y)
        return learner.learn(self.x[chosen], self.y[chosen])

    def introduce(self, learner: NetworkLearner) -> None:
        """Teaches each class once, the second half after a boundary, and fills the memory."""
        x, half = self.x[: self.case.batch], -(-self.case.classes // 2)
        for first, past in ((0, half), (half, self.case.classes)):
            learner.new_task()
            for y in torch.split(torch.arange(first, past), self.case.batch):
                learner.learn(x[: len(y)], y)
        for store in stores_of(learner):
            for _ in range(0, store.capacity, FILL_CHUNK):
                store.add(
                    self.x[:FILL_CHUNK],
                    self.y[:FILL_CHUNK].to(learner.trainer.torch_device),
                    **_blank_fields(store),
                )


def _blank_fields(store: Store) -> dict[str, Tensor]:
    """Returns FILL_CHUNK values for each further field of a memory, such as stored logits."""
    return {
        name: values[:1].expand(FILL_CHUNK, *values.shape[1:])
        for name, values in store.fields.items()
    }


def _record_step_passes(case: BenchCase) -> list[ForwardPass]:
    """Returns the forward passes of one step with all classes known.

    The step runs eagerly on a learner of its own, because a captured graph calls no hooks.
    """
    case = replace(case, settings={**case.settings, "engine": "eager"})
    learner, batches = case.learner(), RandomBatches(case)
    batches.introduce(learner)
    with record_forwards(type(learner.model.body)) as passes:
        batches.learn(learner)
    return passes


def _make_bare_step(
    learner: NetworkLearner, case: BenchCase, passes: list[ForwardPass]
) -> Callable[[], Step]:
    """Returns a function that takes one bare step: these forward passes, a cross-entropy, one
    backward pass and the optimiser."""
    if not any(recorded.graded for recorded in passes):
        raise InputError(
            f"{case.method!r} trains no network in its steps: there is nothing to time"
        )
    model, evaluator, where = (
        learner.model,
        learner.trainer.eval_model,
        learner.trainer.torch_device,
    )
    optimizer = optimisers.make_optimiser(learner.optimizer, model.parameters(), learner.lr, 0.0)
    rng = torch.Generator(where).manual_seed(0)
    most = max(recorded.images for recorded in passes)
    inputs = torch.rand(most, *case.shape, generator=rng, device=where)
    rows = torch.zeros(most, dtype=torch.int64, device=where)  # every label is the first class

    def forward(recorded: ForwardPass, x: Tensor) -> Tensor:
        if recorded.in_fp32 and model.precision != "fp32":
            return (model if recorded.training else evaluator)(x, in_fp32=True)  # type: ignore[no-any-return]
        return model.train_forward(x) if recorded.training else evaluator(x)

    def step(x: Tensor, y: Tensor) -> Step:
        losses = []
        for recorded in passes:
            with torch.set_grad_enabled(recorded.graded):
                logits = forward(recorded, x[: recorded.images])
            if recorded.graded:
                losses.append(F.cross_entropy(logits, y[: recorded.images]))
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return Step(loss.detach(), {}, ())

    runner = execution.make_engine(learner.engine, learner.traits.capturable, where, ())
    return lambda: runner.run(step, inputs, rows)


def _seconds_of(call: Callable[[], Any], count: int, device: str) -> float:
    """Returns the wall time of `count` calls, until the device has finished them."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    if device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - began


def _peak_bytes(device: str) -> float | None:
    """Returns the peak in bytes of the GPU memory that torch allocated, or of this process's RAM.

    The peak of RAM is None on Windows.
    """
    if devices.device_type(device) == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss: macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
