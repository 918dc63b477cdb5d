"""Labels to rows, and boundaries: told, or inferred from unseen classes after a quiet time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onepass
from onepass.learning.class_index import ClassIndex

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)
batches = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), max_size=25)


def boundaries(book, stream):
    return [step for step, batch in enumerate(stream) if book.enter(batch)]


def vectors(labels, seed=0):
    return torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed)), labels


@PROPERTY
@given(batches)
def test_rows_follow_the_order_of_arrival(stream):
    book = ClassIndex(gap=3)
    boundaries(book, stream)
    expected = list(dict.fromkeys(label for batch in stream for label in batch))
    assert book.labels == expected
    assert book.row_of == {label: row for row, label in enumerate(expected)}


@PROPERTY
@given(batches, st.integers(1, 4))
def test_a_boundary_is_inferred_where_unseen_classes_follow_a_quiet_time(stream, gap):
    seen, fresh = set(), []
    for batch in stream:
        fresh.append(bool(set(batch) - seen))
        seen |= set(batch)
    expected = [
        step
        for step in range(gap, len(stream))
        if fresh[step] and not any(fresh[step - gap : step])
    ]
    book = ClassIndex(gap)
    assert boundaries(book, stream) == expected
    assert book.task == len(expected)


@pytest.mark.parametrize(("quiet", "expected"), [(2, []), (3, [4]), (4, [5])])
def test_the_gap_is_the_number_of_quiet_batches_that_it_takes(quiet, expected):
    assert boundaries(ClassIndex(gap=3), [[0]] + [[0]] * quiet + [[1]]) == expected


def test_classes_that_trickle_in_belong_to_one_task():
    book = ClassIndex(gap=2)
    assert boundaries(book, [[0], [0], [1], [1], [2], [0], [3]]) == []
    assert book.task == 0


@PROPERTY
@given(batches, st.integers(1, 3))
def test_told_boundaries_switch_inference_off(stream, gap):
    book = ClassIndex(gap, told=True)
    assert boundaries(book, stream) == []
    assert book.task == 0


def test_a_task_without_a_batch_is_no_task():
    book = ClassIndex(gap=3)
    assert not book.close_task()
    book.enter([0])
    assert book.close_task()
    assert not book.close_task()
    assert book.task == 1


@PROPERTY
@given(batches, batches, st.integers(1, 3))
def test_a_book_goes_on_from_its_state(first, second, gap):
    book = ClassIndex(gap)
    boundaries(book, first)
    state = book.state_dict()
    copy = ClassIndex(**state)
    assert boundaries(copy, second) == boundaries(book, second)
    assert copy.state_dict() == book.state_dict()
    assert copy.row_of == book.row_of


def test_a_state_is_a_snapshot():
    book = ClassIndex(gap=3)
    book.enter([4])
    state = book.state_dict()
    book.enter([5])
    assert state["labels"] == [4]


# ---- as a learner lives it


def test_a_learner_infers_tasks_until_it_is_told_of_one():
    one = onepass.Finetune(gap=2, device="cpu")
    for label in (0, 0, 0, 1):
        one.learn(*vectors([label]))
    assert one.task == 1
    one.new_task()
    assert one.task == 2
    for label in (1, 1, 1, 2):
        one.learn(*vectors([label]))
    assert one.task == 2


def test_told_twice_is_told_once():
    once, twice = (onepass.GSA(memory=10, mix=4, device="cpu", seed=2) for _ in range(2))
    for calls, one in ((1, once), (2, twice)):
        for batch in ([0, 1, 0, 1], [2, 3, 2, 3]):
            for _ in range(calls):
                one.new_task()
            for seed in range(3):
                one.learn(*vectors(batch, seed))
    assert once.task == twice.task == 1
    assert once.state_sha256() == twice.state_sha256()


def test_a_boundary_at_the_very_beginning_is_none():
    one = onepass.Finetune(device="cpu")
    one.new_task()
    one.learn(*vectors([3, 1]))
    assert one.task == 0
    assert one.classes == [3, 1]


def test_new_classes_are_those_first_seen_since_the_boundary():
    one = onepass.GSA(memory=10, mix=4, device="cpu")
    one.learn(*vectors([5, 7]))
    assert one.new[:3].tolist() == [True, True, False]
    one.new_task()
    assert not one.new.any()
    one.learn(*vectors([5, 9]))
    assert one.new[:4].tolist() == [False, False, True, False]
    assert one.seen[:4].tolist() == [True, True, True, False]


def test_the_list_of_classes_is_the_askers_own():
    one = onepass.Finetune(device="cpu")
    one.learn(*vectors([5, 7]))
    before = one.classes
    one.learn(*vectors([8, 7]))
    assert before == [5, 7]
    one.classes.append(99)
    assert one.classes == [5, 7, 8]


# ---- labels as people have them

NAMES = {
    "text": (["cat", "Bär", ""], "dog", 7),
    "numbers": ([-5, 2**62, 0], 7, "cat"),
}


def taught(names):
    """Three classes of vectors that lie far apart, by their names."""
    one = onepass.ER(memory=12, replay=6, lr=0.01, device="cpu")
    centres = 4 * torch.eye(3, 5)
    for seed in range(40):
        x, _ = vectors(names, seed)
        one.learn(centres + 0.1 * x, names)
    return one, centres


@pytest.mark.parametrize("kind", NAMES)
def test_what_was_taught_comes_back_in_kind(kind, tmp_path):
    names, another, _ = NAMES[kind]
    one, centres = taught(names)
    one.save(tmp_path / "model.pt")
    again = onepass.open(tmp_path / "model.pt", device="cpu")
    for learner in (one, again, one.snapshot()):
        found = learner.predict(centres)
        assert found.tolist() == names
        assert isinstance(found, np.ndarray if kind == "text" else torch.Tensor)
        assert list(learner.classes) == names
    for learner in (one, again):  # they go on together, and take classes that are new
        learner.learn(*vectors([another, names[0]]))
        assert learner.classes == [*names, another]
    assert one.state_sha256() == again.state_sha256()


@pytest.mark.parametrize("kind", NAMES)
def test_labels_stay_of_one_kind(kind):
    names, another, strange = NAMES[kind]
    one, _ = taught(names)
    before = one.state_sha256()
    with pytest.raises(
        onepass.InputError, match=rf"labels of this learner are .*, not {strange!r}"
    ):
        one.learn(*vectors([strange] * 3))
    assert one.state_sha256() == before
    one.learn(*vectors([another]))


def test_the_kind_of_labels_is_free_until_one_is_learned():
    one = onepass.Finetune(device="cpu")
    with pytest.raises(onepass.InputError):
        one.learn(torch.zeros(1, 5), [1.5])
    one.learn(*vectors(["cat", "dog"]))
    assert one.classes == ["cat", "dog"]


def test_a_learner_of_names_is_not_evaluated_on_numbers():
    one = onepass.Finetune(device="cpu")
    one.learn(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), ["0", "1"])
    stream = onepass.ClassIncremental(onepass.load("synthetic", shape=(1, 8, 8)), tasks=5)
    with pytest.raises(onepass.InputError, match="labels are text"):
        next(onepass.evaluate(one, stream, prequential=True))
