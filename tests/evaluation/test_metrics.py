"""Metrics of the accuracy matrix; each is computed by hand once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassAccuracy

from onepass.evaluation import metrics

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
EXAMPLE = [[90.0, None, None], [60.0, 80.0, None], [30.0, 70.0, 95.0]]


@st.composite
def matrices(draw, least=1):
    tasks = draw(st.integers(least, 6))
    percents = st.floats(0, 100, allow_nan=False)
    return [[draw(percents) if j <= i else None for j in range(tasks)] for i in range(tasks)]


def test_the_worked_example():
    assert metrics.mean_task_accuracy(EXAMPLE) == (30 + 70 + 95) / 3
    assert metrics.forgetting(EXAMPLE) == (60 + 10) / 2
    assert metrics.forgetting_all(EXAMPLE) == pytest.approx((60 + 10 + 0) / 3)


def test_what_was_learned_is_the_diagonal_and_what_is_newest_the_corner():
    assert metrics.learning_accuracy(EXAMPLE) == pytest.approx((90 + 80 + 95) / 3)
    assert metrics.newest_accuracy(EXAMPLE) == 95
    unscored = [[None, None], [60.0, 80.0]]
    assert metrics.learning_accuracy(unscored) is None
    assert metrics.newest_accuracy(unscored) == 80


@PROPERTY
@given(matrices(least=2))
def test_the_final_mean_is_at_least_what_was_learned_minus_what_was_forgotten(a):
    lost = metrics.forgetting_all(a)
    assert metrics.mean_task_accuracy(a) + lost >= metrics.learning_accuracy(a) - 1e-9


def test_forgetting_counts_from_the_best_ever_not_from_the_first():
    rising = [[50.0, None], [70.0, 60.0]]
    assert metrics.forgetting(rising) == 0
    there_and_back = [[50.0, None, None], [90.0, 60.0, None], [80.0, 60.0, 10.0]]
    assert metrics.forgetting(there_and_back) == (10 + 0) / 2


def test_a_single_task_has_no_forgetting():
    assert metrics.forgetting([[80.0]]) is None
    assert metrics.forgetting_all([[80.0]]) == 0


@PROPERTY
@given(matrices(least=2))
def test_the_two_forms_of_forgetting_differ_by_the_number_of_tasks(a):
    tasks = len(a)
    expected = metrics.forgetting(a) * (tasks - 1) / tasks
    assert metrics.forgetting_all(a) == pytest.approx(expected, abs=1e-9)


@PROPERTY
@given(matrices())
def test_forgetting_is_between_zero_and_the_best_accuracy(a):
    tasks = len(a)
    assert 0 <= metrics.forgetting_all(a) <= 100
    best = np.nanmax(np.array(a, dtype=float), axis=0)
    accuracy = metrics.mean_task_accuracy(a)
    assert metrics.forgetting_all(a) == pytest.approx(best.mean() - accuracy, abs=1e-9)
    if tasks > 1:
        assert metrics.forgetting(a) >= 0


@PROPERTY
@given(matrices(least=2))
def test_an_accuracy_that_never_fell_has_no_forgetting(a):
    values = np.array(a, dtype=float)
    rising = np.where(np.isnan(values), np.nan, np.fmax.accumulate(values, axis=0))
    a = [[None if np.isnan(v) else float(v) for v in row] for row in rising]
    assert metrics.forgetting(a) == metrics.forgetting_all(a) == 0


def test_the_matrix_from_counts_by_hand():
    a = metrics.accuracy_matrix(
        [[9, 8, 0, 0], [6, 6, 10, 5]], total=[10, 10, 20, 5], tasks=[[0, 1], [3, 2]]
    )
    assert a == [[85.0, None], [60.0, 60.0]]


@PROPERTY
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 3))
def test_the_matrix_equals_torchmetrics_on_the_images_of_each_task(seed, tasks, size):
    rng, classes = np.random.default_rng(seed), tasks * size
    truth = torch.from_numpy(np.repeat(np.arange(classes), rng.integers(1, 9, classes)))
    groups = [list(range(first, first + size)) for first in range(0, classes, size)]
    predictions = [torch.from_numpy(rng.integers(0, classes, len(truth))) for _ in groups]
    total = torch.bincount(truth, minlength=classes).tolist()
    correct = [torch.bincount(truth[p == truth], minlength=classes).tolist() for p in predictions]
    a = metrics.accuracy_matrix(correct, total, groups)
    score = MulticlassAccuracy(classes, average="micro")
    for i, predicted in enumerate(predictions):
        for j, group in enumerate(groups):
            inside = torch.isin(truth, torch.tensor(group))
            expected = 100 * float(score(predicted[inside], truth[inside]))
            assert a[i][j] == (pytest.approx(expected, abs=1e-4) if j <= i else None)


@PROPERTY
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_accuracy_per_class_is_that_of_torchmetrics(seed, classes):
    rng = np.random.default_rng(seed)
    truth, predicted = (torch.from_numpy(rng.integers(0, classes, 8)) for _ in range(2))
    total = torch.bincount(truth, minlength=classes)
    correct = torch.bincount(truth[predicted == truth], minlength=classes)
    found = metrics.per_class(correct.tolist(), total.tolist())
    expected = 100 * MulticlassAccuracy(classes, average=None)(predicted, truth)
    for value, other, images in zip(found, expected.tolist(), total.tolist(), strict=True):
        assert value == (pytest.approx(other, abs=1e-4) if images else None)


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 20), min_size=2, max_size=2), min_size=1, max_size=6))
def test_with_equal_tasks_the_mean_over_tasks_is_the_accuracy_over_images(rows):
    tasks = [[2 * i, 2 * i + 1] for i in range(len(rows))]
    correct = [count for row in rows for count in row]
    a = metrics.accuracy_matrix([correct] * len(rows), [20] * len(correct), tasks)
    assert metrics.mean_task_accuracy(a) == pytest.approx(100 * sum(correct) / (20 * len(correct)))


def test_any_time_accuracy_is_the_mean_over_the_points():
    assert metrics.anytime([100.0, 90.0, 50.0]) == 80


@pytest.mark.parametrize("few", [[], [90.0], [90.0, 80.0]])
def test_any_time_accuracy_needs_three_points(few):
    assert metrics.anytime(few) is None


# ---- tasks that were not scored


def test_a_task_after_which_nothing_was_scored_has_a_row_of_none():
    tasks, total = [[0, 1], [2]], [10, 10, 20]
    a = metrics.accuracy_matrix([None, [6, 6, 10]], total, tasks)
    assert a == [[None, None], [60.0, 50.0]]
    assert metrics.mean_task_accuracy(a) == 55
    assert metrics.forgetting(a) is None
    assert metrics.forgetting_all(a) is None


@PROPERTY
@given(matrices(), st.data())
def test_forgetting_is_known_only_where_every_task_was_scored(a, data):
    missing = data.draw(st.sets(st.integers(0, len(a) - 1), max_size=len(a) - 1)) - {len(a) - 1}
    gaps = [[None] * len(a) if i in missing else row for i, row in enumerate(a)]
    assert (metrics.forgetting_all(gaps) is None) == bool(missing)
    assert (metrics.forgetting(gaps) is None) == (bool(missing) or len(a) == 1)
    assert metrics.mean_task_accuracy(gaps) == metrics.mean_task_accuracy(a)


def test_rows_that_were_scored_do_not_depend_on_those_that_were_not():
    tasks, total = [[0], [1], [2]], [10, 10, 10]
    correct = [[9, 0, 0], [6, 8, 0], [3, 7, 9]]
    whole = metrics.accuracy_matrix(correct, total, tasks)
    for gone in range(3):
        rows = [None if i == gone else row for i, row in enumerate(correct)]
        expected = [[None] * 3 if i == gone else row for i, row in enumerate(whole)]
        assert metrics.accuracy_matrix(rows, total, tasks) == expected
