"""Tests of users' batches: valid ones are converted, invalid ones are a one-line error that leaves
a learner unchanged."""

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import nn
from torch.masked import masked_tensor

import onepass
from onepass import InputError, NotFittedError
from onepass.base.inputs import as_labels, as_samples
from onepass.learning.memory_contents import memory_bytes

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
IMAGES = np.arange(2 * 3 * 8 * 8).reshape(2, 3, 8, 8).astype(np.uint8)
VECTORS = np.array([[0.5, 1.5, -2.0], [1.0, 0.0, 3.25]])


# ---- samples


def test_masked_elements_are_missing_and_not_what_lies_below_the_mask():
    mask = np.zeros_like(VECTORS, dtype=bool)
    assert np.array_equal(as_samples(np.ma.masked_array(VECTORS, mask)).numpy(), VECTORS)
    mask[1, 2] = True
    masked = np.ma.masked_array(VECTORS, mask)
    for given_x in (masked, list(masked), tuple(masked)):
        with pytest.raises(InputError, match="x has 1 masked elements"):
            as_samples(given_x)
    for given_y in (np.ma.masked_array([1, 2], mask=[False, True]), [1, np.ma.masked]):
        with pytest.raises(InputError, match="y has 1 masked elements"):
            as_labels(given_y, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_a_masked_tensor_is_refused():
    masked = masked_tensor(torch.ones(2, 3), torch.eye(2, 3).bool())
    with pytest.raises(InputError, match="x is a masked tensor"):
        as_samples(masked)
    with pytest.raises(InputError, match="y is a masked tensor"):
        as_labels(masked, 2)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "tensor"])
def test_images_pass_unchanged(make):
    found = as_samples(make(IMAGES))
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), IMAGES)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "tensor"])
def test_images_without_channels_get_one(make):
    found = as_samples(make(IMAGES[:, 0]))
    assert found.shape == (2, 1, 8, 8)
    assert np.array_equal(found[:, 0].numpy(), IMAGES[:, 0])


@pytest.mark.parametrize(
    "x",
    [
        VECTORS,
        VECTORS.tolist(),
        tuple(map(tuple, VECTORS.tolist())),
        torch.from_numpy(VECTORS),
        VECTORS.astype(np.float32),
        VECTORS.astype(np.float16),
        torch.from_numpy(VECTORS).bfloat16(),
        torch.from_numpy(VECTORS).requires_grad_(),
        VECTORS[:, ::-1][:, ::-1],
        np.asfortranarray(VECTORS),
    ],
    ids=lambda x: f"{type(x).__name__} {getattr(x, 'dtype', '')}",
)
def test_vectors_become_float32(x):
    found = as_samples(x)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert np.array_equal(found.numpy(), VECTORS)


def test_read_only_arrays_are_accepted():
    frozen = VECTORS.copy()
    frozen.flags.writeable = False
    assert np.array_equal(as_samples(frozen).numpy(), VECTORS)


