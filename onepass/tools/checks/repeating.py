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
from onepass.tools.checks.tools import (
    Method,
    batches,
    device,
    expect,
    expect_same,
    make,
    params_of,
    small_stream,
    state_of,
    teach,
)

DRAWS, SAVED = "step build", "build state_dict"  # where to look


def same_seed_same_bits(method: Method) -> None:
    """Two learners with one seed end equal, to the last generator."""
    stream = small_stream()
    first, second = (teach(make(method, seed=3), stream) for _ in range(2))
    wanted = "the same bits from the same seed"
    expect_same(state_of(first), state_of(second), wanted, DRAWS)


def other_seed_other_bits(method: Method) -> None:
    """The seed is really used."""
    stream = small_stream()
    first, second = (teach(make(method, seed=seed), stream, last=3) for seed in (3, 4))
    differ = params_of(first) != params_of(second)
    expect(differ, "other parameters from another seed", "the same", DRAWS)


def the_memory_may_take_the_batch_at_once(method: Method) -> None:
    """A captured step lets the batch into the memory while gradients are computed, any other when
    the network has moved; so no gradient may need what the memory holds."""
    stream = small_stream()
    ends = []
    for at_once in (False, True):
        learner = teach(make(method), stream, last=10)
        if at_once and learner.traits.capturable:
            learner.trainer._store_on_side_stream = learner.trainer.finish  # type: ignore[method-assign]
        ends.append(state_of(teach(learner, stream, first=10, last=20)))
        vars(learner.trainer).pop("_store_on_side_stream", None)
    wanted = "no gradient of the step that reads the memory after `descend` has begun"
    expect_same(ends[0], ends[1], wanted)


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
        ends.append(state_of(teach(make(method), stream, last=12)))
        moved = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])
        wanted = "draws from `self.trainer.rngs` only"
        expect(not moved, wanted, "that torch's global generator has moved", DRAWS)
    expect_same(ends[0], ends[1], "learning not to read a global generator", DRAWS)


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
        expect_same(state_of(stopped), state_of(opened), "opening a file to change nothing", SAVED)
        stopped = teach(opened, stream, first=stop, last=stop + more)
        teach(whole, stream, first=whole.steps, last=stop + more)
        wanted = f"one that was saved at step {stop} to go on as if it had not been"
        expect_same(state_of(whole), state_of(stopped), wanted, SAVED)


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
    wanted = "a state that does not change when the learner goes on"
    expect_same(state_of(learner), state_of(again), wanted, "state_dict build")


def the_constructor_is_the_configuration(method: Method) -> None:
    """Arguments are stored as given, `get_params` lists them all, and learning changes none."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    learner = make(method)
    params = learner.get_params()
    wanted = f"get_params to list the constructor's arguments, {sorted(names)}"
    expect(sorted(params) == sorted(names), wanted, sorted(params), "get_params __init__")
    teach(learner, small_stream(), last=3)
    after = learner.get_params()
    changed = [name for name in names if params[name] is not after[name]]
    expect(not changed, "settings that learning does not change", f"changes of {changed}")


def a_clone_is_independent(method: Method) -> None:
    """A learner made from another's settings starts fresh and shares nothing."""
    stream = small_stream()
    learner = teach(make(method), stream, last=3)
    before = state_of(learner)
    clone = type(learner)(**learner.get_params())
    expect(clone.steps == 0, "a learner of the same settings to be new", f"{clone.steps} steps")
    for give in batches(stream, last=3):
        give(clone)
    expect_same(before, state_of(clone), "a learner of the same settings to learn the same")
    expect_same(before, state_of(learner), "teaching one learner to change no other")
