"""Tests the nearest class mean against plain loops, and its invariances."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from onepass.nets import NearestMean

PROPERTY = settings(derandomize=True, deadline=None, max_examples=40)
CLASSES = 5


def drawn(seed, samples=12, width=4, classes=CLASSES):
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, width, generator=rng)
    return features, torch.randint(classes, (samples,), generator=rng)


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def naive_scores(features, y, weight, classes, queries):
    """Returns minus the distance to each class mean, None for a class without samples."""
    means = []
    for label in range(classes):
        own = [unit(f) for f, c, w in zip(features, y, weight, strict=True) if c == label and w]
        mean = [sum(column) / len(own) for column in zip(*own, strict=True)]
        means.append(unit(mean) if own else None)
    return [[None if m is None else -math.dist(unit(q), m) for m in means] for q in queries]


@PROPERTY
@given(st.integers(0, 10**6), st.lists(st.booleans(), min_size=12, max_size=12))
def test_scores_agree_with_plain_loops(seed, counts):
    features, y = drawn(seed)
    queries, _ = drawn(seed + 1, samples=7)
    weight = torch.tensor(counts).float()
    found = NearestMean(features, y, weight, CLASSES)(queries)
    expected = naive_scores(*(part.tolist() for part in (features, y, weight)), CLASSES, queries)
    for row, wanted in zip(found.tolist(), expected, strict=True):
        for score, value in zip(row, wanted, strict=True):
            if value is None:
                assert math.isfinite(score) and score < -1e6
            else:
                assert score == pytest.approx(value, abs=1e-5)


def test_with_one_sample_per_class_it_is_the_nearest_neighbour():
    features, _ = drawn(1, samples=20)
    queries, _ = drawn(2, samples=50)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    found = NearestMean(features, order, torch.ones(20), 20)(queries).argmax(dim=1)
    cosine = torch.cosine_similarity(queries.unsqueeze(1), features, dim=2)
    assert torch.equal(found, order[cosine.argmax(dim=1)])


@PROPERTY
@given(st.integers(0, 10**6))
def test_the_length_of_a_feature_vector_never_matters(seed):
    features, y = drawn(seed)
    lengths = 10 ** torch.linspace(-3, 3, 12).unsqueeze(1)
    value = NearestMean(features, y, torch.ones(12), CLASSES)(features)
    other = NearestMean(lengths * features, y, torch.ones(12), CLASSES)(7 * features)
    torch.testing.assert_close(value, other, atol=1e-5, rtol=0)


def test_permuting_the_labels_permutes_the_columns():
    features, y = drawn(4)
    names = torch.tensor([3, 0, 4, 2, 1])
    plain = NearestMean(features, y, torch.ones(12), CLASSES)(features)
    renamed = NearestMean(features, names[y], torch.ones(12), CLASSES)(features)
    torch.testing.assert_close(renamed[:, names], plain)


def test_a_class_without_samples_is_below_the_farthest_class():
    nearest = NearestMean(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), torch.ones(1), 3)
    scores = nearest(torch.tensor([[-5.0, 0.0]]))
    assert scores[0, 1].item() == pytest.approx(-2)
    assert bool((scores[0, [0, 2]] < -2).all() and torch.isfinite(scores).all())


def test_a_class_with_zero_features_counts_as_present():
    features = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    nearest = NearestMean(features, torch.tensor([0, 1]), torch.ones(2), 2)
    assert nearest(torch.tensor([[0.0, 3.0]])).tolist() == [pytest.approx([-1, -math.sqrt(2)])]


def test_small_distances_are_exact_and_do_not_depend_on_the_batch():
    features, _ = drawn(5, samples=64, width=32)
    nearest = NearestMean(features, torch.arange(64), torch.ones(64), 64)
    whole = nearest(features)
    assert float(whole.diagonal().abs().max()) < 1e-6
    parts = torch.cat([nearest(part) for part in features.split([1, 30, 33])])
    assert torch.equal(whole, parts)


def test_means_have_unit_length():
    features, y = drawn(6)
    means = NearestMean(features, y % 2, torch.ones(12), CLASSES).means
    assert means.norm(dim=1).tolist() == pytest.approx([1, 1, 0, 0, 0])


def test_no_shape_depends_on_data():
    features, y = drawn(7)
    mode = FakeTensorMode()
    with mode:
        given_features, given_y = mode.from_tensor(features), mode.from_tensor(y)
        nearest = NearestMean(given_features, given_y, torch.ones(12), CLASSES)
        assert nearest(given_features).shape == (12, CLASSES)
