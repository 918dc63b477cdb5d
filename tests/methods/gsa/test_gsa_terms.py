"""The single terms of GSA's loss: by hand, in closed form, by finite differences."""

import math

import naive_gsa as naive
import pytest
import torch
import torch.nn.functional as F
from gsa_against_naive import NEW, OLD, PROPERTY, five_logits, make_output, random_logits
from hypothesis import given
from hypothesis import strategies as st
from tiny_learners import double
from torch import Tensor

from onepass.base.parts import Output
from onepass.functional.losses import cross_entropy, mean, sample_cross_entropy
from onepass.methods.gsa import within_and_across


def against_the_other_side(*arguments):
    """Returns eq. (12) of each sample, before w."""
    return within_and_across(*arguments)[1]


@pytest.mark.parametrize("label", [0, 1])
def test_the_two_class_hand_case_gives_log_two(label):
    old, new = torch.tensor([True, False]), torch.tensor([False, True])
    output = make_output(torch.zeros(1, 2), [label])
    across = against_the_other_side(output, old, new, torch.zeros(2), new)
    assert across.item() == pytest.approx(math.log(2))
    assert sample_cross_entropy(output, among=old if label == 0 else new).item() == 0


@PROPERTY
@given(five_logits, st.integers(0, 4))
def test_the_decomposition_exceeds_cross_entropy_by_its_closed_form(logits, label):
    output = make_output(double([logits]), [label])
    own = NEW if label >= 3 else OLD
    within = sample_cross_entropy(output, among=own)
    decomposed = within + against_the_other_side(output, OLD, NEW, torch.zeros(5), NEW)
    plain = F.cross_entropy(output.logits, output.y)
    e = math.exp(logits[label])
    a = sum(math.exp(o) for c, o in enumerate(logits) if own[c])
    b = sum(math.exp(o) for c, o in enumerate(logits) if not own[c]) + e
    rest = a - e if a > e else 0.0
    gap = math.log1p(rest * (b - e) / (e * (a + b - e)))
    assert decomposed.item() - plain.item() == pytest.approx(gap, abs=1e-9)
    assert decomposed.item() >= plain.item() - 1e-9


@pytest.mark.parametrize("lonely", ["a single new class", "no old class"])
def test_the_decomposition_is_cross_entropy_if_there_is_nothing_to_decompose(lonely):
    last = torch.arange(5) == 4
    new, old = (last, ~last) if lonely == "a single new class" else (last | ~last, last & ~last)
    output = make_output(random_logits(0, 1), [4])
    within = sample_cross_entropy(output, among=new)
    decomposed = within + against_the_other_side(output, old, new, torch.zeros(5), new)
    torch.testing.assert_close(decomposed.sum(), F.cross_entropy(output.logits, output.y))


@PROPERTY
@given(five_logits, st.integers(0, 2), st.floats(0.01, 100))
def test_v_of_zero_removes_a_new_class_from_what_old_samples_face(logits, label, other):
    output = make_output(double([logits]), [label])
    log_v = double([0, 0, 0, -math.inf, math.log(other)])
    got = against_the_other_side(output, OLD, NEW, log_v, NEW)
    without = torch.tensor([False, False, False, False, True])
    assert torch.equal(got, against_the_other_side(output, OLD, without, log_v, NEW))


@PROPERTY
@given(five_logits, st.integers(0, 4))
def test_v_matters_to_old_samples_only(logits, label):
    output = make_output(double([logits]), [label])
    plain = against_the_other_side(output, OLD, NEW, double([0] * 5), NEW).item()
    doubled = against_the_other_side(output, OLD, NEW, double([math.log(2)] * 5), NEW).item()
    assert doubled == plain if label >= 3 else doubled >= plain


@PROPERTY
@given(five_logits, st.integers(0, 4), st.floats(0, 10))
def test_cross_task_agrees_with_the_plain_fraction(logits, label, scale):
    v = dict.fromkeys(range(5), scale)
    against = naive.rivals(logits, label, {0, 1, 2}, {3, 4}, v, {3, 4})
    expected = naive.log_sum_exp([*against.values(), logits[label]]) - logits[label]
    output = make_output(double([logits]), [label])
    got = against_the_other_side(output, OLD, NEW, double([scale] * 5).log(), NEW)
    assert got.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("v", [[1, 1, 1, 1, 1], [3, 1, 0.2, 0, 7], [0, 0, 0, 0, 0]])
def test_the_gradient_of_the_cross_task_term_agrees_with_finite_differences(v):
    y, log_v = torch.tensor([0, 1, 2, 3, 4, 4]), double(v).log()
    logits = random_logits(1, 6).requires_grad_()
    ones = torch.ones(6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda o: against_the_other_side(Output(o, y, ones), OLD, NEW, log_v, NEW), logits
    )


def test_the_cross_task_term_does_not_move_other_classes_of_the_same_side():
    logits = random_logits(2, 5).requires_grad_()
    output = make_output(logits, [0, 1, 2, 3, 4])
    against_the_other_side(output, OLD, NEW, double([0] * 5), NEW).sum().backward()
    touched = (logits.grad != 0).int()
    sides = (OLD.unsqueeze(1) != OLD) | torch.eye(5, dtype=torch.bool)
    assert touched.tolist() == sides.int().tolist()


def test_within_task_terms_agree_with_finite_differences_and_stay_on_their_side():
    y, w = torch.tensor([0, 1, 2, 3, 4]), double([1.1, 1.9, 1.5, 1.2, 2.0])
    logits = random_logits(3, 5).requires_grad_()

    def t1(o: Tensor) -> Tensor:
        return cross_entropy(Output(o, y, NEW[y].double()), among=NEW)

    def t2(o: Tensor) -> Tensor:
        output = Output(o, y, OLD[y].double())
        return mean(w[y] * sample_cross_entropy(output, among=OLD), output.weight)

    assert torch.autograd.gradcheck(t1, logits) and torch.autograd.gradcheck(t2, logits)
    for term, side in ((t1, NEW), (t2, OLD)):
        (gradient,) = torch.autograd.grad(term(logits), logits)
        assert torch.equal(gradient != 0, side & side.unsqueeze(1))
