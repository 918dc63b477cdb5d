"""Tests of evaluation on any iterable (generators, loaders, columns) with the user's test set."""

import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import onepass
from onepass import InputError, evaluate
from onepass.data.iterables import xy_pair

STEPS = 24
SINGLE = TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]))


@pytest.fixture(scope="module")
def data():
    return onepass.load(
        "synthetic", classes=4, train_per_class=30, test_per_class=20, shape=(6,), noise=0.3
    )


def learner(**settings):
    return onepass.ER(**{"memory": 20, "device": "cpu", "seed": 0, **settings})


def batches(data, size=5):
    # even indices, then odd ones: the stream goes through all classes twice
    order = torch.arange(len(data.train_y)).view(-1, 2).T.flatten()
    for index in torch.split(order, size):
        yield data.train_x[index], data.train_y[index]


def test_a_generator_is_learned_batch_by_batch_and_scored_as_by_hand(data):
    by_hand = learner()
    for x, y in batches(data):
        by_hand.learn(x, y)
    expected = (by_hand.predict(data.test_x) == data.test_y).double().mean() * 100
    followed = learner()
    points = list(evaluate(followed, batches(data), test=(data.test_x, data.test_y), every=10))
    assert [point.step for point in points] == [10, 20, STEPS]
    assert followed.state_sha256() == by_hand.state_sha256()
    assert points[-1].accuracy == pytest.approx(float(expected))
    assert points[-1].total == (20,) * 4


def test_only_classes_seen_so_far_are_scored_in_the_order_of_learner_classes(data):
    """The scores are in the order of `learner.classes`, whatever the labels are."""
    label = torch.tensor([70, 5, 10**12, 0])
    stream = [
        (data.train_x[data.train_y == number], [int(label[number])] * 30) for number in (2, 0)
    ]
    taught = learner()
    first, second = evaluate(taught, stream, test=(data.test_x, label[data.test_y]), every=1)
    assert taught.classes == [10**12, 70]
    assert (first.total, second.total) == ((20,), (20, 20))
    assert sum(second.correct) > 30
    (odd,) = evaluate(learner(), stream, test=(data.test_x, [3] * len(data.test_x)))
    assert np.isnan(odd.accuracy)


def test_labels_may_be_text(data):
    named = [(x, [f"class {label}" for label in y]) for x, y in batches(data)]
    test = data.test_x, [f"class {label}" for label in data.test_y]
    (text,) = evaluate(learner(), named, test=test, prequential=True)
    (numbers,) = evaluate(learner(), batches(data), test=data, prequential=True)
    assert (text.correct, text.total, text.hits) == (numbers.correct, numbers.total, numbers.hits)


@pytest.mark.parametrize("kind", ["loader", "list", "dataset", "two", "two lists", "two columns"])
def test_every_kind_of_test_set_gives_the_same_score(data, kind):
    held = TensorDataset(data.test_x, data.test_y)
    loader = DataLoader(held, batch_size=7)
    two = list(DataLoader(held, batch_size=50))
    test = {
        "loader": loader,
        "list": [tuple(batch) for batch in loader],
        "dataset": data,
        "two": tuple(map(tuple, two)),
        "two lists": tuple(two),
        "two columns": tuple({"x": x, "y": y} for x, y in two),
    }[kind]
    loaded = DataLoader(TensorDataset(data.train_x, data.train_y), batch_size=5)
    points = list(evaluate(learner(), loaded, test=test, every=12))
    arrays = list(evaluate(learner(), loaded, test=(data.test_x, data.test_y), every=12))
    assert [point.correct for point in points] == [point.correct for point in arrays]


def test_each_batch_can_be_predicted_before_it_is_learned_without_any_test_set(data):
    asked, hits = learner(), 0
    for x, y in batches(data):
        hits += int((asked.predict(x) == y).sum()) if asked.steps else 0
        asked.learn(x, y)
    (last,) = evaluate(learner(), batches(data), prequential=True)
    assert (last.hits, last.tried) == (hits, len(data.train_y))


def test_a_learned_batch_is_freed(data):
    made = []

    def watched():
        for x, y in batches(data):
            copy = x.clone()
            made.append(weakref.ref(copy))
            yield copy, y

    for point in evaluate(learner(), watched(), test=data, every=1):
        alive = sum(reference() is not None for reference in made)
        assert alive <= 3, f"{alive} of {point.step} batches are still there"


@pytest.mark.parametrize("kind", ["batches", "samples", "pictures", "columns"])
def test_a_pair_of_batches_or_samples_is_no_batch(data, kind):
    x, y, picture = data.train_x, data.train_y, Image.new("RGB", (3, 2))
    pair = {
        "batches": [(x[:3], y[:3]), (x[:5], y[:5])],
        "samples": [(x[0], y[0]), (x[1], y[1])],
        "pictures": [(picture, 0), (picture, 1)],
        "columns": ({"x": x, "y": y}, {"x": x, "y": y}),
    }[kind]
    with pytest.raises(InputError, match="give these one by one"):
        xy_pair(pair)


@pytest.mark.parametrize("y", [[0, 1], (0, 1), ["a", "b"], torch.tensor([0, 1]), np.array([0, 1])])
def test_two_samples_are_a_batch(data, y):
    assert xy_pair((data.train_x[:2], y))[1] is y


def test_columns_of_pictures_are_images():
    red = Image.new("RGB", (3, 2), (255, 0, 0))
    x, y = xy_pair({"img": [red, red.convert("L")], "fine_label": [4, 2], "coarse_label": [0, 0]})
    assert (x.shape, x.dtype, y) == ((2, 3, 2, 3), np.uint8, [4, 2])
    assert x[0, :, 0, 0].tolist() == [255, 0, 0]
    assert xy_pair({"image": [red.convert("L")], "label": [0]})[0].shape == (1, 1, 2, 3)


def test_the_source_of_batches_may_announce_task_boundaries(data):
    followed = learner()

    def told():
        for step, batch in enumerate(batches(data)):
            if step in (0, 9):
                followed.new_task()
            yield batch

    points = list(evaluate(followed, told(), test=data, every=1))
    assert [point.task for point in points] == [0] * 9 + [1] * (STEPS - 9)


@pytest.mark.parametrize(
    ("stream", "test", "said"),
    [
        ([], ([[0.0]], [0]), "the stream has no batch"),
        ([(1, 2, 3)], ([[0.0]], [0]), "a pair .* not a tuple of 3"),
        (
            [{"pixels": 1, "label": 2}],
            ([[0.0]], [0]),
            r"one of the columns .*; it has \['label', 'pixels'\]",
        ),
        ([{"x": [0.0], "y": 2}], ([[0.0]], [0]), "for each sample of a batch, but it is 2"),
        ([([[0.0]], [0])], None, "no test set: give test="),
        ([([[0.0]], [0])], iter([]), "can be read only once"),
        ([([[0.0]], [0])], 7, "test must be .* not a int"),
        (7, ([[0.0]], [0]), "a learner, then a stream or batches"),
        ([([[0.0]], [0])], SINGLE, r"test must be .* TensorDataset \(a DataLoader makes batches"),
        (SINGLE, ([[0.0]], [0]), r"a ER and a TensorDataset \(a DataLoader makes batches"),
    ],
)
def test_an_invalid_stream_or_test_set_is_a_one_line_error(stream, test, said):
    with pytest.raises(InputError, match=said):
        list(evaluate(learner(), stream, test=test))


def test_a_stream_has_a_test_set_already(data):
    stream = onepass.ClassIncremental(data, tasks=2)
    with pytest.raises(InputError, match="its own test set"):
        list(evaluate(learner(), stream, test=data))
