"""Settings that take a component out of GSA, tested at their limits."""

import pytest
import torch
from gsa_against_naive import BALANCED, gsa, stream
from numbered_gsa import NumberedGSA, genuine
from tiny_learners import flat, learned, small

from onepass import ER, GSA, OCMGSA, Finetune
from onepass.base.errors import InputError
from onepass.base.parts import Samples
from onepass.functional.imbalance import class_weight
from onepass.functional.losses import cross_entropy, mean, sample_cross_entropy
from onepass.methods.gsa_variants import even_out, rates

TERMS = {"new": "T1", "previous": "T2", "cross": "T3"}


def last_terms(**settings):
    """Returns the terms of the first step after a boundary."""
    items = list(stream("tasks"))
    learner = learned(gsa(lr=1e-9, **settings), items[:-1])
    return learner.learn(*items[-1])


@pytest.mark.parametrize("left_out", TERMS)
def test_a_term_that_is_left_out_is_not_in_the_loss(left_out):
    whole, rest = last_terms(), last_terms(without=left_out)
    assert TERMS[left_out] not in rest.terms
    expected = sum(value for name, value in whole.terms.items() if name != TERMS[left_out])
    torch.testing.assert_close(rest.loss, expected)
    assert whole.terms[TERMS[left_out]] > 0


@pytest.mark.parametrize("left_out", TERMS)
def test_ocm_gsa_leaves_it_out_too(left_out):
    learner = OCMGSA(memory=20, rotations=1, without=left_out, augment="none", device="cpu")
    x, source = torch.rand(40, 1, 8, 8), torch.arange(40) % 4
    for task in range(2):
        learner.new_task()
        step = learner.learn(x[source // 2 == task], source[source // 2 == task])
    assert TERMS[left_out] not in step.terms and "L_n" in step.terms


def test_w_alone_and_v_alone_leave_the_other_at_one():
    halves = {}
    for weights in ("adaptive", "w", "v", "none"):
        learner = learned(gsa(lr=1e-9, weights=weights), stream("tasks"))
        halves[weights] = rates(learner)
    (w, log_v), ones = halves["adaptive"], torch.ones(16)
    assert not torch.equal(w, ones) and bool((log_v != 0).any())
    for weights, expected in {
        "w": (w, ones.log()),
        "v": (ones, log_v),
        "none": (ones, ones.log()),
    }.items():
        for found, wanted in zip(halves[weights], expected, strict=True):
            torch.testing.assert_close(found, wanted)


def test_the_inverse_ratio_swaps_suppressed_and_boosted_classes():
    positive, negative = torch.tensor([2.0, 1.0, 0.5, 0.0]), -torch.tensor([1.0, 1.0, 1.0, 0.0])
    paper, inverse = class_weight(positive, negative), class_weight(-negative, positive)
    torch.testing.assert_close(inverse, paper[[2, 1, 0, 3]])
    assert inverse[3] == pytest.approx(BALANCED)
    learner = learned(gsa(lr=1e-9, weights="inverse"), stream("tasks"))
    plain = learned(gsa(lr=1e-9), stream("tasks"))
    expected = 2 / (1 + torch.exp(plain.balance.negative / plain.balance.positive))
    torch.testing.assert_close(rates(learner)[0][:7], expected[:7].float())
    torch.testing.assert_close(rates(learner)[1], rates(plain)[1])


def test_plain_cross_entropies_are_those_of_the_mix_and_of_its_old_samples():
    step = last_terms(rivals="all", weights="none")
    mix, seen, old = step.outputs[1], torch.arange(16) < 7, torch.arange(16) < 5
    each = sample_cross_entropy(mix, seen)
    torch.testing.assert_close(step.terms["T2"], mean(each, mix.weight * old[mix.y]))
    torch.testing.assert_close(step.terms["T3"], cross_entropy(mix, seen))
    sides = last_terms(weights="none")
    torch.testing.assert_close(sides.terms["T1"], step.terms["T1"])
    assert sides.terms["T3"] < step.terms["T3"]  # fewer rivals


def test_without_balance_the_mix_is_a_plain_draw_from_the_memory():
    """X^mix has no sample of the stream batch, and new classes have their share of the memory."""
    watched = NumberedGSA(memory=40, mix=8, sampling="random")
    for _ in range(6):
        watched.learn([0, 1, 0, 1])
    watched.learner.new_task()
    mixed = watched.learn([2, 3, 2, 3])
    assert genuine(mixed, {2, 3}) == []
    numbers = genuine(mixed, {0, 1})
    assert len(set(numbers)) == 8 and max(numbers) < 24
    later = [number for _ in range(20) for number in genuine(watched.learn([2, 3, 2, 3]), {2, 3})]
    assert 0.3 < len(later) / (20 * 8) < 0.8


def test_with_nothing_in_the_memory_a_plain_draw_has_no_samples():
    watched = NumberedGSA(memory=40, mix=8, sampling="random")
    assert genuine(watched.learn([0, 1, 0, 1]), {0, 1}) == []


def test_current_samples_count_only_while_they_even_the_classes_out():
    new = torch.tensor([False, True, True, True])
    stream_y, drawn = [1, 1, 1, 2, 0], [1, 2, 2, 2, 3, 3, 3, 3]
    weight = torch.ones(8)
    weight[4] = 0  # padding does not count
    x = torch.zeros(8, 1)
    current = even_out(
        Samples(x[:5], torch.tensor(stream_y), torch.ones(5)),
        Samples(x, torch.tensor(drawn), weight),
        new,
    )
    # class 1 has three samples, class 2 lacks two, class 3 lacks three; class 0 is old
    assert current.weight.tolist() == [0, 1, 1, 0, 0, 1, 1, 1]


def test_x_new_is_even_once_the_memory_has_enough():
    watched = NumberedGSA(memory=200, mix=64, current=64, even=True)
    for _ in range(12):
        watched.learn([0, 1, 2, 0, 1, 2])
    watched.learn([0, 0, 0, 0, 1, 1])
    counted = [label for _, label, real in watched.first if real]
    assert [counted.count(label) for label in (0, 1, 2)] == [4, 4, 4]


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"even": True, "current": 0}, "even"), ({"sampling": "random", "current": 3}, "current")],
)
def test_settings_that_contradict_each_other_are_refused(settings, named):
    with pytest.raises(InputError, match=f"gsa: {named} must be"):
        GSA(**settings)


