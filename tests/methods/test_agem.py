"""A-GEM: closed forms of the projection, and whole steps against plain loops."""

import math

import naive_linear as naive
import pytest
import torch
from expected_settings import COMPARABLE, PLAIN_SGD, defaults, official
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_learners import BOUNDARY, Magnify, double, flat, on_every_forward, small
from torch import nn

from onepass import Finetune
from onepass.base.errors import InputError
from onepass.base.settings import construct
from onepass.methods.agem import AGEM, project

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)
YES, NO = torch.tensor(True), torch.tensor(False)

# ---- the projection


def dot(a, b):
    return sum(float((left * right).sum()) for left, right in zip(a, b, strict=True))


number = st.floats(-100, 100).filter(lambda value: value == 0 or abs(value) > 1e-3)
six = st.lists(number, min_size=6, max_size=6)


def pieces(values):
    """Returns six numbers as the gradients of three parameters."""
    flat = double(values)
    return [flat[:1], flat[1:5].view(2, 2), flat[5:].view(())]


def test_the_two_dimensional_case():
    (got,) = project([double([1, 0])], [double([-1, 1])], YES)
    assert got.tolist() == [0.5, 0.5]


@PROPERTY
@given(six, six)
def test_the_projection_agrees_with_the_reference_and_is_not_longer_than_the_gradient(g, r):
    gradient, reference = pieces(g), pieces(r)
    got = project(gradient, reference, YES)
    scale = math.sqrt(dot(gradient, gradient) * dot(reference, reference))
    assert dot(got, reference) >= -1e-9 * scale
    assert dot(got, got) <= dot(gradient, gradient) * (1 + 1e-9)
    if dot(gradient, reference) < 0:
        assert dot(got, reference) == pytest.approx(0, abs=1e-9 * scale)
    again = project(got, reference, YES)
    assert all(
        torch.allclose(value, expected, atol=1e-8)
        for value, expected in zip(again, got, strict=True)
    )


@PROPERTY
@given(six, six)
def test_the_projection_is_the_plain_formula_over_all_parameters(g, r):
    overlap, square = (sum(a * b for a, b in zip(left, r, strict=True)) for left in (g, r))
    expected = g
    if overlap < 0:
        expected = [a - overlap / square * b for a, b in zip(g, r, strict=True)]
    got = project(pieces(g), pieces(r), YES)
    assert [tuple(value.shape) for value in got] == [(1,), (2, 2), ()]
    flat = torch.cat([value.flatten() for value in got]).tolist()
    assert flat == pytest.approx(expected, rel=1e-9, abs=1e-9)


@PROPERTY
@given(six, six)
def test_without_a_conflict_no_bit_changes(g, r):
    if dot(pieces(g), pieces(r)) < 0:
        r = [-value for value in r]
    got = project(pieces(g), pieces(r), YES)
    assert all(torch.equal(value, same) for value, same in zip(got, pieces(g), strict=True))


@PROPERTY
@given(six, six, st.floats(1e-3, 1e3))
def test_the_length_of_the_reference_does_not_matter(g, r, factor):
    got = project(pieces(g), pieces(r), YES)
    scaled = project(pieces(g), [factor * part for part in pieces(r)], YES)
    assert all(
        torch.allclose(value, expected, atol=1e-8)
        for value, expected in zip(got, scaled, strict=True)
    )


def test_a_gradient_opposite_to_the_reference_becomes_zero():
    g = pieces([3, -1, 4, 1, -5, 9])
    assert all(not bool(value.any()) for value in project(g, [-value for value in g], YES))


def test_the_projection_changes_no_bit_where_it_does_not_apply():
    g, r = pieces([1, 2, 3, 4, 5, 6]), pieces([-1, -1, -1, -1, -1, -1])
    assert all(torch.equal(value, same) for value, same in zip(project(g, r, NO), g, strict=True))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-45])
def test_a_reference_of_almost_no_length_is_harmless(size):
    g, r = [torch.tensor([1.0, 2.0])], [torch.tensor([-size, -size])]
    (got,) = project(g, r, YES)
    assert bool(torch.isfinite(got).all()) and float(got.norm()) <= float(g[0].norm())
    if size == 0:
        assert torch.equal(got, g[0])


