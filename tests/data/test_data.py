"""Tests of datasets: content, validation, statistics, held-out data and fingerprints."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import onepass
from onepass import Dataset, InputError, UnknownNameError
from onepass.data import DATASETS, mirror_is_same_class, statistics
from onepass.data.base import channel_statistics

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def numbered(counts):
    """Returns a dataset whose training samples are their own index; its test samples are -1."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = torch.arange(len(y)).float().unsqueeze(1)
    test = torch.full((len(counts), 1), -1.0)
    names = tuple(map(str, range(len(counts))))
    return Dataset("numbered", x, y, test, torch.arange(len(counts)), names)


def parts(data):
    return {name: getattr(data, name) for name in ("train_x", "train_y", "test_x", "test_y")}


# ---- digits


def test_digits_are_those_of_scikit_learn_with_every_fifth_for_testing():
    bunch, data = load_digits(), onepass.load("digits")
    assert data.train_x.shape == (1442, 1, 8, 8)
    assert data.test_x.shape == (355, 1, 8, 8)
    assert data.classes == 10
    assert data.class_names == tuple("0123456789")
    for label in range(10):
        images = np.rint(bunch.images[bunch.target == label] * 255 / 16)
        test = np.arange(len(images)) % 5 == 4
        assert np.array_equal(data.test_x[data.test_y == label, 0].numpy(), images[test])
        assert np.array_equal(data.train_x[data.train_y == label, 0].numpy(), images[~test])


def test_digits_are_normalised_by_their_training_images():
    data = onepass.load("digits")
    pixels = data.train_x.double() / 255
    assert data.mean == pytest.approx([float(pixels.mean())])
    assert data.std == pytest.approx([float(pixels.std(correction=0))])


def test_digits_hold_no_order_of_classes():
    """The samples are in the order of scikit-learn, since only a stream decides an order."""
    data = onepass.load("digits")
    assert data.train_y[:10].tolist() == load_digits().target[:10].tolist()


def test_channel_statistics_make_each_channel_standard():
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20, 3, 5, 4), generator=source, dtype=torch.uint8)
    images[:, 1] //= 3
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in channel_statistics(images))
    normal = (images.double() / 255 - mean) / std
    assert normal.mean(dim=(0, 2, 3)).abs().max() < 1e-6
    assert (normal.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_images_without_statistics_are_given_those_of_the_training_images():
    full = onepass.load("digits")
    bare = Dataset("bare", **parts(full), class_names=full.class_names)
    assert bare.mean == pytest.approx(full.mean)
    assert bare.std == pytest.approx(full.std)


def test_a_dataset_says_whether_a_mirror_image_is_of_the_same_class():
    """The name alone is enough, without loading the dataset."""
    named = {name: mirror_is_same_class(name) for name in onepass.data.dataset_names()}
    assert [name for name, same in named.items() if not same] == ["digits", "synthetic", "mnist"]
    for name in DATASETS.names():
        assert onepass.load(name).mirror_is_same_class is named[name]
    assert made().mirror_is_same_class
    assert not replace(made(), mirror_is_same_class=False).hold_out(0.5).mirror_is_same_class


def test_mirror_is_same_class_cannot_be_given_for_a_named_dataset():
    with pytest.raises(InputError, match="mirror_is_same_class is for your own files"):
        onepass.load("digits", mirror_is_same_class=True)


def test_a_constant_channel_has_standard_deviation_one():
    pixels = torch.randint(0, 256, (6, 2, 3, 3), dtype=torch.uint8)
    pixels[:, 1] = 7
    (_, seven), (spread, constant) = statistics(pixels)
    assert (seven, constant) == (pytest.approx(7 / 255), 1.0)
    assert spread == channel_statistics(pixels)[1][0]
    vectors = torch.stack([torch.full((999,), 0.1), torch.arange(999) + 1e6], dim=1)
    (tenth, _), (constant, spread) = statistics(vectors)
    assert (tenth, constant) == (pytest.approx(0.1), 1.0)
    assert spread == pytest.approx(float(np.arange(999).std()))


# ---- held-out data


@PROPERTY
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6).filter(lambda counts: max(counts) > 1),
    st.floats(0.01, 0.99),
    st.integers(0, 1000),
)
def test_held_out_data_are_a_fraction_of_every_class(counts, fraction, seed):
    part = numbered(counts).hold_out(fraction, seed)
    kept, held = part.train_x.flatten().tolist(), part.test_x.flatten().tolist()
    assert sorted(kept + held) == list(range(sum(counts)))
    label_of = numbered(counts).train_y
    assert torch.equal(part.train_y, label_of[part.train_x.flatten().long()])
    assert torch.equal(part.test_y, label_of[part.test_x.flatten().long()])
    for label, count in enumerate(counts):
        expected = max(1, int(count * fraction)) if count > 1 else 0
        assert int((part.test_y == label).sum()) == expected
        assert int((part.train_y == label).sum()) >= 1


