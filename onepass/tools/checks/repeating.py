"""What repeating must give: the same bits for the same seed, whatever happens around."""

from __future__ import annotations

import inspect
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from onepass.learning.checkpoint.file import open_learner
from onepass.learning.learner import Learner
from onepass.nets import ResNet18
from onepass.streams import Stream
from onepass.tools.checks.tools import Method, batches, device, expect, make, small_stream, teach


def same_seed_same_bits(method: Method) -> None:
    """Two learners with one seed end equal, to the last generator."""
    stream = small_stream()
    first, second = (teach(make(method, seed=3), stream) for _ in range(2))
    expect(first.state_sha256() == second.state_sha256(), "the same seed gave other bits")


def other_seed_other_bits(method: Method) -> None:
    """The seed is really used."""
    stream = small_stream()
    first, second = (teach(make(method, seed=seed), stream, last=3) for seed in (3, 4))
    expect(first.params_sha256() != second.params_sha256(), "the seed changes nothing")


def the_memory_may_take_the_batch_at_once(method: Method) -> None:
    """A captured step lets the batch into the memory while gradients are computed, any other when
    the network has moved; so no gradient may need what the memory holds."""
    stream = small_stream()
    ends = []
    for at_once in (False, True):
        learner = teach(make(method), stream, last=10)
        if at_once and learner.capturable:
            learner.trainer._let_in_aside = learner.trainer.finish  # type: ignore[method-assign]
        ends.append(teach(learner, stream, first=10, last=20).state_sha256())
        vars(learner.trainer).pop("_let_in_aside", None)
    expect(ends[0] == ends[1], "a gradient of the step reads the memory after `descend` has begun")


def global_generators_are_left_alone(method: Method) -> None:
    """The global generators of torch, NumPy and Python are neither read nor moved."""
    stream = small_stream()
    ends = []
    for seed in (1, 2):
        kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = torch.get_rng_state()
        ends.append(teach(make(method), stream, last=12).state_sha256())
        moved = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])
        expect(not moved, "learning moved the global generator")
    expect(ends[0] == ends[1], "learning read a global generator")


def a_saved_learner_goes_on_exactly(method: Method) -> None:
    """Saved amid a task, opened and taught the rest, it equals one that was never stopped; also
    with a network that has statistics of its own."""
    grown = small_stream(classes=20, per_class=20)  # beyond the head's first capacity from 32 on
    _stop_and_go_on(method, grown, stops=(1, 13, 34), more=5)
    small = ResNet18(width=2)
    _stop_and_go_on(method, small_stream(shape=(3, 9, 9)), stops=(10,), more=2, net=small)


def _stop_and_go_on(
    method: Method, stream: Stream, stops: tuple[int, ...], more: int, **settings: Any
) -> None:
    """The one that is stopped is stopped again and again, each time after it has gone on."""
    whole, stopped = make(method, **settings), make(method, **settings)
    for stop in stops:
        teach(stopped, stream, first=stopped.steps, last=stop)
        opened = _saved_and_opened(stopped, settings.get("net"))
        expect(opened.state_sha256() == stopped.state_sha256(), "opening changed the learner")
        stopped = teach(opened, stream, first=stop, last=stop + more)
        teach(whole, stream, first=whole.steps, last=stop + more)
        expect(stopped.state_sha256() == whole.state_sha256(), f"stopping at {stop} was not exact")


def _saved_and_opened(learner: Learner, net: nn.Module | None) -> Learner:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.pt"
        learner.save(path)
        return open_learner(path, device=device.get(), net=net)


def a_state_is_a_snapshot(method: Method) -> None:
    """A state dict does not change when the learner goes on."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    state = learner.state_dict()
    teach(learner, stream, first=12)
    again = make(method)
    again.load_state_dict(state)
    teach(again, stream, first=12)
    expect(again.state_sha256() == learner.state_sha256(), "the state was a view, not a snapshot")


def the_constructor_is_the_configuration(method: Method) -> None:
    """Arguments are stored as given, `get_params` lists them all, and learning changes none."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    learner = make(method)
    params = learner.get_params()
    expect(sorted(params) == sorted(names), "get_params does not list the constructor's arguments")
    teach(learner, small_stream(), last=3)
    after = learner.get_params()
    expect(all(params[name] is after[name] for name in names), "learning changed a setting")


def a_clone_is_independent(method: Method) -> None:
    """A learner made from another's settings starts fresh and shares nothing."""
    stream = small_stream()
    learner = teach(make(method), stream, last=3)
    before = learner.state_sha256()
    clone = type(learner)(**learner.get_params())
    expect(clone.steps == 0, "a clone must be new")
    for give in batches(stream, last=3):
        give(clone)
    expect(clone.state_sha256() == before, "a clone learns otherwise")
    expect(learner.state_sha256() == before, "teaching the clone changed the original")
