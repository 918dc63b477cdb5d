"""Samples and outputs: what is joined, cut and reported."""

import pytest
import torch
from memories import samples

from onepass.parts import Samples


def test_samples_are_joined_and_cut_again():
    one, other = samples([0, 1], [5, 6]), samples([2, 3, 4])._replace(weight=torch.zeros(3))
    both = one.then(other)
    assert both.x.tolist() == [5, 6, 2, 3, 4]
    assert both.y.tolist() == [0, 1, 2, 3, 4]
    assert both.weight.tolist() == [1, 1, 0, 0, 0]
    for got, expected in zip(both.cut(2, 3), (one, other), strict=True):
        assert isinstance(got, Samples)
        for part, same in zip(got, expected, strict=True):
            assert torch.equal(part, same)


@pytest.mark.parametrize("sizes", [(5,), (1, 4), (2, 0, 3), (1, 1, 1, 1, 1)])
def test_pieces_are_consecutive_and_of_the_sizes_asked_for(sizes):
    pieces = samples([0, 1, 2, 3, 4]).cut(*sizes)
    assert tuple(len(piece.y) for piece in pieces) == sizes
    assert [label for piece in pieces for label in piece.y.tolist()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sizes", [(4,), (2, 4)])
def test_pieces_that_do_not_add_up_to_the_samples_are_an_error(sizes):
    with pytest.raises(RuntimeError):
        samples([0, 1, 2, 3, 4]).cut(*sizes)
