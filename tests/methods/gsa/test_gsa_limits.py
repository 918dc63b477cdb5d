"""Consequences of GSA's equations: the first task, single classes, shifted logits, other labels."""

import math

import pytest
import torch
import torch.nn.functional as F
from gsa_against_naive import COMMON, first_task, gsa, naive_steps, stream
from tiny_learners import BOUNDARY, Magnify, flat, learned
from torch import Tensor

import onepass
from onepass import GSA, ClassIncremental, Finetune, Joint, load
from onepass.base.parts import Output

PLAIN = {"net": "mlp", "augment": "none", "device": "cpu", "seed": 2}


def test_the_first_task_is_plain_cross_entropy_bit_for_bit():
    gsa_learner = learned(
        onepass.GSA(**{**COMMON, **PLAIN, "forwards": "separate", "new_classes": "task"}),
        first_task(),
    )
    other = learned(onepass.Finetune(**PLAIN), first_task())
    assert gsa_learner.params_sha256() == other.params_sha256()


def test_the_first_task_is_plain_cross_entropy_with_a_joint_forward_too():
    sgd = {**PLAIN, "optimizer": "sgd", "lr": 0.1}
    gsa_learner = learned(onepass.GSA(**{**COMMON, **sgd, "new_classes": "task"}), first_task())
    other = learned(onepass.Finetune(**sgd), first_task())
    for name, value in gsa_learner.model.named_parameters():
        torch.testing.assert_close(value, other.model.get_parameter(name), rtol=0, atol=1e-6)


def test_in_the_first_task_replay_is_of_classes_that_the_batch_does_not_have():
    replayed = 0
    for now in naive_steps(gsa(), first_task()):
        batch, mixed = now.case[:2]
        assert now.step.terms["T2"].item() == 0
        there = {row for _, row, _ in batch}
        moved = (now.gradient[len(batch) :] != 0).any(dim=1).tolist()
        assert moved == [weight > 0 and row not in there for _, row, weight in mixed]
        replayed += sum(moved)
    assert replayed


def test_in_the_first_task_only_the_stream_is_trained_if_new_means_new_since_the_boundary():
    for now in naive_steps(gsa(new_classes="task"), first_task()):
        assert now.step.terms["T2"].item() == now.step.terms["T3"].item() == 0
        stream_size = len(now.case[0])
        assert bool((now.gradient[:stream_size] != 0).any())
        assert not bool((now.gradient[stream_size:] != 0).any())


def test_with_one_new_class_the_within_task_term_is_zero():
    for now in naive_steps(gsa(), stream("one class at a time")):
        assert now.step.terms["T1"].item() == 0
        if len(now.case[2]) == 1:
            assert now.step.terms["T2"].item() == 0


def test_a_stream_of_old_classes_alone_has_no_within_task_term():
    (*_, now) = naive_steps(gsa(), list(stream("old classes come back"))[:4])
    assert now.case[3] == set()
    assert now.step.terms["T1"].item() == 0
    assert now.step.terms["T2"].item() > 0


@pytest.mark.parametrize(("side", "moved"), [("old", {"T3"}), ("new", {"T3"}), ("all", set())])
def test_a_shift_of_one_side_moves_the_cross_task_term_and_of_both_none(side, moved):
    items = list(stream("tasks"))
    shift_of = {"old": slice(0, 5), "new": slice(5, 7), "all": slice(0, 7)}[side]
    found = []
    for shift in (0.0, 1.5):  # with update="after" the shift does not reach w and v
        learner = learned(gsa(update="after"), items[:-1])
        with torch.no_grad():
            learner.model.head.bias[shift_of] += shift
        found.append(learner.learn(*items[-1]).terms)
    changed = {
        term for term in found[0] if not torch.allclose(found[0][term], found[1][term], atol=1e-5)
    }
    assert changed == moved


