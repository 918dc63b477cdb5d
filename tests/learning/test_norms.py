"""Tests predictions with BatchNorm statistics of the memory, and with mirror images."""

import pytest
import torch
from distilling import LinearNorm as AfterALayer
from tiny_learners import BOUNDARY, Magnify, NormOnly, as_images, batches, corners, learned, small
from torch import nn

import onepass
from onepass import ER, GSA, Finetune, RainbowRT
from onepass.base.checksum import sha256
from onepass.learning.replay import newest_share

OLD, NEW = [[0, 1] * 6] * 2, [[2, 3] * 6] * 2


def far_apart(labels):
    """Returns samples whose classes differ so much that a mean reveals their shares."""
    source = torch.Generator().manual_seed(3)
    return [item if item == BOUNDARY else corners(item, source, apart=20) for item in labels]


def statistics(learner):
    """Returns the mean and variance that normalise inputs in scores, (6) each."""
    learner.scores(torch.zeros(1, 6))
    norm = learner._current_scorer().body.norm
    return norm.running_mean, norm.running_var


def moments(x, weight):
    mean = (weight.unsqueeze(1) * x).sum(dim=0)
    return mean, (weight.unsqueeze(1) * (x - mean) ** 2).sum(dim=0)


MANY = [list(range(first, first + 12)) for first in (0, 12, 24)]


@pytest.mark.parametrize(
    ("kind", "average", "old", "new", "share"),
    [
        (ER, None, OLD, NEW, 2 / 3),
        (ER, "growing", OLD, NEW, 2 / 3),
        (RainbowRT, None, OLD, NEW, 2 / 3),  # a method that stores the current task separately
        pytest.param(ER, None, MANY, [[36] * 6], 1 / 3, id="one class counts for at most 18"),
    ],
)
def test_two_thirds_of_the_statistics_belong_to_the_newest_classes(kind, average, old, new, share):
    learner = small(kind, net=NormOnly(), memory=50, norms="memory", average=average)
    learned(learner, far_apart([*old, BOUNDARY, *new]))
    held = learner.kept
    is_new = torch.isin(held.y, torch.tensor(new))
    weight = torch.where(is_new, share / is_new.sum(), (1 - share) / (~is_new).sum())
    # 1000 is not a multiple of the stored samples, so some count once more
    for got, expected in zip(statistics(learner), moments(held.x, weight), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.2)


@pytest.mark.parametrize(("old", "new", "share"), [(90, 10, 2 / 3), (198, 2, 2 / 13)])
def test_the_share_of_the_newest_classes_on_cifar100_and_tinyimagenet(old, new, share):
    assert newest_share(old, old + new) == pytest.approx(share)


def test_a_boundary_changes_nothing_until_new_classes_arrive(tmp_path):
    learner = small(ER, net=NormOnly(), memory=40, norms="memory")
    learned(learner, far_apart([*OLD, BOUNDARY, *NEW]))
    before = statistics(learner)
    learner.new_task()
    learner.save(tmp_path / "learner.pt")
    opened = onepass.open(tmp_path / "learner.pt", net=NormOnly(), device="cpu")
    for got in (*statistics(learner), *statistics(opened)):
        assert any(torch.equal(got, value) for value in before)
    learned(learner, far_apart([[4, 5] * 6]))
    assert not torch.equal(statistics(learner)[0], before[0])


def test_in_the_first_task_the_statistics_use_the_whole_memory():
    learner = learned(small(ER, net=NormOnly(), memory=40, norms="memory"), far_apart(OLD))
    held = learner.kept
    expected = moments(held.x, torch.full((len(held),), 1 / len(held)))
    for got, value in zip(statistics(learner), expected, strict=True):
        torch.testing.assert_close(got, value, rtol=0.02, atol=0.2)


@pytest.mark.parametrize("kind", [ER, GSA])
def test_training_does_not_change_and_images_are_counted(kind):
    stream, states = [*OLD, BOUNDARY, *NEW], []
    for norms in ("running", "memory"):
        learner = small(kind, net=AfterALayer(), norms=norms)
        for item in batches(stream):
            learned(learner, [item])
            learner.scores(torch.zeros(1, 6))
        state = learner.state_dict()
        state["parts"].pop("newest", None)  # the part `newest` differs: only scores use it
        states.append(sha256(state))
    assert states[0] == states[1]
    # once per step, four of them, and once for the boundary
    assert learner.trainer.image_counts == {
        "scores": onepass.base.parts.ImageCount(trained=0, scored=5000)
    }


def frozen():
    net = AfterALayer()
    for parameter in net.norm.parameters():
        parameter.requires_grad_(False)
    return net


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"net": Magnify()}, id="nothing normalises"),
        pytest.param({"net": frozen()}, id="what normalises is frozen"),
        pytest.param({"net": AfterALayer(), "memory": 0}, id="nothing is kept"),
    ],
)
def test_without_batchnorm_or_memory_scores_are_equal_and_cost_nothing(settings):
    x = corners([0, 1, 2, 3], torch.Generator().manual_seed(1))[0]
    running, memory = (
        learned(small(ER, norms=norms, **settings), batches([*OLD, BOUNDARY, *NEW]))
        for norms in ("running", "memory")
    )
    assert torch.equal(running.scores(x), memory.scores(x))
    assert sum(images.scored for images in memory.trainer.image_counts.values()) == 0


def test_frozen_norms_keep_their_statistics():
    net = nn.Sequential(frozen(), AfterALayer(values=8))
    learner = learned(small(ER, net=net, norms="memory"), batches([*OLD, BOUNDARY, *NEW]))
    learner.scores(torch.zeros(1, 6))
    first, second = learner._current_scorer().body
    assert torch.equal(first.norm.running_mean, torch.zeros(8))
    assert not torch.equal(second.norm.running_mean, learner.model.body[1].norm.running_mean)


def test_files_without_the_memory_and_snapshots_use_them_too(tmp_path):
    stream = list(batches([*OLD, BOUNDARY, *NEW]))
    learner, x = learned(small(ER, net=AfterALayer(), norms="memory"), stream[:-1]), stream[-1][0]
    scores, snapshot = learner.scores(x), learner.snapshot()
    learner.save(tmp_path / "learner.pt", memory=False)
    learned(learner, stream[-1:])
    assert not torch.equal(learner.scores(x), scores)
    assert torch.equal(snapshot.scores(x), scores)
    opened = onepass.open(tmp_path / "learner.pt", net=AfterALayer(), device="cpu")
    assert torch.equal(opened.scores(x), scores)


# ---- mirror images


def test_scores_average_an_image_and_its_mirror_image():
    plain, mirrored = (
        learned(small(Finetune, net=AfterALayer(), mirror_scores=both), as_images(batches(OLD)))
        for both in (False, True)
    )
    x = next(as_images(batches([[0, 1, 1, 0]], seed=7)))[0]
    expected = (plain.scores(x) + plain.scores(x.flip(3))) / 2
    assert plain.state_sha256() == mirrored.state_sha256()
    assert torch.equal(mirrored.scores(x), expected)
    assert torch.equal(mirrored.snapshot().scores(x.flip(3)), expected)
    assert not torch.equal(expected, plain.scores(x))


def test_vectors_have_no_mirror_image():
    x = corners([0, 1, 1], torch.Generator().manual_seed(1))[0]
    plain, mirrored = (
        learned(small(Finetune, mirror_scores=both), batches(OLD)) for both in (False, True)
    )
    assert torch.equal(plain.scores(x), mirrored.scores(x))
