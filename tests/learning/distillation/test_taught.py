"""Tests distillation from the average: known limits, and a second implementation of the loss."""

import copy
import math

import pytest
import torch
from distilling import TASKS, LinearNorm, same, weights
from network_methods import NETWORK_METHODS
from tiny_learners import BOUNDARY, Trained, batches, corners, flat, learned, small
from torch import nn

from onepass import ER, GSA, Finetune
from onepass.base.parts import Samples
from onepass.learning import registry
from onepass.learning.memory_contents import copy_bytes
from onepass.tools.forward_counter import record_forwards

# ---- settings that change nothing


def test_without_distillation_and_repeats_nothing_changes():
    explicit = {"distil": 0.0, "distil_raw": True, "distil_temperature": 1.0, "repeats": 1}
    plain, other = (
        learned(small(GSA, net=LinearNorm(), average=0.9, **settings), batches(TASKS))
        for settings in ({}, explicit)
    )
    assert plain.state_sha256() == other.state_sha256()


def test_without_distillation_the_average_is_not_evaluated_in_a_step():
    learner = learned(small(ER, net=LinearNorm(), average=0.9), batches(TASKS))
    with record_forwards(LinearNorm) as passes:
        step = learner.learn(*corners([2, 3], torch.Generator()))
    assert "distil" not in step.terms
    assert [record.graded for record in passes] == [True]


@pytest.mark.parametrize("forwards", ["joint", "separate"])
def test_an_average_equal_to_the_network_teaches_nothing(forwards):
    """At the first step it is the network itself, and BatchNorm uses the batch's statistics in
    both."""
    chosen = {"net": LinearNorm(), "forwards": forwards, "average": 0.9, "lr": 0.5}
    plain, taught = (small(ER, distil=distil, **chosen) for distil in (0.0, 5.0))
    x, y = corners([0, 1, 2], torch.Generator().manual_seed(1))
    for learner in (plain, taught):
        step = learner.learn(x, y)
    assert float(step.terms["distil"]) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(flat(taught), flat(plain), atol=1e-6, rtol=0)
    for learner in (plain, taught):
        learner.learn(x, y)
    assert not torch.allclose(flat(taught), flat(plain), atol=1e-3)


# ---- the distillation loss


def in_the_midst(**settings):
    chosen = {"net": LinearNorm(), "average": 0.8, "distil": 2.0, **settings}
    return learned(small(ER, **chosen), batches(TASKS))


def after_a_step(change):
    """Returns the parameters after one more step, with the average changed before it."""
    learner = in_the_midst()
    with torch.no_grad():
        change(learner.trainer.distillation.averaged.model.head)
    learner.learn(*corners([2, 3, 2], torch.Generator().manual_seed(9)))
    return flat(learner)


def test_a_constant_added_to_the_averages_logits_changes_nothing():
    usual = after_a_step(lambda head: None)
    torch.testing.assert_close(after_a_step(lambda head: head.bias.add_(3)), usual)
    value = after_a_step(lambda head: head.bias[:1].add_(3))
    assert not torch.allclose(value, usual, atol=1e-3)


def test_only_seen_classes_enter_the_loss():
    usual = after_a_step(lambda head: None)
    assert torch.equal(after_a_step(lambda head: head.bias[4:].add_(50)), usual)


def test_spare_rows_get_no_gradient_from_the_loss():
    learner = in_the_midst()
    learner.learn(*corners([2, 3, 2], torch.Generator().manual_seed(9)))
    gradient = learner.model.head.weight.grad
    assert gradient[:4].abs().sum(dim=1).all()
    assert not gradient[4:].any()


def test_at_high_temperature_the_loss_is_half_the_mean_square_of_centred_gaps():
    """As T goes to infinity, T^2 KL goes to sum_c (gap_c - mean gap)^2 / (2 C)."""
    learner = in_the_midst(distil_temperature=50.0)
    records = expected_losses(learner)
    step = learner.learn(*corners([2, 3, 2], torch.Generator().manual_seed(9)))
    (record,) = records
    gap = (record.own - record.theirs)[record.weight > 0][:, :4]
    centred = gap - gap.mean(dim=1, keepdim=True)
    limit = centred.square().sum(dim=1).mean() / (2 * 4)
    assert float(step.terms["distil"]) == pytest.approx(float(limit), rel=0.05)


