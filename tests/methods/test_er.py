"""ER: the loss by hand, the limits, the draws and the memory.

This file is the pattern for the tests of a method. Steps run on a linear classifier whose features
are the inputs, so plain loops can compute every number. Two learners are compared on networks
without BatchNorm and without augmentation. Padding at weight 0 would move BatchNorm's statistics,
and a draw for augmentation would move the generators.
"""

import naive_linear as naive
import pytest
import torch
from expected_settings import COMPARABLE, defaults
from tiny_learners import BOUNDARY, as_images, batches, learned, on_every_forward, parameters, small
from torch import Tensor, nn

from onepass import ER, ClassIncremental, Finetune, load
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1], BOUNDARY, [3, 4, 3, 4], [3, 3], [4, 3, 4]]


def er(**settings: object) -> ER:
    """Makes an ER whose steps can be computed by hand: plain SGD on a linear classifier."""
    learner = small(ER, **settings)
    learner.prepare((naive.FEATURES,), torch.float32)
    return learner


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# ---- the loss, by hand


@pytest.mark.parametrize("name", naive.STREAMS)
@pytest.mark.parametrize("forwards", ["joint", "separate"])
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_loss_and_update_agree_with_plain_loops(name, forwards, loss):
    """The loss is cross-entropy over the classes seen so far, of stream batch and draw: the sum of
    two means, or one mean. SGD then moves every weight by lr times its gradient."""
    learner = er(forwards=forwards, loss=loss)
    drawn = naive.record_calls(learner.store, "draw")
    for step, before, stream, seen, *_ in naive.naive_steps(learner, name):
        replay = naive.weighted(drawn[-1][1])
        groups = [stream, replay] if loss == "sum" else [stream + replay]
        expected = sum(naive.mean_loss(before, group, seen) for group in groups)
        assert step.loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)

        after = before
        for group in groups:
            after = naive.add_scaled(after, naive.gradient(before, group, seen), -learner.lr)
        torch.testing.assert_close(
            torch.tensor(naive.weights(learner)), torch.tensor(after), rtol=1e-4, atol=1e-4
        )


