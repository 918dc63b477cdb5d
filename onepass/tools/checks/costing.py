"""Checks of what a method declares and costs: images, memory, the device, documentation."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
)

from onepass.base.parts import ImageCount
from onepass.learning.memory_contents import copy_bytes, memory_bytes, stores_of
from onepass.learning.network_learner import NetworkLearner
from onepass.streams import ClassIncremental, Stream
from onepass.tools.checks.helpers import (
    SCORE_METHODS,
    AnyMethod,
    ExpectationError,
    Method,
    count_bytes,
    expect_finite_values,
    expect_same_state,
    expect_that,
    make_learner,
    self_distillation_settings,
    small_dataset,
    small_stream,
    state_fingerprints,
    teach,
    unseen_samples,
)
from onepass.tools.forward_counter import record_forwards

BUILD_METHODS = "make_store build"  # functions of a method that decide what it keeps


def declared_images_are_counted(method: Method) -> None:
    """The images that pass through the network and its copies in a step are those declared."""
    for shape in ((3, 8, 8), (16,)):
        stream = small_stream(shape=shape)
        learner = teach(make_learner(method, engine="eager"), stream, last=20)
        _expect_declared_images(learner, stream, 20)


def _expect_declared_images(learner: NetworkLearner, stream: Stream, index: int) -> None:
    """Compares the images of the step on one batch with those that the learner declares."""
    with record_forwards(type(learner.model.body)) as passes:
        teach(learner, stream, first=index, last=index + 1)
    found = ImageCount(
        trained=sum(recorded.images for recorded in passes if recorded.graded),
        scored=sum(recorded.images for recorded in passes if not recorded.graded),
    )
    declared = learner.images_per_batch(len(stream.indices(index)))
    expect_that(
        found == declared, f"the declared {declared} of a step", f"{found} counted", "cost step"
    )


def an_average_may_teach(method: Method) -> None:
    """Learning works with a moving average that teaches and with repeated steps, if supported.

    The head grows, scores are finite, images are those declared, and the memory takes each sample
    once.
    """
    groups = [list(range(10)), list(range(10, 20))]
    stream = ClassIncremental(small_dataset(20), tasks=groups, batch=20, seed=1)
    learner = make_learner(
        method, engine="eager", mirror=True, **self_distillation_settings(method)
    )
    teach(learner, stream, last=2)
    teach(learner, stream, first=20, last=22)  # the first two batches of the second task
    known = len(learner.classes)
    expect_that(
        known > 16, "a head that grows beyond 16 classes", f"{known} classes", "classes make_head"
    )
    _expect_declared_images(learner, stream, 22)
    held = [image.numpy().tobytes() for image in learner.kept.x.cpu()]
    twice = len(held) - len(set(held))
    wanted = "a memory that takes each sample once, however often a step is repeated"
    expect_that(not twice, wanted, f"{twice} samples more than once", "keep step")
    scores = learner.scores(unseen_samples(stream))
    expect_finite_values(scores, "scores with an average that teaches", SCORE_METHODS)


def memory_is_bounded(method: AnyMethod) -> None:
    """The state stops growing once the memory is full."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=17)
    before = count_bytes(learner.state_dict())
    teach(learner, stream, first=17)
    after = count_bytes(learner.state_dict())
    wanted = f"a state that stays at {before} bytes once the memory is full"
    expect_that(after == before, wanted, f"{after} bytes", "build step")


def kept_bytes_are_declared(method: Method) -> None:
    """A learner keeps its memories, the declared copies of the network and a few numbers per class.

    Network and optimiser apart, it keeps nothing else. The setting `memory` is the number of
    samples that all memories hold together.
    """
    learner = teach(make_learner(method), small_stream(), last=17)
    wanted = learner.get_params().get("memory")
    if wanted is not None:
        held = sum(store.capacity for store in stores_of(learner))
        found = f"room for {held}"
        expect_that(held == wanted, f"room for `memory` samples, {wanted}", found, BUILD_METHODS)
    declared = memory_bytes(learner) + copy_bytes(learner)
    kept = count_bytes(learner.state_dict()["parts"])
    slack = 64 * learner.model.head.capacity  # bytes: a few numbers for each class
    wanted = f"the declared {declared} bytes, and up to {slack} of statistics"
    expect_that(declared <= kept <= declared + slack, wanted, f"{kept} bytes kept", BUILD_METHODS)


def the_memory_holds_raw_samples(method: AnyMethod) -> None:
    """The memory stores samples unchanged, each with its own label."""
    stream = small_stream()
    learner = teach(make_learner(method), stream)
    given = {
        (image.numpy().tobytes(), label)
        for x, y in (stream.batch(index) for index in range(len(stream)))
        for image, label in zip(x, y.tolist(), strict=True)
    }
    for store in stores_of(learner):
        for slot in range(int(store.size)):
            label = learner.classes[int(store.y[slot])]
            kept = (store.x[slot].cpu().numpy().tobytes(), label)
            wanted = "samples in the memory as they came, with their own labels"
            expect_that(kept in given, wanted, f"one in slot {slot} that the stream never gave")


