"""Tests of the sums against Python's integers, and of the bound of 2^53."""

import numpy as np
import pytest
import torch
from closed_forms import FEW, permutation
from hypothesis import given
from hypothesis import strategies as st

from onepass.base.errors import InputError
from onepass.functional.grid import STEPS
from onepass.learning.sums import LEAST_COUNT, Sums

CPU = torch.device("cpu")
BOUND = 2**53


def features(n, d=3, largest=512, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-largest, largest + 1, (n, d), generator=source).float()


def sums_of(h, labels, with_gram=True):
    return Sums.of(h, labels, with_gram=with_gram)


def total_of(parts, with_gram=True, d=3):
    made = Sums(d, with_gram=with_gram, device=CPU)
    for part in parts:
        made.add(part)
    return made


def numbers(sums):
    """Returns all numbers of the sums as Python's integers."""
    return sums.labels, [[int(number) for number in row] for row in sums.rows_of_numbers()]


def pythons_numbers(h, labels, with_gram):
    """Returns the same for samples, by Python's integers."""
    rows = [[int(value) for value in row] for row in h.tolist()]
    found = sorted(set(labels))
    own = {name: [row for row, label in zip(rows, labels, strict=True) if label == name]
           for name in found}  # fmt: skip
    counts = [len(own[name]) for name in found]
    totals = [[sum(column) for column in zip(*own[name], strict=True)] for name in found]
    d = len(rows[0])
    products = [[sum(row[i] * row[j] for row in rows) for j in range(i, d)] for i in range(d)]
    last = products if with_gram else [[row[0] for row in products]]
    return found, [counts, *totals, *last]


labels = st.lists(st.sampled_from(["b", "a", "c"]), min_size=1, max_size=30)


@FEW
@given(labels, st.booleans(), st.integers(0, 99))
def test_sums_equal_pythons(labels, with_gram, seed):
    h = features(len(labels), seed=seed)
    expected = pythons_numbers(h, labels, with_gram)
    assert numbers(sums_of(h, labels, with_gram)) == expected
    order = permutation(len(labels), seed)
    pieces = [
        sums_of(h[part], [labels[index] for index in part.tolist()], with_gram)
        for part in torch.split(order, 7)
    ]
    assert numbers(total_of(pieces, with_gram)) == expected


@FEW
@given(labels, labels, st.booleans())
def test_subtracting_what_was_added_gives_what_was_before(first, second, with_gram):
    one = sums_of(features(len(first)), first, with_gram)
    two = sums_of(features(len(second), seed=1), second, with_gram)
    both = total_of([one, two], with_gram)
    gone = both.subtract(two)
    assert numbers(both) == numbers(total_of([one], with_gram))
    assert gone == sorted(set(second) - set(first))


@pytest.mark.parametrize("with_gram", [True, False])
def test_a_million_samples_equal_int64(with_gram):
    """int64 sums are exact, and NumPy's products of int64 use no BLAS."""
    h, y = features(10**6), torch.arange(10**6) % 5
    pieces = zip(torch.split(h, 1024), torch.split(y, 1024), strict=True)
    made = total_of((sums_of(x, part.tolist(), with_gram) for x, part in pieces), with_gram)
    whole = h.long().numpy()
    assert made.counts.tolist() == [200_000] * 5
    for label in range(5):
        assert made.totals[label].tolist() == whole[label::5].sum(axis=0).tolist()
    products = whole.T @ whole
    assert made.squares.tolist() == np.diag(products).tolist()
    if with_gram:
        assert np.array_equal(made.gram.triu(), np.triu(products))


def test_moments_are_in_units_of_1():
    h = torch.tensor([[64.0, -32], [128, 0]])
    moments = sums_of(h, [7, 7]).moments()
    assert moments.counts.tolist() == [2]
    assert moments.totals.tolist() == [[3, -0.5]]
    assert moments.squares.tolist() == [5, 0.25]
    assert moments.gram.tolist() == [[5, -0.5], [0, 0.25]]
    assert STEPS == 64


# ---- the bound


def near_the_bound(what, room):
    """Returns sums of one label that leave this room in one of their numbers."""
    made = total_of([sums_of(torch.tensor([[3.0, 2, 1]]), ["a"])])
    if what == "counts":
        made.counts.fill_(BOUND - 1 - room)
    else:
        made.gram[2, 2] = BOUND - 1 - room
    return made


@pytest.mark.parametrize(("what", "step"), [("counts", 1), ("squares", 4)])
def test_sums_go_to_the_last_whole_number_below_the_bound(what, step):
    more = sums_of(torch.tensor([[0.0, 0, 2]]), ["b"])
    full = near_the_bound(what, step - 1)
    before = numbers(full)
    with pytest.raises(InputError, match="reached 2\\^53, up to which whole numbers are exact"):
        full.add(more)
    assert numbers(full) == before
    last = near_the_bound(what, step)
    last.add(more)
    assert max(int(last.samples), int(last.squares.amax())) == BOUND - 1
    last.subtract(more)
    assert numbers(last) == numbers(near_the_bound(what, step))


# ---- what cannot be a part


@pytest.mark.parametrize(
    ("h", "labels", "says"),
    [
        ([[1.0, 2]], ["z"], "label 'z' has not been learned"),
        ([[0.0, 0]] * 3, ["a"] * 3, "2 samples of 'a' were learned, 1 fewer than are to be"),
        ([[0.0, 1], [1, 1]], ["a", "a"], "as many, with another sum"),
        ([[9.0, 0]], ["a"], "squares have a larger sum"),
        ([[4.0, 0], [0, 1], [0, 0]], ["a", "a", "b"], "squares have a larger sum"),
        ([[2.0, 1], [2, 0], [0, 0]], ["a", "a", "b"], "as many, with other products"),
    ],
)
def test_sums_that_are_no_part_are_refused(h, labels, says):
    # a: (3, 0) and (1, 1); b: (0, 0)
    made = total_of([sums_of(torch.tensor([[3.0, 0], [1, 1], [0, 0]]), ["a", "a", "b"])], d=2)
    before = numbers(made)
    with pytest.raises(InputError, match=says):
        made.subtract(sums_of(torch.tensor(h), labels))
    assert numbers(made) == before


# ---- fading


def test_sums_fade():
    made = total_of([sums_of(features(5), ["a", "b", "a", "b", "b"])])
    before = [row.clone() for row in made.rows_of_numbers()]
    made.decay(0.25)
    for row, old in zip(made.rows_of_numbers(), before, strict=True):
        assert torch.equal(row, old / 4)


@pytest.mark.parametrize("factor", [0.0, 1e-60])
def test_the_mean_of_a_class_does_not_fade(factor):
    made = total_of([sums_of(features(5), ["a", "b", "a", "b", "b"])])
    means = made.moments().means
    for _ in range(20):
        made.decay(factor)
    assert made.counts.tolist() == [LEAST_COUNT] * 2
    assert torch.allclose(made.moments().means, means, rtol=1e-12)
