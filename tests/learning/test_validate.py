"""Tests that a file with an invalid entry is refused before anything is loaded, and that the error
names the entry."""

from functools import cache

import pytest
import torch
from resumed import coloured_stream, learn_range, small

import onepass
from onepass import CheckpointError
from onepass.learning.checkpoint import file as checkpoint
from onepass.learning.checkpoint import validate


@pytest.fixture(scope="module")
def stream():
    return coloured_stream()


@cache
def some_learner(stream):
    learner = small("er")
    learn_range(learner, stream, 0, 3)
    return learner


def damaged(folder, stream, change):
    content = checkpoint.checkpoint_content(some_learner(stream))
    change(content)
    checkpoint.write_checkpoint(folder / "damaged.pt", content)
    return folder / "damaged.pt"


@pytest.mark.parametrize("name", ["method", "settings", "state", "spent"])
def test_a_checkpoint_without_an_entry_is_refused(name, stream, tmp_path):
    path = damaged(tmp_path, stream, lambda content: content.pop(name))
    with pytest.raises(CheckpointError, match=r"damaged\.pt does not fit"):
        onepass.open(path, device="cpu")


@pytest.mark.parametrize("name", (*validate.BEGUN, *validate.OF_THE_TRAINER))
def test_a_state_without_an_entry_is_refused(name, stream, tmp_path):
    path = damaged(tmp_path, stream, lambda content: content["state"].pop(name))
    with pytest.raises(CheckpointError, match=r"damaged\.pt does not fit"):
        onepass.open(path, device="cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "nonsense"),
        ("shape", [3, 9, 9]),
        ("book", {"pages": 3}),
        ("model", {}),
        ("new", torch.zeros(3, dtype=torch.bool)),
        (
            "parts",
            {"store": {"offered": torch.tensor(3), "x": torch.zeros(2), "y": torch.zeros(2)}},
        ),
        ("generators", {"draws": {"device": "cpu", "state": torch.zeros(3, dtype=torch.uint8)}}),
    ],
)
def test_a_state_with_an_entry_of_another_type_is_refused(name, value, stream, tmp_path):
    path = damaged(tmp_path, stream, lambda content: content["state"].update({name: value}))
    with pytest.raises(CheckpointError, match=r"damaged\.pt does not fit"):
        onepass.open(path, device="cpu")


def put(path, value):
    """Changes one entry of a content. A function computes the value from the old one."""

    def change(content):
        *way, last = path.split("/")
        inside = content
        for key in way:
            inside = inside[int(key) if key.isdecimal() else key]
        old = inside.get(last)
        inside[last] = value(old) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("state/optimizer/0/exp_avg", torch.zeros(7), r"optimizer\.0\.exp_avg is float32 \(7,\)"),
        ("state/optimizer/0/exp_avg_sq", torch.Tensor.double, r"float64 .* where float32"),
        ("state/optimizer/4/count", torch.zeros(3), r"optimizer\.4\.count is float32 \(3,\)"),
        ("state/optimizer/4/count", lambda old: old - 2**62, r"\.4\.count is -\d+, not between 0"),
        ("state/optimizer/4/count", lambda old: old + 2049, r"\.4\.count is \d+, not .* and 2048"),
        ("state/optimizer/0/step", 3.0, r"optimizer\.0\.step is float"),
        ("state/model/head.bias", torch.zeros(2), r"model\.head\.bias is float32 \(2,\)"),
        ("state/model/more", torch.zeros(1), "model has 'more', which this learner does not use"),
        ("state/parts/store/y", lambda old: old + 30, r"parts\.store\.y holds row 3\d"),
        ("state/parts/store/y", lambda old: old - 9, r"parts\.store\.y holds row -\d"),
        ("state/parts/store/size", torch.tensor(13), "size is 13, not between 0 and 12"),
        ("state/parts/store/size", torch.tensor(2), r"parts\.store\.x is uint8 \(6, 3, 6, 6\)"),
        ("state/parts/store/offered", torch.tensor(-1), "offered is -1"),
        ("state/parts/store/offered", torch.tensor(3), "size is 6, not between 0 and 3"),
        ("state/new", lambda old: ~old, "new has a row"),
        ("state/steps", -1, "steps is -1"),
        ("state/steps", 2.0, "steps is float"),
        ("state/finished", 0, "finished is int"),
        ("state/book/labels", [0, 0, 1, 2], "a label twice"),
        ("state/book/labels", [0, "cat"], "labels is str"),
        ("state/book/labels", ["cat", 0], "labels is int"),
        ("state/book/labels", [0, -(2**63) - 1], "labels is -9223372036854775809"),
        ("state/book/task", 99, "task is 99, not between 0 and 3"),
        ("state/book/gap", 11, "gap is 11"),
        ("state/shape", [3, 6], r"shape is \[3, 6\] for uint8 samples"),
        ("spent", {"scores": [1, -2]}, r"spent\.scores is -2"),
        ("class_names", ["a", "b"], "class_names has to name"),
        ("class_names", ["a", 7], "class_names is int"),
        ("settings/lr", torch.zeros(2), "its settings are not plain values"),
    ],
)
def test_the_error_names_an_invalid_entry_and_nothing_is_opened(
    path, value, message, stream, tmp_path
):
    file = damaged(tmp_path, stream, put(path, value))
    with pytest.raises(CheckpointError, match=rf"damaged\.pt .*{message}") as refused:
        onepass.open(file, device="cpu")
    assert "\n" not in str(refused.value)


def test_a_balanced_memory_with_wrong_counts_is_refused(stream, tmp_path):
    learner = small("gdumb")
    learn_range(learner, stream, 0, 3)
    content = checkpoint.checkpoint_content(learner)
    content["state"]["parts"]["store"]["held"][0] += 1
    checkpoint.write_checkpoint(tmp_path / "odd.pt", content)
    with pytest.raises(CheckpointError, match=r"held does not match the counts"):
        onepass.open(tmp_path / "odd.pt", device="cpu")


def test_the_error_names_an_unknown_method(stream, tmp_path):
    path = damaged(tmp_path, stream, lambda content: content.update(method="err"))
    with pytest.raises(CheckpointError, match="unknown method 'err'"):
        onepass.open(path, device="cpu")


def test_the_error_names_an_unknown_setting(stream, tmp_path):
    path = damaged(tmp_path, stream, lambda content: content["settings"].update(momentum=0.9))
    with pytest.raises(CheckpointError, match="momentum"):
        onepass.open(path, device="cpu")
