"""Tests forward passes of several batches, together or separately, and their outputs."""

import pytest
import torch
from gsa_against_naive import gsa
from tiny_learners import NormOnly
from torch import Tensor, nn

import onepass
from onepass.base.parts import Output, Samples
from onepass.functional.augment import AREA, ReflectedCrops
from onepass.functional.views import mean_over_views


class Keeper(nn.Module):
    """A network whose features are its inputs. It keeps every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.detach())
        return x.flatten(1)


def keeping(mirror: bool) -> tuple[onepass.GSA, Samples]:
    """Returns a learner whose network keeps its inputs, and five samples."""
    learner = gsa(net=Keeper(), mirror=mirror)
    learner.learn(torch.zeros(2, 1, 2, 3, dtype=torch.uint8), [0, 1])
    learner.model.body.batches.clear()
    pixels = torch.arange(30, dtype=torch.uint8).view(5, 1, 2, 3)
    return learner, Samples(pixels, torch.tensor([0, 1, 1, 0, 1]), torch.tensor([1.0, 1, 0, 1, 0]))


def viewed(pixels: Tensor, mirror: bool) -> Tensor:
    plain = pixels.float() / 255
    return torch.cat([plain, plain.flip(3)]) if mirror else plain


SIZES = [(2, 3), (1, 3, 1), (5,)]


def agrees(learner: onepass.GSA, output: Output, piece: Samples, mirror: bool) -> None:
    """Checks that an output belongs to these samples and then to their mirror images."""
    views = viewed(piece.x, mirror)
    torch.testing.assert_close(output.logits, learner.model.head(views.flatten(1)))
    assert output.y.tolist() == piece.y.tolist() * (1 + mirror)
    assert output.weight.tolist() == piece.weight.tolist() * (1 + mirror)
    assert torch.equal(output.views, views)
    assert not output.views.requires_grad


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mirror", [False, True])
def test_a_joint_forward_takes_all_samples(mirror, sizes):
    learner, samples = keeping(mirror)
    pieces = samples.cut(*sizes)
    outputs = learner.forward(*pieces)
    (batch,) = learner.model.body.batches
    assert torch.equal(batch, viewed(samples.x, mirror))
    for output, piece in zip(outputs, pieces, strict=True):
        assert isinstance(output, Output)
        agrees(learner, output, piece, mirror)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mirror", [False, True])
def test_separate_forwards_take_one_batch_each_and_return_the_same(mirror, sizes):
    learner, samples = keeping(mirror)
    pieces = samples.cut(*sizes)
    outputs = learner.forward(*pieces, apart=True)
    batches = list(learner.model.body.batches)
    for output, batch, piece in zip(outputs, batches, pieces, strict=True):
        assert torch.equal(batch, viewed(piece.x, mirror))
        agrees(learner, output, piece, mirror)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("mirror", [False, True])
def test_all_outputs_together_come_batch_by_batch_with_the_same_gradients(mirror, apart):
    learner, samples = keeping(mirror)
    gradients = []
    for joined in (lambda outputs: outputs.together, Output.of_all):
        outputs = learner.forward(*samples.cut(2, 3), apart=apart)
        expected, out = Output.of_all(outputs), joined(outputs)
        assert all(torch.equal(*pair) for pair in zip(out[:3], expected[:3], strict=True))
        (out.logits.square().sum(dim=1) * out.weight).sum().backward()
        gradients.append(learner.model.head.weight.grad)
        learner.model.head.weight.grad = None
    assert torch.equal(*gradients)


def test_the_logarithm_of_the_classes_seen_follows_them_and_the_head():
    learner, _ = keeping(mirror=False)
    seen = learner.log_seen
    learner.learn(torch.zeros(2, 1, 2, 3, dtype=torch.uint8), [2, 3])
    assert learner.log_seen is seen, "in place, where a captured step reads it"
    assert torch.equal(seen, torch.tensor([0.0] * 4 + [-torch.inf] * 12))
    learner.learn(torch.zeros(20, 1, 2, 3, dtype=torch.uint8), list(range(20)))
    assert torch.equal(learner.log_seen, torch.tensor([0.0] * 20 + [-torch.inf] * 12))


@pytest.mark.parametrize(("apart", "batches"), [(False, 1), (True, 2)])
def test_batch_norm_normalises_a_joint_forward_as_one_batch(apart, batches):
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    samples = Samples(x, torch.tensor([0, 1, 1, 0, 1]), torch.ones(5))
    learner = gsa(net=NormOnly())
    learner.prepare((6,), torch.float32)
    learner.forward(*samples.cut(2, 3), apart=apart)
    expected = NormOnly()
    for piece in [x] if batches == 1 else x.split([2, 3]):
        expected(piece)
    norm = learner.model.body.norm
    assert int(norm.num_batches_tracked) == batches
    torch.testing.assert_close(norm.running_mean, expected.norm.running_mean)
    torch.testing.assert_close(norm.running_var, expected.norm.running_var)


@pytest.mark.parametrize("apart", [False, True])
def test_both_forwards_draw_the_same_views(apart):
    """All batches share one draw of views, so the choice affects BatchNorm only."""
    learner, samples = keeping(mirror=True)
    state = learner.trainer.rngs["augmentation"].get_state()
    learner.views.augment, learner.views.draw_crops = "crop-grey-reflected", ReflectedCrops(AREA)
    expected = learner.views(samples.x)
    learner.trainer.rngs["augmentation"].set_state(state)
    views = [output.views for output in learner.forward(*samples.cut(2, 3), apart=apart)]
    for got, piece in zip(views, learner.views.cut(expected, [2, 3]), strict=True):
        torch.testing.assert_close(got, piece)


def test_each_batch_of_a_joint_forward_has_its_own_gradient():
    learner, samples = keeping(mirror=True)
    first, second = learner.forward(*samples.cut(2, 3))
    (gradient,) = torch.autograd.grad(second.logits.sum(), learner.model.head.weight)
    views = viewed(samples.x[2:], mirror=True).flatten(1).sum(dim=0)
    torch.testing.assert_close(gradient, views.expand_as(gradient))
    assert first.logits.requires_grad


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 1), (5,), (0, 5)])
@pytest.mark.parametrize("mirror", [False, True])
def test_the_views_of_a_batch_are_its_samples_and_their_mirror_images(mirror, sizes):
    learner, samples = keeping(mirror)
    pieces = learner.views.cut(learner.views(samples.x), sizes)
    for got, piece in zip(pieces, samples.cut(*sizes), strict=True):
        assert torch.equal(got, viewed(piece.x, mirror))


@pytest.mark.parametrize("mirror", [False, True])
def test_a_value_per_sample_is_the_mean_over_its_views(mirror):
    values = torch.arange(5 * (1 + mirror)).float()
    expected = [2.5 + place for place in range(5)] if mirror else list(range(5))
    assert mean_over_views(values, 5).tolist() == expected
    wide = torch.stack([values, 2 * values], dim=1)
    assert mean_over_views(wide, 5).tolist() == [[value, 2 * value] for value in expected]


def test_each_sample_counts_once_per_view():
    images, vectors = gsa(net=Keeper(), mirror=True), gsa(net=Keeper(), mirror=True)
    assert images.views_per_sample == 2
    images.prepare((1, 2, 3), torch.uint8)
    vectors.prepare((6,), torch.float32)
    assert images.views_per_sample == 2
    assert vectors.views_per_sample == 1  # vectors have no mirror image
    assert gsa(net=Keeper()).views_per_sample == 1


def test_views_that_were_not_kept_raise_an_error():
    _, samples = keeping(mirror=False)
    with pytest.raises(LookupError, match="the views behind these logits were not kept"):
        _ = Output(torch.zeros(5, 3), samples.y, samples.weight).views
