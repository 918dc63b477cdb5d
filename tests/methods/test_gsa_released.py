"""GSA as released: the computation of the published script, step by step."""

import math
from collections.abc import Iterator

import naive_gsa as naive
import pytest
import torch
from tiny_learners import BOUNDARY, as_tuples, corners, learned
from torch import Tensor, nn

import onepass
from onepass.methods.gsa_released import released_weight


class Recorder(nn.Module):
    """A net whose features are the inputs. It records the inputs of the last step and whether they
    need a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.trained: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        self.trained.append(torch.is_grad_enabled())
        return x.flatten(1)

    def of_step(self, learner: onepass.Learner, x: Tensor, y: Tensor) -> onepass.base.parts.Step:
        self.seen, self.trained = [], []
        return learner.learn(x, y)

    @property
    def used(self) -> list[Tensor]:
        return [batch for batch, trained in zip(self.seen, self.trained, strict=True) if trained]


class MirrorBlind(nn.Module):
    """A net whose features do not change when an image is mirrored."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(dim=3), x.square().mean(dim=3)], dim=2).flatten(1)


def released(**settings: object) -> onepass.GSAReleased:
    defaults = {
        "net": nn.Identity(),
        "memory": 40,
        "mix": 12,
        "current": 5,
        "optimizer": "sgd",
        "lr": 0.2,
        "weight_decay": 0.0,
        "augment": "none",
        "device": "cpu",
        "seed": 4,
    }
    return onepass.GSAReleased(**{**defaults, **settings})


def images(labels: list[int], source: torch.Generator) -> tuple[Tensor, Tensor]:
    y = torch.tensor(labels)
    pixels = torch.randint(256, (len(y), 3, 4, 4), generator=source, dtype=torch.uint8)
    return pixels, y


def stream(make=corners, tasks: int = 3, batches: int = 8, size: int = 10) -> Iterator:
    """Returns batches of two classes a task, evenly mixed; every batch has both."""
    source = torch.Generator().manual_seed(1)
    for task in range(tasks):
        if task:
            yield BOUNDARY
        for _ in range(batches):
            yield make([2 * task, 2 * task + 1] * (size // 2), source)


def weighted(batch: naive.Batch, seen: set[int], w: dict[int, float]) -> float:
    losses = [w[y] * naive.cross_entropy(o, y, seen) for o, y, _ in naive.counted(batch)]
    return naive.average(losses)


# ---- the weight


def test_the_weight_has_the_scripts_values():
    ratio = torch.tensor([0, 0.5, 1, 2, 5], dtype=torch.float64)
    w = released_weight(torch.ones(5, dtype=torch.float64), -ratio)
    assert w.tolist() == pytest.approx([0.538, 0.755, 1, 1.462, 1.964], abs=5e-4)


def test_the_weight_grows_with_the_ratio_unlike_the_papers():
    ratio = torch.linspace(0, 20, 101, dtype=torch.float64)
    w = released_weight(torch.ones(101, dtype=torch.float64), -ratio)
    assert bool((w.diff() > 0).all())
    assert w[0].item() == pytest.approx(2 / (1 + math.e)) and w[-1].item() < 2


def test_the_weight_is_defined_for_classes_without_one_of_the_gradients():
    positive = torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)
    negative = torch.tensor([0.0, -3.0, 0.0], dtype=torch.float64)
    w = released_weight(positive, negative)
    assert w.tolist() == pytest.approx([1, 2, 2 / (1 + math.e)])


# ---- whole steps


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"memory": 4},
        {"current": 1},
        {"warm_up": 0},
        {"warm_up": 2, "mix": 5},
        {"mirror": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [corners, images])
