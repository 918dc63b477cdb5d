"""IL2A: pairs and mixtures, the bound on augmented features, the stored features, and the limit
ER.
"""

import math
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from scipy import stats
from tiny_learners import (
    BOUNDARY,
    NormOnly,
    as_images,
    batches,
    learned,
    on_every_forward,
    parameters,
    small,
)
from torch import Tensor, nn

from onepass import ER
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount
from onepass.learning.memory_contents import memory_bytes
from onepass.methods.il2a import (
    BETA,
    IL2A,
    SPREAD,
    StreamPrototypes,
    mixing_shares,
    pair_number,
    semantic_logits,
)

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1], BOUNDARY, [3, 4, 3, 4], [3], [4, 3, 0], BOUNDARY, [5]]


def il2a(**settings: object) -> IL2A:
    return small(IL2A, **{"lr": 0.01, **settings})


# ---- pairs and mixtures


@pytest.mark.parametrize("n", range(2, 8))
def test_the_pairs_of_n_classes_have_the_numbers_below_n_over_two(n):
    pairs = torch.tensor(list(combinations(range(n), 2)))
    numbers = pair_number(pairs[:, 0], pairs[:, 1])
    assert sorted(numbers.tolist()) == list(range(n * (n - 1) // 2))
    assert torch.equal(numbers, pair_number(pairs[:, 1], pairs[:, 0]))


def test_mixing_shares_follow_beta_and_become_a_half_far_from_it():
    drawn = mixing_shares((20_000,), torch.Generator().manual_seed(0))
    beta = stats.beta(BETA, BETA)
    half = drawn == 0.5
    assert float(half.float().mean()) == pytest.approx(2 * beta.cdf(0.4), abs=0.01)
    lowest, within = beta.cdf(0.4), beta.cdf(0.6) - beta.cdf(0.4)
    inside = drawn[~half].double().numpy()
    fits = stats.kstest(inside, lambda value: (beta.cdf(value) - lowest) / within)
    assert fits.pvalue > 0.01


def test_mixtures_are_of_two_images_of_different_new_classes():
    learner = learned(il2a(), batches([[0, 1], [1, 0], BOUNDARY, [2, 3, 4, 2]]))
    views = torch.eye(6)[:5]  # a mixture shows its two images
    y = torch.tensor([0, 2, 3, 3, 4])  # row 0 is an old class
    mixed = learner.mixed(views, y)
    assert len(mixed.y) == 20 and 0 < float(mixed.weight.sum()) < 20
    for x, number, weight in zip(*mixed, strict=True):
        (own,) = x.nonzero().T
        classes = {int(y[i]) for i in own}
        valid = len(classes) == 2 and 0 not in classes
        assert bool(weight) == valid
        if valid:
            low, high = sorted(c - 2 for c in classes)
            assert int(number) == high * (high - 1) // 2 + low
            assert float(x.sum()) == pytest.approx(1) and float(x.max()) <= 0.6 + 1e-6


def test_each_image_is_paired_four_times_with_a_permutation():
    learner = learned(il2a(), batches([[0, 1, 2, 3]]))
    mixed = learner.mixed(torch.eye(4), torch.arange(4))
    for chunk in mixed.x.chunk(4):
        partners = chunk - torch.diag(chunk.diagonal())
        assert bool((chunk.diagonal() > 0).all())
        assert bool((partners.count_nonzero(dim=0) <= 1).all())  # no sample is a partner twice
    assert not torch.equal(mixed.x[:4], mixed.x[4:8])


def test_pairs_past_the_limit_are_not_mixed():
    learner = learned(il2a(pairs=1), batches([[0, 1, 2, 1]]))
    mixed = learner.mixed(torch.eye(3), torch.arange(3))
    kept = mixed.x[mixed.weight > 0]
    assert len(kept) and not bool(kept[:, 2].any())


def naive_augmented(learner: IL2A, logits: Tensor, h: Tensor, rows: list[int], weight: list):
    """Computes the mean, over samples with weight, of -log softmax over seen rows and active pairs,
    by plain loops. Rows from `C` on are pairs."""
    auxiliary = learner.model.auxiliary(h.detach()) / learner.temperature
    classes = [row for row, seen in enumerate(learner.seen.tolist()) if seen]
    new = int(learner.new.sum())
    losses = []
    for o, a, row, counts in zip(logits.tolist(), auxiliary.tolist(), rows, weight, strict=True):
        if counts:
            columns = {c: o[c] for c in classes}
            columns |= {len(o) + pair: a[pair] for pair in range(new * (new - 1) // 2)}
            most = max(columns.values())
            total = most + math.log(sum(math.exp(v - most) for v in columns.values()))
            losses.append(total - columns[row])
    return sum(losses) / len(losses)


def test_stream_and_mixtures_compete_with_all_seen_classes_and_the_pairs_of_the_task(monkeypatch):
    learner, checked = il2a(temperature=0.5), []
    original = learner.augmented_loss

    def checking(logits, h, stream, mixed):
        loss = original(logits, h, stream, mixed)
        rows = torch.cat([stream.y, mixed.y + len(learner.seen)]).tolist()
        weight = torch.cat([stream.weight, mixed.weight]).tolist()
        expected = naive_augmented(learner, logits, h, rows, weight)
        checked.append((loss.item(), pytest.approx(expected, rel=1e-4)))
        return loss

    monkeypatch.setattr(learner, "augmented_loss", checking)
    learned(learner, batches(TASKS))
    assert len(checked) == 7
    assert all(got == expected for got, expected in checked)


def test_auxiliary_rows_train_in_their_task_and_are_reset_after_it():
    learner = il2a(optimizer="adam", weight_decay=0.1)
    learned(learner, batches([[0, 1, 2], [2, 1, 0]]))
    rows = learner.model.auxiliary.weight
    assert rows.any(dim=1).tolist() == [True] * 3 + [False] * 187  # decay leaves the others at zero
    learner.end_task()
    state = learner.trainer.optimizer.state[rows]
    assert not bool(rows.any()) and not bool(learner.model.auxiliary.bias.any())
    assert not bool(state["exp_avg"].any()) and not bool(state["exp_avg_sq"].any())


# ---- old classes as features


def random_head(seed: int, classes: int = 4, features: int = 3) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(classes, features, generator=source), torch.randn(classes, generator=source)


def test_the_bound_uses_the_covariance_of_the_classes_own_samples():
    weight, bias = random_head(0)
    features = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 2] * 4)
    held = (torch.arange(12) > 2).float()  # without the first sample of each class
    logits, known = semantic_logits(weight, bias, features, y, held)
    assert known.tolist() == [True, True, True, False]
    for k in range(3):
        own = features[(y == k) & (held > 0)]
        sigma = torch.cov(own.T)
        for c in range(4):
            apart = weight[c] - weight[k]
            expected = weight[c] @ own.mean(dim=0) + bias[c] + SPREAD / 2 * apart @ sigma @ apart
            torch.testing.assert_close(logits[k, c], expected, rtol=1e-4, atol=1e-5)


def test_without_spread_the_logits_are_those_of_the_mean():
    weight, bias = random_head(2)
    features = torch.randn(3, 3, generator=torch.Generator().manual_seed(3))
    y = torch.tensor([0, 1, 3])
    logits, _ = semantic_logits(weight, bias, features, y, torch.ones(3))
    torch.testing.assert_close(logits[y], F.linear(features, weight, bias))


def test_augmented_features_cost_more_than_their_mean_and_less_than_the_bound():
    weight, bias = random_head(4)
    source = torch.Generator().manual_seed(5)
    features = 0.5 * torch.randn(9, 3, generator=source)
    logits, _ = semantic_logits(weight, bias, features, torch.zeros(9).long(), torch.ones(9))
    bound = F.cross_entropy(logits[:1], torch.tensor([0]))
    root = torch.linalg.cholesky(SPREAD * torch.cov(features.T))
    drawn = features.mean(dim=0) + torch.randn(100_000, 3, generator=source) @ root.T
    sampled = F.cross_entropy(F.linear(drawn, weight, bias), torch.zeros(len(drawn)).long())
    plain = F.cross_entropy(F.linear(features.mean(dim=0), weight, bias), torch.tensor(0))
    assert plain < sampled < bound


def test_features_are_stored_at_a_task_end_and_removed_with_their_sample():
    learner = il2a(memory=8, net=NormOnly())
    learned(learner, batches([[0, 1, 0, 1], [1, 1, 0, 0]]))
    fields = learner.store.fields
    assert not bool(fields["known"].any())
    learner.end_task()
    assert fields["known"][:8].tolist() == [1] * 8
    torch.testing.assert_close(
        fields["features"][:8], learner.trainer.features_of(learner.store.x[:8])
    )
    assert learner.trainer.image_counts == {"task ends": ImageCount(trained=0, scored=8)}
    learned(learner, batches([BOUNDARY, *[[2, 2, 2, 2]] * 4], seed=1))
    is_new = learner.store.y[:8] == 2
    assert bool(is_new.any()) and torch.equal(fields["known"][:8], (~is_new).float())


def test_forgetting_deletes_features_of_replaced_samples():
    learner = learned(il2a(memory=4), batches([[0, 1, 2, 1], BOUNDARY, [3, 4] * 8]))
    store = learner.store
    stale = store.fields["known"][:4] == 0
    assert bool(store.fields["features"][:4][stale].any())
    learner.forget(where=[False] * 4)
    assert not bool(store.fields["features"][:4][stale].any())


def test_the_semantic_term_is_the_mean_over_old_classes_that_have_features():
    learner = learned(il2a(temperature=0.5), batches([[0, 1, 2, 1], [0, 0, 1], BOUNDARY, [3, 3]]))
    store, head, held = learner.store, learner.model.head, int(learner.store.size)
    store.fields["known"][:held] *= store.y[:held] != 2  # as if class 2 had no sample left
    places = slice(learner.memory)
    y, known = store.y[places], store.fields["known"][places]
    logits, _ = semantic_logits(head.weight, head.bias, store.fields["features"][places], y, known)
    expected = F.cross_entropy(logits[:2, :4] / 0.5, torch.tensor([0, 1]))
    torch.testing.assert_close(learner.semantic_loss(), expected)


def test_prototypes_of_a_stream_are_mean_and_covariance_of_all_its_samples():
    prototypes = StreamPrototypes(4, 3, torch.device("cpu"))
    source = torch.Generator().manual_seed(6)
    features, y = (
        5 + torch.randn(60, 3, generator=source),
        torch.randint(3, (60,), generator=source),
    )
    for batch in torch.arange(60).split([1, 7, 20, 32]):  # a class may come twice in a batch
        prototypes.add(features[batch], y[batch])
    prototypes.grow(6)
    assert prototypes.count.tolist() == [*torch.bincount(y, minlength=3).tolist(), 0, 0, 0]
    for k in range(3):
        own = features[y == k].double()
        torch.testing.assert_close(prototypes.mean[k], own.mean(dim=0).float())
        torch.testing.assert_close(prototypes.covariance[k], torch.cov(own.T).float())
    assert not bool(prototypes.mean[3:].any()) and not bool(prototypes.covariance[3:].any())


def test_the_bound_is_the_same_from_samples_and_from_their_moments():
    weight, bias = random_head(0)
    source = torch.Generator().manual_seed(1)
    features, y = torch.randn(20, 3, generator=source), torch.arange(20) % 3
    prototypes = StreamPrototypes(4, 3, torch.device("cpu"))
    prototypes.add(features, y)
    expected, known = semantic_logits(weight, bias, features, y, torch.ones(20))
    got = prototypes.logits(weight, bias)
    torch.testing.assert_close(got[:3], expected[:3], rtol=1e-4, atol=1e-5)
    assert (prototypes.count > 0).tolist() == known.tolist()


@pytest.mark.parametrize("mirror", [False, True])
def test_every_stream_sample_joins_the_prototypes_once_with_the_features_of_its_step(mirror):
    learner = il2a(net=nn.Flatten(), prototypes="stream", mirror=mirror, repeats=2)
    given: list[tuple[Tensor, Tensor]] = []
    for item in as_images(batches(TASKS)):
        if item == BOUNDARY:
            learner.new_task()
        else:
            learner.learn(*item)
            given.append(item)
    x, labels = (torch.cat(parts) for parts in zip(*given, strict=True))
    views = [x, x.flip(3)] if mirror else [x]
    for row, label in enumerate(learner.classes):
        own = torch.cat([view[labels == label] for view in views]).flatten(1).double() / 255
        assert int(learner.stream_prototypes.count[row]) == len(own)
        torch.testing.assert_close(learner.stream_prototypes.mean[row].double(), own.mean(dim=0))
        if len(own) > 1:
            torch.testing.assert_close(
                learner.stream_prototypes.covariance[row].double(),
                torch.cov(own.T),
                atol=1e-6,
                rtol=1e-4,
            )
    assert learner.trainer.image_counts == {}  # no pass over the memory at a task's end
    assert learner.store.column_names == ("x", "y")


def test_with_prototypes_of_the_stream_the_semantic_term_is_the_mean_over_old_classes():
    learner = il2a(temperature=0.5, prototypes="stream")
    learned(learner, batches([[0, 1, 2, 1], [0, 0, 1], BOUNDARY, [3, 3]]))
    x = torch.cat([item[0] for item in batches([[0, 1, 2, 1], [0, 0, 1]])])
    y = torch.tensor([0, 1, 2, 1, 0, 0, 1])
    head = learner.model.head
    logits, _ = semantic_logits(head.weight, head.bias, x, y, torch.ones(7))
    expected = F.cross_entropy(logits[:3, :4] / 0.5, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(learner.semantic_loss(), expected)


def test_prototypes_of_the_stream_are_resumed_and_their_bytes_declared():
    learner = learned(il2a(prototypes="stream"), batches(TASKS))
    again = il2a(prototypes="stream")
    again.load_state_dict(learner.state_dict())
    for resumed in (learner, again):
        learned(resumed, batches([[5, 6], BOUNDARY, [*range(7, 20)], [7, 8]], seed=1))
    assert learner.state_sha256() == again.state_sha256()
    rows = learner.model.head.capacity
    assert memory_bytes(learner) == learner.store.bytes + 4 * rows * (1 + 6 + 6 * 6)


# ---- whole steps


def test_the_first_task_has_class_augmentation_only():
    """This also holds after `end_task` without a new task: the classes are still new."""
    learner = il2a(semantic=5.0, distillation=5.0, net="mlp")
    for item in batches(TASKS[:3]):
        learner.end_task()
        step = learner.learn(*item)
        assert step.terms["semantic"].item() == step.terms["drift"].item() == 0
        parts = step.terms["stream"] + step.terms["replay"]
        torch.testing.assert_close(step.loss, parts)


def test_the_loss_is_the_weighted_sum_of_its_four_terms():
    learner = learned(il2a(semantic=3.0, distillation=7.0, net="mlp"), batches(TASKS[:5]))
    step = learner.learn(*next(iter(batches([[3, 4, 0]], seed=3))))
    terms = {name: term.item() for name, term in step.terms.items()}
    assert all(value > 0 for value in terms.values())
    expected = terms["stream"] + terms["replay"] + 3 * terms["semantic"] + 7 * terms["drift"]
    assert step.loss.item() == pytest.approx(expected, rel=1e-5)


def test_drift_is_the_norm_of_the_change_of_all_features_with_weight():
    """In the first step of a task drift is zero and has a finite gradient: both networks are
    equal."""
    learner = learned(il2a(net="mlp", replay=4), batches([[0, 1, 0, 1], [1, 1], BOUNDARY]))
    first, second = batches([[2, 3, 2], [3, 2, 3]], seed=2)
    assert learner.learn(*first).terms["drift"].item() == 0
    seen: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, given: tuple, result: Tensor) -> None:
        seen.append((given[0].detach(), result.detach()))

    learner.model.body.register_forward_hook(note)
    learner.previous.model.body.register_forward_hook(note)
    mixtures = []
    original = learner.mixed
    learner.mixed = lambda *given: mixtures.append(original(*given)) or mixtures[-1]
    step = learner.learn(*second)
    (images, h), (same, held) = seen
    assert torch.equal(images, same) and len(images) == 5 * 3 + 4
    weight = torch.cat([torch.ones(3), mixtures[0].weight, torch.ones(4)])
    assert 0 < float(mixtures[0].weight.sum()) < 12
    expected = ((h - held)[weight > 0]).square().sum().sqrt()
    torch.testing.assert_close(step.terms["drift"], expected)
    assert step.terms["drift"].item() > 0


ONE_CLASS_EACH = [[0] * 4, [0] * 2, BOUNDARY, [1] * 4, [1] * 3, BOUNDARY, [2] * 4, [2]]


def test_without_pairs_temperature_and_weights_it_is_er():
    """Every sample is stored and drawn, so both learners replay the same."""
    plain = {"temperature": 1.0, "semantic": 0.0, "distillation": 0.0}
    got = parameters(il2a(replay=30, **plain), ONE_CLASS_EACH)
    expected = parameters(small(ER, lr=0.01, replay=30), ONE_CLASS_EACH)
    torch.testing.assert_close(got[: len(expected)], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mirror", [False, True])
def test_the_cost_counts_stream_mixtures_and_replay(mirror):
    learner, counted = il2a(net=nn.Flatten(), mirror=mirror), []
    images = torch.zeros(4, 1, 3, 3, dtype=torch.uint8)
    learner.learn(images, [0, 1, 0, 1])
    on_every_forward(learner, lambda *given: counted.append(len(given[2])))
    learner.learn(images, [0, 1, 0, 1])
    assert counted == [(5 * 4 + 12) * (1 + mirror)] == [learner.cost(4).trained]
    assert learner.cost(4).scored == learner.cost(4).trained


def test_it_learns_without_a_memory():
    learner = learned(il2a(memory=0), batches(TASKS))
    assert bool(torch.isfinite(learner.scores(torch.randn(3, 6))).all())


# ---- settings


def test_the_defaults_are_the_common_setting():
    expected = COMPARABLE | {"replay": 64, "temperature": 0.1, "semantic": 10.0, "pairs": 190}
    expected |= {"distillation": 0.1, "prototypes": "memory"}
    assert defaults(IL2A, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    weights = {"temperature": 0.1, "semantic": 10.0, "distillation": 10.0, "pairs": 50 * 49 // 2}
    optimiser = {"optimizer": "adam", "lr": 1e-3, "weight_decay": 2e-4}
    assert official(IL2A) == optimiser | weights


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.0},
        {"semantic": -1.0},
        {"distillation": -0.1},
        {"pairs": 0},
        {"prototypes": "replay"},
    ],
)
def test_bad_settings_are_refused_by_name(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        IL2A(**setting)