def a_learner_is_freed_at_once(method: Method) -> None:
    """Network, memory and CUDA graph are freed with the last reference to the learner.

    The check watches the network. It switches garbage collection off, which might free cycles of
    references too late on a GPU.
    """
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    learner.predict(unseen_samples(stream))
    network = weakref.ref(learner.model)
    collecting = gc.isenabled()
    gc.disable()
    try:
        del learner
        wanted = "a network that is freed with its learner"
        expect_that(network() is None, wanted, "that a cycle of references holds it", "build step")
    finally:
        if collecting:
            gc.enable()


def modes_are_restored(method: Method) -> None:
    """A step and a prediction leave training mode and `requires_grad` of the network unchanged."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)

    def flags() -> list[bool]:
        modules = [module.training for module in learner.model.modules()]
        return modules + [parameter.requires_grad for parameter in learner.model.parameters()]

    before = flags()
    teach(learner, stream, first=12, last=13)
    learner.predict(unseen_samples(stream))
    wanted = "modes and requires_grad to be as before the step and the prediction"
    expect_that(flags() == before, wanted, "that one has changed")


def the_step_stays_on_the_device(method: Method) -> None:
    """A step reads no value on the host, and none of its shapes depends on data.

    The step runs on fake tensors, which raise otherwise. The optimiser is left out. This check
    needs no GPU; a capture on a GPU is the final test.
    """
    stream = small_stream()
    for stop in (1, 12):
        learner = teach(make_learner(method, device="cpu"), stream, last=stop)
        x, y = stream.batch(stop)
        rows = learner._assign_rows(y.tolist())
        mode = FakeTensorMode()
        # deepcopy cannot copy generators: its memo gives it these clones instead
        clones = {id(rng): rng.clone_state() for rng in learner.trainer.rngs.values()}
        with FakeCopyMode(mode):
            fake = copy.deepcopy(learner, clones)
        fake.trainer.optimizer = _NoOptimizer()  # type: ignore[assignment]
        try:
            with mode:
                fake.trainer.run_once(fake.step, mode.from_tensor(x), mode.from_tensor(rows))
        except (DataDependentOutputException, DynamicOutputShapeException) as problem:
            wanted = "a step without a shape, or a value on the host, that depends on data"
            raise ExpectationError(wanted, problem.func, "step") from problem


def devices_agree(method: Method) -> None:
    """The loss of the first step is the same on a GPU and on the host, up to rounding."""
    stream = small_stream()
    x, y = stream.batch(0)
    losses = [
        float(make_learner(method, device=name, augment="none").learn(x, y).loss)
        for name in ("cpu", "cuda")
    ]
    host, gpu = losses
    expect_that(abs(host - gpu) < 1e-4, f"the loss of the host, {host:.6g}, on a GPU", f"{gpu:.6g}")


def a_graph_gives_the_same_bits(method: Method) -> None:
    """On a GPU, captured and eager steps end with the same bits, generators included.

    The stream grows the head and has short batches. A network with parallel branches in bf16 is
    tested too.
    """
    cases: tuple[dict[str, Any], ...] = ({"net": "mlp"}, {"net": "resnet18", "precision": "bf16"})
    stream = small_stream(classes=20, shape=(3, 16, 16))
    as_it_was = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        for case in cases:
            ends = [
                teach(make_learner(method, device="cuda", engine=name, **case), stream, last=75)
                for name in ("eager", "graph")
            ]
            wanted = f"captured steps to give the bits of eager ones, with {case}"
            expect_same_state(state_fingerprints(ends[0]), state_fingerprints(ends[1]), wanted)
    finally:
        torch.backends.cudnn.deterministic = as_it_was


def the_step_never_waits(method: Method) -> None:
    """On a GPU, torch detects no synchronisation with the host in a step."""
    stream = small_stream().on(torch.device("cuda"))
    learner = teach(make_learner(method, device="cuda", engine="eager"), stream, last=12)
    x, y = stream.batch(12)
    rows = learner._assign_rows(y.tolist())
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.trainer.run_once(learner.step, x, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def the_file_explains_itself(method: AnyMethod) -> None:
    """The module's docstring has the words Departures and Cost, and the class's has an example."""
    module = sys.modules[method.__module__].__doc__ or ""
    for word in ("Departures", "Cost"):
        wanted = f"{word!r} in the docstring of the module {method.__module__}"
        expect_that(word in module, wanted, "none", "")
    wanted = f"an example, >>>, in the docstring of {method.__name__}"
    expect_that(">>>" in (method.__doc__ or ""), wanted, "none", "")


class _NoOptimizer:
    moments_to_come = 0  # bytes

    def step(self) -> None:
        pass
