"""Tests of S+ and S- and their rates against the definitions and autograd."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_gsa import Sums
from tiny_learners import as_tuples, double
from torch import Tensor

from onepass.base.parts import Output
from onepass.functional.imbalance import (
    Balance,
    class_weight,
    log_class_scale,
    logit_gradients,
)

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)
CPU = torch.device("cpu")
BALANCED = 2 / (1 + math.exp(-1))
SUMS = ("task_positive", "task_negative", "positive", "negative")


def gradient_sums(output, seen):
    """Returns S+ and S- of a batch by class."""
    return [part.sum(dim=0) for part in logit_gradients(output, seen)]


@st.composite
def outputs(draw: st.DrawFn, capacity: int = 6) -> tuple[Output, Tensor]:
    """Draws a batch with some padding, and a mask of the classes seen, which has all its labels."""
    samples, known = draw(st.integers(1, 6)), draw(st.integers(1, capacity))
    rows = st.lists(st.floats(-20, 20), min_size=capacity, max_size=capacity)
    logits = draw(st.lists(rows, min_size=samples, max_size=samples))
    y = draw(st.lists(st.integers(0, known - 1), min_size=samples, max_size=samples))
    weight = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=samples, max_size=samples))
    output = Output(
        torch.tensor(logits, dtype=torch.float64), torch.tensor(y), torch.tensor(weight)
    )
    return output, torch.arange(capacity) < known


def an_output(seed: int, samples: int = 8, classes: int = 4, weight: Tensor | None = None):
    source = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, classes, generator=source)
    y = torch.randint(classes, (samples,), generator=source)
    return Output(logits, y, torch.ones(samples) if weight is None else weight)


def all_seen(classes: int = 4) -> Tensor:
    return torch.ones(classes, dtype=torch.bool)


def a_balance(*seeds: int, classes: int = 4) -> Balance:
    balance = Balance(classes, CPU)
    for seed in seeds:
        balance.update([an_output(seed, classes=classes)], all_seen(classes))
    return balance


@PROPERTY
@given(outputs())
def test_what_pushes_down_and_what_pushes_up_cancel_over_the_classes(given_outputs):
    positive, negative = gradient_sums(*given_outputs)
    assert bool((positive >= 0).all()) and bool((negative <= 0).all())
    assert float(positive.sum() + negative.sum()) == pytest.approx(0, abs=1e-12)


@PROPERTY
@given(outputs())
def test_together_they_are_autograds_gradient_of_the_cross_entropy(given_outputs):
    output, seen = given_outputs
    logits = output.logits.clone().requires_grad_()
    masked = logits.masked_fill(~seen, -math.inf)
    loss = F.cross_entropy(masked, output.y, reduction="none") @ output.weight.double()
    loss.backward()
    positive, negative = gradient_sums(output, seen)
    torch.testing.assert_close(positive + negative, logits.grad.sum(dim=0))


@PROPERTY
@given(outputs())
def test_they_agree_with_loops_over_samples_and_classes(given_outputs):
    output, seen = given_outputs
    naive = Sums()
    naive.add(as_tuples(output), {c for c, known in enumerate(seen.tolist()) if known})
    positive, negative = gradient_sums(output, seen)
    assert positive.tolist() == pytest.approx([naive.positive[c] for c in range(6)], abs=1e-12)
    assert negative.tolist() == pytest.approx([naive.negative[c] for c in range(6)], abs=1e-12)


def test_padding_counts_nothing():
    weight = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1.0])
    padded = an_output(0, weight=weight)
    counts = weight > 0
    kept = Output(padded.logits[counts], padded.y[counts], weight[counts])
    for found, expected in zip(
        gradient_sums(padded, all_seen()), gradient_sums(kept, all_seen()), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_classes_not_seen_yet_have_no_part_in_it():
    output = an_output(0)
    wild = torch.cat([output.logits, torch.full((8, 2), 1e4)], dim=1)
    seen = torch.tensor([True] * 4 + [False] * 2)
    positive, negative = gradient_sums(output._replace(logits=wild), seen)
    plain = gradient_sums(output, all_seen())
    torch.testing.assert_close(positive[:4], plain[0])
    torch.testing.assert_close(negative[:4], plain[1])
    assert positive[4:].tolist() == negative[4:].tolist() == [0, 0]


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_huge_logits_give_finite_sums(size):
    output = an_output(1)
    for part in gradient_sums(output._replace(logits=output.logits * size), all_seen()):
        assert bool(torch.isfinite(part).all())


@PROPERTY
@given(outputs(), st.permutations(range(6)))
def test_relabelling_the_classes_permutes_the_sums(given_outputs, order):
    output, seen = given_outputs
    to = torch.tensor(order)
    moved = Output(
        torch.empty_like(output.logits).index_copy(1, to, output.logits),
        to[output.y],
        output.weight,
    )
    seen_moved = torch.empty_like(seen).index_copy(0, to, seen)
    for sums, permuted in zip(
        gradient_sums(output, seen), gradient_sums(moved, seen_moved), strict=True
    ):
        torch.testing.assert_close(permuted[to], sums)


def test_constant_logits_and_balanced_labels_are_in_balance():
    balance = Balance(4, CPU)
    y = torch.arange(4).repeat(3)
    balance.update([Output(torch.full((12, 4), 7.0), y, torch.ones(12))], all_seen())
    assert balance.pn().tolist() == pytest.approx([-1] * 4)
    assert balance.a_pn().tolist() == pytest.approx([-1] * 4)


def test_if_some_classes_are_suppressed_others_are_boosted():
    rates = a_balance(0, 1, 2).pn()
    assert float(rates.min()) < -1 < float(rates.max())


def test_the_four_sums_are_those_of_the_batches_of_the_task_and_of_all():
    balance = a_balance(0, 1)
    balance.new_task()
    balance.update([an_output(2), an_output(3)], all_seen())
    each = [torch.stack(gradient_sums(an_output(seed), all_seen())) for seed in range(4)]
    expected = [*(each[2] + each[3]), *sum(each)]
    for name, value in zip(SUMS, expected, strict=True):
        torch.testing.assert_close(getattr(balance, name), value)
    assert balance.sums.shape == (2, 2, 4)


def test_an_update_adds_every_output_given():
    apart, together = a_balance(3, 4), Balance(4, CPU)
    together.update([an_output(3), an_output(4)], all_seen())
    for name in SUMS:
        torch.testing.assert_close(getattr(together, name), getattr(apart, name))
    assert (int(together.updates), int(apart.updates)) == (1, 2)


def test_no_graph_is_kept():
    output = an_output(0)
    balance = Balance(4, CPU)
    balance.update([output._replace(logits=output.logits.requires_grad_())], all_seen())
    assert not balance.sums.requires_grad


def test_a_new_task_forgets_the_sums_of_the_task_only():
    balance = a_balance(0, 1)
    positive, negative = balance.positive.clone(), balance.negative.clone()
    balance.new_task()
    assert balance.task_positive.tolist() == balance.task_negative.tolist() == [0] * 4
    assert int(balance.updates) == 0
    assert torch.equal(balance.positive, positive) and torch.equal(balance.negative, negative)


def test_pn_is_of_the_running_task_and_a_pn_of_all():
    balance = a_balance(0, 1)
    balance.new_task()
    balance.update([an_output(2)], all_seen())
    of_last, of_all = a_balance(2), a_balance(0, 1, 2)
    torch.testing.assert_close(balance.pn(), of_last.pn())
    torch.testing.assert_close(balance.a_pn(), of_all.pn())
    assert not torch.allclose(balance.pn(), balance.a_pn())


def test_growing_keeps_the_sums_and_adds_zeros():
    balance = a_balance(0)
    before = {name: getattr(balance, name).clone() for name in SUMS}
    balance.grow(9)
    for name, value in before.items():
        assert getattr(balance, name).tolist() == [*value.tolist(), 0, 0, 0, 0, 0]
    assert int(balance.updates) == 1
    balance.update([an_output(1, classes=9)], all_seen(9))
    assert bool((balance.positive[4:] > 0).all())


def test_the_rate_of_a_task_is_the_ratio_of_means_over_its_classes():
    balance = a_balance(2)
    balance.new_task()
    for seed in (0, 1):
        balance.update([an_output(seed)], all_seen())
    group = [1, 3]
    p = sum(float(balance.task_positive[c]) / 16 for c in group) / 2
    n = sum(float(balance.task_negative[c]) / 16 for c in group) / 2
    assert float(balance.task_pn(group)) == pytest.approx(p / n)
    assert float(balance.task_pn([2])) == pytest.approx(float(balance.pn()[2]))


def test_over_all_classes_a_task_is_always_in_balance():
    assert float(a_balance(0, 1).task_pn(range(4))) == pytest.approx(-1)


def test_its_state_can_be_saved_and_loaded():
    balance, other = a_balance(0), Balance(4, CPU)
    balance.new_task()
    balance.update([an_output(1)], all_seen())
    state = balance.state_dict()
    other.load_state_dict(state)
    for name in (*SUMS, "samples", "updates"):
        assert torch.equal(getattr(other, name), getattr(balance, name))
    kept = {name: value.clone() for name, value in state.items()}
    for each in (balance, other):
        each.update([an_output(2)], all_seen())
    for name, value in kept.items():
        assert torch.equal(state[name], value)
    for name in (*SUMS, "samples", "updates"):
        assert torch.equal(getattr(other, name), getattr(balance, name))


def test_p_and_n_are_means_over_the_samples_of_the_task():
    balance = Balance(3, torch.device("cpu"))
    output = Output(torch.zeros(4, 3), torch.tensor([0, 0, 1, 2]), torch.tensor([1.0, 1, 1, 0]))
    seen = torch.ones(3, dtype=torch.bool)
    balance.update([output], seen)
    torch.testing.assert_close(balance.p(), torch.tensor([1, 2, 3]).double() / 9)
    torch.testing.assert_close(balance.n(), torch.tensor([-4, -2, 0]).double() / 9)
    torch.testing.assert_close(balance.p()[:2] / balance.n()[:2], balance.pn()[:2])
    balance.new_task()
    assert float(balance.samples) == 0


# ---- w and v


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
