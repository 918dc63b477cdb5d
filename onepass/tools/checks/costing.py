"""What a method says of itself must be so: images, memory, device, words."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
)

from onepass.base.parts import ImageCount
from onepass.learning.image_counts import images_per_batch
from onepass.learning.learner import Learner
from onepass.learning.memory_contents import copy_bytes, memory_bytes, stores_of
from onepass.streams import ClassIncremental, Stream
from onepass.tools.checks.helpers import (
    SCORE_METHODS,
    ExpectationError,
    Method,
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

BUILD_METHODS = "make_store build"  # where to look


def declared_images_are_counted(method: Method) -> None:
    """The images of a step, counted at the door of every network of its kind, copies included, are
    those that the method declares."""
    for shape in ((3, 8, 8), (16,)):
        stream = small_stream(shape=shape)
        learner = teach(make_learner(method, engine="eager"), stream, last=20)
        _expect_declared_images(learner, stream, 20)


def _expect_declared_images(learner: Learner, stream: Stream, index: int) -> None:
    with record_forwards(type(learner.model.body)) as passes:
        teach(learner, stream, first=index, last=index + 1)
    found = ImageCount(
        trained=sum(one.images for one in passes if one.graded),
        scored=sum(one.images for one in passes if not one.graded),
    )
    declared = images_per_batch(learner, len(stream.indices(index)))
    expect_that(
        found == declared, f"the declared {declared} of a step", f"{found} counted", "cost step"
    )


def an_average_may_teach(method: Method) -> None:
    """With an average, lessons of it and repeated steps, as far as the method can: classes beyond
    the head's first capacity are learned, scores are finite, images are those that are declared,
    and the memory takes each sample once."""
    groups = [list(range(10)), list(range(10, 20))]
    stream = ClassIncremental(small_dataset(20), tasks=groups, batch=20, seed=1)
    learner = make_learner(
        method, engine="eager", mirror=True, **self_distillation_settings(method)
    )
    teach(learner, stream, last=2)
    teach(learner, stream, first=20, last=22)
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


def memory_is_bounded(method: Method) -> None:
    """Once the memory is full, the state no longer grows."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=17)
    before = _count_bytes(learner.state_dict())
    teach(learner, stream, first=17)
    after = _count_bytes(learner.state_dict())
    wanted = f"a state that stays at {before} bytes once the memory is full"
    expect_that(after == before, wanted, f"{after} bytes", "build step")


def kept_bytes_are_declared(method: Method) -> None:
    """Besides network, optimiser and a few numbers per class, only the samples of the memories and
    the declared copies of the network are kept; and `memory` is how many samples they hold, all
    memories together."""
    learner = teach(make_learner(method), small_stream(), last=17)
    wanted = learner.get_params().get("memory")
    if wanted is not None:
        held = sum(store.capacity for store in stores_of(learner))
        places = f"{held} places for samples"
        expect_that(
            held == wanted, f"as many places as `memory` says, {wanted}", places, BUILD_METHODS
        )
    declared = memory_bytes(learner) + copy_bytes(learner)
    kept = _count_bytes(learner.state_dict()["parts"])
    slack = 64 * learner.model.head.capacity  # statistics: a few numbers for each class
    said = f"the declared {declared} bytes, and up to {slack} of statistics"
    expect_that(declared <= kept <= declared + slack, said, f"{kept} bytes kept", BUILD_METHODS)


def the_memory_holds_raw_samples(method: Method) -> None:
    """What is kept of a sample is the sample as it came, with its own label."""
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
    """Network, memory and graph go with the last reference to the learner, not when Python next
    looks for garbage: on a GPU that may be too late."""
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
    """After a step the network trains as before, and the same parameters want gradients."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)

    def flags() -> list[bool]:
        modules = [module.training for module in learner.model.modules()]
        return modules + [parameter.requires_grad for parameter in learner.model.parameters()]

    before = flags()
    teach(learner, stream, first=12, last=13)
    learner.predict(unseen_samples(stream))
    wanted = "modes and requires_grad as they were before a step"
    expect_that(flags() == before, wanted, "that one was left changed")


def the_step_stays_on_the_device(method: Method) -> None:
    """Under fake tensors a step runs to its end: no value is read on the host, no shape depends on
    data. The optimiser is left out; capture on a GPU decides in the end."""
    stream = small_stream()
    for stop in (1, 12):
        learner = teach(make_learner(method, device="cpu"), stream, last=stop)
        x, y = stream.batch(stop)
        rows = learner._assign_rows(y.tolist())
        mode = FakeTensorMode()
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
    """On a GPU the first step gives the loss of the host, up to rounding."""
    stream = small_stream()
    x, y = stream.batch(0)
    losses = [
        float(make_learner(method, device=name, augment="none").learn(x, y).loss)
        for name in ("cpu", "cuda")
    ]
    host, gpu = losses
    expect_that(abs(host - gpu) < 1e-4, f"the loss of the host, {host:.6g}, on a GPU", f"{gpu:.6g}")


def a_graph_gives_the_same_bits(method: Method) -> None:
    """On a GPU a captured step equals the eager one to the last generator, growth of the head and
    short batches included; also with a network of parallel branches, in bf16."""
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
    """On a GPU torch's own detector finds no host synchronisation in a step."""
    stream = small_stream().on(torch.device("cuda"))
    learner = teach(make_learner(method, device="cuda", engine="eager"), stream, last=12)
    x, y = stream.batch(12)
    rows = learner._assign_rows(y.tolist())
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.trainer.run_once(learner.step, x, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def the_file_explains_itself(method: Method) -> None:
    """The module says what it departs from and what it costs; the class shows an example."""
    module = sys.modules[method.__module__].__doc__ or ""
    for word in ("Departures", "Cost"):
        wanted = f"{word!r} in the docstring of the module {method.__module__}"
        expect_that(word in module, wanted, "none", "")
    wanted = f"an example, >>>, in the docstring of {method.__name__}"
    expect_that(">>>" in (method.__doc__ or ""), wanted, "none", "")


class _NoOptimizer:
    def step(self) -> None:
        pass


def _count_bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(_count_bytes(value) for value in tree.values())
    return 0
