"""What a method says of itself must be so: images, memory, device, words."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from onepass.base.parts import Images
from onepass.learning.image_counts import images_of
from onepass.learning.learner import Learner
from onepass.learning.memory_contents import copy_bytes, memory_bytes, stores_of
from onepass.streams import ClassIncremental, Stream
from onepass.tools.checks.tools import (
    Method,
    dataset,
    expect,
    make,
    samples,
    small_stream,
    taught,
    teach,
)
from onepass.tools.forward_counter import watched


def declared_images_are_counted(method: Method) -> None:
    """The images of a step, counted at the door of every network of its kind, copies included, are
    those that the method declares."""
    for shape in ((3, 8, 8), (16,)):
        stream = small_stream(shape=shape)
        learner = teach(make(method, engine="eager"), stream, last=20)
        _expect_declared(learner, stream, 20)


def _expect_declared(learner: Learner, stream: Stream, index: int) -> None:
    with watched(type(learner.model.body)) as passes:
        teach(learner, stream, first=index, last=index + 1)
    found = Images(
        trained=sum(one.images for one in passes if one.graded),
        scored=sum(one.images for one in passes if not one.graded),
    )
    declared = images_of(learner, len(stream.indices(index)))
    expect(found == declared, f"{found} counted, {declared} declared")


def an_average_may_teach(method: Method) -> None:
    """With an average, lessons of it and repeated steps, as far as the method can: classes beyond
    the head's first capacity are learned, scores are finite, images are those that are declared,
    and the memory takes each sample once."""
    groups = [list(range(10)), list(range(10, 20))]
    stream = ClassIncremental(dataset(20), tasks=groups, batch=20, seed=1)
    learner = make(method, engine="eager", mirror=True, **taught(method))
    teach(learner, stream, last=2)
    teach(learner, stream, first=20, last=22)
    expect(len(learner.classes) > 16, "the head did not grow")
    _expect_declared(learner, stream, 22)
    held = [image.numpy().tobytes() for image in learner.kept.x.cpu()]
    expect(len(set(held)) == len(held), "the memory took a sample more than once")
    expect(bool(torch.isfinite(learner.scores(samples(stream))).all()), "a score is not finite")


def memory_is_bounded(method: Method) -> None:
    """Once the memory is full, the state no longer grows."""
    stream = small_stream()
    learner = teach(make(method), stream, last=17)
    before = _bytes(learner.state_dict())
    teach(learner, stream, first=17)
    after = _bytes(learner.state_dict())
    expect(after == before, f"the state grew from {before} to {after} bytes")


def kept_bytes_are_declared(method: Method) -> None:
    """Besides network, optimiser and a few numbers per class, only the samples of the memories and
    the declared copies of the network are kept; and `memory` is how many samples they hold, all
    memories together."""
    learner = teach(make(method), small_stream(), last=17)
    wanted = learner.get_params().get("memory")
    if wanted is not None:
        held = sum(store.capacity for store in stores_of(learner))
        expect(held == wanted, f"there are {held} places for samples instead of {wanted}")
    declared = memory_bytes(learner) + copy_bytes(learner)
    kept = _bytes(learner.state_dict()["parts"])
    slack = 64 * learner.model.head.capacity  # statistics: a few numbers for each class
    expect(declared <= kept <= declared + slack, f"{kept} bytes kept, {declared} declared")


def the_memory_holds_raw_samples(method: Method) -> None:
    """What is kept of a sample is the sample as it came, with its own label."""
    stream = small_stream()
    learner = teach(make(method), stream)
    given = {
        (image.numpy().tobytes(), label)
        for x, y in (stream.batch(index) for index in range(len(stream)))
        for image, label in zip(x, y.tolist(), strict=True)
    }
    for store in stores_of(learner):
        for slot in range(int(store.size)):
            label = learner.classes[int(store.y[slot])]
            kept = (store.x[slot].cpu().numpy().tobytes(), label)
            expect(kept in given, f"slot {slot} of the memory holds what the stream never gave")


def a_learner_is_freed_at_once(method: Method) -> None:
    """Network, memory and graph go with the last reference to the learner, not when Python next
    looks for garbage: on a GPU that may be too late."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    learner.predict(samples(stream))
    network = weakref.ref(learner.model)
    collecting = gc.isenabled()
    gc.disable()
    try:
        del learner
        expect(network() is None, "something still holds the network: a cycle of references")
    finally:
        if collecting:
            gc.enable()


def modes_are_restored(method: Method) -> None:
    """After a step the network trains as before, and the same parameters want gradients."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)

    def flags() -> list[bool]:
        modules = [module.training for module in learner.model.modules()]
        return modules + [parameter.requires_grad for parameter in learner.model.parameters()]

    before = flags()
    teach(learner, stream, first=12, last=13)
    learner.predict(samples(stream))
    expect(flags() == before, "a mode or a requires_grad was left changed")


def the_step_stays_on_the_device(method: Method) -> None:
    """Under fake tensors a step runs to its end: no value is read on the host, no shape depends on
    data. The optimiser is left out; capture on a GPU decides in the end."""
    stream = small_stream()
    for stop in (1, 12):
        learner = teach(make(method, device="cpu"), stream, last=stop)
        x, y = stream.batch(stop)
        rows = learner._admit(y.tolist())
        mode = FakeTensorMode()
        clones = {id(rng): rng.clone_state() for rng in learner.rngs.values()}
        with FakeCopyMode(mode):
            fake = copy.deepcopy(learner, clones)
        fake.trainer.optimizer = _NoOptimizer()  # type: ignore[assignment]
        with mode:
            fake.trainer.once(fake.step, mode.from_tensor(x), mode.from_tensor(rows))


def devices_agree(method: Method) -> None:
    """On a GPU the first step gives the loss of the host, up to rounding."""
    stream = small_stream()
    x, y = stream.batch(0)
    losses = [
        float(make(method, device=name, augment="none").learn(x, y).loss)
        for name in ("cpu", "cuda")
    ]
    expect(abs(losses[0] - losses[1]) < 1e-4, f"losses on host and GPU: {losses}")


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
                teach(make(method, device="cuda", engine=name, **case), stream, last=75)
                for name in ("eager", "graph")
            ]
            same = ends[0].state_sha256() == ends[1].state_sha256()
            expect(same, f"captured and eager steps differ: {case}")
    finally:
        torch.backends.cudnn.deterministic = as_it_was


def the_step_never_waits(method: Method) -> None:
    """On a GPU torch's own detector finds no host synchronisation in a step."""
    stream = small_stream().on(torch.device("cuda"))
    learner = teach(make(method, device="cuda", engine="eager"), stream, last=12)
    x, y = stream.batch(12)
    rows = learner._admit(y.tolist())
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.trainer.once(learner.step, x, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def the_file_explains_itself(method: Method) -> None:
    """The module says what it departs from and what it costs; the class shows an example."""
    module = sys.modules[method.__module__].__doc__ or ""
    for word in ("Departures", "Cost"):
        expect(word in module, f"the docstring of {method.__module__} has no {word!r}")
    expect(">>>" in (method.__doc__ or ""), f"{method.__name__} shows no example")


class _NoOptimizer:
    def step(self) -> None:
        pass


def _bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(_bytes(value) for value in tree.values())
    return 0
