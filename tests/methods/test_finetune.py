"""Fine-tuning, the lower bound: cross-entropy on each batch and nothing else. Joint training is the
same on one task of all classes.
"""

import naive_linear as naive
import pytest
import torch
from expected_settings import COMPARABLE, defaults
from tiny_learners import BOUNDARY, parameters, small

from onepass import Finetune, Joint
from onepass.base.parts import ImageCount
from onepass.base.settings import setting_names
from onepass.learning import registry


@pytest.mark.parametrize("name", naive.STREAMS)
def test_loss_and_update_agree_with_plain_loops(name):
    learner = small(Finetune)
    learner.prepare((naive.FEATURES,), torch.float32)
    for step, before, stream, seen, *_ in naive.naive_steps(learner, name):
        expected = naive.mean_loss(before, stream, seen)
        assert step.loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        after = naive.add_scaled(before, naive.gradient(before, stream, seen), -learner.lr)
        torch.testing.assert_close(
            torch.tensor(naive.weights(learner)), torch.tensor(after), rtol=1e-4, atol=1e-5
        )


def test_boundaries_change_nothing():
    tasks = [[0, 1, 1, 0], [1, 0], BOUNDARY, [2, 3, 3], [3, 2]]
    without = [item for item in tasks if item != BOUNDARY]
    assert torch.equal(parameters(small(Finetune), tasks), parameters(small(Finetune), without))


def test_joint_training_is_finetuning_on_one_task_of_all_classes():
    stream = [[0, 3, 1, 2], [2, 0, 3, 1], [1, 1]]
    assert torch.equal(parameters(small(Joint), stream), parameters(small(Finetune), stream))
    assert [registry.get(kind.key).one_task for kind in (Finetune, Joint)] == [False, True]


def test_a_step_costs_the_batch_and_nothing_is_kept():
    assert Finetune().cost(10) == Joint().cost(10) == ImageCount(trained=10)
    assert Finetune(mirror=True).cost(10) == ImageCount(trained=20)
    assert "memory" not in setting_names(Finetune)


@pytest.mark.parametrize("kind", [Finetune, Joint])
def test_the_defaults_are_the_common_setting(kind):
    assert defaults(kind, COMPARABLE) == COMPARABLE
