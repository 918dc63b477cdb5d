"""BiC: the loss against plain loops, the correction as a minimum, and held-out samples that are
never trained on.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from tiny_learners import (
    BOUNDARY,
    as_images,
    as_tuples,
    batches,
    learned,
    naive_cross_entropy,
    on_every_forward,
    parameters,
    random_batches,
    small,
)
from torch import Tensor, nn

import onepass
from onepass import ER
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount, Output
from onepass.methods.bic import BiC, fit_correction

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], BOUNDARY, [3, 4, 3], [3], [4, 3], BOUNDARY, [5, 6], [6, 5, 5]]
STREAMS = {
    "tasks": TASKS,
    "one class at a time": [[0] * 4, [0], BOUNDARY, [1] * 4, [1] * 3, BOUNDARY, [2] * 4, [2]],
    "old classes come back": [[0, 1], [1, 2, 0], BOUNDARY, [3, 0, 1], [0, 0, 2], BOUNDARY, [4]],
    "many classes": [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 35]],
}


def bic(kind: type = BiC, **settings: object):
    return small(kind, **settings)


def tasks(learner: BiC, count: int, length: int = 12) -> BiC:
    """Returns the learner after `count` tasks of two classes; the last task has ended."""
    for task in range(count):
        labels = [2 * task, 2 * task + 1] * 3
        learned(learner, [BOUNDARY] * bool(task) + list(batches([labels] * length, seed=task)))
    learner.end_task()
    return learner


# ---- the fit


def problem(seed: int = 0, n: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=source)
    logits = 2 * torch.randn(n, 4, generator=source) + F.one_hot(y, 4)
    return logits.double(), y, torch.tensor([False, False, True, True])


@pytest.mark.parametrize("decay", [1e-6, 0.1, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_is_where_the_gradient_vanishes(seed, decay):
    logits, y, new = problem(seed)
    a, b = (
        torch.tensor(value, requires_grad=True) for value in fit_correction(logits, y, new, decay)
    )
    loss = F.cross_entropy(torch.where(new, a * logits + b, logits), y)
    (loss + decay / 2 * (b**2 + (a - 1) ** 2)).backward()
    assert abs(a.grad) < 1e-5 and abs(b.grad) < 1e-5


@pytest.mark.parametrize("shift", [-4.0, 3.0, 50.0])
def test_the_fit_undoes_a_shift_of_the_new_logits(shift):
    logits, y, new = problem()
    a, b = fit_correction(logits, y, new, 1e-9)
    again = fit_correction(logits + shift * new, y, new, 1e-9)
    assert again == pytest.approx((a, b - a * shift), rel=1e-4, abs=1e-5)


def test_the_fit_undoes_a_scaling_of_the_new_logits():
    logits, y, new = problem()
    a, b = fit_correction(logits, y, new, 1e-9)
    assert fit_correction(logits * torch.where(new, 5, 1), y, new, 1e-9) == pytest.approx(
        (a / 5, b)
    )


def test_with_strong_decay_the_fit_corrects_nothing():
    assert fit_correction(*problem(), 1e9) == pytest.approx((1.0, 0.0), abs=1e-6)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_separable_samples_and_logits_of_any_size_give_finite_numbers(size):
    y = torch.tensor([0, 1])
    logits = size * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert all(map(math.isfinite, fit_correction(logits, y, torch.tensor([False, True]), 0.1)))


# ---- the loss


def naive_distillation(out: Output, taught: Tensor, rows: list[int], t: float) -> float:
    """Computes the distillation without T^2 by plain loops."""
    found = []
    for (logits, _, weight), theirs in zip(as_tuples(out), taught.tolist(), strict=True):
        if weight and rows:
            own, other = (torch.tensor([o[c] / t for c in rows]) for o in (logits, theirs))
            p = other.softmax(dim=0)
            found.append(float((p * (p.log() - own.log_softmax(dim=0))).sum()))
    return sum(found) / len(found) if found else 0.0


def check_terms(learner: BiC, items) -> None:
    inputs, known = [], 0
    for item in items:
        if item == BOUNDARY:
            learner.new_task()
            known = len(learner.classes)
            continue
        if not inputs:
            learner.prepare(tuple(item[0].shape[1:]), item[0].dtype)
            hook = lambda module, given, out: inputs.append(given[0].detach())  # noqa: E731
            learner.model.body.register_forward_hook(hook)
        step = learner.learn(*item)
        out = step.together
        # mirror images lie behind all samples; a step reports them with their own batch
        views = torch.cat(learner.views.cut(inputs[-1], [len(item[1]), learner.replay]))
        taught = learner.previous(views)
        taught = learner.correction.taught_factor * taught + learner.correction.taught_shift
        old = naive_distillation(out, taught, list(range(known)), learner.temperature)
        labels = naive_cross_entropy(out, set(range(len(learner.classes))))
        got = {name: term.item() for name, term in step.terms.items()}
        assert got == pytest.approx({"old": old, "labels": labels}, rel=1e-4, abs=1e-5)
        share = known / len(learner.classes)
        loss = share * old + (1 - share) * labels
        assert step.loss.item() == pytest.approx(loss, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"memory": 0}, {"validation": 0.5}, {"temperature": 5.0}, {"head": "frozen"}],
    ids=str,
)
def test_terms_and_loss_agree_with_plain_loops(name, settings):
    check_terms(bic(**settings), batches(STREAMS[name]))


def test_mirror_images_count_as_samples():
    check_terms(bic(net=nn.Flatten(), mirror=True), as_images(batches(TASKS)))


def test_the_first_task_with_nothing_held_out_is_er_with_one_mean():
    first = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1]]
    settings = {
        "net": "mlp",
        "lr": 0.1,
        "memory": 100,
        "replay": 100,
    }  # every stored sample is replayed
    ours = parameters(bic(**settings, validation=0.0), first)
    er = parameters(bic(ER, **settings, loss="mean"), first)
    torch.testing.assert_close(ours, er, atol=1e-6, rtol=0)


# ---- held-out samples


def test_held_out_samples_are_never_trained_or_replayed_and_all_others_are():
    learner, inputs = bic(memory=60, replay=30, validation=0.3), []
    learner.prepare((6,), torch.float32)
    learner.model.body.register_forward_hook(lambda module, given, out: inputs.append(given[0]))
    trained, held, came = set(), set(), set()
    for task in range(3):
        if task:
            learner.new_task()
        for x, y in batches([[2 * task, 2 * task + 1] * 3] * 12, seed=task):
            out = learner.learn(x, y).together
            trained |= {tuple(sample) for sample in inputs[-1][out.weight > 0].tolist()}
            size = int(learner.held_out.size)
            held |= {tuple(sample) for sample in learner.held_out.x[:size].tolist()}
            came |= {tuple(sample) for sample in x.tolist()}
    assert len(held) > 18 and not trained & held
    assert trained | held == came
    assert not {tuple(sample) for sample in learner.store.x[:42].tolist()} & held


def test_every_class_has_equally_many_held_out_samples_and_they_take_slots_of_the_memory():
    learner = tasks(bic(memory=80, validation=0.2), 3)
    assert torch.bincount(learner.held_out.y[: int(learner.held_out.size)]).tolist() == [2] * 6
    assert (learner.store.capacity, learner.held_out.capacity) == (64, 16)


def test_stream_samples_are_candidates_with_the_probability_that_is_set():
    learner = bic(memory=4000, validation=0.25)
    for item in random_batches(100, size=10):
        learner.learn(*item)
    assert 180 < int(learner.held_out.size) < 320


# ---- the correction


def test_a_task_end_moves_no_parameter_and_corrects_the_logits_of_new_classes_only():
    learner = tasks(bic(validation=0.3, memory=40), 1)
    learned(learner, [BOUNDARY, *batches([[2, 3] * 3] * 12, seed=1)])
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(4))
    before, network = learner.scores(x), learner.params_sha256()
    learner.end_task()
    after = learner.scores(x)
    assert learner.params_sha256() == network
    assert torch.equal(before[:, :2], after[:, :2])
    a, b = (float(values[2]) for values in (learner.correction.factor, learner.correction.shift))
    assert (a, b) != (1, 0)
    torch.testing.assert_close(after[:, 2:], a * before[:, 2:] + b)


def test_the_correction_is_fitted_to_raw_held_out_samples_among_seen_classes():
    learner = tasks(bic(validation=0.3, memory=40), 3)
    held = int(learner.held_out.size)
    logits = learner.trainer.eval_model(learner.held_out.x[:held]).detach()[:, :6]
    a, b = fit_correction(logits, learner.held_out.y[:held], torch.arange(6) >= 4, 0.1)
    assert float(learner.correction.factor[5]) == pytest.approx(a, rel=1e-5)
    assert float(learner.correction.shift[5]) == pytest.approx(b, rel=1e-5)


def test_the_correction_is_discarded_at_the_boundary_but_stays_in_the_distillation_target():
    learner = tasks(bic(validation=0.3, memory=40), 2)
    correction = learner.correction
    fit = (correction.factor.clone(), correction.shift.clone())
    learner.new_task()
    assert torch.equal(correction.taught_factor, fit[0])
    assert torch.equal(correction.taught_shift, fit[1])
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(learner.scores(x), learner.trainer.eval_model(x).detach()[:, :4])


def test_the_first_task_and_a_task_without_held_out_samples_are_not_corrected():
    first = tasks(bic(validation=0.3), 1)
    crowded = tasks(bic(memory=30, validation=0.1), 2)  # three slots for four classes
    assert int(first.held_out.size) > 0 and int(crowded.held_out.size) == 0
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    for learner in (first, crowded):
        assert learner.trainer.image_counts == {}
        expected = learner.trainer.eval_model(x).detach()[:, : len(learner.classes)]
        torch.testing.assert_close(learner.scores(x), expected)


def test_a_growing_head_adds_rows_without_correction():
    learner = tasks(bic(validation=0.3, memory=40), 2)
    learner.new_task()
    (item,) = batches([list(range(20))])
    learner.learn(*item)
    correction = learner.correction
    assert correction.taught_factor[4:].tolist() == [1] * 28
    assert correction.taught_shift[4:].tolist() == [0] * 28
    assert correction.factor.tolist() == [1] * 32


def test_an_opened_learner_has_the_correction_of_the_saved_one(tmp_path):
    learner = tasks(bic(validation=0.3, memory=40, net="mlp"), 2)
    learner.save(tmp_path / "model.pt")
    again = onepass.open(tmp_path / "model.pt")
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    assert torch.equal(again.scores(x), learner.scores(x))


def test_images_of_the_fit_are_counted():
    learner, count = bic(validation=0.3, memory=40), [0]
    learner.prepare((6,), torch.float32)
    tasks(learner, 1)
    assert learner.trainer.image_counts == {}
    learned(learner, [BOUNDARY, *batches([[2, 3] * 3] * 12, seed=1)])
    on_every_forward(learner, lambda module, given, out: count.append(len(out)))
    learner.end_task()
    assert (
        learner.trainer.image_counts == {"task ends": ImageCount(trained=0, scored=sum(count))}
        and sum(count) == 12
    )


# ---- settings


@pytest.mark.parametrize(
    "wrong",
    [{"validation": 1.0}, {"validation": -0.1}, {"decay": 0.0}, {"temperature": 0.0}],
    ids=str,
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        BiC(**wrong)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "validation": 0.1, "decay": 0.1, "temperature": 2.0}
    assert defaults(BiC, expected) == expected
    assert BiC(mirror=True).cost(10) == ImageCount(trained=148, scored=148)


def test_the_official_preset_has_the_values_of_its_source():
    assert official(BiC) == {
        "optimizer": "nesterov",
        "lr": 0.1,
        "weight_decay": 2e-4,
        "validation": 0.1,
        "decay": 0.1,
        "temperature": 2.0,
    }
