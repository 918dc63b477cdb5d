"""The rates of GSA, w and v: the paper's values, their limits, and the sums they come from."""

import math

import pytest
import torch
from following_gsa import BALANCED, PROPERTY, each_case, followed, gsa, stream
from hypothesis import given
from hypothesis import strategies as st
from replaying import Times, double, learned

from onepass.methods.gsa import class_weight, log_class_scale

# ---- the pure functions


@pytest.mark.parametrize(
    ("a_pn", "w"), [(0, 1), (-0.5, 1.24492), (-1, 1.46212), (-2, 1.76159), (-math.inf, 2)]
)
def test_w_has_the_papers_values(a_pn, w):
    negative = double([-1.0 if a_pn > -math.inf else 0.0])
    positive = double([-a_pn if a_pn > -math.inf else 1.0])
    assert class_weight(positive, negative).item() == pytest.approx(w, abs=1e-5)


def test_w_and_v_grow_where_the_paper_wants_them_to():
    positive, negative = double([0.1, 1, 5, 20]), double([-3, -3, -3, -3])
    assert bool((class_weight(positive, negative).diff() > 0).all())
    assert bool((log_class_scale(positive, negative).diff() < 0).all())


def test_v_is_the_negative_inverse_of_pn():
    positive, negative = double([0.5, 2, 3]), double([-1, -2, -0.3])
    v = log_class_scale(positive, negative).exp()
    assert v.tolist() == pytest.approx([2, 1, 0.1])


def test_classes_without_own_samples_or_without_negatives_have_defined_rates():
    never_own, never_other, neither = (3.0, 0.0), (0.0, -3.0), (0.0, 0.0)
    positive, negative = double([never_own, never_other, neither]).unbind(1)
    assert class_weight(positive, negative).tolist() == pytest.approx([2, 1, BALANCED])
    assert log_class_scale(positive, negative).exp().tolist() == [0, 1, 1]


@pytest.mark.parametrize("least", [1e-300, 1e-308, 1e-311, 5e-324])
def test_log_v_stays_finite_however_little_pushes_a_class_down(least):
    (log_v,) = log_class_scale(double([least]), double([-5.0])).tolist()
    assert log_v == pytest.approx(math.log(5) - math.log(least))


@PROPERTY
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4),
    st.lists(st.floats(-1e3, -1e-3), min_size=4, max_size=4),
    st.floats(1e-3, 1e3),
)
def test_one_common_factor_on_all_sums_changes_no_rate(positive, negative, factor):
    down, up = double(positive), double(negative)
    torch.testing.assert_close(class_weight(factor * down, factor * up), class_weight(down, up))
    torch.testing.assert_close(
        log_class_scale(factor * down, factor * up), log_class_scale(down, up), atol=1e-9, rtol=0
    )


@PROPERTY
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_permuting_the_classes_permutes_w_and_v(order, seed):
    source = torch.Generator().manual_seed(seed)
    positive = torch.rand(4, generator=source, dtype=torch.float64)
    negative = -torch.rand(4, generator=source, dtype=torch.float64)
    order = torch.tensor(order)
    for rate in (class_weight, log_class_scale):
        permuted = rate(positive[order], negative[order])
        torch.testing.assert_close(permuted, rate(positive, negative)[order])


# ---- in whole steps


@each_case
def test_sums_and_rates_agree_with_the_naive_implementation(name, settings):
    learner = gsa(**settings)
    for now in followed(learner, stream(name)):
        for part in ("positive", "negative", "task_positive", "task_negative"):
            expected = [getattr(now.sums, part)[c] for c in range(len(learner.seen))]
            assert getattr(learner.balance, part).tolist() == pytest.approx(expected, abs=1e-9)
        if now.rates is None:
            continue
        w, log_v = now.rates
        for c in range(min(len(w), len(learner.classes))):
            assert w[c].item() == pytest.approx(now.case[4][c], rel=1e-6)
            assert log_v[c].exp().item() == pytest.approx(now.case[5][c], rel=1e-5)


def test_a_new_class_outside_the_mix_is_left_out_until_it_is_sampled():
    *_, last = followed(gsa(mix=2), stream("late classes"))
    v = last.case[5]
    assert 0.0 in v.values()
    assert bool(torch.isfinite(last.step.loss)) and bool(torch.isfinite(last.gradient).all())


def test_constant_logits_and_balanced_labels_leave_every_rate_at_balance():
    learner = gsa(net=Times(0.0), mix=8, lr=1e-12, statistics="mix")
    learner.learn(torch.zeros(4, 6), [0, 1, 0, 1])
    learner.new_task()
    learner.balance.positive.zero_()
    learner.balance.negative.zero_()
    with torch.no_grad():
        learner.model.head.bias.fill_(7)
    step = learner.learn(torch.zeros(4, 6), [2, 2, 3, 3])
    assert sorted(step.outputs[1].y.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    w, log_v = learner.rates()
    assert w[:4].tolist() == pytest.approx([BALANCED] * 4)
    assert log_v[:4].tolist() == pytest.approx([0] * 4, abs=1e-6)
    expected = [math.log(2), BALANCED * math.log(2), BALANCED * math.log(3)]
    assert [term.item() for term in step.terms.values()] == pytest.approx(expected)


def test_rates_that_nothing_has_fed_are_one_and_balanced():
    items = list(stream("tasks"))
    learner = learned(gsa(update="after"), items[:3])
    for now in followed(gsa(update="after"), iter(items[:1])):
        assert set(now.case[4].values()) == {BALANCED}
    learner.new_task()
    assert learner.rates()[1].tolist() == [0] * 16
    assert learner.rates()[0][3:].tolist() == pytest.approx([BALANCED] * 13)


def test_no_gradient_flows_through_the_rates():
    now = list(followed(gsa(), stream("tasks")))[-1]
    w, log_v = now.rates
    assert not w.requires_grad and not log_v.requires_grad