def test_relabelling_the_classes_of_a_task_changes_labels_only():
    renamed = {0: 2, 1: 0, 2: 1, 3: 4, 4: 3, 5: 6, 6: 5}
    plain, other = gsa(), gsa()
    learned(plain, stream("tasks"))
    for item in stream("tasks"):
        if item == BOUNDARY:
            other.new_task()
        else:
            other.learn(item[0], [renamed[label] for label in item[1].tolist()])
    assert [renamed[label] for label in plain.classes] == other.classes
    for rate, two in zip(plain.rates(), other.rates(), strict=True):
        assert torch.equal(rate, two)
    assert plain.params_sha256() == other.params_sha256()


def test_the_two_class_hand_case_holds_in_a_step():
    learner = gsa(net=Magnify(0.0), mix=4, lr=1e-12, statistics="mix")
    learner.learn(torch.zeros(2, 6), [0, 0])
    learner.new_task()
    with torch.no_grad():
        learner.model.head.bias.zero_()
    step = learner.learn(torch.zeros(2, 6), [1, 1])
    w = 2 / (1 + math.exp(-1))
    assert [term.item() for term in step.terms.values()] == pytest.approx([0, 0, w * math.log(2)])


def test_without_adaptive_weights_the_loss_is_the_plain_decomposition():
    learner = learned(gsa(weights="none"), list(stream("tasks"))[:5])
    step = learner.learn(*list(stream("tasks"))[5])
    first, mixed = step.outputs
    new, old = learner.new, learner.seen & ~learner.new

    def within(output: Output, side: Tensor) -> Tensor:
        rows = side[output.y] & (output.weight > 0)
        logits = output.logits[rows].masked_fill(~side, -math.inf)
        return F.cross_entropy(logits, output.y[rows])

    across = []
    for o, y, weight in zip(mixed.logits, mixed.y, mixed.weight, strict=True):
        if weight:
            side = (old if new[y] else new).clone()
            side[y] = True
            across.append(F.cross_entropy(o.masked_fill(~side, -math.inf), y))
    expected = within(first, new) + within(mixed, old) + torch.stack(across).mean()
    torch.testing.assert_close(step.loss, expected)


def test_joint_and_separate_forwards_agree_without_batch_normalisation():
    for joint, other in zip(
        naive_steps(gsa(), stream("tasks")),
        naive_steps(gsa(forwards="separate"), stream("tasks")),
        strict=True,
    ):
        torch.testing.assert_close(joint.step.loss, other.step.loss, rtol=1e-4, atol=1e-5)


def test_common_is_the_papers():
    learner = onepass.GSA(**COMMON)
    assert (learner.head, learner.mirror, learner.mix) == ("trained", False, 64)
    assert (learner.fill, learner.current, learner.forwards) == (None, 0, "joint")
    assert (learner.statistics, learner.update, learner.weights) == ("all", "before", "adaptive")
    assert learner.new_classes == "batch"
    assert (learner.optimizer, learner.lr, learner.weight_decay) == ("adam", 1e-3, 1e-4)
    assert learner.augment == "crop-grey"


# ---- on a stream object


DATA = load("synthetic", classes=6, train_per_class=30, shape=(12,), seed=5)


def parameters(learner, tasks, steps=None):
    source = ClassIncremental(DATA, tasks=tasks, batch=10, seed=0)
    for index in range(steps or len(source)):
        if source.starts_task(index):
            learner.new_task()
        learner.learn(*source.batch(index))
    return flat(learner)


@pytest.mark.parametrize("forwards", ["joint", "separate"])
def test_gsa_in_the_first_task_is_finetuning(forwards):
    first_task = 6
    alone = parameters(Finetune(seed=1), 3, first_task)
    chosen = {**COMMON, "memory": 50, "forwards": forwards}
    gsa = parameters(GSA(**chosen, seed=1), 3, first_task)
    torch.testing.assert_close(alone, gsa, atol=1e-6, rtol=0)


def test_gsa_on_one_task_of_all_classes_is_joint_training():
    joint = parameters(Joint(seed=1), 1)
    chosen = {**COMMON, "memory": 50, "forwards": "separate", "new_classes": "task"}
    gsa = parameters(GSA(**chosen, seed=1), 1)
    torch.testing.assert_close(joint, gsa, atol=1e-5, rtol=0)
