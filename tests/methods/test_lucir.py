"""LUCIR: the three terms against plain loops, fixed rows, and rows that start as class means."""

import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from tiny_learners import (
    BOUNDARY,
    Magnify,
    as_images,
    batches,
    flat,
    learned,
    naive_cross_entropy,
    on_every_forward,
    parameters,
    small,
    with_batchnorm,
)
from torch import Tensor, nn

import onepass
from onepass import ER
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount, Output, Step
from onepass.methods.lucir import LUCIR, margin_ranking
from onepass.nets import ScaledCosineHead

FIRST = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1, 2]]
TASKS = [*FIRST, BOUNDARY, [3, 4, 3], [3], [4, 3], BOUNDARY, [5, 6], [6, 5, 5]]
STREAMS = {
    "tasks": TASKS,
    "one class at a time": [[0] * 4, [0], BOUNDARY, [1] * 4, [1] * 3, BOUNDARY, [2] * 4, [2]],
    "old classes come back": [[0, 1], [1, 2, 0], BOUNDARY, [3, 0, 1], [0, 0, 2], BOUNDARY, [0]],
    "many classes": [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 35]],
}


def lucir(kind: type = LUCIR, **settings: object):
    return small(kind, **{"net": "mlp", "lr": 0.05, **settings})


def cosine(a: list[float], b: list[float]) -> float:
    product = sum(p * q for p, q in zip(a, b, strict=True))
    return product / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))


# ---- the margin


def ranked(values: list[float], new: list[int], margin: float = 0.5) -> float:
    rows = torch.arange(len(values))
    is_new = (rows.unsqueeze(1) == torch.tensor(new)).any(dim=1)
    sample = Output(torch.tensor([values]), torch.tensor([0]), torch.ones(1))
    return margin_ranking(sample, is_new, ~is_new, margin).item()


def test_the_margin_has_the_closed_form_of_two_rivals():
    assert ranked([0.9, 0.6, 0.2, 0.1], [1, 2, 3]) == pytest.approx(0.1)  # (0.2 + 0) / 2
    assert ranked([0.9, 0.2, 0.6, 0.5], [1, 2, 3]) == pytest.approx(0.15)  # (0.2 + 0.1) / 2
    assert ranked([0.9, 0.6, 0.99], [1]) == pytest.approx(0.2)  # the only new class
    assert ranked([0.9, 0.3, 0.3], [1, 2]) == 0


def test_without_old_samples_or_new_classes_there_is_no_margin_and_no_gradient():
    cosines = torch.zeros(2, 4, requires_grad=True)
    out = Output(cosines, torch.tensor([3, 0]), torch.tensor([1.0, 0.0]))
    some, nothing = torch.tensor([False, False, True, True]), torch.zeros(4, dtype=torch.bool)
    for new in (some, nothing):
        loss = margin_ranking(out, new, ~some, 0.5)
        loss.backward()
        assert loss.item() == 0 and not bool(cosines.grad.any())


# ---- whole steps


def naive_terms(learner: LUCIR, out: Output, scale: float, pairs: list, new: set[int]):
    """Computes the terms of the loss by plain loops, from logits, s, and both networks'
    features."""
    seen, ranks, apart = set(range(len(learner.classes))), [], []
    for place, (y, weight) in enumerate(zip(out.y.tolist(), out.weight.tolist(), strict=True)):
        if not weight:
            continue
        apart.append(1 - cosine(*pairs[place]))
        if y not in new:
            cosines = [value / scale for value in out.logits[place].tolist()]
            hardest = sorted((cosines[c] for c in new), reverse=True)[:2]
            excess = [max(0.0, learner.margin - cosines[y] + value) for value in hardest]
            ranks.append(sum(excess) / len(excess) if excess else 0.0)
    return {
        "labels": naive_cross_entropy(out, seen),
        "features": sum(apart) / len(apart),
        "margin": sum(ranks) / len(ranks) if ranks else 0.0,
    }