class StepRecord:
    """The second implementation of the loss of a step, from its recorded forward passes."""

    def __init__(self, learner):
        outputs = [out for forward in learner.records for out, _ in forward]
        self.weight = torch.cat([out.weight for out in outputs])
        self.own = torch.cat([out.logits for out in outputs]).detach().double()
        views = [torch.cat([out.views for out, _ in forward]) for forward in learner.records]
        self.theirs = logits_of(learner.trainer.distillation.teaching.model, views)
        raw = [[learner.views.normalise(x.x) for _, x in forward] for forward in learner.records]
        if learner.views_per_sample == 2:
            raw = [[torch.cat([x, x.flip(3)]) for x in forward] for forward in raw]
        self.of_raw = logits_of(learner.model, [torch.cat(forward) for forward in raw])
        losses = [naive_loss(self.own, self, learner)]
        if learner.distil_raw:
            losses.append(naive_loss(self.of_raw, self, learner))
        self.loss = sum(losses) / len(losses)


def logits_of(model, forwards):
    """Returns the logits of a network in training mode, batch by batch. Leaves the learner's
    statistics unchanged."""
    training = copy.deepcopy(model).train()
    return torch.cat([training(x) for x in forwards]).detach().double()


def naive_loss(own, record, learner):
    """Computes T^2 mean_i sum_c p_ic log(p_ic / q_ic) by loops, over classes seen and genuine
    views."""
    t, seen = learner.distil_temperature, len(learner.classes)
    found = []
    for q_logits, p_logits, weight in zip(own, record.theirs, record.weight, strict=True):
        if not weight:
            continue
        p, q = (
            [math.exp(value / t) for value in row[:seen].tolist()] for row in (p_logits, q_logits)
        )
        p, q = [value / sum(p) for value in p], [value / sum(q) for value in q]
        found.append(t * t * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return sum(found) / len(found) if found else 0.0


def expected_losses(learner):
    """Returns what the distillation loss of each update must be, from the step's forward passes."""
    return recording(learner, StepRecord)


def recording(learner, note):
    """Calls `note` on the learner before each update. `learner.records` then holds the forward
    passes since the last update: the outputs and their samples."""
    learner.records, expected = [], []
    note_forward, descend, gradients = (
        learner.trainer.record_forward,
        learner.descend,
        learner.trainer.gradients,
    )

    def noting_forward(outputs, batches):
        learner.records.append(list(zip(outputs, batches, strict=True)))
        note_forward(outputs, batches)

    def noting_first(call):
        def go_on(loss):
            expected.append(note(learner))
            learner.records.clear()
            return call(loss)

        return go_on

    learner.trainer.record_forward = noting_forward
    learner.descend, learner.trainer.gradients = noting_first(descend), noting_first(gradients)
    return expected


CASES = [
    ("er", {"forwards": "joint"}),
    ("er", {"forwards": "separate"}),
    ("gsa", {"forwards": "joint"}),
    ("gsa", {"forwards": "separate"}),
    ("gsa-released", {}),
    ("agem", {}),
    ("mir", {}),
    ("lucir", {}),
    ("er-aml", {}),
    ("bic", {}),
]


@pytest.mark.parametrize(("raw", "mirror"), [(False, False), (True, True)])
@pytest.mark.parametrize(("key", "settings"), CASES)
def test_the_loss_equals_that_of_a_second_implementation(key, settings, raw, mirror):
    """This covers augmented images, an empty memory in the first step, and a second task."""
    learner = small(
        registry.get(key).learner,
        net=LinearNorm(16),
        lr=0.5,
        augment="crop-grey",
        mirror=mirror,
        average=0.8,
        distil=2.0,
        distil_temperature=3.0,
        distil_raw=raw,
        **settings,
    )
    source, some = torch.Generator().manual_seed(1), 0
    for labels in TASKS:
        if labels == BOUNDARY:
            learner.new_task()
            continue
        x = torch.randint(256, (len(labels), 1, 4, 4), generator=source, dtype=torch.uint8)
        if not learner._prepared:
            learner.prepare((1, 4, 4), torch.uint8)
            expected = expected_losses(learner)
        step = learner.learn(x, labels)
        right = sum(record.loss for record in expected)
        assert float(step.terms["distil"]) == pytest.approx(right, rel=1e-3, abs=1e-5)
        some += len(expected) > 0 and right > 1e-4
        padded = any(not record.weight.all() for record in expected)
        assert padded or learner.steps > 1 or key == "agem", "the memory was empty"
        expected.clear()
    assert some >= 5, "every step but the first has a loss worth comparing"


def logits_of_views(learner):
    """Returns the network's logits of the kept views, and its logits in the step."""
    return [
        (learner.model(out.views), out.logits) for forward in learner.records for out, _ in forward
    ]


DISTILLING = [
    key for key in NETWORK_METHODS if "distil" not in registry.get(key).learner.traits.unsupported
]


@pytest.mark.parametrize("key", DISTILLING)
def test_the_average_is_evaluated_on_the_networks_views(key):
    """Without BatchNorm the network returns the same logits for them again."""
    kind = registry.get(key).learner
    settings = {"augment": "crop-grey", "mirror": True, "average": 0.8, "distil": 1.0}
    learner = small(kind, net=Trained(), lr=0.05, **kind.traits.quick, **settings)
    learner.prepare((1, 4, 4), torch.uint8)
    pairs = recording(learner, logits_of_views)
    source = torch.Generator().manual_seed(1)
    for labels in TASKS:
        if labels == BOUNDARY:
            learner.new_task()
        else:
            shape = (len(labels), 1, 4, 4)
            x = torch.randint(256, shape, generator=source, dtype=torch.uint8)
            learner.learn(x, labels)
    assert len(pairs) >= 6
    for again, in_step in (pair for step in pairs for pair in step):
        torch.testing.assert_close(again, in_step)


@pytest.mark.parametrize("raw", [False, True])
def test_the_optimiser_minimises_the_loss_plus_distillation(raw):
    """The reference is one SGD step on a linear network, by autograd on the formula."""
    learner = learned(
        small(Finetune, average=0.8, distil=2.0, distil_raw=raw, mean=(1.0,), std=(2.0,)),
        batches([[0, 1, 2], [2, 1, 0, 0], [1, 2, 1]]),
    )
    x, y = corners([0, 2, 1, 1], torch.Generator().manual_seed(4))
    head, seen = learner.model.head, slice(3)
    own = [value.detach().clone()[seen].requires_grad_() for value in (head.weight, head.bias)]
    inputs = (x - 1) / 2
    logits = inputs @ own[0].T + own[1]
    taught = learner.trainer.distillation.averaged(inputs)[:, seen]
    rows = torch.tensor([learner.class_index.row_of[label] for label in y.tolist()])
    t = learner.distil_temperature
    kl = nn.functional.kl_div(
        (logits / t).log_softmax(1), (taught / t).softmax(1), reduction="batchmean"
    )
    loss = nn.functional.cross_entropy(logits, rows) + 2.0 * t**2 * kl
    expected = [
        gradient - 0.5 * g for gradient, g in zip(own, torch.autograd.grad(loss, own), strict=True)
    ]
    learner.learn(x, y)
    torch.testing.assert_close(head.weight[seen], expected[0])
    torch.testing.assert_close(head.bias[seen], expected[1])


def test_one_average_may_teach_and_another_predict():
    """The loss depends on the teacher alone, and predictions on the other average alone."""
    settings = {"net": LinearNorm(), "lr": 0.05, "distil": 2.0}
    both = learned(small(ER, average=0.5, distil_from=0.9, **settings), batches(TASKS))
    alone = learned(small(ER, distil_from=0.9, **settings), batches(TASKS))
    learner = learned(small(ER, average=0.9, **settings), batches(TASKS))
    assert same(weights(both.model), weights(alone.model))
    assert same(weights(both.model), weights(learner.model))
    assert same(
        weights(both.trainer.distillation.teaching.model),
        weights(learner.trainer.distillation.averaged.model),
    )
    x = corners([0, 1, 2, 3], torch.Generator().manual_seed(1))[0]
    assert torch.equal(both.scores(x), both.trainer.distillation.averaged(x)[:, :4])
    assert torch.equal(alone.scores(x), alone.trainer.eval_model(x)[:, :4])
    assert copy_bytes(both) == 2 * copy_bytes(learner)
    assert "teaching" not in learner.state_dict()["parts"], "it is saved once"


class TrainsAtTheEnd(Finetune):
    """A learner with an update at the end of a task, which no step reports."""

    def on_task_end(self):
        x, rows = torch.ones(4, 6), torch.arange(4) % len(self.classes)
        (out,) = self.forward(Samples(x, rows, torch.ones(4)))
        self.descend(out.logits.square().mean())


def test_a_step_does_not_report_the_loss_of_the_end_of_a_task():
    ended = small(TrainsAtTheEnd, average=0.8, distil=2.0)
    learned(ended, batches([[0, 1, 1], [1, 0, 0]]))
    ended.end_task()
    other = copy.deepcopy(ended)
    other._lesson = None
    x, y = corners([0, 1], torch.Generator().manual_seed(4))
    assert torch.equal(ended.learn(x, y).terms["distil"], other.learn(x, y).terms["distil"])


def test_a_step_does_not_report_the_loss_of_a_failed_step():
    learner, calm = in_the_midst(), in_the_midst()
    x, y = corners([2, 3, 2], torch.Generator().manual_seed(9))

    def fail(*_):
        raise KeyError("amid the gradient")

    trap = learner.model.head.register_full_backward_hook(fail)
    with pytest.raises(KeyError):
        learner.learn(x, y)
    trap.remove()
    assert torch.equal(learner.learn(x, y).terms["distil"], calm.learn(x, y).terms["distil"])
