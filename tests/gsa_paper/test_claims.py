"""The paper's claims: each quantity computed by hand, and the verdicts on runs that agree with the
paper and on runs that do the opposite."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from onepass.gsa_paper import claims
from onepass.gsa_paper.claims import Claim, Trio, rank_correlation
from onepass.gsa_paper.rates import GradientRates


def course(pushed_down, pulled_up, a_pn=(), accuracy=(), class_accuracy=(), by_new=None):
    """Makes rates for tasks of one class each, which has half of the hundred samples of its task.

    The arguments are P and N(t, c) by rows, A-PN after the last task, and P by new classes alone.
    """
    ends = []
    for p, n, new in zip(pushed_down, pulled_up, by_new or pushed_down, strict=True):
        rates = [down / up if up else None for down, up in zip(p, n, strict=True)]
        by_class = {"p": p, "n": n, "p_new": new, "pn": rates, "a_pn": a_pn}
        run_line = {name: labelled(values) for name, values in by_class.items()}
        own = {**dict.fromkeys(labelled(p), 0), str(len(p) - 1): 50}
        ends.append({**run_line, "pn_of_tasks": rates, "samples": 100, "own": own})
    made = GradientRates(SimpleNamespace(accuracy_matrix=accuracy, class_accuracy=class_accuracy))
    made.__dict__["ends"] = ends
    return made


def labelled(values):
    return {str(label): value for label, value in enumerate(values)}


# ---- runs of which every number is known


AS_SAID = course(
    pushed_down=[[0.5], [0.4, 0.2], [0.4, 0.4, 0.1], [0.4, 0.4, 0.4, 0.05]],
    pulled_up=[[-0.5], [-0.2, -0.4], [-0.1, -0.2, -0.4], [-0.05, -0.1, -0.2, -0.25]],
    a_pn=[-1.2, -0.9, -0.6, -0.2],
    accuracy=[[98, None, None, None], [97, 80, None, None], [96, 50, 50, None], [95, 40, 20, 52]],
    class_accuracy=[95, 40, 20, 52],
    by_new=[[0.5], [0.3, 0], [0.3, 0.3, 0], [0.3, 0.3, 0.3, 0]],
)
OPPOSITE = course(
    pushed_down=[[0.1], [0.4, 0.25], [0.07, 0.3, 0.3], [0.3, 0.1, 0.2, 0.5]],
    pulled_up=[[-0.4], [-0.5, -0.5], [-0.7, -0.4, -0.4], [-0.6, -0.5, -0.4, -0.6]],
    a_pn=[-0.9, -0.95, -0.98, -1.01],
    accuracy=[[60, None, None, None], [90, 75, None, None], [50, 85, 40, None], [80, 70, 30, 10]],
    class_accuracy=[80, 70, 30, 10],
    by_new=[[0.1], [0.1, 0.2], [0.03, 0.1, 0.1], [0.1, 0, 0.1, 0]],
)
OF_FIG1 = [1, 1, 3 / 4, -1, -1, 1]
OF_FIG3 = [1.5 / 4, 0, 1, 0.8 - 0.4, 0.5, 0.5, 0.1 / 0.5, -1, -0.4, -0.2, 52 - 155 / 3]


def judged(sentences, subject):
    return [claim.judge("runs", [subject]).verdict for claim in sentences]


@pytest.mark.parametrize(("sentences", "numbers"), [(claims.FIG1, OF_FIG1), (claims.FIG3, OF_FIG3)])
def test_each_sentence_is_judged_by_its_number(sentences, numbers):
    assert [claim.measure(AS_SAID) for claim in sentences] == pytest.approx(numbers)
    assert judged(sentences, AS_SAID) == ["confirmed"] * len(sentences)
    assert judged(sentences, OPPOSITE) == ["contradicted"] * len(sentences)


def test_a_task_may_be_pushed_down_by_the_next_one_alone():
    """By hand, three of six rates of pairs (t, t') are below -1, all of the task before."""
    rates = {(1, 0): -2.0, (2, 0): -0.5, (2, 1): -1.5, (3, 0): -0.9, (3, 1): -1.0, (3, 2): -1.1}
    made = SimpleNamespace(tasks=4, pn=lambda t, of: rates[t, of])
    assert [claim.measure(made) for claim in claims.FIG1[:2]] == [0.5, 1.0]


def test_the_first_task_which_is_in_balance_by_an_identity_makes_no_trend():
    rates = [-1.0, -1.4, -1.3, -1.2]
    made = SimpleNamespace(tasks=4, pn=lambda t, of: rates[t])
    assert claims.trend_of_newest_imbalance(made) == pytest.approx(-1)


def test_a_push_as_small_as_rounding_is_zero():
    """Without samples of old classes there is no push by them."""
    found = course(*([[x] * n for n in (1, 2, 3, 4)] for x in (0.3, -0.5)))
    for noise, end in enumerate(found.ends):
        end["p_new"] = {label: push * (1 + noise * 3e-16) for label, push in end["p"].items()}
    assert math.isnan(claims.trend_of_push_by_old(found))


def test_rates_and_accuracies_are_of_the_same_classes():
    """The classes came in another order than that of their labels."""
    made = GradientRates(SimpleNamespace(class_accuracy=[10, 20, 30]))
    made.__dict__["ends"] = [{"a_pn": {"2": -0.3, "0": -0.1, "1": -0.2}}]
    assert (made.a_pn, made.class_accuracy) == ([-0.3, -0.1, -0.2], [30, 10, 20])


def after(*a_pn, labels="01234"):
    """Returns rates that are known for the last task only."""
    made = GradientRates(None)
    made.__dict__["ends"] = [{"a_pn": dict(zip(labels, a_pn, strict=True))}]
    return made


def test_joint_training_is_judged_by_how_near_its_rates_are_to_balance():
    claim = claims.FIG3_JOINT
    near, far = after(-1.05, -0.97, -1.0, -1.04, -1.03), after(-1.3, -0.8, -1.0, -1.3, -0.8)
    assert claim.measure(near) == pytest.approx(0.03)
    assert judged([claim], near) == ["confirmed"]
    assert judged([claim], far) == ["contradicted"]


def test_the_loss_is_judged_class_by_class_beside_joint_training():
    """The classes of joint training may come in another order. The last class is in balance without
    the loss, and counts as low by the mean of its two rates."""
    adaptive, plain = after(-1.2, -1.1, -0.9, -0.75, -1.5), after(-2.0, -1.5, -0.5, -0.25, -1.0)
    joint = after(-1.25, -0.8, -1.0, -1.2, -0.8, labels="43102")
    trio = Trio(adaptive, plain, joint)
    numbers = [0.23 - 0.55, (-0.4 - 0.5) / 2, (0.8 + 0.4 - 0.5) / 3, 0.1 - 0.48]
    assert [claim.measure(trio) for claim in claims.FIG7] == pytest.approx(numbers)
    assert judged(claims.FIG7, trio) == ["confirmed"] * 4
    assert judged(claims.FIG7, Trio(plain, adaptive, joint)) == ["contradicted"] * 4


def test_a_loss_that_does_nothing_neither_lowers_high_rates_nor_raises_low_ones():
    """The rates of two runs differ by chance alone. A class that is far from -1 in one run is then
    nearer in the other, on average."""
    rng = np.random.default_rng(0)
    rates = -1 + 0.2 * rng.normal(size=(20, 3, 100))
    trios = [Trio(*(after(*values, labels=range(100)) for values in run)) for run in rates]
    verdicts = [claim.judge("runs", trios).verdict for claim in claims.FIG7]
    assert verdicts == ["undecided"] * 4


@pytest.mark.parametrize(
    ("second_task", "numbers", "verdict"),
    [
        ([(3, 1), (2, 1), (None, 1), (9, None), (1.5, 1)], [1, 6.5 / 3], "confirmed"),
        ([(1, 2), (3, 2), (2, 2)], [1 / 3, 1], "contradicted"),
    ],
)
def test_losses_are_compared_in_the_second_task_where_both_batches_have_samples(
    second_task, numbers, verdict, monkeypatch
):
    said = [(0, 1, 9), *((1, *pair) for pair in second_task), (2, 0, 9)]
    monkeypatch.setattr(claims, "read_probe_lines", lambda result, probe: lines_of_ten(said))
    assert [claim.measure(None) for claim in claims.LOSSES] == pytest.approx(numbers)
    assert judged(claims.LOSSES, None) == [verdict] * 2


def lines_of_ten(said):
    return [
        {"step": 10 * place, "task": task, "stream": stream, "replay": replay}
        for place, (task, stream, replay) in enumerate(said, start=1)
    ]


def test_losses_of_a_line_count_as_often_as_it_has_batches(monkeypatch):
    """A line ends at every tenth batch and with a task, so these are of 1, 10, 10 and 8 batches."""
    said = [(0, 1, 9)] * 3 + [(1, 59, 1), (1, 3, 1), (1, None, 1), (1, 5, 6), (2, 0, 9)]
    ends = [10, 20, 29, 30, 40, 50, 58, 60]
    lines = [{**line, "step": end} for line, end in zip(lines_of_ten(said), ends, strict=True)]
    monkeypatch.setattr(claims, "read_probe_lines", lambda result, probe: lines)
    expected = [(1 + 10) / 19, (59 + 10 * 3 + 8 * 5) / (1 + 10 * 1 + 8 * 6)]
    assert [claim.measure(None) for claim in claims.LOSSES] == pytest.approx(expected)


# ---- what cannot be said


def test_where_nothing_was_measured_nothing_is_confirmed():
    """A method without a softmax measures nothing."""
    nothing = [[None] * tasks for tasks in (1, 2, 3)]
    silent = course(nothing, nothing, a_pn=[None] * 3, class_accuracy=[1, 2, 3])
    assert all(math.isnan(rate) for rate in silent.pn_since(0))
    measured = {claim for claim in claims.FIG1 + claims.FIG3 if "accuracy" not in claim.quantity}
    for claim in measured:
        assert claim.judge("runs", [silent]).verdict == "not measured", claim.quantity


def test_a_task_being_learned_does_not_count_as_old():
    """A task being learned has the highest rate and accuracy; afterwards they oppose each other."""
    rates = [[-1.0], [-4.0, -1.0], [-3.0, -4.0, -1.0], [-2.0, -3.0, -4.0, -1.0]]
    ones = [[-1.0] * len(row) for row in rates]
    accuracy = [[99, None, None, None], [80, 99, None, None], [70, 80, 99, None], [60, 70, 80, 99]]
    found = course([[-rate for rate in row] for row in rates], ones, accuracy=accuracy)
    assert claims.trend_of_accuracy_with_pn(found) == claims.trend_of_pn(found) * -1 == -1


def test_classes_without_a_gradient_of_one_sign():
    """The first class has no rival in its task, and so no gradient. Nothing pulls the second one up
    in the last task, and no rate is lower than that."""
    found = course([[0.0], [0.4, 0.2], [0.4, 0.1, 0.1]], [[0.0], [-0.2, -0.4], [-0.1, 0.0, -0.4]])
    assert math.isnan(found.pn(0, 0)) and found.pn(2, 1) == -math.inf
    assert math.isnan(claims.gradient_ratio(found, "n")) and math.isnan(
        claims.gradient_ratio(found, "p")
    )
    assert claims.share_suppressed(claims.old_pairs(found)) == 1


def test_fewer_samples_are_told_apart_from_easier_samples():
    """The last class has half the gradient of the first, from a quarter of its samples."""
    found = course(*([[x] * n for n in (1, 2, 3, 4)] for x in (0.5, -0.5)))
    found.ends[-1]["n"]["3"], found.ends[-1]["own"]["3"] = -0.25, 12.5
    assert (claims.gradient_ratio(found, "n"), claims.pull_per_sample_ratio(found)) == (0.5, 2.0)
    found.ends[-1]["samples"] = 300  # of which these are fewer still
    assert (claims.gradient_ratio(found, "n"), claims.pull_per_sample_ratio(found)) == (0.5, 6.0)
    del found.ends[-1]["own"]  # a line of an older version
    assert math.isnan(claims.pull_per_sample_ratio(found))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.5], "confirmed"),
        ([-0.5], "contradicted"),
        ([0.5, 0.6, 0.4], "confirmed"),
        ([-0.5, -0.6, -0.4], "contradicted"),
        ([0.5, -0.4], "undecided"),
        ([0.5, 0.78, 0.22], "undecided"),  # t(2) = 4.3 standard errors; at 90 %, 2.9
        ([0.5, 0.9, 0.1] * 3, "confirmed"),  # t(8) = 2.3
        ([0.0], "undecided"),  # as 9 of 10 pairs are to a bound of 0.9
        ([math.nan], "not measured"),
    ],
)
def test_a_verdict_needs_a_bound_outside_of_the_interval(values, verdict):
    up = Claim("x", "it is above", "number", float, above=0)
    down = Claim("x", "it is below", "number", lambda value: -value, below=0)
    assert up.judge("runs", values).verdict == verdict
    assert down.judge("runs", values).verdict == verdict


