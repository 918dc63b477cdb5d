"""CCIL: the terms against plain loops, the learning rates, and the limit ER."""

import math

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from tiny_learners import BOUNDARY, as_tuples, batches, naive_cross_entropy, parameters, small
from torch import Tensor

from onepass import ER
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount, Output
from onepass.methods.ccil import CCIL
from onepass.nets import CosineHead

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1], BOUNDARY, [3, 4, 3, 4], [3], [4, 3, 0], BOUNDARY, [5]]


def ccil(**settings: object) -> CCIL:
    return small(CCIL, **{"lr": 0.1, **settings})


def softened(logits: list[float], known: set[int], t: float) -> dict[int, float]:
    total = sum(math.exp(logits[c] / t) for c in known)
    return {c: math.exp(logits[c] / t) / total for c in known}


def naive_distillation(output: Output, taught: Tensor, known: set[int], t: float) -> float:
    """Computes T^2 times the mean over samples and known classes of p' log(p' / p) by plain
    loops."""
    terms, samples = 0.0, 0
    for (logits, _, weight), theirs in zip(as_tuples(output), taught.tolist(), strict=True):
        if weight:
            p, q = softened(theirs, known, t), softened(logits, known, t)
            terms += sum(p[c] * math.log(p[c] / q[c]) for c in known)
            samples += 1
    return t**2 * terms / (samples * len(known)) if samples and known else 0.0


@pytest.mark.parametrize(
    "settings",
    [{}, {"classifier": "linear"}, {"classifier": "scaled-cosine"}, {"memory": 5}],
    ids=str,
)
def test_the_loss_of_every_step_agrees_with_plain_loops(settings):
    learner, known, first = ccil(distillation=3.0, net="mlp", **settings), set(), 0
    taught: list[Tensor] = []
    for item in batches(TASKS):
        if item == BOUNDARY:
            known, first = set(range(len(learner.classes))), len(learner.classes)
            learner.new_task()
            continue
        if not learner.steps:
            learner.prepare((6,), torch.float32)
            learner.previous.model.register_forward_hook(lambda *given: taught.append(given[2]))
        step, y = learner.learn(*item), item[1]
        seen = len(learner.classes)
        new_out, replay_out = step.outputs
        stream_out = new_out._replace(weight=torch.ones(len(y)))
        of_stream, of_replay = taught[-1].split([len(y), learner.replay])
        stream_loss = naive_cross_entropy(new_out, set(range(first, seen)))
        replay_loss = naive_cross_entropy(replay_out, set(range(seen)))
        old = naive_distillation(stream_out, of_stream, known, 2.0)
        old += naive_distillation(replay_out, of_replay, known, 2.0)
        f = 3 * (seen / (seen - first)) ** 0.66
        expected = stream_loss + replay_loss + f * old
        assert step.loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_stream_sample_of_an_old_class_trains_only_through_the_memory():
    learner = ccil()
    for item in batches([[0, 1], [1, 0], BOUNDARY, [2, 0, 3]]):
        step = learner.new_task() if item == BOUNDARY else learner.learn(*item)
    assert step.outputs[0].weight.tolist() == [1, 0, 1]


def test_a_task_without_new_classes_is_learned_from_the_memory():
    learner = ccil()
    for item in batches([[0, 1], [1, 0], BOUNDARY, [1, 0, 1]]):
        step = learner.new_task() if item == BOUNDARY else learner.learn(*item)
    assert step.terms["stream"].item() == 0 and math.isfinite(step.loss.item())
    assert step.terms["replay"].item() > 0


def test_exemplars_are_balanced_over_classes_new_ones_included():
    learner = ccil(memory=12)
    for item in batches([[0] * 10, [0, 1] * 5, [1] * 10, BOUNDARY, [2] * 8, [3] * 8]):
        learner.new_task() if item == BOUNDARY else learner.learn(*item)
    held = learner.store.y[: int(learner.store.size)]
    assert torch.bincount(held).tolist() == [3, 3, 3, 3]


