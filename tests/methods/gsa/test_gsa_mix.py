"""The samples that GSA puts into X^mix, and their numbers of new and old classes."""

import pytest
import torch
from numbered_gsa import NumberedGSA, genuine

from onepass.memory.mixed import share_of_new


@pytest.mark.parametrize(
    ("places", "classes", "expected"),
    [
        (64, 10, [64, 32, 21, 16, 13, 11, 9, 8, 7, 6]),
        (64, 2, [64, 32, 21, 16, 13, 11, 9, 8, 7, 6, 6, 5]),
        (20, 10, [20, 10, 7, 5, 4, 3, 3, 3, 2, 2]),
    ],
)
def test_the_share_of_new_classes_agrees_with_the_papers_table(places, classes, expected):
    shares = [
        int(share_of_new(places, torch.tensor(classes), torch.tensor(classes * t)))
        for t in range(1, len(expected) + 1)
    ]
    assert shares == expected


def test_over_hundreds_of_tasks_the_share_of_new_falls_to_one_and_no_further():
    shares = [int(share_of_new(64, torch.tensor(2), torch.tensor(2 * t))) for t in range(26, 301)]
    assert shares == [2] * 17 + [1] * 258


@pytest.mark.parametrize(
    ("places", "shares"), [(20, [20, 10, 7, 5, 4]), (64, [64, 32, 21, 16, 13])]
)
def test_new_and_old_classes_have_the_shares_of_the_table(places, shares):
    watched = NumberedGSA(mix=places, memory=1000)
    for task, share in enumerate(shares):
        new, old = {2 * task, 2 * task + 1}, set(range(2 * task))
        for _ in range(8):
            last = watched.learn([2 * task, 2 * task + 1] * 5)
        watched.learner.new_task()
        assert len(genuine(last, new)) == share
        assert len(genuine(last, old)) == places - share
        assert len(last) == places


def test_samples_keep_their_labels_and_come_once():
    watched = NumberedGSA(mix=20, memory=60)
    for task in range(4):
        for _ in range(6):
            mixed = watched.learn([2 * task, 2 * task + 1] * 4)
            numbers = [number for number, _, real in mixed if real]
            assert len(set(numbers)) == len(numbers)
            assert all(label == watched.label_of[number] for number, label, _ in mixed)
        watched.learner.new_task()


def test_new_samples_come_from_the_stream_before_the_memory():
    watched = NumberedGSA(mix=30, memory=500)
    for _ in range(4):
        watched.learn([0, 1] * 5)
    watched.learner.new_task()
    assert genuine(watched.learn([2, 3] * 5), {2, 3}) == list(range(40, 50))
    second = genuine(watched.learn([2, 3] * 5), {2, 3})
    assert second[:10] == list(range(50, 60))
    assert len(second) == 15 and set(second[10:]) <= set(range(40, 50))


def test_a_share_smaller_than_the_batch_takes_its_first_samples():
    watched = NumberedGSA(mix=8, memory=500)
    watched.learn([0, 1, 2] * 3)
    watched.learner.new_task()
    assert genuine(watched.learn([3] * 6), {3}) == [9, 10]


@pytest.mark.parametrize(("fill", "expected"), [(1, 11), (3, 13), (None, 16)])
def test_fill_limits_what_new_classes_take_from_the_memory(fill, expected):
    watched = NumberedGSA(mix=32, memory=500, fill=fill)
    for _ in range(4):
        watched.learn([0, 1] * 5)
    watched.learner.new_task()
    for _ in range(3):
        mixed = watched.learn([2, 3] * 5)
    assert len(genuine(mixed, {2, 3})) == expected
    assert len(genuine(mixed, {0, 1})) == 16


@pytest.mark.parametrize("memory", [0, 3, 8, 200])
def test_weights_are_zero_only_where_samples_are_missing(memory):
    watched = NumberedGSA(mix=16, memory=memory)
    for task in range(3):
        new, old = {2 * task, 2 * task + 1}, set(range(2 * task))
        for _ in range(5):
            held = (watched.memory_of(new), watched.memory_of(old)) if watched.label_of else (0, 0)
            mixed = watched.learn([2 * task, 2 * task + 1] * 2)
            share = [16, 8, 5][task]
            assert len(genuine(mixed, new)) == min(share, 4 + held[0])
            assert len(genuine(mixed, old)) == min(16 - share, held[1])
        watched.learner.new_task()


def test_an_old_class_in_the_stream_counts_as_old():
    watched = NumberedGSA(mix=12, memory=100)
    watched.learn([0, 1, 0, 1])
    watched.learner.new_task()
    mixed = watched.learn([2, 0, 3, 1, 2, 0])
    assert genuine(mixed, {2, 3}) == [4, 6, 8]
    old = genuine(mixed, {0, 1})
    assert old[:3] == [5, 7, 9]
    assert len(old) == 6 and set(old[3:]) <= {0, 1, 2, 3}


def test_the_stream_batch_itself_is_not_yet_in_the_memory():
    watched = NumberedGSA(mix=12, memory=100)
    mixed = watched.learn([0, 1, 0, 1])
    assert genuine(mixed, {0, 1}) == [0, 1, 2, 3]
