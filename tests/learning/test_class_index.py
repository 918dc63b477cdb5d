"""Tests the rows of labels, and boundaries, which the caller sets or the learner infers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onepass
from onepass.learning.class_index import ClassIndex

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)
batches = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), max_size=25)


def boundaries(index, stream):
    return [step for step, batch in enumerate(stream) if index.enter(batch)]


def vectors(labels, seed=0):
    return torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed)), labels


@PROPERTY
@given(batches)
def test_rows_follow_the_order_of_arrival(stream):
    index = ClassIndex(gap=3)
    boundaries(index, stream)
    expected = list(dict.fromkeys(label for batch in stream for label in batch))
    assert index.labels == expected
    assert index.row_of == {label: row for row, label in enumerate(expected)}


@PROPERTY
@given(batches, st.integers(1, 4))
def test_unseen_classes_after_quiet_batches_infer_a_boundary(stream, gap):
    seen, fresh = set(), []
    for batch in stream:
        fresh.append(bool(set(batch) - seen))
        seen |= set(batch)
    expected = [
        step
        for step in range(gap, len(stream))
        if fresh[step] and not any(fresh[step - gap : step])
    ]
    index = ClassIndex(gap)
    assert boundaries(index, stream) == expected
    assert index.task == len(expected)


@pytest.mark.parametrize(("quiet", "expected"), [(2, []), (3, [4]), (4, [5])])
def test_the_gap_is_the_number_of_quiet_batches(quiet, expected):
    assert boundaries(ClassIndex(gap=3), [[0]] + [[0]] * quiet + [[1]]) == expected


def test_classes_that_arrive_gradually_belong_to_one_task():
    index = ClassIndex(gap=2)
    assert boundaries(index, [[0], [0], [1], [1], [2], [0], [3]]) == []
    assert index.task == 0


@PROPERTY
@given(batches, st.integers(1, 3))
def test_new_task_switches_inference_off(stream, gap):
    index = ClassIndex(gap, told=True)
    assert boundaries(index, stream) == []
    assert index.task == 0


def test_a_task_without_a_batch_does_not_count():
    index = ClassIndex(gap=3)
    assert not index.close_task()
    index.enter([0])
    assert index.close_task()
    assert not index.close_task()
    assert index.task == 1


@PROPERTY
@given(batches, batches, st.integers(1, 3))
def test_a_class_index_resumes_from_its_state(first, second, gap):
    index = ClassIndex(gap)
    boundaries(index, first)
    state = index.state_dict()
    copy = ClassIndex(**state)
    assert boundaries(copy, second) == boundaries(index, second)
    assert copy.state_dict() == index.state_dict()
    assert copy.row_of == index.row_of


def test_a_state_does_not_change_later():
    index = ClassIndex(gap=3)
    index.enter([4])
    state = index.state_dict()
    index.enter([5])
    assert state["labels"] == [4]


# ---- in a learner


def test_a_learner_infers_tasks_until_new_task_is_called():
    learner = onepass.Finetune(gap=2, device="cpu")
    for label in (0, 0, 0, 1):
        learner.learn(*vectors([label]))
    assert learner.task == 1
    learner.new_task()
    assert learner.task == 2
    for label in (1, 1, 1, 2):
        learner.learn(*vectors([label]))
    assert learner.task == 2


def test_calling_new_task_twice_makes_one_boundary():
    once, twice = (onepass.GSA(memory=10, mix=4, current=4, device="cpu", seed=2) for _ in range(2))
    for calls, learner in ((1, once), (2, twice)):
        for batch in ([0, 1, 0, 1], [2, 3, 2, 3]):
            for _ in range(calls):
                learner.new_task()
            for seed in range(3):
                learner.learn(*vectors(batch, seed))
    assert once.task == twice.task == 1
    assert once.state_sha256() == twice.state_sha256()


def test_new_task_before_the_first_batch_makes_no_boundary():
    learner = onepass.Finetune(device="cpu")
    learner.new_task()
    learner.learn(*vectors([3, 1]))
    assert learner.task == 0
    assert learner.classes == [3, 1]


def test_new_classes_are_those_first_seen_since_the_boundary():
    learner = onepass.GSA(memory=10, mix=4, current=4, device="cpu")
    learner.learn(*vectors([5, 7]))
    assert learner.new[:3].tolist() == [True, True, False]
    learner.new_task()
    assert not learner.new.any()
    learner.learn(*vectors([5, 9]))
    assert learner.new[:4].tolist() == [False, False, True, False]
    assert learner.seen[:4].tolist() == [True, True, True, False]


def test_the_list_of_classes_is_a_copy():
    learner = onepass.Finetune(device="cpu")
    learner.learn(*vectors([5, 7]))
    before = learner.classes
    learner.learn(*vectors([8, 7]))
    assert before == [5, 7]
    learner.classes.append(99)
    assert learner.classes == [5, 7, 8]


# ---- kinds of labels

NAMES = {
    "text": (["cat", "Bär", ""], "dog", 7),
    "numbers": ([-5, 2**62, 0], 7, "cat"),
}


def taught(names):
    """Returns a learner of three distant classes of vectors, with these names."""
    learner = onepass.ER(memory=12, replay=6, lr=0.01, device="cpu")
    centres = 4 * torch.eye(3, 5)
    for seed in range(40):
        x, _ = vectors(names, seed)
        learner.learn(centres + 0.1 * x, names)
    return learner, centres


@pytest.mark.parametrize("kind", NAMES)
def test_predictions_have_the_kind_of_the_labels(kind, tmp_path):
    names, another, _ = NAMES[kind]
    saved, centres = taught(names)
    saved.save(tmp_path / "model.pt")
    again = onepass.open(tmp_path / "model.pt", device="cpu")
    for learner in (saved, again, saved.snapshot()):
        found = learner.predict(centres)
        assert found.tolist() == names
        assert isinstance(found, np.ndarray if kind == "text" else torch.Tensor)
        assert list(learner.classes) == names
    for learner in (saved, again):  # both go on and learn new classes
        learner.learn(*vectors([another, names[0]]))
        assert learner.classes == [*names, another]
    assert saved.state_sha256() == again.state_sha256()


@pytest.mark.parametrize("kind", NAMES)
def test_labels_stay_of_one_kind(kind):
    names, another, strange = NAMES[kind]
    learner, _ = taught(names)
    before = learner.state_sha256()
    with pytest.raises(
        onepass.InputError, match=rf"labels of this learner are .*, not {strange!r}"
    ):
        learner.learn(*vectors([strange] * 3))
    assert learner.state_sha256() == before
    learner.learn(*vectors([another]))


def test_the_kind_of_labels_is_free_until_one_is_learned():
    learner = onepass.Finetune(device="cpu")
    with pytest.raises(onepass.InputError):
        learner.learn(torch.zeros(1, 5), [1.5])
    learner.learn(*vectors(["cat", "dog"]))
    assert learner.classes == ["cat", "dog"]


def test_a_learner_of_names_is_not_evaluated_on_numbers():
    learner = onepass.Finetune(device="cpu")
    learner.learn(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), ["0", "1"])
    stream = onepass.ClassIncremental(onepass.load("synthetic", shape=(1, 8, 8)), tasks=5)
    with pytest.raises(onepass.InputError, match="this learner has text labels"):
        next(onepass.evaluate(learner, stream, prequential=True))
