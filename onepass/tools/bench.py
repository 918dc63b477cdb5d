"""How fast a method's step is on this machine, beside the bare step of the same forwards.

The bare step is what cannot be avoided: the forwards of the method's step, one after another, each
with as many images, in the same mode and precision; the cross-entropy of those that have a
gradient, one backward for all of them and one step of the optimiser; on fixed inputs, with the same
network and engine. Whether the method could do with fewer or larger forwards is its paper's affair.
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
from onepass.learning.image_counts import images_of
from onepass.learning.learner import Learner
from onepass.learning.memory_contents import stores_of
from onepass.memory import Store
from onepass.nets import optimisers
from onepass.tools.forward_counter import ForwardPass, record_forwards

WARM_UP_STEPS = 20
BLOCKS = 5
FILL_CHUNK = 500


@dataclass(frozen=True)
class BenchCase:
    """What is timed: a method on random data of a shape, when all classes are known (half of them
    from an earlier task) and the memory is full."""

    method: str
    memory: int = 1000
    classes: int = 100
    shape: tuple[int, ...] = (3, 32, 32)
    batch: int = 10
    settings: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    steps: int = 200

    def learner(self) -> Learner:
        method = registry.get(self.method).learner
        for name in ("seed", "device", "memory"):
            if name in self.settings:
                raise InputError(f"{name} cannot be set here: it is part of what is timed")
        chosen = parse_settings(method, self.settings)
        if "memory" in setting_names(method):
            chosen["memory"] = self.memory
        return construct(method, device=self.device, seed=0, **chosen)


@dataclass(frozen=True)
class Speed:
    """What came out. The peak is of this process, None where the system does not tell; on a GPU, of
    what it allocated there."""

    steps_per_second: float
    images_per_second: float
    trained_images: int
    scored_images: int
    bare_steps_per_second: float
    fraction_of_bare: float
    peak_megabytes: float | None


def measure(case: BenchCase) -> dict[str, Any]:
    """The case and its speed, from alternating blocks of steps and of bare steps: the fastest of
    each, since whatever disturbs a block makes it slower."""
    learner = case.learner()
    sizes = {**learner.get_params(), "classes": case.classes, "batch": case.batch}
    sample = {"values in a sample": math.prod(case.shape)}
    with devices.naming_large_settings({**sizes, **sample}), devices.selected_gpu(case.device):
        return _measure(case, learner)


def _measure(case: BenchCase, learner: Learner) -> dict[str, Any]:
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
    images = images_of(learner, case.batch)
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
    """Random samples, round and round."""

    def __init__(self, case: BenchCase) -> None:
        rng = torch.Generator().manual_seed(0)
        self.case, self.next = case, 0
        count = case.batch * max(200, -(-FILL_CHUNK // case.batch))
        x = torch.randint(256, (count, *case.shape), generator=rng, dtype=torch.uint8)
        self.x = (x if len(case.shape) == 3 else x.float() / 255).to(case.device)
        self.y = torch.randint(case.classes, (count,), generator=rng)

    def learn(self, learner: Learner) -> Step:
        chosen = slice(self.next, self.next + self.case.batch)
        self.next = (self.next + self.case.batch) % len(self.y)
        return learner.learn(self.x[chosen], self.y[chosen])

    def introduce(self, learner: Learner) -> None:
        """Every class once, the second half after a boundary; then the memory is filled."""
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
    return {
        name: values[:1].expand(FILL_CHUNK, *values.shape[1:])
        for name, values in store.fields.items()
    }


def _record_step_passes(case: BenchCase) -> list[ForwardPass]:
    """What goes through the network in a step when all classes are known, by watching one."""
    case = replace(case, settings={**case.settings, "engine": "eager"})
    learner, batches = case.learner(), RandomBatches(case)
    batches.introduce(learner)
    with record_forwards(type(learner.model.body)) as passes:
        batches.learn(learner)
    return passes


def _make_bare_step(
    learner: Learner, case: BenchCase, passes: list[ForwardPass]
) -> Callable[[], Step]:
    if not any(one.graded for one in passes):
        raise InputError(
            f"{case.method!r} trains no network in its steps: there is nothing to time"
        )
    model, evaluator, where = learner.model, learner.trainer.evaluator, learner.trainer.torch_device
    optimizer = optimisers.make_optimiser(learner.optimizer, model.parameters(), learner.lr, 0.0)
    rng = torch.Generator(where).manual_seed(0)
    most = max(one.images for one in passes)
    inputs = torch.rand(most, *case.shape, generator=rng, device=where)
    rows = torch.zeros(most, dtype=torch.int64, device=where)

    def forward(one: ForwardPass, x: Tensor) -> Tensor:
        if one.in_fp32 and model.precision != "fp32":
            return (model if one.training else evaluator)(x, in_fp32=True)  # type: ignore[no-any-return]
        return model.train_forward(x) if one.training else evaluator(x)

    def step(x: Tensor, y: Tensor) -> Step:
        losses = []
        for one in passes:
            with torch.set_grad_enabled(one.graded):
                logits = forward(one, x[: one.images])
            if one.graded:
                losses.append(F.cross_entropy(logits, y[: one.images]))
        loss = torch.stack(losses).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return Step(loss.detach(), {}, ())

    runner = execution.make(learner.engine, learner.traits.capturable, where, ())
    return lambda: runner.run(step, inputs, rows)


def _seconds_of(call: Callable[[], Any], count: int, device: str) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    if device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - began


def _peak_bytes(device: str) -> float | None:
    if devices.device_type(device) == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