def test_gradients_keep_the_layout_of_their_parameters():
    """Fused optimisers read tensors in storage order, so another layout would mix up the
    weights."""
    weight = naive.vectors(8).view(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    plain = weight.contiguous()
    (got,) = project([weight], [-weight + 0.1], YES)
    assert got.stride() == weight.stride() != plain.stride()
    (expected,) = project([plain], [-plain + 0.1], YES)
    torch.testing.assert_close(got, expected)


# ---- whole steps


def agem(**changed):
    learner = small(AGEM, **changed)
    learner.prepare((naive.FEATURES,), torch.float32)
    return learner


def finetune(**changed):
    return small(Finetune, **changed)


CASES = [
    *((name, {}) for name in naive.STREAMS),
    ("tasks", {"replay": 1}),
    ("tasks", {"memory": 200, "replay": 64}),
    ("tasks", {"memory": 2}),
    ("tasks", {"memory": 0}),
    ("short batches", {"memory": 0}),
]


@pytest.mark.parametrize(("name", "changed"), CASES, ids=str)
def test_every_step_agrees_with_plain_loops(name, changed):
    learner = agem(**changed)
    drawn = naive.record_calls(learner.store, "draw")
    projected = 0
    for step, theta, stream, seen, held, tasks in naive.naive_steps(learner, name):
        memory = naive.weighted(drawn[-1][1])
        assert len(memory) == min(learner.replay, held)  # drawn before the batch is stored
        g, r = (naive.gradient(theta, some, seen) for some in (stream, memory))
        if tasks and naive.dot(g, r) < 0:
            g = naive.add_scaled(g, r, -naive.dot(g, r) / naive.dot(r, r))
            projected += 1
        expected = naive.add_scaled(theta, g, -learner.lr)
        torch.testing.assert_close(
            torch.tensor(naive.weights(learner)), torch.tensor(expected), rtol=1e-4, atol=1e-5
        )
        mean = naive.mean_loss(theta, stream, seen)
        assert step.loss.item() == pytest.approx(mean, rel=1e-4, abs=1e-6)
        mean = naive.mean_loss(theta, memory, seen)
        assert step.terms["replay"].item() == pytest.approx(mean, rel=1e-4, abs=1e-6)
    if changed.get("memory", 30) and name != "one class":
        assert projected  # the case has a conflict, or it tests nothing


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_first_task_is_finetuning(optimizer):
    chosen = {"net": "mlp", "optimizer": optimizer, "lr": 0.01, "weight_decay": 1e-3}
    learner, plain = agem(**chosen), finetune(**chosen)
    gradients = naive.record_calls(learner.trainer, "gradients")
    for label in (
        0,
        1,
        2,
        0,
    ):  # equal samples with other labels, so that memory and stream conflict
        for each in (learner, plain):
            each.learn(naive.vectors(10), [label] * 10)
    assert torch.equal(flat(learner), flat(plain))
    found = [each for _, each in gradients]
    assert any(dot(g, r) < 0 for g, r in zip(found[::2], found[1::2], strict=True))


def test_without_memory_it_is_finetuning():
    learner, plain = agem(net="mlp", memory=0), finetune(net="mlp")
    assert torch.equal(naive.teach(learner, "tasks"), naive.teach(plain, "tasks"))


def test_with_the_stream_batch_as_memory_it_is_finetuning():
    learner, plain = agem(net="mlp"), finetune(net="mlp")
    learner.store.draw = lambda count, fallback: fallback
    assert torch.equal(naive.teach(learner, "tasks"), naive.teach(plain, "tasks"))


def test_with_memory_it_is_not_finetuning():
    learner, plain = agem(net="mlp"), finetune(net="mlp")
    assert not torch.equal(naive.teach(learner, "tasks"), naive.teach(plain, "tasks"))


def test_an_inferred_boundary_has_the_effect_of_a_given_one():
    told, inferred, none = agem(), agem(gap=2), agem(gap=99)
    ends = []
    for learner in (told, inferred, none):
        for item in naive.items("tasks"):
            if item != BOUNDARY:
                learner.learn(*item)
            elif learner is told:
                learner.new_task()
        ends.append(flat(learner))
    assert torch.equal(ends[0], ends[1])
    plain = finetune()
    for item in naive.items("tasks"):
        if item != BOUNDARY:
            plain.learn(*item)
    assert torch.equal(ends[2], flat(plain))


def test_a_step_along_the_projection_keeps_the_memorys_loss_to_first_order():
    learner = agem(net="mlp", lr=1e-3, memory=200, replay=64)
    found = naive.record_calls(learner.trainer, "gradients")
    drawn = naive.record_calls(learner.store, "draw")
    conflicts = 0
    for item in naive.items("tasks"):
        if item == BOUNDARY:
            learner.new_task()
            continue
        before = learner.learn(*item).terms["replay"]
        g, r = (each for _, each in found[-2:])
        if learner.task and dot(g, r) < 0:
            after = mean_loss(learner, drawn[-1][1])
            first_order = -learner.lr * dot(g, r)  # the change after a step along g
            assert abs(float(after - before)) < 0.1 * first_order
            conflicts += 1
    assert conflicts


@torch.no_grad()
def mean_loss(learner, samples):
    (output,) = learner.forward(samples)
    logits = output.logits[:, : len(learner.classes)]
    losses = nn.functional.cross_entropy(logits, samples.y, reduction="none")
    return (losses * samples.weight).sum() / samples.weight.sum()


def test_rows_of_a_frozen_head_take_no_part():
    learner = agem(net=nn.Linear(naive.FEATURES, 4), head="frozen")
    found = naive.record_calls(learner.trainer, "gradients")
    conflicts = 0
    for item in naive.items("tasks"):
        if item == BOUNDARY:
            learner.new_task()
            continue
        learner.learn(*item)
        if not learner.task:
            continue
        g, r = (each[:2] for _, each in found[-2:])  # those of the backbone
        conflicts += dot(g, r) < 0
        applied = [parameter.grad for parameter in learner.trainer.trainable[:2]]
        for got, expected in zip(applied, project(g, r, YES), strict=True):
            torch.testing.assert_close(got, expected)
    assert conflicts


@pytest.mark.parametrize(("mirror", "copies"), [(False, 1), (True, 2)])
def test_stream_and_memory_have_separate_forwards(mirror, copies):
    sizes = []
    learner = AGEM(net=nn.Flatten(), memory=30, replay=12, mirror=mirror, device="cpu")
    learner.prepare((3, 4, 4), torch.uint8)
    on_every_forward(
        learner, lambda module, given, out: sizes.append((len(out), torch.is_grad_enabled()))
    )
    images = torch.arange(480).view(10, 3, 4, 4).to(torch.uint8)
    for labels in ([0, 1] * 5, [0, 1] * 5):
        step = learner.learn(images, labels)
    assert sizes == [(10 * copies, True), (12 * copies, True)] * 2
    assert learner.cost(10) == (22 * copies, 0)
    assert [len(output.y) for output in step.outputs] == [10 * copies]  # the stream only


def test_the_draw_is_padded_at_weight_zero_until_the_memory_has_enough():
    learner = agem(replay=16)
    drawn = naive.record_calls(learner.store, "draw")
    x, y = naive.vectors(10), [0, 1] * 5
    terms = [learner.learn(x, y).terms["replay"].item() for _ in range(3)]
    assert terms[0] == 0 and min(terms[1:]) > 0
    assert [int(samples.weight.sum()) for _, samples in drawn] == [0, 10, 16]
    assert [len(samples.y) for _, samples in drawn] == [16] * 3


@pytest.mark.parametrize("name", ["tasks", "old classes come back", "one class at a time"])
@pytest.mark.parametrize("memory", [0, 30])
def test_logits_of_ten_thousand_keep_everything_finite(name, memory):
    learner = agem(net=Magnify(1e5), memory=memory)
    assert bool(torch.isfinite(naive.teach(learner, name)).all())
    assert float(learner.scores(torch.ones(1, naive.FEATURES)).abs().max()) > 1e4


@pytest.mark.parametrize(
    "changed",
    [{"memory": -1}, {"replay": 0}, {"replay": 2.5}, {"memory": "many"}, {"lr": 0.0}],
    ids=str,
)
def test_bad_settings_are_refused(changed):
    with pytest.raises(InputError, match=next(iter(changed))):
        AGEM(**changed)


def test_the_official_preset_learns():
    official = AGEM.presets["official"].settings
    learner = construct(AGEM, **official, net="mlp", device="cpu")
    assert (learner.optimizer, learner.lr, learner.replay) == ("sgd", 0.1, 10)
    assert bool(torch.isfinite(naive.teach(learner, "tasks")).all())


def test_both_forwards_move_batchnorms_statistics():
    linear = nn.Linear(naive.FEATURES, 8)
    linear.weight.data.copy_(naive.vectors(8) / 2)
    linear.bias.data.zero_()
    learner = agem(net=nn.Sequential(linear, nn.BatchNorm1d(8), nn.ReLU()), lr=0.1)
    naive.teach(learner, "tasks")
    linear, norm = learner.model.body[0], learner.model.body[1]
    trained = naive.record_calls(learner, "forward")
    weight, bias = linear.weight.detach().clone(), linear.bias.detach().clone()
    expected = norm.running_mean.clone()
    learner.learn(naive.vectors(4), torch.tensor([5, 6, 6, 5]))
    assert len(trained) == 2
    for some, _ in trained:
        features = some.x @ weight.T + bias
        expected = 0.9 * expected + 0.1 * features.mean(dim=0)
    torch.testing.assert_close(norm.running_mean, expected, rtol=1e-4, atol=1e-5)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64}
    assert defaults(AGEM, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(AGEM) == PLAIN_SGD