@pytest.mark.parametrize(
    "x",
    [
        IMAGES[:, 0].astype(np.float32),
        IMAGES.astype(np.int64),
        IMAGES.astype(np.int8),
        IMAGES[0, 0],
        VECTORS[0],
        VECTORS.astype(np.int64),
        VECTORS > 0,
        VECTORS.astype(np.complex64),
        0.5,
        IMAGES[None],
    ],
    ids=lambda x: f"{np.asarray(x).dtype} {np.shape(x)}",
)
def test_the_error_for_a_wrong_dtype_or_shape_says_what_was_expected(x):
    with pytest.raises(InputError, match=r"^x: expected images .* got ") as caught:
        as_samples(x)
    assert str(np.shape(x)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("x", [None, "image", [[1.0], [1.0, 2.0]], {"x": 1}, [["a"]], object()])
def test_a_value_that_is_not_an_array_is_refused(x):
    with pytest.raises(InputError, match=r"^x"):
        as_samples(x)


@pytest.mark.parametrize(("x", "remedy"), [(VECTORS[0], "None"), (VECTORS.astype(int), "float32")])
def test_two_frequent_mistakes_get_advice_that_works(x, remedy):
    assert as_samples(x[None] if remedy == "None" else x.astype(remedy)).ndim == 2
    with pytest.raises(InputError, match=rf"; .*x.*{remedy}"):
        as_samples(x)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_last_get_advice(channels):
    with pytest.raises(InputError, match="channels come first"):
        as_samples(np.zeros((2, 32, 32, channels), np.uint8))


@pytest.mark.parametrize(
    "shape", [(0, 3, 8, 8), (0, 8, 8), (2, 3, 0, 8)], ids=["no images", "none grey", "no pixels"]
)
def test_an_empty_batch_of_images_is_refused(shape):
    with pytest.raises(InputError, match="empty"):
        as_samples(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_an_empty_batch_of_vectors_is_refused(shape):
    with pytest.raises(InputError, match="empty"):
        as_samples(np.zeros(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite_in_float32_are_refused(value):
    bad = VECTORS.copy()
    bad[1, 2] = value
    with pytest.raises(InputError, match="NaN or infinity"):
        as_samples(bad)


@pytest.mark.parametrize(
    "make",
    [torch.Tensor.to_sparse, lambda x: x.to("meta"), torch.Tensor.to_mkldnn],
    ids=["sparse", "meta", "mkldnn"],
)
def test_sparse_and_meta_tensors_are_refused(make):
    x = torch.from_numpy(VECTORS).float()
    with pytest.raises(InputError, match="x must be a plain tensor"):
        as_samples(make(x))
    with pytest.raises(InputError, match="y must be a plain tensor"):
        as_labels(make(x[:, 1]), 2)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (
            np.array([[1, "a"], [2, None]], dtype=object),
            "it holds objects, not numbers: np.asarray",
        ),
        (sparse.csr_array(VECTORS), r"x is a sparse matrix: give x\.toarray\(\)"),
        ([[1.0, 2.0], [3.0]], "x cannot be read as an array"),
        ([[1, "a"]], "it holds text, not numbers"),
    ],
    ids=["objects", "sparse", "ragged", "text"],
)
def test_the_error_for_other_containers_says_what_to_do(x, said):
    with pytest.raises(InputError, match=said) as caught:
        as_samples(x)
    assert "\n" not in str(caught.value)


# ---- labels


def of_objects(values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


def list_of_numpy(values):
    return list(np.array(values))


@PROPERTY
@given(
    st.lists(st.integers(-120, 120), min_size=1, max_size=20),
    st.sampled_from([list, tuple, np.array, torch.tensor, list_of_numpy]),
    st.sampled_from(["u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "O"]),
)
def test_whole_numbers_of_any_kind_are_labels(values, container, dtype):
    values = [abs(label) for label in values] if dtype.startswith("u") else values
    given_as = container(values)
    if isinstance(given_as, np.ndarray):
        given_as = given_as.astype(dtype)
    found = as_labels(given_as, len(values))
    assert found == values
    assert {type(label) for label in found} == {int}


def test_labels_in_eight_bits_are_whole_numbers_too():
    assert as_labels(torch.tensor([0.0, 3.0]).to(torch.float8_e5m2), 2) == [0, 3]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, pandas.Series])
def test_large_labels_are_kept_exactly(make):
    assert as_labels(make([2**62 + 1, -(2**63)]), 2) == [2**62 + 1, -(2**63)]


@PROPERTY
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1),
    st.sampled_from(
        [list, tuple, np.array, of_objects, list_of_numpy, pandas.Series, pandas.Categorical]
    ),
)
def test_text_of_any_kind_is_a_label(values, container):
    found = as_labels(container(values), len(values))
    assert found == values
    assert {type(label) for label in found} == {str}


@pytest.mark.parametrize("y", [[0], [0, 1, 2], [[0], [1]], 0, [], [[0, 1]], "ab", None])
def test_there_is_one_label_for_each_sample(y):
    with pytest.raises(InputError, match="one label for each of the 2 samples"):
        as_labels(y, 2)


@pytest.mark.parametrize("make", [list, of_objects, pandas.Series])
@pytest.mark.parametrize(
    "y",
    [
        *([0.0, 1.5], [np.nan, 1.0], [np.inf, 0.0], [None, 1], ["cat", None], [1j, 0]),
        *(["cat", 7], ["cat", np.nan], ["cat", True], [b"cat", b"dog"], [0, True], [0.5, "cat"]),
    ],
    ids=str,
)
def test_labels_that_are_neither_text_nor_whole_numbers_are_refused(make, y):
    with pytest.raises(
        InputError, match=r"^y: labels are (all )?text or (all )?whole numbers, not"
    ):
        as_labels(make(y), 2)


@pytest.mark.parametrize("y", [[0.0, 1.5], [np.nan, 1.0], [True, False], [1j, 0]], ids=str)
@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_arrays_of_other_numbers_are_refused(make, y):
    with pytest.raises(InputError, match=r"^y: labels are text or whole numbers, not"):
        as_labels(make(y), 2)


@pytest.mark.parametrize("y", [1e30, float(2**63), 2**64 - 1, 2**70, -(2**70)])
@pytest.mark.parametrize("make", [list, np.array])
def test_numbers_that_64_bits_cannot_hold_are_refused(make, y):
    with pytest.raises(InputError, match="64 bits"):
        as_labels(make([0, y]), 2)


@pytest.mark.parametrize("y", ["half \ud800", "cat\0"])
def test_text_that_files_or_numpy_cannot_hold_is_refused(y):
    with pytest.raises(InputError, match="UTF-8"):
        as_labels([y], 1)


def test_an_array_of_invalid_characters_is_refused():
    with pytest.raises(InputError, match="text"):
        as_labels(np.array([97, 2**31 - 1], np.uint32).view("U1"), 2)


# ---- batches given to a learner


def learner(**settings):
    return onepass.ER(memory=10, replay=4, device="cpu", seed=1, **settings)


def vectors(count=4, features=3, seed=0):
    return np.random.default_rng(seed).normal(size=(count, features))


BAD = {
    "features": (vectors(features=4), [0, 1, 0, 1]),
    "images": (np.zeros((4, 1, 8, 8), np.uint8), [0, 1, 0, 1]),
    "dtype": (np.zeros((4, 3), np.int64), [0, 1, 0, 1]),
    "length": (vectors(), [0, 1, 7]),
    "NaN": (np.full((4, 3), np.nan), [0, 1, 7, 8]),
    "text beside numbers": (vectors(), [0, 1, 7, "cat"]),
    "fractional": (vectors(), [0, 1, 7, 0.5]),
    "empty": (vectors(count=0), []),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_leaves_no_trace(name):
    taught = learner()
    for seed in range(3):
        taught.learn(vectors(seed=seed), [0, 1, 0, 1])
    before = taught.state_sha256()
    with pytest.raises(InputError):
        taught.learn(*BAD[name])
    assert taught.state_sha256() == before
    assert taught.classes == [0, 1]


@pytest.mark.parametrize(
    "name", ["dtype", "length", "NaN", "text beside numbers", "fractional", "empty"]
)
def test_a_bad_first_batch_leaves_a_learner_as_new(name):
    tried, fresh = learner(), learner()
    with pytest.raises(InputError):
        tried.learn(*BAD[name])
    with pytest.raises(NotFittedError):
        tried.predict(vectors())
    for either in (tried, fresh):
        either.learn(vectors(), [0, 1, 0, 1])
    assert tried.state_sha256() == fresh.state_sha256()


def test_a_first_step_that_fails_leaves_a_learner_as_new():
    """BatchNorm cannot train on a single sample; the next batch can be learned."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    tried, fresh = (onepass.Finetune(net=net, device="cpu") for _ in range(2))
    with pytest.raises(ValueError, match="batches of two or more"):
        tried.learn(vectors(count=1), [0])
    for either in (tried, fresh):
        either.learn(vectors(), [0, 1, 0, 1])
    assert tried.seen.tolist() == fresh.seen.tolist()
    assert tried.state_sha256() == fresh.state_sha256()


@pytest.mark.parametrize("ask", ["predict", "scores"])
def test_bad_samples_are_refused_when_predicting_too(ask):
    taught = learner()
    taught.learn(vectors(), [0, 1, 0, 1])
    for x in (vectors(features=4), np.full((1, 3), np.nan), vectors(count=0), "x"):
        with pytest.raises(InputError, match=r"^x"):
            getattr(taught, ask)(x)


@pytest.mark.parametrize("kind", [onepass.NotFittedError, ValueError, AttributeError])
def test_predicting_before_learning_raises_the_error_that_scikit_learn_expects(kind):
    with pytest.raises(kind, match="learned nothing yet"):
        learner().predict(vectors())


@pytest.mark.parametrize(
    ("mean", "shape"), [((0.5, 0.5), (2, 3, 8, 8)), ((0.5, 0.5), (2, 3)), ((0.1,) * 4, (2, 8, 8))]
)
def test_a_mean_that_does_not_fit_the_samples_is_named(mean, shape):
    x = np.zeros(shape, np.float32 if len(shape) == 2 else np.uint8)
    with pytest.raises(InputError, match=f"mean has {len(mean)} values"):
        learner(mean=mean, std=mean).learn(x, [0, 1])


def test_lists_arrays_and_tensors_give_the_same_learner():
    x, y = vectors(), [0, 1, 0, 1]
    learners = [learner() for _ in range(3)]
    for taught, (samples, labels) in zip(
        learners,
        [(x.tolist(), y), (x, np.array(y)), (torch.from_numpy(x), torch.tensor(y))],
        strict=True,
    ):
        taught.learn(samples, labels)
    assert len({taught.state_sha256() for taught in learners}) == 1


def test_text_is_refused_as_a_sample():
    with pytest.raises(InputError, match="text"):
        onepass.ER(memory=5).learn([["a", "b"]], [0])


def test_a_new_learner_says_that_it_has_no_network_yet():
    fresh = onepass.ER(memory=5)
    for ask in (fresh.params_sha256, lambda: memory_bytes(fresh)):
        with pytest.raises(NotFittedError, match="has not seen a sample"):
            ask()
    fresh.prepare((3,), torch.float32)
    assert memory_bytes(fresh) == 5 * (3 * 4 + 8)
    assert len(fresh.params_sha256()) == 64