# ---- the balanced draw of er


def test_balanced_er_on_one_task_is_plain_training_on_the_stream():
    """All classes are new. The batch has no slots for old ones and more slots than the stream
    fills."""
    batches = list(stream("tasks"))[:3]
    balanced = learned(small(ER, balanced=20, memory=50), batches)
    plain = learned(small(Finetune), batches)
    torch.testing.assert_close(flat(balanced), flat(plain))


def test_balanced_er_trains_shares_by_classes():
    """With three old classes and two new ones, 20 slots are 12 and 8 on any stream."""
    learner = learned(small(ER, balanced=20, memory=100), list(stream("tasks"))[:5])
    x, y = list(stream("tasks"))[5]
    new, old = learner.learn(x, y).outputs
    assert (int(new.weight.sum()), int(old.weight.sum())) == (8, 12)
    assert set(new.y[new.weight > 0].tolist()) <= {3, 4}
    assert set(old.y[old.weight > 0].tolist()) <= {0, 1, 2}
    assert learner.images_per_batch(10).trained == 20


def test_balanced_er_has_one_mean_over_its_batch():
    learner = learned(small(ER, balanced=20, memory=100), list(stream("tasks"))[:5])
    step = learner.learn(*list(stream("tasks"))[5])
    seen = torch.arange(16) < 5
    each = torch.cat([sample_cross_entropy(out, seen)[out.weight > 0] for out in step.outputs])
    assert len(each) == 20
    torch.testing.assert_close(step.loss, each.mean())
