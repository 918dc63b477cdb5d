"""What a saved state must be before any of it is loaded: a file may come from anyone.

First what decides how large everything becomes, before anything is made; then, entry by entry,
against a trainer that was made for it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from onepass.base.errors import CheckpointError
from onepass.base.expect import expect_alike, expect_keys, expect_kind, expect_number
from onepass.learning.class_index import ClassBook
from onepass.learning.trainer import Trainer
from onepass.nets import optimisers

DTYPES = {"uint8": torch.uint8, "float32": torch.float32}
DIMENSIONS = {"uint8": (3,), "float32": (1, 3)}  # 3 of images, 1 of vectors
MOST_STEPS = 2**62
LARGEST_SAMPLE = 2**28  # values
NEW = ("steps", "book")  # what a state has at any time
OF_THE_TRAINER = ("new", "shape", "dtype", "model", "optimizer", "parts", "generators")
BEGUN = (*NEW, "finished", *OF_THE_TRAINER)


def book_of(state: dict[str, Any], gap: int) -> ClassBook:
    """The class book in a saved state, which has every entry that it must have."""
    expect_kind(state, dict, "state")
    steps = expect_number(state.get("steps"), 0, MOST_STEPS, "steps")
    expect_kind(state["steps"], int, "steps")
    expect_keys(state, BEGUN if steps else NEW, "state")
    book = ClassBook.from_state(state["book"], gap, steps)
    if steps:
        expect_kind(state["finished"], bool, "finished")
        _expect_samples(state["shape"], state["dtype"], state["parts"])
    return book


def _expect_samples(shape: Any, dtype: Any, parts: Any) -> None:
    """What samples are, which decides how large everything becomes."""
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


def expect_rows_for(state: dict[str, Any], trainer: Trainer, classes: int) -> None:
    """Refuses a head that has no room for so many classes, or as many rows as none grows to."""
    expect_kind(state["new"], Tensor, "new")
    capacity = trainer.model.head.capacity
    while capacity < max(classes, state["new"].numel()):
        capacity *= 2
    expect_alike(state["new"], torch.zeros(capacity, dtype=torch.bool), "new")
    if bool(state["new"][classes:].any()):
        raise CheckpointError(f"new has a row that none of the {classes} classes has")


def expect_fitting(state: dict[str, Any], trainer: Trainer, classes: int) -> None:
    """The state is one of this trainer's settings, whose head has a row for each of so many
    classes already."""
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
    """What the optimiser keeps of a parameter it says itself, after a step; of one that has had no
    gradient yet, nothing."""
    optimizer, trainable = trainer.optimizer, trainer.trainable
    for parameter in trainable:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    wanted = optimisers.optimiser_state(optimizer, trainable)
    optimizer.state.clear()
    for parameter in trainable:
        parameter.grad = None
    expect_kind(saved, dict, "optimizer")
    for place, moments in saved.items():
        if place not in wanted:
            raise CheckpointError(f"optimizer has {place!r}, which nothing here is for")
        expect_kind(moments, dict, f"optimizer.{place}")
        if moments:
            expect_alike(moments, wanted[place], f"optimizer.{place}")


def _expect_generator(saved: Any, rng: torch.Generator, name: str) -> None:
    """Of a generator of another kind of device nothing but its kind is used."""
    expect_keys(saved, ("device", "state"), name)
    expect_kind(saved["device"], str, f"{name}.device")
    if saved["device"] == rng.device.type:
        expect_alike(saved["state"], rng.get_state(), f"{name}.state")
