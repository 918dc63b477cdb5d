"""The pure functions of logits, against torch's own and against what they mean."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from onepass.losses import (
    cross_entropy,
    fractions,
    mean,
    one_hot,
    sample_cross_entropy,
    sample_cross_entropy_against,
    supervised_contrastive,
)

PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)


@st.composite
def scored(draw: st.DrawFn, bound: float = 50.0) -> tuple[Tensor, Tensor]:
    """Some samples' logits in double precision, and their classes."""
    samples, classes = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rows = st.lists(st.floats(-bound, bound), min_size=classes, max_size=classes)
    logits = draw(st.lists(rows, min_size=samples, max_size=samples))
    y = draw(st.lists(st.integers(0, classes - 1), min_size=samples, max_size=samples))
    return torch.tensor(logits, dtype=torch.float64), torch.tensor(y)


def masks(classes: int) -> st.SearchStrategy[Tensor]:
    return st.lists(st.booleans(), min_size=classes, max_size=classes).map(torch.tensor)


def everyone(logits: Tensor) -> Tensor:
    return torch.ones(logits.shape[1], dtype=torch.bool)


def a_batch(seed: int = 0, samples: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=source, dtype=torch.float64)
    return logits, torch.randint(classes, (samples,), generator=source)


@PROPERTY
@given(scored())
def test_among_all_classes_it_is_minus_the_log_softmax(batch):
    logits, y = batch
    expected = -F.log_softmax(logits, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(sample_cross_entropy(logits, y, everyone(logits)), expected)


@PROPERTY
@given(scored(), st.data())
def test_the_own_class_takes_part_whatever_the_mask_says(batch, data):
    logits, y = batch
    among = data.draw(masks(logits.shape[1]))
    got = sample_cross_entropy(logits, y, among)
    for k, label in enumerate(y.tolist()):
        members = [c for c, allowed in enumerate(among.tolist()) if allowed or c == label]
        expected = -F.log_softmax(logits[k, members], dim=0)[members.index(label)]
        torch.testing.assert_close(got[k], expected)


@PROPERTY
@given(scored(), st.data())
def test_masks_may_differ_between_samples(batch, data):
    logits, y = batch
    each = torch.stack([data.draw(masks(logits.shape[1])) for _ in y])
    together = sample_cross_entropy(logits, y, each)
    rows = [sample_cross_entropy(logits[k : k + 1], y[k : k + 1], each[k]) for k in range(len(y))]
    assert torch.equal(together, torch.cat(rows))


@PROPERTY
@given(scored(), st.floats(-1e3, 1e3))
def test_a_common_shift_of_the_logits_changes_nothing(batch, shift):
    logits, y = batch
    among = everyone(logits)
    expected = sample_cross_entropy(logits, y, among)
    torch.testing.assert_close(
        sample_cross_entropy(logits + shift, y, among), expected, atol=1e-9, rtol=0
    )


def test_a_scale_of_three_is_the_same_class_three_times():
    logits, _ = a_batch()
    y = torch.zeros(len(logits), dtype=torch.int64)
    scale = torch.tensor([1, 1, 3, 1, 1]).log()
    thrice = torch.cat([logits, logits[:, 2:3], logits[:, 2:3]], dim=1)
    got = sample_cross_entropy_against(logits, y, scale)
    torch.testing.assert_close(
        got, sample_cross_entropy(thrice, y, everyone(thrice)), rtol=1e-6, atol=0
    )


def test_the_scale_of_the_own_class_is_ignored():
    logits, y = a_batch()
    scale = torch.full_like(logits, -math.inf).masked_fill(~one_hot(y, 5), 0.0)
    plain = sample_cross_entropy(logits, y, everyone(logits))
    assert torch.equal(sample_cross_entropy_against(logits, y, scale), plain)


def test_a_scale_of_zero_removes_a_class():
    logits, y = a_batch()
    y = y.clamp(max=3)
    scale = torch.tensor([0, 0, 0, 0, -math.inf])
    without = torch.tensor([True, True, True, True, False])
    expected = sample_cross_entropy(logits, y, without)
    assert torch.equal(sample_cross_entropy_against(logits, y, scale), expected)


def test_without_rivals_the_likelihood_is_one_and_nothing_pulls():
    logits, y = a_batch()
    logits.requires_grad_()
    value = sample_cross_entropy_against(logits, y, torch.full((5,), -math.inf))
    value.sum().backward()
    assert value.tolist() == [0.0] * len(y)
    assert logits.grad.tolist() == torch.zeros_like(logits).tolist()


@PROPERTY
@given(scored(bound=1e4), st.data())
def test_it_is_finite_and_never_negative_at_logits_of_ten_thousand(batch, data):
    double, y = batch
    logits = double.float().requires_grad_()
    value = sample_cross_entropy(logits, y, data.draw(masks(logits.shape[1])))
    value.sum().backward()
    assert bool(torch.isfinite(value).all()) and bool((value >= 0).all())
    assert bool(torch.isfinite(logits.grad).all())


def test_its_gradient_is_softmax_less_one_hot():
    logits, y = a_batch()
    logits.requires_grad_()
    sample_cross_entropy(logits, y, everyone(logits)).sum().backward()
    expected = logits.detach().softmax(dim=1) - F.one_hot(y, 5)
    torch.testing.assert_close(logits.grad, expected)


def test_its_gradient_agrees_with_finite_differences():
    logits, y = a_batch()
    among = torch.tensor([True, False, True, True, True])
    scale = torch.tensor([0.0, 0.7, -math.inf, -1.2, 2.0], dtype=torch.float64)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda o: sample_cross_entropy(o, y, among), logits)
    assert torch.autograd.gradcheck(lambda o: sample_cross_entropy_against(o, y, scale), logits)