@pytest.mark.parametrize("values", [[0.05], [-0.05], [0.05, 0.06, 0.07]])
def test_a_correlation_near_zero_is_none(values):
    """The verdict is undecided however small the error, and also for one run."""
    claim = Claim("x", "it rises", "number", float, above=0, near=claims.NO_CORRELATION)
    assert claim.judge("runs", values).verdict == "undecided"
    assert claim.judge("runs", [4 * value for value in values]).verdict != "undecided"


def test_every_sentence_that_is_judged_by_a_correlation_has_room_for_none():
    for claim in claims.FIG1 + claims.FIG3 + claims.FIG7 + claims.LOSSES:
        assert (claim.near > 0) == ("rank correlation" in claim.quantity), claim.sentence


def test_a_correlation_is_scipys_and_takes_infinity_for_the_lowest():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 30)).tolist()
    by_hand = np.corrcoef(*(np.argsort(np.argsort(values)) for values in (x, y)))[0, 1]
    assert rank_correlation(x, y) == pytest.approx(by_hand)
    assert rank_correlation([1, 2, 3, 4], [4.0, math.nan, -1.0, -math.inf]) == pytest.approx(-1)
    assert math.isnan(rank_correlation([1, 2], [1, 2]))
    assert math.isnan(rank_correlation([1, 2, 3], [1, 1, 1]))