def test_hold_out_depends_on_the_seed_alone_and_uses_no_global_generator():
    data, before = onepass.load("digits"), torch.get_rng_state()
    first, again, other = (data.hold_out(0.2, seed) for seed in (0, 0, 1))
    assert torch.equal(first.test_x, again.test_x)
    assert not torch.equal(first.test_x, other.test_x)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_fraction_that_leaves_one_side_empty_is_refused(fraction):
    with pytest.raises(InputError, match="fraction"):
        numbered([4, 4]).hold_out(fraction)


# ---- synthetic data


@pytest.mark.parametrize("shape", [(3, 6, 5), (1, 4, 4), (7,)])
def test_synthetic_data_have_the_given_shape_and_counts(shape):
    data = onepass.load("synthetic", classes=3, train_per_class=5, test_per_class=2, shape=shape)
    assert data.train_x.shape == (15, *shape)
    assert data.test_x.shape == (6, *shape)
    assert data.is_images == (len(shape) == 3)
    assert torch.bincount(data.train_y).tolist() == [5, 5, 5]
    assert torch.bincount(data.test_y).tolist() == [2, 2, 2]


def test_synthetic_data_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = parts(onepass.load("synthetic", seed=3))
    before = torch.get_rng_state()
    again, other = (parts(onepass.load("synthetic", seed=seed)) for seed in (3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["train_x"], other["train_x"])


def test_synthetic_classes_can_be_separated():
    """The nearest class mean classifies almost every test sample."""
    data = onepass.load("synthetic", classes=5, shape=(20,))
    means = torch.stack([data.train_x[data.train_y == label].mean(0) for label in range(5)])
    found = torch.cdist(data.test_x, means).argmin(1)
    assert float((found == data.test_y).float().mean()) > 0.9


@pytest.mark.parametrize("shape", [(), (3, 4), (0,), (3, 0, 4), (1, 2, 3, 4)])
def test_synthetic_data_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match="shape"):
        onepass.load("synthetic", shape=shape)


# ---- names and options


def test_the_error_for_an_unknown_dataset_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'digits'"):
        onepass.load("digit")


def test_an_unknown_option_is_named():
    with pytest.raises(UnknownNameError, match="classes"):
        onepass.load("synthetic", clases=3)


# ---- what a dataset refuses

IMAGES = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
VECTORS = torch.zeros(4, 3)
LABELS = torch.tensor([0, 1, 0, 1])


def made(x=IMAGES, y=LABELS, test_x=None, test_y=LABELS, names=("a", "b")):
    return Dataset("mine", x, y, x if test_x is None else test_x, test_y, names)


@pytest.mark.parametrize("x", [IMAGES, VECTORS], ids=["images", "vectors"])
def test_images_and_vectors_are_accepted(x):
    data = made(x)
    assert data.classes == 2
    assert data.is_images == (x is IMAGES)


@pytest.mark.parametrize(
    "x",
    [
        IMAGES.double(),
        IMAGES.long(),
        IMAGES[:, 0],
        VECTORS.double(),
        VECTORS.half(),
        VECTORS.to(torch.uint8),
        VECTORS[:, 0],
    ],
    ids=["double images", "long images", "no channels", "double", "half", "uint8 rows", "flat"],
)
def test_samples_of_another_dtype_or_shape_are_refused(x):
    with pytest.raises(InputError, match="'mine': train samples must be"):
        made(x)


@pytest.mark.parametrize(
    "y",
    [LABELS.int(), LABELS.float(), LABELS[:3], LABELS.view(4, 1), torch.tensor(1)],
    ids=["int32", "float", "too few", "a column", "one for all"],
)
def test_labels_of_another_dtype_or_shape_are_refused(y):
    with pytest.raises(InputError, match="'mine': train labels must be int64"):
        made(y=y)
    with pytest.raises(InputError, match="'mine': test labels must be int64"):
        made(test_y=y)


def test_an_empty_dataset_is_refused():
    with pytest.raises(InputError, match="at least one"):
        made(IMAGES[:0], LABELS[:0])


@pytest.mark.parametrize("y", [[0, 1, 2, 0], [0, -1, 0, 1]])
def test_labels_without_a_class_name_are_refused(y):
    with pytest.raises(InputError, match="2 class names"):
        made(y=torch.tensor(y))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(value):
    bad = VECTORS.clone()
    bad[2, 1] = value
    with pytest.raises(InputError, match="train samples hold NaN or infinity"):
        made(bad)
    with pytest.raises(InputError, match="test samples hold NaN or infinity"):
        made(VECTORS, test_x=bad)


def test_train_and_test_samples_of_different_shapes_are_refused():
    with pytest.raises(InputError, match=r"train samples have shape \(3,\), test samples \(2,\)"):
        made(VECTORS, test_x=VECTORS[:, :2])


@pytest.mark.parametrize("part", ["train_x", "test_x", "train_y", "test_y"])
def test_one_changed_value_changes_the_fingerprint(part):
    data = onepass.load("digits")
    values = getattr(data, part).clone()
    assert replace(data, **{part: values}).sha256() == data.sha256()
    values[-3] = (values[-3] + 1) % 10
    assert replace(data, **{part: values}).sha256() != data.sha256()
