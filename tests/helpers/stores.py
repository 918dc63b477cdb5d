"""Memories of numbers, samples from labels, and tests whether counts are even."""

from collections import Counter
from contextlib import contextmanager
from unittest import mock

import torch
from hypothesis import settings
from scipy import stats

from onepass.base.parts import Samples
from onepass.memory import Reservoir

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


@contextmanager
def as_on_gpu():
    """Makes memories work as on a GPU, where reading a value on the host would wait."""
    names = [f"onepass.memory.{module}.is_on_host" for module in ("sampling", "store", "reservoir")]
    with (
        mock.patch(names[0], never_at_hand),
        mock.patch(names[1], never_at_hand),
        mock.patch(names[2], never_at_hand),
    ):
        yield


def never_at_hand(value):
    return False


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def reservoir(capacity, seed=0, shape=(), dtype=torch.float32):
    return Reservoir(capacity, shape, dtype, generator(seed))


def numbers(first, past):
    """Returns samples whose values are their positions in the stream."""
    return torch.arange(first, past).float(), torch.arange(first, past)


def samples(labels, values=None):
    y = torch.tensor(labels)
    x = torch.tensor(labels if values is None else values, dtype=torch.float32)
    return Samples(x, y, torch.ones(len(y)))


def held(store):
    return store.y[: int(store.size)].tolist()


def filled_with(labels, capacity=None, seed=0):
    """Returns a memory with these labels, in which each sample's value is its slot."""
    store = reservoir(len(labels) if capacity is None else capacity, seed)
    store.add(torch.arange(len(labels)).float(), torch.tensor(labels, dtype=torch.int64))
    return store


def is_even(values, members):
    """Returns whether the values are these members, each as often as any other or once more."""
    counts = Counter(values)
    often = [counts.pop(member, 0) for member in members]
    return not counts and max(often) - min(often) <= 1


def p_even(counts):
    """Returns the p-value of a chi-square test that all outcomes are equally likely."""
    return stats.chisquare(counts).pvalue
