"""Checks of repeatability: the same seed gives the same bits, also after a save and a resume."""

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
from onepass.learning.network_learner import NetworkLearner
from onepass.nets import ResNet18
from onepass.streams import Stream
from onepass.tools.checks.helpers import (
    AnyMethod,
    Method,
    batch_steps,
    device_of_checks,
    expect_same_state,
    expect_that,
    make_learner,
    parameter_fingerprints,
    small_stream,
    state_fingerprints,
    teach,
)

# functions of a method to look at if it draws, or keeps its state, in the wrong way
DRAWING_METHODS, STATE_METHODS = "step build", "build state_dict"


def same_seed_same_bits(method: AnyMethod) -> None:
    """Two learners with the same seed end with the same state, generators included."""
    stream = small_stream()
    first, second = (teach(make_learner(method, seed=3), stream) for _ in range(2))
    wanted = "the same bits from the same seed"
    expect_same_state(
        state_fingerprints(first), state_fingerprints(second), wanted, DRAWING_METHODS
    )


def other_seed_other_bits(method: Method) -> None:
    """Two learners with different seeds end with different parameters."""
    stream = small_stream()
    first, second = (teach(make_learner(method, seed=seed), stream, last=3) for seed in (3, 4))
    differ = parameter_fingerprints(first) != parameter_fingerprints(second)
    expect_that(differ, "other parameters from another seed", "the same", DRAWING_METHODS)


def the_memory_may_take_the_batch_at_once(method: Method) -> None:
    """A step does not read the memory once `descend` has begun.

    An eager step stores the batch after the optimiser step. A captured step stores it while the
    gradients are computed, so they must not depend on what the memory holds.
    """
    stream = small_stream()
    ends = []
    for at_once in (False, True):
        learner = teach(make_learner(method), stream, last=10)
        if at_once and learner.traits.capturable:
            # stores the batch where a captured step begins to store it, but on the same stream
            learner.trainer._store_on_side_stream = learner.trainer.finish  # type: ignore[method-assign]
        ends.append(state_fingerprints(teach(learner, stream, first=10, last=20)))
        vars(learner.trainer).pop("_store_on_side_stream", None)
    wanted = "no gradient of the step that reads the memory after `descend` has begun"
    expect_same_state(ends[0], ends[1], wanted)


def global_generators_are_left_alone(method: AnyMethod) -> None:
    """The global generators of torch, NumPy and Python are neither read nor advanced."""
    stream = small_stream()
    ends = []
    for seed in (1, 2):
        kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = torch.get_rng_state()
        ends.append(state_fingerprints(teach(make_learner(method), stream, last=12)))
        moved = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])
        wanted = "draws from `self.trainer.rngs` only"
        expect_that(not moved, wanted, "that torch's global generator advanced", DRAWING_METHODS)
    expect_same_state(ends[0], ends[1], "learning not to read a global generator", DRAWING_METHODS)


def a_saved_learner_goes_on_exactly(method: AnyMethod) -> None:
    """A learner that is saved within a task, opened and taught the rest equals one never stopped.

    This also holds with a network that has BatchNorm statistics.
    """
    # from batch 32 on it has more classes than the 16 rows that the head begins with
    grown = small_stream(classes=20, per_class=20)
    _expect_exact_resume(method, grown, stops=(1, 13, 34), more=5)
    if issubclass(method, NetworkLearner):
        small = ResNet18(width=2)
        _expect_exact_resume(method, small_stream(shape=(3, 9, 9)), stops=(10,), more=2, net=small)


def _expect_exact_resume(
    method: AnyMethod, stream: Stream, stops: tuple[int, ...], more: int, **settings: Any
) -> None:
    """Saves and opens one of two learners at each step of `stops`.

    The two are compared `more` steps after each.
    """
    unstopped, stopped = make_learner(method, **settings), make_learner(method, **settings)
    for stop in stops:
        teach(stopped, stream, first=stopped.steps, last=stop)
        opened = _save_and_open(stopped, settings.get("net"))
        expect_same_state(
            state_fingerprints(stopped),
            state_fingerprints(opened),
            "opening a file to change nothing",
            STATE_METHODS,
        )
        stopped = teach(opened, stream, first=stop, last=stop + more)
        teach(unstopped, stream, first=unstopped.steps, last=stop + more)
        wanted = f"a learner saved at step {stop} to continue as if it had not been"
        expect_same_state(
            state_fingerprints(unstopped), state_fingerprints(stopped), wanted, STATE_METHODS
        )


def _save_and_open(learner: Learner, net: nn.Module | None) -> Learner:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.pt"
        learner.save(path)
        return open_learner(path, device=device_of_checks.get(), net=net)


def a_state_is_a_snapshot(method: AnyMethod) -> None:
    """A state dict does not change while the learner learns on."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    state = learner.state_dict()
    teach(learner, stream, first=12)
    again = make_learner(method)
    again.load_state_dict(state)
    teach(again, stream, first=12)
    wanted = "a state dict that does not change while the learner learns on"
    expect_same_state(
        state_fingerprints(learner), state_fingerprints(again), wanted, "state_dict build"
    )


def the_constructor_is_the_configuration(method: AnyMethod) -> None:
    """`get_params` returns every constructor argument as given, and learning changes none."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    learner = make_learner(method)
    params = learner.get_params()
    wanted = f"get_params to list the constructor's arguments, {sorted(names)}"
    expect_that(sorted(params) == sorted(names), wanted, sorted(params), "get_params __init__")
    teach(learner, small_stream(), last=3)
    after = learner.get_params()
    changed = [name for name in names if params[name] is not after[name]]
    expect_that(not changed, "settings that learning does not change", f"changes of {changed}")


def a_clone_is_independent(method: AnyMethod) -> None:
    """A learner made from another's settings starts new and shares nothing with it."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=3)
    before = state_fingerprints(learner)
    clone = type(learner)(**learner.get_params())
    expect_that(
        clone.steps == 0, "a learner of the same settings to be new", f"{clone.steps} steps"
    )
    for give in batch_steps(stream, last=3):
        give(clone)
    expect_same_state(
        before, state_fingerprints(clone), "a learner of the same settings to learn the same"
    )
    expect_same_state(
        before, state_fingerprints(learner), "teaching one learner to change no other"
    )