def test_one_task_with_linear_logits_is_er():
    """Every sample is stored and drawn, so both learners replay the same."""
    stream = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 1]]
    got = parameters(ccil(classifier="linear", replay=30), stream)
    expected = parameters(small(ER, lr=0.1, replay=30, forwards="separate"), stream)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nesterov", "adamw"])
def test_the_learning_rate_changes_at_the_first_boundary(optimizer):
    """Two rates that differ by a factor make steps that differ by this factor, also after saving
    and opening."""
    stream = list(batches([[0, 1, 0], [1, 0, 1]]))
    later = next(iter(batches([[2, 3, 2]], seed=4)))
    moves = []
    for factor in (1.0, 0.1):
        learner = ccil(optimizer=optimizer, later_rate=factor, lr=1e-3)
        for item in stream:
            learner.learn(*item)
        learner.new_task()
        before = learner.model.head.weight[:2].detach().clone()
        again = CCIL(**learner.get_params())
        again.load_state_dict(learner.state_dict())
        learner.learn(*later)
        again.learn(*later)
        assert again.state_sha256() == learner.state_sha256()
        moves.append(learner.model.head.weight[:2].detach() - before)
    assert bool(moves[0].any())
    torch.testing.assert_close(moves[1], 0.1 * moves[0], rtol=1e-2, atol=1e-6)


def test_the_default_head_is_a_cosine():
    learner = ccil()
    learner.learn(*next(iter(batches([[0, 1]]))))
    head = learner.model.head
    assert isinstance(head, CosineHead)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    expected = 10 * F.normalize(x) @ F.normalize(head.weight[:2]).T
    torch.testing.assert_close(learner.scores(x), expected.detach())


def test_the_authors_factor_starts_at_one_and_takes_a_step_of_gradient_descent():
    """In the first step the loss is one cross-entropy, whose derivative to the factor is the mean
    of sum_c (p_c - [c = y]) cos_c."""
    (x, y), *_ = batches([[0, 1, 2, 1]])
    learner = ccil(classifier="scaled-cosine", lr=0.3)
    learner.prepare((6,), torch.float32)
    head = learner.model.head
    rows = head.weight[:3].detach().tolist()
    assert float(head.scale.detach()) == 1
    learner.learn(x, y)
    slope = 0.0
    for vector, label in zip(x.tolist(), y.tolist(), strict=True):
        cosines = [
            sum(a * b for a, b in zip(vector, row, strict=True))
            / (math.hypot(*vector) * math.hypot(*row))
            for row in rows
        ]
        p = softened(cosines, {0, 1, 2}, 1.0)
        slope += sum((p[c] - (c == label)) * cosines[c] for c in p) / len(y)
    assert float(head.scale.detach()) == pytest.approx(1 - 0.3 * slope, rel=1e-5)


def test_the_previous_network_gets_the_same_inputs_as_the_network():
    learner = ccil(replay=12)
    assert learner.cost(10) == ImageCount(trained=22, scored=22)


def test_the_defaults_are_the_common_setting():
    expected = COMPARABLE | {"replay": 64, "distillation": 1.0, "temperature": 2.0}
    expected |= {"later_rate": 1.0, "classifier": "cosine"}
    assert defaults(CCIL, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    optimiser = {"optimizer": "nesterov", "lr": 0.1, "later_rate": 0.1, "weight_decay": 5e-4}
    others = {"replay": 10, "distillation": 5.0, "temperature": 2.0, "classifier": "scaled-cosine"}
    assert official(CCIL) == optimiser | others


@pytest.mark.parametrize(
    "setting", [{"temperature": 0.0}, {"distillation": -0.1}, {"later_rate": 0.0}]
)
def test_bad_settings_are_refused_by_name(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        CCIL(**setting)
