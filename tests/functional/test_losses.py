"""Tests of the losses against torch's functions, loops and properties."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from onepass.base.parts import Output
from onepass.functional.losses import (
    cross_entropy,
    distillation,
    mean,
    normalised_weights,
    one_hot,
    sample_cross_entropy,
    scaled_sample_cross_entropies,
    scaled_sample_cross_entropy,
    supervised_contrastive,
)

PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)


@st.composite
def scored(draw: st.DrawFn, bound: float = 50.0) -> Output:
    """Draws logits in double precision with classes, all of weight 1."""
    samples, classes = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rows = st.lists(st.floats(-bound, bound), min_size=classes, max_size=classes)
    logits = draw(st.lists(rows, min_size=samples, max_size=samples))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=samples, max_size=samples))
    return output(torch.tensor(logits, dtype=torch.float64), torch.tensor(y))


def output(logits: Tensor, y: Tensor) -> Output:
    return Output(logits, y, torch.ones(len(y), dtype=logits.dtype))


def masks(classes: int) -> st.SearchStrategy[Tensor]:
    return st.lists(st.booleans(), min_size=classes, max_size=classes).map(torch.tensor)


def everyone(out: Output) -> Tensor:
    return torch.ones(out.logits.shape[1], dtype=torch.bool)


def a_batch(seed: int = 0, samples: int = 6, classes: int = 5) -> Output:
    source = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=source, dtype=torch.float64)
    return output(logits, torch.randint(classes, (samples,), generator=source))


@PROPERTY
@given(scored())
def test_among_all_classes_it_is_minus_the_log_softmax(out):
    expected = -F.log_softmax(out.logits, dim=1).gather(1, out.y.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(sample_cross_entropy(out, everyone(out)), expected)


@PROPERTY
@given(scored(), st.data())
def test_the_own_class_takes_part_even_if_it_is_masked(out, data):
    among = data.draw(masks(out.logits.shape[1]))
    got = sample_cross_entropy(out, among)
    for k, label in enumerate(out.y.tolist()):
        members = [c for c, allowed in enumerate(among.tolist()) if allowed or c == label]
        expected = -F.log_softmax(out.logits[k, members], dim=0)[members.index(label)]
        torch.testing.assert_close(got[k], expected)


@PROPERTY
@given(scored(), st.data())
def test_masks_may_differ_between_samples(out, data):
    each = torch.stack([data.draw(masks(out.logits.shape[1])) for _ in out.y])
    together = sample_cross_entropy(out, each)
    single = [output(out.logits[k : k + 1], out.y[k : k + 1]) for k in range(len(out.y))]
    rows = [sample_cross_entropy(sample, each[k]) for k, sample in enumerate(single)]
    assert torch.equal(together, torch.cat(rows))


@PROPERTY
@given(scored(), st.floats(-1e3, 1e3))
def test_a_common_shift_of_the_logits_changes_nothing(out, shift):
    among = everyone(out)
    shifted = output(out.logits + shift, out.y)
    torch.testing.assert_close(
        sample_cross_entropy(shifted, among), sample_cross_entropy(out, among), atol=1e-9, rtol=0
    )


@PROPERTY
@given(scored(), st.data())
def test_the_loss_of_a_sample_does_not_depend_on_its_weight(out, data):
    among = data.draw(masks(out.logits.shape[1]))
    other = out._replace(weight=data.draw(masks(len(out.y))).double())
    assert torch.equal(sample_cross_entropy(other, among), sample_cross_entropy(out, among))


def test_a_scale_of_three_is_the_same_class_three_times():
    logits = a_batch().logits
    y = torch.zeros(len(logits), dtype=torch.int64)
    scale = torch.tensor([1, 1, 3, 1, 1]).log()
    thrice = output(torch.cat([logits, logits[:, 2:3], logits[:, 2:3]], dim=1), y)
    got = scaled_sample_cross_entropy(output(logits, y), scale)
    torch.testing.assert_close(
        got, sample_cross_entropy(thrice, everyone(thrice)), rtol=1e-6, atol=0
    )


def test_several_scales_at_once_give_the_same_bits_as_each_alone():
    out = a_batch(samples=74, classes=16)
    rivals = torch.rand(3, 74, 16, generator=torch.Generator().manual_seed(1)).log()
    rivals[0, :, 4:] = -math.inf
    together = scaled_sample_cross_entropies(out, rivals)
    assert [row.tolist() for row in together] == [
        scaled_sample_cross_entropy(out, scale).tolist() for scale in rivals
    ]


def test_the_scale_of_the_own_class_is_ignored():
    out = a_batch()
    scale = torch.full_like(out.logits, -math.inf).masked_fill(~one_hot(out.y, 5), 0.0)
    plain = sample_cross_entropy(out, everyone(out))
    assert torch.equal(scaled_sample_cross_entropy(out, scale), plain)


def test_a_scale_of_zero_removes_a_class():
    out = a_batch()
    out = output(out.logits, out.y.clamp(max=3))
    scale = torch.tensor([0, 0, 0, 0, -math.inf])
    without = torch.tensor([True, True, True, True, False])
    expected = sample_cross_entropy(out, without)
    assert torch.equal(scaled_sample_cross_entropy(out, scale), expected)


def test_without_other_classes_the_loss_and_its_gradient_are_zero():
    out = a_batch()
    logits = out.logits.requires_grad_()
    value = scaled_sample_cross_entropy(out, torch.full((5,), -math.inf))
    value.sum().backward()
    assert value.tolist() == [0.0] * len(out.y)
    assert logits.grad.tolist() == torch.zeros_like(logits).tolist()


@PROPERTY
@given(scored(bound=1e4), st.data())
def test_it_is_finite_and_never_negative_at_logits_of_ten_thousand(out, data):
    logits = out.logits.float().requires_grad_()
    value = sample_cross_entropy(output(logits, out.y), data.draw(masks(logits.shape[1])))
    value.sum().backward()
    assert bool(torch.isfinite(value).all()) and bool((value >= 0).all())
    assert bool(torch.isfinite(logits.grad).all())


def test_its_gradient_is_softmax_less_one_hot():
    out = a_batch()
    logits = out.logits.requires_grad_()
    sample_cross_entropy(out, everyone(out)).sum().backward()
    expected = logits.detach().softmax(dim=1) - F.one_hot(out.y, 5)
    torch.testing.assert_close(logits.grad, expected)


def test_its_gradient_agrees_with_finite_differences():
    out = a_batch()
    among = torch.tensor([True, False, True, True, True])
    scale = torch.tensor([0.0, 0.7, -math.inf, -1.2, 2.0], dtype=torch.float64)
    logits = out.logits.requires_grad_()

    def against(o):
        return scaled_sample_cross_entropy(output(o, out.y), scale)

    assert torch.autograd.gradcheck(lambda o: sample_cross_entropy(output(o, out.y), among), logits)
    assert torch.autograd.gradcheck(against, logits)


@PROPERTY
@given(scored(), st.data())
def test_the_mean_is_over_samples_with_weight(out, data):
    weight = data.draw(masks(len(out.y))).double()
    values = sample_cross_entropy(out, everyone(out))
    kept = values[weight > 0]
    expected = kept.mean() if len(kept) else torch.tensor(0.0, dtype=torch.float64)
    torch.testing.assert_close(mean(values, weight), expected)
    torch.testing.assert_close(cross_entropy(out._replace(weight=weight), everyone(out)), expected)


def test_the_mean_without_weight_is_zero_with_zero_gradient():
    values = torch.tensor([3.0, -1e4], requires_grad=True)
    result = mean(values, torch.zeros(2))
    result.backward()
    assert result.item() == 0
    assert values.grad.tolist() == [0, 0]


def test_the_mean_takes_weights_of_another_precision():
    values, weight = torch.tensor([3.0, 5.0, 100.0]).double(), torch.tensor([1.0, 1.0, 0.0])
    result = mean(values, weight)
    assert result.dtype == torch.float64
    assert result.item() == 4


weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=1, max_size=8)


@PROPERTY
@given(weights, st.sampled_from([torch.float32, torch.float64]))
def test_normalised_weights_sum_to_one_in_proportion(values, dtype):
    weight = torch.tensor(values, dtype=dtype)
    share = normalised_weights(weight)
    total = sum(values)
    expected = [value / total if total else 0.0 for value in values]
    assert share.dtype == dtype
    assert share.tolist() == pytest.approx(expected, rel=1e-5)
    assert share.sum().item() == pytest.approx(1.0 if total else 0.0, rel=1e-5)
    assert bool((share[weight == 0] == 0).all())


@PROPERTY
@given(weights, st.integers(1, 4))
def test_normalised_weights_of_two_batches_give_the_sum_of_their_means(values, extra):
    """Experience replay adds the mean loss of the stream to that of the replay."""
    first = torch.tensor(values, dtype=torch.float64)
    second = torch.cat([torch.ones(extra), torch.zeros(2)]).double()
    losses = torch.arange(1.0, len(first) + len(second) + 1, dtype=torch.float64)
    share = torch.cat([normalised_weights(first), normalised_weights(second)])
    expected = mean(losses[: len(first)], first) + mean(losses[len(first) :], second)
    torch.testing.assert_close(share @ losses, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_weights_of_zeros_are_zero_and_of_tiny_numbers_exact(dtype):
    assert normalised_weights(torch.zeros(3, dtype=dtype)).tolist() == [0, 0, 0]
    tiny = torch.finfo(dtype).tiny
    assert normalised_weights(torch.tensor([tiny, 0, 3 * tiny], dtype=dtype)).tolist() == [
        0.25,
        0,
        0.75,
    ]


def test_padding_gets_no_gradient():
    out = a_batch()._replace(weight=torch.tensor([1, 0, 1, 1, 0, 1.0]))
    logits = out.logits.requires_grad_()
    cross_entropy(out, everyone(out)).backward()
    silent = (logits.grad == 0).all(dim=1)
    assert silent.tolist() == (out.weight == 0).tolist()


@PROPERTY
@given(scored())
def test_cross_entropy_among_all_classes_is_torchs(out):
    got = cross_entropy(out, everyone(out))
    torch.testing.assert_close(got, F.cross_entropy(out.logits, out.y))


def test_one_hot_marks_the_own_class():
    y = torch.tensor([2, 0, 1, 2])
    assert torch.equal(one_hot(y, 4), F.one_hot(y, 4).bool())


# ---- distillation

temperatures = st.sampled_from([0.5, 1.0, 2.0, 7.0])


@st.composite
def taught(draw: st.DrawFn, bound: float = 50.0) -> tuple[Output, Tensor, Tensor]:
    """Draws samples of weight 0 or 1, the logits of a teacher, and a mask of classes."""
    out = draw(scored(bound))
    samples, classes = out.logits.shape
    rows = st.lists(st.floats(-bound, bound), min_size=classes, max_size=classes)
    theirs = draw(st.lists(rows, min_size=samples, max_size=samples))
    out = out._replace(weight=draw(masks(samples)).double())
    return out, torch.tensor(theirs, dtype=torch.float64), draw(masks(classes))


def divergence(out: Output, theirs: Tensor, among: Tensor, temperature: float) -> Tensor:
    """Returns torch's divergence over the samples with weight and the classes in the mask."""
    counts = out.weight > 0
    own, theirs = out.logits[counts][:, among], theirs[counts][:, among]
    if not own.numel():
        return torch.zeros((), dtype=torch.float64)
    value = F.kl_div(
        F.log_softmax(own / temperature, dim=1),
        F.log_softmax(theirs / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return temperature**2 * value


@PROPERTY
@given(taught(), temperatures)
def test_distillation_is_torchs_divergence_over_the_classes_that_take_part(given_batch, t):
    out, theirs, among = given_batch
    got = distillation(out, theirs, among, t)
    torch.testing.assert_close(got, divergence(out, theirs, among, t))


@PROPERTY
@given(taught(), temperatures)
def test_its_gradient_is_t_times_the_difference_of_the_two_softmaxes(given_batch, t):
    """d/do T^2 KL = T (softmax(o / T) - softmax(taught / T)), averaged; 0 for masked classes."""
    out, theirs, among = given_batch
    logits = out.logits.requires_grad_()
    (gradient,) = torch.autograd.grad(distillation(out, theirs, among, t), logits)
    expected = torch.zeros_like(gradient)
    if among.any():
        own = (logits.detach()[:, among] / t).softmax(dim=1)
        gap = own - (theirs[:, among] / t).softmax(dim=1)
        expected[:, among] = t * gap * normalised_weights(out.weight).unsqueeze(1)
    torch.testing.assert_close(gradient, expected)


def test_its_gradient_agrees_with_finite_differences_too():
    out, among = a_batch(), torch.tensor([True, False, True, True, True])
    weight, theirs = torch.tensor([1, 0, 1, 1, 0, 1.0]), a_batch(seed=1).logits
    logits = out.logits.requires_grad_()

    def loss(o):
        return distillation(Output(o, out.y, weight), theirs, among, 2.0)

    assert torch.autograd.gradcheck(loss, logits)


@PROPERTY
@given(taught(), temperatures)
def test_equal_logits_have_zero_distillation_loss_and_gradient(given_batch, t):
    out, _, among = given_batch
    logits = out.logits.requires_grad_()
    value = distillation(out, logits.detach().clone(), among, t)
    (gradient,) = torch.autograd.grad(value, logits)
    assert value.item() == 0
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-13, rtol=0)


@PROPERTY
@given(taught(), temperatures, st.floats(-100, 100), st.floats(-100, 100))
def test_a_shift_of_either_side_changes_nothing(given_batch, t, own, other):
    out, theirs, among = given_batch
    plain = distillation(out, theirs, among, t)
    shifted = distillation(
        output(out.logits + own, out.y)._replace(weight=out.weight), theirs + other, among, t
    )
    torch.testing.assert_close(shifted, plain, atol=1e-9, rtol=1e-9)


@PROPERTY
@given(taught(), temperatures, st.floats(-1e4, 1e4), st.floats(-1e4, 1e4))
def test_masked_classes_do_not_change_the_distillation_loss(given_batch, t, own, other):
    out, theirs, among = given_batch
    wild = out._replace(logits=out.logits.masked_fill(~among, own))
    got = distillation(wild, theirs.masked_fill(~among, other), among, t)
    assert torch.equal(got, distillation(out, theirs, among, t))


@PROPERTY
@given(taught(bound=1e4), temperatures)
def test_at_logits_of_ten_thousand_it_is_finite_and_not_negative(given_batch, t):
    out, theirs, among = given_batch
    logits = out.logits.float().requires_grad_()
    single = Output(logits, out.y, out.weight.float())
    value = distillation(single, theirs.float(), among, t)
    (gradient,) = torch.autograd.grad(value, logits)
    assert math.isfinite(value.item()) and value.item() >= -1e-5
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [[], [2]], ids=["none", "one"])
def test_distillation_over_at_most_one_class_is_zero_with_zero_gradient(classes, dtype):
    out = a_batch()
    logits = out.logits.to(dtype).requires_grad_()
    among = torch.tensor([c in classes for c in range(5)])
    theirs = a_batch(seed=1).logits.to(dtype)
    value = distillation(output(logits, out.y), theirs, among, 2.0)
    value.backward()
    assert value.item() == 0
    assert logits.grad.tolist() == torch.zeros_like(logits).tolist()


