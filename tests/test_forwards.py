"""One forward of all samples, or one for each piece; and pieces of an output."""

import pytest
import torch
from following_gsa import gsa
from torch import Tensor, nn

import onepass
from onepass.parts import Output, Samples


class Keeper(nn.Module):
    """Features that are the inputs; every batch is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.detach())
        return x.flatten(1)


def keeping(mirror: bool) -> tuple[onepass.GSA, Samples]:
    """A learner whose network keeps what it is given, and five samples."""
    learner = gsa(net=Keeper(), mirror=mirror)
    learner.learn(torch.zeros(2, 1, 2, 3, dtype=torch.uint8), [0, 1])
    learner.model.body.batches.clear()
    pixels = torch.arange(30, dtype=torch.uint8).view(5, 1, 2, 3)
    return learner, Samples(pixels, torch.tensor([0, 1, 1, 0, 1]), torch.tensor([1.0, 1, 0, 1, 0]))


def viewed(pixels: Tensor, mirror: bool) -> Tensor:
    plain = pixels.float() / 255
    return torch.cat([plain, plain.flip(3)]) if mirror else plain


@pytest.mark.parametrize("mirror", [False, True])
def test_a_joint_forward_is_one_of_all_samples(mirror):
    learner, samples = keeping(mirror)
    output = learner.forward(samples)
    (batch,) = learner.model.body.batches
    assert torch.equal(batch, viewed(samples.x, mirror))
    torch.testing.assert_close(output.logits, learner.model.head(batch.flatten(1)))
    assert output.y.tolist() == samples.y.tolist() * (1 + mirror)
    assert output.weight.tolist() == samples.weight.tolist() * (1 + mirror)


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 1), (5,)])
@pytest.mark.parametrize("mirror", [False, True])
def test_a_forward_in_pieces_gives_each_a_batch_of_its_own_and_the_same_output(mirror, sizes):
    learner, samples = keeping(mirror)
    output = learner.forward(samples, sizes)
    for batch, piece in zip(learner.model.body.batches, samples.cut(*sizes), strict=True):
        assert torch.equal(batch, viewed(piece.x, mirror))
    for one, other in zip(output, learner.forward(samples), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 1), (5,), (0, 5)])
@pytest.mark.parametrize("mirror", [False, True])
def test_a_piece_of_an_output_has_its_samples_and_their_mirror_images(mirror, sizes):
    learner, samples = keeping(mirror)
    pieces = learner.cut(learner.forward(samples), *sizes)
    for got, piece in zip(pieces, samples.cut(*sizes), strict=True):
        assert isinstance(got, Output)
        logits = learner.model.head(viewed(piece.x, mirror).flatten(1))
        torch.testing.assert_close(got.logits, logits)
        assert got.y.tolist() == piece.y.tolist() * (1 + mirror)
        assert got.weight.tolist() == piece.weight.tolist() * (1 + mirror)


@pytest.mark.parametrize("mirror", [False, True])
def test_a_value_per_sample_is_the_mean_over_its_views(mirror):
    learner, _ = keeping(mirror)
    values = torch.arange(5 * (1 + mirror)).float()
    expected = [2.5 + place for place in range(5)] if mirror else list(range(5))
    assert learner.per_sample(values).tolist() == expected