def test_one_mean_weighs_stream_and_replay_by_their_numbers():
    """One mean over 10 + 64 samples has the gradient (10 g_stream + 64 g_replay) / 74. The sum of
    two means has g_stream + g_replay."""
    stream = ClassIncremental(load("synthetic", classes=6, train_per_class=30, shape=(12,)), 3)
    first = [stream.batch(index) for index in range(9)]
    state = learned(ER(memory=100, augment="none", seed=1), first).state_dict()

    def gradients(learner, state) -> Tensor:
        learner.load_state_dict(state)
        learner.learn(*stream.batch(9))
        return torch.cat([parameter.grad.flatten() for parameter in learner.model.parameters()])

    shared = {"augment": "none", "seed": 1}
    two_means = gradients(ER(memory=100, loss="sum", **shared), state)
    one_mean = gradients(ER(memory=100, loss="mean", **shared), state)
    of_stream = gradients(Finetune(**shared), {**state, "parts": {}})
    of_replay = two_means - of_stream
    torch.testing.assert_close(
        one_mean, (10 * of_stream + 64 * of_replay) / 74, atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_an_image_and_its_mirror_image_share_the_weight_of_one_sample(loss):
    """With `mirror`, a sample's loss is the mean over its two views."""
    learner = small(ER, net=nn.Flatten(), mirror=True, loss=loss)
    learner.prepare((1, 2, 3), torch.uint8)
    drawn = naive.record_calls(learner.store, "draw")
    for x, y in as_images(batches(TASKS[:3])):
        before = naive.weights(learner)
        step = learner.learn(x, y)
        seen = set(range(len(learner.classes)))
        rows = [learner.classes.index(label) for label in y.tolist()]

        def both_views(images, labels, before=before, seen=seen) -> list[float]:
            views = [(images.float() / 255).flatten(1), (images.flip(3).float() / 255).flatten(1)]
            return [
                mean([naive.loss(before, view[i].tolist(), label, seen) for view in views])
                for i, label in enumerate(labels)
            ]

        samples = drawn[-1][1]
        genuine = samples.weight > 0
        stream = both_views(x, rows)
        replay = both_views(samples.x[genuine], samples.y[genuine].tolist())
        expected = mean(stream) + mean(replay) if loss == "sum" else mean(stream + replay)
        assert step.loss.item() == pytest.approx(expected, rel=1e-4)


# ---- limits


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_without_memory_it_is_finetuning(loss, optimizer):
    chosen = {"net": "mlp", "optimizer": optimizer, "lr": 0.01, "weight_decay": 1e-3}
    plain = parameters(small(Finetune, **chosen), TASKS)
    separate = parameters(small(ER, memory=0, loss=loss, forwards="separate", **chosen), TASKS)
    assert torch.equal(separate, plain)
    joint = parameters(small(ER, memory=0, loss=loss, forwards="joint", **chosen), TASKS)
    torch.testing.assert_close(joint, plain, atol=1e-5, rtol=0)


def test_with_memory_it_is_not_finetuning():
    assert not torch.allclose(parameters(er(), TASKS), parameters(small(Finetune), TASKS))


def test_joint_and_separate_forwards_agree_without_batchnorm():
    joint, separate = (
        parameters(er(forwards=forwards), TASKS) for forwards in ("joint", "separate")
    )
    torch.testing.assert_close(joint, separate, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("forwards", "sizes"), [("joint", [4 + 12]), ("separate", [4, 12])])
def test_batchnorm_would_see_stream_and_replay_together_or_each_alone(forwards, sizes):
    learner, seen = learned(er(forwards=forwards), batches([[0, 1, 1, 0]])), []
    on_every_forward(learner, lambda module, given, out: seen.append(len(out)))
    learned(learner, batches([[1, 0, 1, 1]]))
    assert seen == sizes


# ---- padding


@pytest.mark.parametrize("forwards", ["joint", "separate"])
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_padding_of_a_short_draw_has_no_influence(loss, forwards):
    """Three samples are stored. A draw of 3 and a draw of 12 with 9 padded samples have the same
    effect."""
    stream = [[0, 1, 2], [3, 0, 3, 1]]
    exact = parameters(er(replay=3, loss=loss, forwards=forwards), stream)
    padded = parameters(er(replay=12, loss=loss, forwards=forwards), stream)
    torch.testing.assert_close(padded, exact, atol=1e-6, rtol=1e-5)


def test_before_anything_is_stored_the_loss_is_that_of_the_stream():
    ((x, y),) = batches([[0, 1, 2, 1]])
    for loss in ("sum", "mean"):
        step = er(loss=loss).learn(x, y)
        torch.testing.assert_close(step.loss, small(Finetune).learn(x, y).loss)


# ---- draws and the memory


def numbers(start: int, count: int) -> Tensor:
    """Returns samples whose first feature is their number."""
    x = torch.zeros(count, naive.FEATURES)
    x[:, 0] = torch.arange(start, start + count)
    return x


def test_the_draw_comes_from_earlier_batches_and_not_from_its_own():
    learner = er(memory=100, replay=12, lr=1e-6)
    drawn = naive.record_calls(learner.store, "draw")
    for start in range(0, 40, 4):
        learner.learn(numbers(start, 4), [0, 1, 0, 1])
        samples = drawn[-1][1]
        genuine = samples.x[samples.weight > 0, 0].tolist()
        assert len(genuine) == len(set(genuine)) == min(12, start)  # each at most once
        assert set(genuine) <= set(range(start))


def test_the_draw_takes_current_and_old_classes_alike():
    learner = er(memory=100, replay=100, lr=1e-6)
    drawn = naive.record_calls(learner.store, "draw")
    learner.learn(numbers(0, 4), [0, 1, 0, 1])
    learner.new_task()
    learner.learn(numbers(4, 4), [2, 3, 2, 3])
    learner.learn(numbers(8, 4), [2, 3, 2, 3])
    samples = drawn[-1][1]
    assert sorted(samples.x[samples.weight > 0, 0].tolist()) == list(range(8))


def kept(learner: ER) -> list[int]:
    return learner.store.x[: int(learner.store.size), 0].long().tolist()


def test_every_sample_is_kept_with_its_label_while_there_is_room():
    learner = er(memory=40, lr=1e-6)
    for start in range(0, 40, 4):
        learner.learn(numbers(start, 4), [start] * 4)
    assert kept(learner) == list(range(40))
    labels = [learner.classes[row] for row in learner.store.y[:40].tolist()]
    assert labels == [4 * (number // 4) for number in range(40)]


def test_the_memory_is_a_reservoir_over_the_whole_stream():
    """Every sample is stored with probability memory / seen. Each of 4 batches therefore has a
    quarter of the slots."""
    of_batch, learners = [0] * 4, 100
    for seed in range(learners):
        learner = er(memory=10, lr=1e-6, seed=seed)
        for start in range(0, 40, 10):
            learner.learn(numbers(start, 10), [0] * 10)
        found = kept(learner)
        assert len(found) == len(set(found)) == 10
        for number in found:
            of_batch[number // 10] += 1
    assert of_batch == pytest.approx([250] * 4, abs=50)  # four standard deviations


# ---- settings


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "forwards": "joint", "loss": "sum"}
    assert defaults(ER, expected) == expected


def test_a_step_costs_batch_and_replay():
    assert ER().cost(10) == ImageCount(trained=10 + 64)
    assert ER(mirror=True, replay=5).cost(3) == ImageCount(trained=2 * (3 + 5))


@pytest.mark.parametrize(
    "wrong", [{"memory": -1}, {"replay": 0}, {"forwards": "both"}, {"loss": "max"}], ids=str
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ER(**wrong)