def test_padding_is_not_distilled():
    weight = torch.tensor([1, 0, 1, 1, 0, 1.0])
    out, theirs = a_batch()._replace(weight=weight), a_batch(seed=1).logits
    among = torch.tensor([True, True, False, True, True])
    logits = out.logits.requires_grad_()
    value = distillation(out, theirs, among, 2.0)
    value.backward()
    assert (logits.grad == 0).all(dim=1).tolist() == (weight == 0).tolist()
    wild = torch.where(weight.unsqueeze(1) > 0, theirs, 100 * theirs.flip(1))
    assert torch.equal(distillation(out, wild, among, 2.0), value)
    nothing = out._replace(weight=torch.zeros(6))
    assert distillation(nothing, theirs, among, 2.0).item() == 0


def test_the_gradient_does_not_vanish_as_the_temperature_rises():
    """The factor T^2 serves this: as T grows, T^2 KL tends to the squared error of centred logits,
    sum_c ((o_c - mean o) - (taught_c - mean taught))^2 / (2 C)."""
    out, theirs = a_batch(), a_batch(seed=1).logits
    gap = out.logits - theirs
    centred = gap - gap.mean(dim=1, keepdim=True)
    limit = centred.square().sum(dim=1).mean() / (2 * 5)
    got = [distillation(out, theirs, everyone(out), t) for t in (1e2, 1e4)]
    assert abs(got[1] - limit) < abs(got[0] - limit)
    torch.testing.assert_close(got[1], limit, rtol=1e-3, atol=0)


