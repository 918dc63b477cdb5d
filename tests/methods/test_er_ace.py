"""ER-ACE against its equation, and against ER where both are equal."""

import pytest
import torch
from expected_settings import COMPARABLE, PLAIN_SGD, defaults, official
from tiny_learners import (
    BOUNDARY,
    Magnify,
    batches,
    kept_logits,
    naive_cross_entropy,
    parameters,
    small,
    with_batchnorm,
)
from torch import nn

from onepass import ER
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount
from onepass.base.settings import construct
from onepass.methods.er_ace import ERACE
from onepass.nets import CosineHead, Head

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1], BOUNDARY, [3, 4, 3, 4], [3, 3], [4, 3, 4]]
STREAMS = {
    "tasks": TASKS,
    "one class at a time": [[0] * 4, [0], BOUNDARY, [1] * 4, [1] * 3, BOUNDARY, [2] * 4, [2]],
    "old classes come back": [[0, 1], [1, 2, 0], BOUNDARY, [3, 0, 1], [0, 0, 2], [3]],
    "many classes": [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 35]],
}


def er_ace(kind: type = ERACE, **settings: object):
    return small(kind, **settings)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"memory": 0}, {"memory": 3}, {"classifier": "cosine"}, {"head": "frozen"}],
    ids=str,
)
def test_terms_and_loss_agree_with_plain_loops(name, settings):
    learner, seen = er_ace(**settings), set()
    for item in batches(STREAMS[name]):
        if item == BOUNDARY:
            learner.new_task()
            continue
        step = learner.learn(*item)
        present = {learner.class_index.row_of[label] for label in item[1].tolist()}
        seen |= present
        stream, replay = step.outputs
        expected = {
            "stream": naive_cross_entropy(stream, present),
            "replay": naive_cross_entropy(replay, seen),
        }
        assert {name: term.item() for name, term in step.terms.items()} == pytest.approx(
            expected, rel=1e-5, abs=1e-6
        )
        assert step.loss.item() == pytest.approx(sum(expected.values()), rel=1e-5, abs=1e-6)


def test_mirror_images_count_as_samples():
    learner = er_ace(net=nn.Flatten(), mirror=True)
    for x, y in batches([[0, 1, 2, 1], [2, 0, 0, 1], [1, 1]]):
        images = (40 * (x.clamp(-3, 3) + 3)).to(torch.uint8).view(-1, 1, 2, 3)
        step = learner.learn(images, y)
        stream, replay = step.outputs
        assert (len(stream.y), len(replay.y)) == (2 * len(y), 24)
        rows = {learner.class_index.row_of[label] for label in y.tolist()}
        expected = naive_cross_entropy(stream, rows) + naive_cross_entropy(replay, {0, 1, 2})
        assert step.loss.item() == pytest.approx(expected, rel=1e-5)


def test_stream_samples_do_not_move_the_rows_of_absent_classes():
    learner = er_ace()
    for item in batches(TASKS):
        if item == BOUNDARY:
            learner.new_task()
            continue
        with kept_logits() as kept:
            learner.learn(*item)
        stream, _ = kept  # separate forward passes, as in the reference
        present = {learner.class_index.row_of[label] for label in item[1].tolist()}
        touched = set(stream.grad.abs().sum(dim=0).nonzero().flatten().tolist())
        assert touched == (present if len(present) > 1 else set())


EVERY_CLASS = [[0, 1, 2, 3, 1], [3, 2, 1, 0, 0], [0, 1, 2, 3, 2]] * 4


def test_with_every_class_in_every_batch_it_is_er_with_the_sum_of_two_means():
    ours = parameters(er_ace(net="mlp", lr=0.1), EVERY_CLASS)
    er = parameters(er_ace(ER, net="mlp", lr=0.1, forwards="separate", loss="sum"), EVERY_CLASS)
    torch.testing.assert_close(ours, er, atol=1e-6, rtol=0)


def test_with_a_class_missing_in_the_batch_it_is_not_er():
    ours = parameters(er_ace(net="mlp", lr=0.1), TASKS)
    er = parameters(er_ace(ER, net="mlp", lr=0.1, forwards="separate"), TASKS)
    assert float((ours - er).abs().max()) > 1e-3


def test_batchnorm_sees_stream_and_replay_separately():
    settings = {"net": with_batchnorm(), "lr": 0.1}
    ours = parameters(er_ace(**settings), EVERY_CLASS)
    separate = parameters(er_ace(ER, **settings, forwards="separate"), EVERY_CLASS)
    joint = parameters(er_ace(ER, **settings, forwards="joint"), EVERY_CLASS)
    torch.testing.assert_close(ours, separate, atol=1e-5, rtol=0)
    assert float((ours - joint).abs().max()) > 1e-3


def test_a_batch_of_one_class_trains_only_by_replay():
    learner = er_ace(memory=0)
    first, *others = batches([[0, 1], [1, 1, 1], [0]])
    learner.learn(*first)
    before = learner.params_sha256()
    for item in others:
        step = learner.learn(*item)
        assert step.terms["stream"].item() == step.loss.item() == 0
    assert learner.params_sha256() == before


def test_the_first_task_is_like_any_other():
    learner = er_ace()
    steps = [learner.learn(*item) for item in batches([[0, 1, 1, 0], [1, 1, 1]])]
    assert steps[0].terms["replay"].item() == 0  # nothing is stored yet
    assert steps[1].terms["stream"].item() == 0  # class 0 does not compete
    assert steps[1].terms["replay"].item() > 0


def test_classes_not_yet_seen_take_no_part():
    plain, loud = er_ace(), er_ace()
    for learner in (plain, loud):
        learner.prepare((6,), torch.float32)
    for bias in (loud.model.head.bias, loud.model.head.held_bias):
        bias.data[5:] = 50.0
    for item in batches(TASKS):
        if item == BOUNDARY:
            plain.new_task()
            loud.new_task()
        else:
            assert torch.equal(plain.learn(*item).loss, loud.learn(*item).loss)


def test_the_cosine_classifier_has_scale_ten_and_ignores_lengths():
    small, large = (er_ace(net=Magnify(factor), classifier="cosine") for factor in (1, 7))
    for item in batches(TASKS):
        if item == BOUNDARY:
            small.new_task()
            large.new_task()
            continue
        torch.testing.assert_close(small.learn(*item).loss, large.learn(*item).loss)
    assert isinstance(small.model.head, CosineHead)
    with torch.no_grad():
        at_itself = small.model.head(small.model.head.weight).diag()
    torch.testing.assert_close(at_itself, torch.full((16,), 10.0))


def test_the_default_classifier_is_linear():
    learner = er_ace()
    learner.prepare((6,), torch.float32)
    assert type(learner.model.head) is Head


@pytest.mark.parametrize(
    "wrong", [{"memory": -1}, {"replay": 0}, {"classifier": "dot"}, {"replay": 2.5}], ids=str
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ERACE(**wrong)


def test_the_cost_is_that_of_er_and_the_official_preset_is_cosine():
    assert ERACE().cost(10) == ImageCount(trained=74)
    assert ERACE(mirror=True).cost(10) == ImageCount(trained=148)
    official = construct(ERACE, **ERACE.presets["official"].settings)
    assert (official.classifier, official.optimizer, official.lr) == ("cosine", "sgd", 0.1)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "classifier": "linear"}
    assert defaults(ERACE, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(ERACE) == {**PLAIN_SGD, "classifier": "cosine"}