def check_terms(learner: LUCIR, items) -> dict[str, float]:
    inputs, old = [], 0
    for item in items:
        if item == BOUNDARY:
            learner.new_task()
            old = len(learner.classes)
            continue
        if not inputs:
            learner.prepare(tuple(item[0].shape[1:]), item[0].dtype)
            hook = lambda module, given, out: inputs.append((given[0], out.detach()))  # noqa: E731
            learner.model.body.register_forward_hook(hook)
        scale = float(learner.model.head.scale.detach())
        step = learner.learn(*item)
        views, features = inputs[-1]
        new = set(range(old, len(learner.classes)))
        taught = learner.previous.features(views)
        pairs = list(zip(features.tolist(), taught.tolist(), strict=True))
        expected = naive_terms(learner, step.together, scale, pairs, new)
        got = {name: term.item() for name, term in step.terms.items()}
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-5)
        strength = learner.distill * math.sqrt(old / max(len(new), 1))
        loss = expected["labels"] + strength * expected["features"] + expected["margin"]
        assert step.loss.item() == pytest.approx(loss, rel=1e-4, abs=1e-5)
    return got


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"memory": 0}, {"distill": 1.0, "margin": 0.1}, {"scale": 1.0}, {"head": "frozen"}],
    ids=str,
)
def test_terms_and_loss_agree_with_plain_loops(name, settings):
    last = check_terms(lucir(**settings), batches(STREAMS[name]))
    if name == "tasks" and not settings:
        assert min(last.values()) > 1e-3


def test_mirror_images_count_as_samples():
    check_terms(lucir(net=nn.Flatten(), mirror=True), as_images(batches(TASKS)))


