"""Validates a saved state before any of it is loaded, because a file may come from anyone.

Sizes are checked first, before anything is allocated. Then each entry is compared with a trainer
that was made for the state. Every check raises a CheckpointError that names the entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onepass.base.errors import CheckpointError
from onepass.base.expect import expect_alike, expect_keys, expect_kind, expect_number
from onepass.learning.class_index import ClassIndex
from onepass.learning.trainer import Trainer
from onepass.nets import optimisers

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}
DIMENSIONS = {"uint8": (3,), "float32": (1, 3)}  # 3 of images, 1 of vectors
MOST_STEPS = 2**62
LARGEST_SAMPLE = 2**28  # values in one sample
NEW = ("steps", "book")  # keys of the state of a learner without steps; `book`: its class index
OF_THE_TRAINER = ("new", "shape", "dtype", "model", "optimizer", "parts", "generators")
BEGUN = (*NEW, "finished")  # and of one that has learned


def class_index_from(state: dict[str, Any], gap: int, own: Sequence[str]) -> ClassIndex:
    """Returns the class index of a saved state, after checking the keys of the state. `own` are
    those that only this kind of learner has."""
    expect_kind(state, dict, "state")
    steps = expect_number(state.get("steps"), 0, MOST_STEPS, "steps")
    expect_kind(state["steps"], int, "steps")
    expect_keys(state, (*BEGUN, *own) if steps else NEW, "state")
    index = ClassIndex.from_state(state["book"], gap, steps)
    if steps:
        expect_kind(state["finished"], bool, "finished")
    return index


def expect_sizes(shape: Any, dtype: Any, parts: Any) -> None:
    """Checks the shape and dtype of samples, on which all sizes depend, and that memories hold
    samples of this shape."""
    expect_kind(dtype, str, "dtype")
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype is {dtype!r}, not {' or '.join(DTYPES)}")
    expect_kind(shape, list, "shape")
    for side in shape:
        expect_kind(side, int, "shape")
        expect_number(side, 1, LARGEST_SAMPLE, "shape")
    if len(shape) not in DIMENSIONS[dtype] or math.prod(shape) > LARGEST_SAMPLE:
        raise CheckpointError(f"shape is {shape} for {dtype} samples")
    expect_kind(parts, dict, "parts")
    for name, part in parts.items():
        if isinstance(part, dict) and {"size", "x", "y"} <= part.keys():  # a memory
            held = list(part["x"].shape[1:]) if isinstance(part["x"], Tensor) else None
            if held != shape:
                raise CheckpointError(f"shape is {shape}, but parts.{name}.x holds {held}")


def expect_head_rows(state: dict[str, Any], trainer: Trainer, classes: int) -> None:
    """Checks that the saved head has room for the classes, and a capacity that doubling reaches. No
    row behind the classes may be marked as new."""
    expect_kind(state["new"], Tensor, "new")
    capacity = trainer.model.head.capacity
    while capacity < max(classes, state["new"].numel()):
        capacity *= 2
    expect_alike(state["new"], torch.zeros(capacity, dtype=torch.bool), "new")
    if bool(state["new"][classes:].any()):
        raise CheckpointError(f"new has a row that belongs to none of the {classes} classes")


def expect_fitting_state(state: dict[str, Any], trainer: Trainer, classes: int) -> None:
    """Checks the state against a trainer with the same settings, whose head has a row for each of
    the classes."""
    expect_alike(state["model"], dict(trainer.model.state_dict()), "model")
    _expect_moments(state["optimizer"], trainer)
    saving = {name: part for name, part in trainer.parts.items() if part.state_dict()}
    expect_keys(state["parts"], saving, "parts")
    for name, part in saving.items():
        expect_kind(state["parts"][name], dict, f"parts.{name}")
        part.expect(state["parts"][name], classes, f"parts.{name}")
    expect_keys(state["generators"], trainer.rngs, "generators")
    for name, rng in trainer.rngs.items():
        _expect_generator(state["generators"][name], rng, f"generators.{name}")


def _expect_moments(saved: Any, trainer: Trainer) -> None:
    """Checks the optimiser's state against that of a trial step. The state of a parameter may be
    missing, because one without a gradient so far has none."""
    optimizer, trainable = trainer.optimizer, trainer.trainable
    # a trial step makes state of the right shapes; `trainer` is new and is loaded afterwards
    for parameter in trainable:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    wanted = optimisers.optimiser_state(optimizer, trainable)
    optimizer.state.clear()
    for parameter in trainable:
        parameter.grad = None
    expect_kind(saved, dict, "optimizer")
    for position, moments in saved.items():
        if position not in wanted:
            raise CheckpointError(f"optimizer has {position!r}, which this learner does not use")
        expect_kind(moments, dict, f"optimizer.{position}")
        if moments:
            expect_alike(moments, wanted[position], f"optimizer.{position}")
        if "count" in moments:  # it selects rows of a table
            for count in (moments["count"].min(), moments["count"].max()):
                expect_number(count, 0, optimisers.CORRECTED, f"optimizer.{position}.count")


def _expect_generator(saved: Any, rng: torch.Generator, name: str) -> None:
    """Checks a generator's entry. Its state is not checked if it is from another kind of device,
    because it is not used then."""
    expect_keys(saved, ("device", "state"), name)
    expect_kind(saved["device"], str, f"{name}.device")
    if saved["device"] == rng.device.type:
        expect_alike(saved["state"], rng.get_state(), f"{name}.state")
