"""Equalities between methods at limiting parameters.

They hold for trained parameters on a network without BatchNorm and without augmentation: padding at
weight 0 would move BatchNorm's statistics, and a draw for augmentation the generators.
"""

import pytest
import torch

from onepass import ER, GSA, ClassIncremental, Finetune, Joint, load

DATA = load("synthetic", classes=6, train_per_class=30, shape=(12,), seed=5)


def stream(tasks=3, seed=0):
    return ClassIncremental(DATA, tasks=tasks, batch=10, seed=seed)


def parameters(learner, source, steps=None):
    for index in range(steps or len(source)):
        if source.starts_task(index):
            learner.new_task()
        learner.learn(*source.batch(index))
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_er_without_memory_is_finetuning():
    alone = parameters(Finetune(seed=1), stream())
    separate = parameters(ER(memory=0, forwards="separate", seed=1), stream())
    assert torch.equal(alone, separate)
    joint = parameters(ER(memory=0, forwards="joint", seed=1), stream())
    torch.testing.assert_close(alone, joint, atol=1e-5, rtol=0)


def test_er_without_memory_is_finetuning_by_one_mean_too():
    alone = parameters(Finetune(seed=1), stream())
    one_mean = parameters(ER(memory=0, loss="mean", seed=1), stream())
    torch.testing.assert_close(alone, one_mean, atol=1e-5, rtol=0)


def test_joint_and_separate_forwards_agree_without_batchnorm():
    joint = parameters(ER(memory=50, forwards="joint", seed=1), stream(), steps=18)
    separate = parameters(ER(memory=50, forwards="separate", seed=1), stream(), steps=18)
    torch.testing.assert_close(joint, separate, atol=1e-4, rtol=0)


@pytest.mark.parametrize("forwards", ["joint", "separate"])
def test_gsa_in_the_first_task_is_finetuning(forwards):
    first_task = 6
    alone = parameters(Finetune(seed=1), stream(), first_task)
    gsa = parameters(GSA(memory=50, forwards=forwards, seed=1), stream(), first_task)
    torch.testing.assert_close(alone, gsa, atol=1e-6, rtol=0)


def test_gsa_on_one_task_of_all_classes_is_joint_training():
    joint = parameters(Joint(seed=1), stream(tasks=1))
    gsa = parameters(GSA(memory=50, forwards="separate", seed=1), stream(tasks=1))
    torch.testing.assert_close(joint, gsa, atol=1e-5, rtol=0)


def gradients_of_step(learner, state, batch):
    learner.load_state_dict(state)
    learner.learn(*batch)
    return [parameter.grad.clone() for parameter in learner.model.parameters()]


def test_one_mean_weighs_new_and_old_by_their_numbers():
    """One mean over 10 + 64 samples has the gradient (10 g_new + 64 g_old) / 74, the sum of two
    means g_new + g_old."""
    source = stream()
    taught = ER(memory=100, seed=1)
    parameters(taught, source, steps=9)
    state, batch = taught.state_dict(), source.batch(9)
    both = gradients_of_step(ER(memory=100, loss="sum", seed=1), state, batch)
    mean = gradients_of_step(ER(memory=100, loss="mean", seed=1), state, batch)
    new = gradients_of_step(Finetune(seed=1), {**state, "parts": {}}, batch)
    for of_sum, of_mean, of_new in zip(both, mean, new, strict=True):
        expected = (10 * of_new + 64 * (of_sum - of_new)) / 74
        torch.testing.assert_close(of_mean, expected, atol=1e-6, rtol=1e-4)