@PROPERTY
@given(scored(), st.data())
def test_the_mean_is_over_what_has_weight(batch, data):
    logits, y = batch
    weight = data.draw(masks(len(y))).double()
    values = sample_cross_entropy(logits, y, everyone(logits))
    kept = values[weight > 0]
    expected = kept.mean() if len(kept) else torch.tensor(0.0, dtype=torch.float64)
    torch.testing.assert_close(mean(values, weight), expected)


def test_the_mean_of_nothing_is_zero_and_pulls_nowhere():
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
def test_fractions_add_up_to_one_in_the_proportions_of_the_weights(values, dtype):
    weight = torch.tensor(values, dtype=dtype)
    share = fractions(weight)
    total = sum(values)
    expected = [value / total if total else 0.0 for value in values]
    assert share.dtype == dtype
    assert share.tolist() == pytest.approx(expected, rel=1e-5)
    assert share.sum().item() == pytest.approx(1.0 if total else 0.0, rel=1e-5)
    assert bool((share[weight == 0] == 0).all())


@PROPERTY
@given(weights, st.integers(1, 4))
def test_fractions_of_two_batches_side_by_side_make_the_sum_of_their_means(values, extra):
    """As experience replay adds the loss of the stream to that of the replay."""
    first = torch.tensor(values, dtype=torch.float64)
    second = torch.cat([torch.ones(extra), torch.zeros(2)]).double()
    losses = torch.arange(1.0, len(first) + len(second) + 1, dtype=torch.float64)
    share = torch.cat([fractions(first), fractions(second)])
    expected = mean(losses[: len(first)], first) + mean(losses[len(first) :], second)
    torch.testing.assert_close(share @ losses, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fractions_of_nothing_are_zero_and_of_next_to_nothing_still_one(dtype):
    assert fractions(torch.zeros(3, dtype=dtype)).tolist() == [0, 0, 0]
    tiny = torch.finfo(dtype).tiny
    assert fractions(torch.tensor([tiny, 0, 3 * tiny], dtype=dtype)).tolist() == [0.25, 0, 0.75]


def test_padding_gets_no_gradient():
    logits, y = a_batch()
    logits.requires_grad_()
    weight = torch.tensor([1, 0, 1, 1, 0, 1.0])
    cross_entropy(logits, y, weight, everyone(logits)).backward()
    silent = (logits.grad == 0).all(dim=1)
    assert silent.tolist() == (weight == 0).tolist()


@PROPERTY
@given(scored())
def test_cross_entropy_among_all_classes_is_torchs(batch):
    logits, y = batch
    weight = torch.ones(len(y), dtype=torch.float64)
    got = cross_entropy(logits, y, weight, everyone(logits))
    torch.testing.assert_close(got, F.cross_entropy(logits, y))


def test_one_hot_marks_the_own_class():
    y = torch.tensor([2, 0, 1, 2])
    assert torch.equal(one_hot(y, 4), F.one_hot(y, 4).bool())


# ---- supervised contrastive


def contrasted(z: Tensor, y: Tensor, weight: Tensor, temperature: float, anchors: Tensor) -> float:
    """The same by a double loop over anchors and positives."""
    present = [k for k in range(len(y)) if weight[k] > 0]
    total = whole = 0.0
    for i in present:
        others = [a for a in present if a != i]
        positives = [p for p in others if y[p] == y[i]]
        if not positives:
            continue
        below = math.log(sum(math.exp(float(z[i] @ z[a]) / temperature) for a in others))
        value = sum(below - float(z[i] @ z[p]) / temperature for p in positives) / len(positives)
        total += float(weight[i] * anchors[i]) * value
        whole += float(weight[i] * anchors[i])
    return total / whole if whole else 0.0


def unit_rows(samples: int, features: int, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(samples, features, generator=source, dtype=torch.float64))


@st.composite
def embedded(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit rows, classes, weights of 0 and 1, and weights as anchors."""
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


def test_a_sample_that_is_no_anchor_is_still_compared_with():
    z, y = unit_rows(6, 3, seed=1), torch.tensor([0, 0, 1, 1, 1, 2])
    ones, first = torch.ones(6), F.one_hot(torch.tensor(0), 6).float()
    expected = -F.log_softmax((z[0] @ z[1:].T) / 0.2, dim=0)[0]
    torch.testing.assert_close(supervised_contrastive(z, y, ones, 0.2, first), expected)


@pytest.mark.parametrize("labels", [[0], [0, 1, 2]], ids=["one sample", "one of each class"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_positives_the_contrastive_loss_is_zero_and_pulls_nowhere(labels, dtype):
    z = unit_rows(len(labels), 4, seed=2).to(dtype).requires_grad_()
    value = supervised_contrastive(z, torch.tensor(labels), torch.ones(len(labels)), 0.1)
    value.backward()
    assert value.item() == 0
    assert z.grad.eq(0).all()