# ---- supervised contrastive


def contrasted(z: Tensor, y: Tensor, weight: Tensor, temperature: float, anchors: Tensor) -> float:
    """Returns the supervised contrastive loss by a double loop over anchors and positives."""
    present = [k for k in range(len(y)) if weight[k] > 0]
    total = weights = 0.0
    for i in present:
        others = [a for a in present if a != i]
        positives = [p for p in others if y[p] == y[i]]
        if not positives:
            continue
        below = math.log(sum(math.exp(float(z[i] @ z[a]) / temperature) for a in others))
        value = sum(below - float(z[i] @ z[p]) / temperature for p in positives) / len(positives)
        total += float(weight[i] * anchors[i]) * value
        weights += float(weight[i] * anchors[i])
    return total / weights if weights else 0.0


def unit_rows(samples: int, features: int, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(samples, features, generator=source, dtype=torch.float64))


@st.composite
def embedded(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draws unit rows, classes, weights of 0 and 1, and weights as anchors."""
    samples = draw(st.integers(1, 8))

    def column(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=samples, max_size=samples))

    z = unit_rows(samples, draw(st.integers(1, 4)), draw(st.integers(0, 10**6)))
    weight = torch.tensor(column(st.booleans()), dtype=torch.float64)
    anchors = torch.tensor(column(st.sampled_from([0.0, 1.0, 2.5])), dtype=torch.float64)
    return z, torch.tensor(column(st.integers(0, 2))), weight, anchors


@PROPERTY
@given(embedded(), st.floats(0.07, 2.0))
def test_the_contrastive_loss_is_a_double_loop_over_anchors_and_positives(batch, temperature):
    z, y, weight, anchors = batch
    z.requires_grad_()
    ones = torch.ones_like(weight)
    for given_anchors, counted in ((None, ones), (anchors, anchors)):
        value = supervised_contrastive(z, y, weight, temperature, given_anchors)
        expected = contrasted(z.detach(), y, weight, temperature, counted)
        assert value.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        (gradient,) = torch.autograd.grad(value, z)
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_the_contrastive_loss_where_all_samples_are_the_same_or_two_classes_are_orthogonal(
    n, temperature
):
    y = torch.arange(2).repeat_interleave(n)
    ones = torch.ones(2 * n, dtype=torch.float64)
    same = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(2 * n, 2)
    value = supervised_contrastive(same, y, ones, temperature)
    assert value.item() == pytest.approx(math.log(2 * n - 1))
    apart = F.one_hot(y, 2).double()
    value = supervised_contrastive(apart, y, ones, temperature)
    assert value.item() == pytest.approx(math.log((n - 1) + n * math.exp(-1 / temperature)))


@PROPERTY
@given(embedded(), st.integers(1, 4), st.integers(0, 10**6))
def test_padding_changes_nothing_in_the_contrastive_loss_and_gets_no_gradient(batch, extra, seed):
    z, y, weight, anchors = batch
    padding = unit_rows(extra, z.shape[1], seed).requires_grad_()
    value = supervised_contrastive(
        torch.cat([z, padding]),
        torch.cat([y, torch.zeros(extra, dtype=torch.int64)]),
        torch.cat([weight, torch.zeros(extra)]),
        0.3,
        torch.cat([anchors, torch.ones(extra)]),
    )
    alone = supervised_contrastive(z, y, weight, 0.3, anchors)
    torch.testing.assert_close(value, alone)
    (gradient,) = torch.autograd.grad(value, padding)
    assert gradient.eq(0).all()


def test_a_sample_that_is_not_an_anchor_is_still_contrasted_with():
    z, y = unit_rows(6, 3, seed=1), torch.tensor([0, 0, 1, 1, 1, 2])
    ones, first = torch.ones(6), F.one_hot(torch.tensor(0), 6).float()
    expected = -F.log_softmax((z[0] @ z[1:].T) / 0.2, dim=0)[0]
    torch.testing.assert_close(supervised_contrastive(z, y, ones, 0.2, first), expected)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2]], ids=["one sample", "one of each class"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_positives_the_contrastive_loss_and_its_gradient_are_zero(labels, dtype):
    z = unit_rows(len(labels), 4, seed=2).to(dtype).requires_grad_()
    value = supervised_contrastive(z, torch.tensor(labels), torch.ones(len(labels)), 0.1)
    value.backward()
    assert value.item() == 0
    assert z.grad.eq(0).all()