def test_logits_are_cosines_times_a_trained_scale():
    learner = learned(lucir(), batches(FIRST))
    head = learner.model.head
    assert isinstance(head, ScaledCosineHead)
    assert float(head.scale.detach()) != 10 and head.scale.grad is not None
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(4))
    features = learner.trainer.eval_model.features(x)
    for feature, scores in zip(features, learner.scores(x), strict=True):
        rows = head.weight.detach()[:3].tolist()
        expected = [float(head.scale.detach()) * cosine(feature.tolist(), row) for row in rows]
        assert scores.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_size_of_features_changes_nothing():
    losses = []
    for factor in (1.0, 100.0):
        learner = learned(lucir(net=Magnify(factor), lr=1e-3), batches(TASKS))
        losses.append(learner.learn(*next(batches([[5, 6, 6]], seed=8))).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_network_that_does_not_move_has_the_features_of_the_previous_one():
    (item,) = batches([[5, 6, 6]], seed=8)
    still, moving = (learned(lucir(lr=lr), batches(TASKS)) for lr in (1e-30, 0.05))
    assert still.learn(*item).terms["features"].item() < 1e-6
    assert moving.learn(*item).terms["features"].item() > 1e-4


class CosineER(ER):
    """ER with LUCIR's head."""

    def make_head(self, features, rng):
        return ScaledCosineHead(features, 16, rng, 10.0)


def test_in_the_first_task_it_is_er_with_a_cosine_head_and_one_mean():
    settings = {"net": with_batchnorm(), "memory": 100, "replay": 100}
    ours = parameters(lucir(**settings), FIRST)
    er = parameters(lucir(CosineER, **settings, loss="mean", forwards="joint"), FIRST)
    torch.testing.assert_close(ours, er, atol=1e-5, rtol=0)


# ---- rows


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_after_the_boundary_old_rows_stay_and_new_rows_train(optimizer):
    learner = learned(lucir(optimizer=optimizer, weight_decay=0.1), batches(TASKS[:7]))
    weight = learner.model.head.weight
    learner.new_task()
    at_boundary = weight.detach().clone()
    items = list(batches([[5, 6], [6, 5, 5], [5, 6]], seed=8))
    learner.learn(*items[0])
    first = weight.detach().clone()
    learned(learner, items[1:])
    assert torch.equal(weight[:5], at_boundary[:5])
    assert not any(torch.equal(weight[row], first[row]) for row in (5, 6))


def test_an_opened_learner_keeps_the_same_rows_fixed(tmp_path):
    learner = learned(lucir(), batches(TASKS[:6]))
    learner.save(tmp_path / "model.pt")
    again = onepass.open(tmp_path / "model.pt")
    old = again.model.head.weight[:3].detach().clone()
    for trained in (learner, again):
        learned(trained, batches([[4, 3], [3, 4]], seed=8))
    assert torch.equal(again.model.head.weight[:3], old)
    assert learner.state_sha256() == again.state_sha256()


class Imprinted(NamedTuple):
    """A learner that hardly moves, and the step that brings classes 3 and 4: features of the batch,
    and rows before and after."""

    learner: LUCIR
    step: Step
    features: Tensor
    before: Tensor
    after: Tensor


def imprinted(**settings: object) -> Imprinted:
    learner = lucir(**{"lr": 1e-12, **settings})
    learned(learner, [*batches(FIRST), BOUNDARY])
    before = learner.model.head.weight.detach().clone()
    x, y = next(batches([[3, 4, 3, 1, 3]], seed=8))
    features = learner.trainer.eval_model.features(x).detach()
    step = learner.learn(x, y)
    return Imprinted(learner, step, features, before, learner.model.head.weight.detach().clone())


def test_a_new_row_is_its_classs_mean_unit_feature_at_the_length_of_old_rows():
    _, _, features, before, after = imprinted()
    length = before[:3].norm(dim=1).mean()
    of_three = F.normalize(features[[0, 2, 4]]).mean(dim=0)
    for row, mean in ((3, of_three), (4, features[1])):
        torch.testing.assert_close(after[row], length * F.normalize(mean, dim=0))
    kept = [0, 1, 2, *range(5, 16)]
    torch.testing.assert_close(after[kept], before[kept])


def test_mirror_images_are_imprinted_too():
    learner = lucir(net=nn.Flatten(), mirror=True, lr=1e-12)
    items = list(as_images(batches([*FIRST, BOUNDARY, [3, 4, 3]])))
    learned(learner, items)
    x = items[-1][0]
    of_three = torch.cat([x[[0, 2]], x[[0, 2]].flip(3)]).flatten(1).float()
    direction = F.normalize(F.normalize(of_three).mean(dim=0), dim=0)
    row = learner.model.head.weight[3].detach()
    torch.testing.assert_close(F.normalize(row, dim=0), direction)


def test_the_step_that_brings_a_class_uses_its_imprinted_row():
    """The only sample of class 4 has cosine 1 with its row, and s is 10."""
    logits = imprinted().step.outputs[0].logits[1]
    assert float(logits[4]) == pytest.approx(10.0, abs=1e-3)


def test_a_row_is_imprinted_once():
    then = imprinted()
    learned(then.learner, batches([[3, 4, 3]], seed=9))
    torch.testing.assert_close(then.learner.model.head.weight.detach(), then.after)


def test_rows_of_the_first_task_and_frozen_ones_are_not_imprinted():
    learner = lucir(lr=1e-12)
    learner.prepare((6,), torch.float32)
    born = learner.model.head.weight.detach().clone()
    learned(learner, batches(FIRST))
    torch.testing.assert_close(learner.model.head.weight.detach(), born)
    frozen = imprinted(head="frozen")
    assert torch.equal(frozen.before, frozen.after)
    assert float(frozen.step.outputs[0].logits[1][4]) < 9  # nor in the step itself


def test_a_class_with_zero_features_keeps_its_initial_row():
    learner = learned(lucir(net=Magnify(), lr=1e-12), [*batches(FIRST), BOUNDARY])
    before = learner.model.head.weight[3].detach().clone()
    learner.learn(torch.zeros(2, 6), [3, 3])
    torch.testing.assert_close(learner.model.head.weight[3].detach(), before)
    assert bool(torch.isfinite(flat(learner)).all())


# ---- settings and costs


def test_stream_and_replay_have_one_forward():
    learner, sizes = lucir(net=with_batchnorm()), []
    learner.prepare((6,), torch.float32)
    on_every_forward(learner, lambda module, given, out: sizes.append(len(out)))
    learned(learner, batches([[0, 1, 2], BOUNDARY, [3, 4]]))
    assert sizes == [15, 14]


@pytest.mark.parametrize("wrong", [{"distill": -1.0}, {"margin": -0.1}, {"scale": 0.0}], ids=str)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        LUCIR(**wrong)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "distill": 5.0, "margin": 0.5, "scale": 10.0}
    assert defaults(LUCIR, expected) == expected
    assert LUCIR(mirror=True).cost(10) == ImageCount(trained=148, scored=148)


def test_the_official_preset_has_the_values_of_its_source():
    assert official(LUCIR) == {
        "optimizer": "nesterov",
        "lr": 0.1,
        "weight_decay": 5e-4,
        "distill": 5.0,
        "margin": 0.5,
        "scale": 1.0,
    }