def test_terms_and_loss_agree_with_the_naive_implementation(make, settings):
    learner = released(**{"net": nn.Flatten(), "head": "trained", **settings})
    sums, in_task = naive.Sums(), 0
    for item in stream(make):
        if item == BOUNDARY:
            learner.new_task()
            in_task = 0
            continue
        step = learner.learn(*item)
        in_task += 1
        new = set(item[1].tolist())
        seen = set(range(max(new) + 1))
        first, mixed = (as_tuples(output) for output in step.outputs)
        sums.add(mixed, seen)
        warm = in_task <= learner.warm_up
        w = {c: 1.0 if warm else sums.released_w(c) for c in seen}
        of_mix = weighted(mixed, seen, w)
        of_new = weighted(first, new, dict.fromkeys(seen, 1.0))
        assert step.terms["mix"].item() == pytest.approx(of_mix, rel=1e-5, abs=1e-6)
        assert step.terms["stream"].item() == pytest.approx(of_new, rel=1e-5, abs=1e-6)
        assert step.loss.item() == pytest.approx(2 * of_mix + of_new, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_first_five_batches_of_every_task_have_weights_of_one(repeats, monkeypatch):
    learner, done, used = released(repeats=repeats), 0, []
    weight = learner.weight
    monkeypatch.setattr(learner, "weight", lambda: used.append(weight()) or used[-1])
    for item in stream(tasks=3, batches=7):
        if item == BOUNDARY:
            learner.new_task()
            done = 0
            continue
        used.clear()
        learner.learn(*item)
        done += 1
        ones = torch.stack(used)[:, learner.seen] == 1  # one row for each step on the batch
        assert len(ones) == repeats
        assert bool(ones.all()) if done <= 5 else not bool(ones.any())


def test_a_ratio_of_one_for_all_classes_leaves_two_means_of_cross_entropy():
    items = list(stream(tasks=2))
    learner = learned(released(), items[:-1])
    learner.balance.positive.fill_(1e12)
    learner.balance.negative.fill_(-1e12)
    step = learner.learn(*items[-1])
    first, mixed = (as_tuples(output) for output in step.outputs)
    ones = dict.fromkeys(range(4), 1.0)
    expected = 2 * weighted(mixed, {0, 1, 2, 3}, ones) + weighted(first, {2, 3}, ones)
    assert step.loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_first_batch_trains_twenty_images_of_the_stream_and_nothing_else():
    learner = released(net=Recorder())
    (x, y), *_ = stream(images)
    learner.prepare(tuple(x.shape[1:]), x.dtype)
    step = learner.model.body.of_step(learner, x, y)
    first, mixed = step.outputs
    assert int(first.weight.sum()) == 20 and int(mixed.weight.sum()) == 0
    assert step.terms["mix"].item() == 0
    assert (
        step.loss.item()
        == step.terms["stream"].item()
        == pytest.approx(weighted(as_tuples(first), {0, 1}, {0: 1.0, 1: 1.0}), rel=1e-5)
    )
    trained = learner.model.body.used[0][first.weight > 0]
    assert torch.equal(trained, torch.cat([x, x.flip(3)]).float() / 255)


def test_from_the_second_batch_on_the_mix_is_trained_too():
    learner = released()
    items = list(stream(tasks=1, batches=2))
    learner.learn(*items[0])
    step = learner.learn(*items[1])
    assert int(step.outputs[1].weight.sum()) == 12
    assert step.terms["mix"].item() > 0


def test_with_no_memory_the_mix_is_never_trained():
    learner = released(memory=0)
    for item in stream(tasks=1, batches=3):
        step = learner.learn(*item)
        assert step.terms["mix"].item() == 0
        assert step.loss.item() == step.terms["stream"].item()


def test_the_stream_and_up_to_22_current_samples_make_the_new_batch():
    learner = released(current=22, memory=500)
    sizes = [int(learner.learn(*item).outputs[0].weight.sum()) for item in stream(tasks=1)]
    assert sizes == [10, 20, 30, 32, 32, 32, 32, 32]


def test_a_short_batch_repeats_its_samples_evenly_at_weight_0():
    """BatchNorm sees the padding, so it must look like the samples with weight."""
    learner = released(net=Recorder(), current=9, mix=14)
    for number, (x, y) in enumerate(stream(tasks=1, batches=3, size=4)):
        if not number:
            learner.prepare(tuple(x.shape[1:]), x.dtype)
        outputs = learner.model.body.of_step(learner, x, y).outputs
        for seen, output in zip(learner.model.body.used, outputs, strict=True):
            held = 4 + min(4 * number, 9)
            counted = output.weight > 0
            assert int(counted.sum()) == (min(held, len(seen)) if number or len(seen) == 13 else 0)
            rows, times = seen.unique(dim=0, return_counts=True)
            assert len(rows) == min(held, len(seen))
            assert int(times.max() - times.min()) <= 1
            assert bool(counted[: int(counted.sum())].all())
        assert torch.equal(learner.model.body.used[0][:4], x)


def test_old_and_new_counts_are_both_truncated():
    table = [(0, 64), (32, 32), (42, 21), (48, 16), (51, 12)]
    table += [(53, 10), (54, 9), (56, 8), (56, 7), (57, 6)]
    learner = released(mix=64, current=22, memory=5000, lr=1e-3)
    found = []
    for item in stream(tasks=10, batches=5, size=20):
        if item == BOUNDARY:
            learner.new_task()
            continue
        mixed = learner.learn(*item).outputs[1]
        new = learner.new[mixed.y]
        found.append((int(mixed.weight[~new].sum()), int(mixed.weight[new].sum())))
    assert found[4::5] == [(0, 42), *table[1:]]  # the first task has 20 + 22 samples to give


def test_with_two_classes_a_task_the_mix_has_no_new_ones_from_task_65_on():
    learner = released(mix=64, memory=5000, lr=1e-3)
    for item in stream(tasks=65, batches=1, size=4):
        if item == BOUNDARY:
            learner.new_task()
            continue
        mixed = learner.learn(*item).outputs[1]
        new = int((mixed.weight * learner.new[mixed.y]).sum())
        assert (new == 0) == (learner.task == 0 or learner.task == 64)
    assert int(mixed.weight.sum()) == 63


def test_an_old_class_in_the_stream_counts_as_old():
    items = list(stream(tasks=2))
    learner = learned(released(), items[:10])
    x, y = items[10]
    y[0] = 1
    first, mixed = learner.learn(x, y).outputs
    assert set(first.y[first.weight > 0].tolist()) == {2, 3}
    assert int(first.weight.sum()) == 9 + 5
    assert mixed.y[0].item() == 1 and mixed.weight[0].item() == 1


def test_the_new_batch_is_augmented_twice_and_the_mix_once(monkeypatch):
    calls = []

    def brighter(pixels: Tensor, source: torch.Generator, centres: Tensor, _: object) -> Tensor:
        calls.append((len(pixels), tuple(centres.shape)))
        return pixels + 1

    monkeypatch.setattr("onepass.functional.views.crop_grey", brighter)
    learner = released(net=Recorder(), augment="crop-grey")
    (x, y), *_ = stream(images)
    learner.prepare(tuple(x.shape[1:]), x.dtype)
    step = learner.model.body.of_step(learner, x, y)
    new, mixed = learner.model.body.used
    plain = x.float() / 255
    both = torch.cat([plain, plain.flip(3)])
    torch.testing.assert_close(new[step.outputs[0].weight > 0], both + 2)
    assert 1 <= mixed.min() <= mixed.max() <= 2
    assert calls == [(2 * 15, (4, 4, 2))] * 2 + [(2 * 12, (4, 4, 2))]


@pytest.mark.parametrize("memory", [0, 40])
def test_huge_logits_keep_everything_finite(memory):
    learner = released(memory=memory, lr=1e-9, warm_up=1, head="trained")
    for item in stream(batches=3):
        if item == BOUNDARY:
            learner.new_task()
            continue
        step = learner.learn(1e5 * item[0], item[1])
        assert step.outputs[0].logits.abs().max() > 1e4
        assert bool(torch.isfinite(step.loss))
    assert bool(torch.isfinite(learner.model.head.weight).all())


# ---- the head


def heads(learner: onepass.Learner) -> tuple[Tensor, Tensor]:
    return learner.model.head.weight.detach().clone(), learner.model.head.bias.detach().clone()


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_frozen_head_trains_only_in_the_first_task(optimizer):
    items = list(stream(tasks=3))
    learner = released(head="frozen", optimizer=optimizer, weight_decay=1e-2)
    learner.learn(*items[0])
    weight, bias = heads(learner)
    learned(learner, items[1:8])
    later, later_bias = heads(learner)
    assert bool((weight[:2] != later[:2]).all()) and bool((bias[:2] != later_bias[:2]).all())
    assert torch.equal(weight[2:], later[2:])
    learned(learner, items[8:])
    for before, after in zip((later, later_bias), heads(learner), strict=True):
        assert torch.equal(before, after)


def test_the_defaults_are_the_scripts():
    learner = onepass.GSAReleased()
    assert (learner.head, learner.mirror) == ("frozen", True)
    assert (learner.mix, learner.current, learner.warm_up) == (64, 22, 5)
    assert (learner.optimizer, learner.lr, learner.weight_decay) == ("adam", 1e-3, 1e-4)


def test_a_trained_head_moves_all_rows_seen_in_the_second_task():
    items = list(stream(tasks=2))
    learner = learned(released(head="trained"), items[:8])
    weight, bias = heads(learner)
    learned(learner, items[8:])
    later, later_bias = heads(learner)
    assert bool((weight[:4] != later[:4]).any(dim=1).all())
    assert bool((bias[:4] != later_bias[:4]).all())
    assert torch.equal(weight[4:], later[4:])


def test_a_frozen_head_still_trains_the_network_under_it():
    net = nn.Linear(6, 6)
    nn.init.eye_(net.weight)
    nn.init.zeros_(net.bias)
    items = list(stream(tasks=2))
    learner = learned(released(net=net), items[:8])
    before = learner.model.body.weight.detach().clone()
    learned(learner, items[8:])
    assert not torch.equal(before, learner.model.body.weight)


# ---- mirror images


def test_mirroring_changes_nothing_for_a_network_blind_to_it():
    unmirrored, mirrored = (
        released(net=MirrorBlind(), mirror=False),
        released(net=MirrorBlind(), mirror=True),
    )
    for item in stream(images):
        if item == BOUNDARY:
            unmirrored.new_task()
            mirrored.new_task()
            continue
        single, double = unmirrored.learn(*item), mirrored.learn(*item)
        assert len(double.outputs[1].y) == 2 * len(single.outputs[1].y)
        torch.testing.assert_close(single.loss, double.loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(2 * unmirrored.balance.positive, mirrored.balance.positive)
    for before, after in zip(heads(unmirrored), heads(mirrored), strict=True):
        torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)


def test_mirroring_changes_a_network_that_sees_it():
    items = list(stream(images, tasks=1))
    losses = [
        learned(released(net=nn.Flatten(), mirror=mirror), items[:-1]).learn(*items[-1]).loss
        for mirror in (False, True)
    ]
    assert not torch.allclose(*losses)


# ---- the forward passes with unused outputs


def test_six_forwards_in_the_scripts_order_and_two_of_them_are_used():
    """The order: X^new; the new samples of X^mix raw, all of X^mix raw, its views, these again; the
    stream raw."""
    learner = learned(released(net=Recorder()), list(stream(images, tasks=2))[:-1])
    *_, (x, y) = stream(images, tasks=2)
    step = learner.model.body.of_step(learner, x, y)
    body, mixed = learner.model.body, step.outputs[1]
    _, new_part, raw, views, again, of_stream = body.seen
    assert body.trained == [True, False, False, True, False, False]
    assert [len(inputs) for inputs in body.seen] == [2 * 15, 15, 12, 2 * 12, 2 * 12, 10]
    assert torch.equal(of_stream, x.float() / 255)
    assert torch.equal(views, torch.cat([raw, raw.flip(3)])) and torch.equal(views, again)
    is_new = learner.new[mixed.y[:12]]
    assert torch.equal(new_part.unique(dim=0), raw[is_new].unique(dim=0))
    _, times = new_part.unique(dim=0, return_counts=True)
    assert int(times.max() - times.min()) <= 1


def test_the_extra_forwards_move_only_batchnorms_statistics():
    """One step from the same state with and without them gives the same parameters. The statistics
    are those of six batches in turn."""

    def one_step(extra: bool) -> nn.Module:
        net = nn.Sequential(Recorder(), nn.BatchNorm1d(48))
        learner = released(net=net, extra_forwards=extra)
        (x, y), *_ = stream(images)
        learner.learn(x, y)
        return learner.model

    plain, extra = one_step(False), one_step(True)
    for (name, value), other in zip(plain.named_parameters(), extra.parameters(), strict=True):
        assert torch.equal(value, other), name
    for model, count in ((plain, 2), (extra, 6)):
        recorder, norm = model.body
        assert len(recorder.seen) == count
        mean = torch.zeros(48)
        for batch in recorder.seen:
            mean = 0.9 * mean + 0.1 * batch.flatten(1).mean(dim=0)
        torch.testing.assert_close(norm.running_mean, mean)


@pytest.mark.parametrize("extra", [False, True])
def test_the_cost_of_a_step_agrees_with_the_forward_counter(extra):
    learner = released(net=Recorder(), extra_forwards=extra)
    first, second = stream(images, tasks=1, batches=2)
    learner.learn(*first)
    learner.model.body.of_step(learner, *second)
    sizes = [len(batch) for batch in learner.model.body.seen]
    cost, used = learner.cost(10), sum(map(len, learner.model.body.used))
    assert used == cost.trained == 2 * (10 + 5 + 12)
    assert sum(sizes) - used == cost.scored == extra * (15 + 12 + 24 + 10)
