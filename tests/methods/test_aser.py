"""ASER: Shapley values against their definition, retrieval and update against plain loops."""

import itertools
import math
from collections import Counter

import pytest
import torch
from expected_settings import COMPARABLE, PLAIN_SGD, defaults, official
from tiny_learners import NormOnly, as_samples, corners, random_batches, steps_before
from torch import Tensor

import onepass
from onepass.base.errors import InputError
from onepass.base.parts import Samples
from onepass.memory import RoundRobin
from onepass.methods import aser as module
from onepass.methods.aser import ASER, knn_shapley, replacements, shapley

# ---- Shapley values


def utility(subset: tuple[int, ...], distance: list[float], match: list[int], k: int) -> float:
    """Returns the share of matches in a vote of the k nearest of a subset."""
    nearest = sorted(subset, key=lambda member: distance[member])[:k]
    return sum(match[member] for member in nearest) / k


def by_definition(distance: list[float], match: list[int], k: int) -> list[float]:
    """Returns each candidate's mean contribution over all subsets of the others, by size."""
    everyone = range(len(distance))
    values = []
    for candidate in everyone:
        others = [other for other in everyone if other != candidate]
        value = 0.0
        for size in range(len(distance)):
            subsets = list(itertools.combinations(others, size))
            gains = [
                utility((*subset, candidate), distance, match, k)
                - utility(subset, distance, match, k)
                for subset in subsets
            ]
            value += sum(gains) / len(subsets) / len(distance)
        values.append(value)
    return values


def by_recursion(distance: list[float], match: list[int], k: int) -> list[float]:
    """Computes the paper's recursion, from the farthest candidate to the nearest."""
    order = sorted(range(len(distance)), key=lambda index: distance[index])
    count = len(order)
    values = [0.0] * count
    values[order[-1]] = match[order[-1]] / count if count >= k else match[order[-1]] / k
    for place in range(count - 1, 0, -1):
        here, farther = order[place - 1], order[place]
        step = (match[here] - match[farther]) / k * min(k, place) / place
        values[here] = values[farther] + step
    return values


def case(rows: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    distance = torch.rand(rows, count, generator=source)
    return distance, torch.rand(rows, count, generator=source) < 0.5


def values_of(distance: Tensor, match: Tensor, k: int, oracle) -> Tensor:
    rows = zip(distance.tolist(), match.int().tolist(), strict=True)
    return torch.tensor([oracle(*row, k) for row in rows])


def test_the_worked_example():
    found = knn_shapley(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[True, True, False]]), 1)
    assert torch.allclose(found, torch.tensor([[1 / 3, 5 / 6, -1 / 6]]))


@pytest.mark.parametrize("k", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_values_agree_with_the_definition_of_shapley(count, k):
    distance, match = case(5, count, seed=10 * count + k)
    found = knn_shapley(distance, match, k)
    assert torch.allclose(found, values_of(distance, match, k, by_definition), atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 50])
def test_values_follow_the_papers_recursion(k):
    distance, match = case(20, 40, seed=k)
    found = knn_shapley(distance, match, k)
    assert torch.allclose(found, values_of(distance, match, k, by_recursion), atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_values_add_up_to_the_vote_of_the_nearest(k):
    distance, match = case(30, 15, seed=k)
    votes = match.gather(1, distance.argsort(dim=1))[:, :k].sum(dim=1) / k
    assert torch.allclose(knn_shapley(distance, match, k).sum(dim=1), votes, atol=1e-6)


def test_candidates_may_come_in_any_order():
    distance, match = case(6, 12, seed=0)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    shuffled = knn_shapley(distance[:, order], match[:, order], 3)
    assert torch.allclose(shuffled, knn_shapley(distance, match, 3)[:, order], atol=1e-6)


def test_equidistant_candidates_among_the_nearest_swap_values_with_labels():
    distance = torch.tensor([[1.0, 1.0, 2.0, 3.0]])
    values = knn_shapley(distance, torch.tensor([[True, False, True, False]]), 3)
    other = knn_shapley(distance, torch.tensor([[False, True, True, False]]), 3)
    assert torch.allclose(values[:, [1, 0, 2, 3]], other)


def some(count: int, seed: int, classes: int = 3) -> Samples:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=source)
    return Samples(x, torch.randint(classes, (count,), generator=source), torch.ones(count))


def test_features_are_compared_by_euclidean_distance():
    evaluation, candidates = some(7, 0), some(20, 1)
    distance = torch.cdist(evaluation.x.double(), candidates.x.double())
    match = evaluation.y.unsqueeze(1) == candidates.y
    expected = values_of(distance, match, 3, by_recursion)
    assert torch.allclose(shapley(evaluation, candidates, 3), expected, atol=1e-6)


def test_candidates_of_weight_zero_take_no_part():
    evaluation, candidates = some(7, 0), some(9, 1)
    weight = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0, 1.0])
    found = shapley(evaluation, candidates._replace(weight=weight), 3)
    there = Samples(*(part[weight > 0] for part in candidates))
    assert torch.allclose(found[:, weight > 0], shapley(evaluation, there, 3), atol=1e-6)
    assert not found[:, weight == 0].any()


# ---- draws


def holding(labels: list[int], capacity: int | None = None, seed: int = 0) -> RoundRobin:
    source = torch.Generator().manual_seed(seed)
    store = RoundRobin(capacity or len(labels), (1,), torch.float32, source)
    store.add(torch.arange(len(labels)).view(-1, 1).float(), torch.tensor(labels))
    return store


LABELS = [0] * 12 + [5] * 1 + [3] * 4 + [2] * 7


@pytest.mark.parametrize("count", [1, 4, 7, 11, 16, 24])
def test_slots_are_dealt_evenly_over_the_classes(count):
    slots = holding(LABELS).round_robin_slots(count).tolist()
    assert len(set(slots)) == count
    held, dealt = Counter(LABELS), Counter(LABELS[slot] for slot in slots)
    most = max(dealt.values())
    for label, number in held.items():
        assert dealt[label] == number or dealt[label] in (most, most - 1)


def test_each_round_has_one_of_every_class_that_has_more():
    labels = [LABELS[slot] for slot in holding(LABELS).round_robin_slots(24).tolist()]
    rounds = [labels[:4], labels[4:7], labels[7:10], labels[10:13], labels[13:15], labels[21:]]
    expected = [{0, 2, 3, 5}, {0, 2, 3}, {0, 2, 3}, {0, 2, 3}, {0, 2}, {0}]
    assert [set(classes) for classes in rounds] == expected


def test_free_slots_are_dealt_last():
    store = holding(LABELS, capacity=40)
    assert max(store.round_robin_slots(24).tolist()) < 24
    assert sorted(store.round_robin_slots(40).tolist()) == list(range(40))


def test_samples_of_a_class_and_classes_of_a_round_are_equally_likely():
    store, draws = holding([0, 0, 0, 0, 1, 1, 2]), 3000
    found = Counter(slot for _ in range(draws) for slot in store.round_robin_slots(2).tolist())
    for slot, classmates in enumerate([4, 4, 4, 4, 2, 2, 1]):
        expected = 2 / 3 / classmates
        spread = math.sqrt(expected * (1 - expected) / draws)
        assert abs(found[slot] / draws - expected) < 5 * spread


def test_other_slots_are_random_and_not_the_taken_ones():
    store, taken, draws = holding([0] * 8), torch.tensor([6, 1, 2]), 2000
    found = Counter()
    for _ in range(draws):
        slots = store.other_slots(2, taken).tolist()
        assert len(set(slots)) == 2
        found.update(slots)
    assert set(found) == {0, 3, 4, 5, 7}
    assert all(abs(times / draws - 2 / 5) < 0.06 for times in found.values())
    assert sorted(store.other_slots(5, taken).tolist()) == [0, 3, 4, 5, 7]


# ---- which samples are replaced


@pytest.mark.parametrize("stored", [1, 2, 5, 12])
def test_the_lowest_are_dropped_and_each_slot_is_taken_once(stored):
    for seed in range(20):
        value = torch.randn(stored + 4, generator=torch.Generator().manual_seed(seed))
        kept = set(value.topk(stored).indices.tolist())
        found = replacements(value, stored).tolist()
        entering = [place for new, place in enumerate(found) if stored + new in kept]
        assert sorted(entering) == sorted(set(range(stored)) - kept)
        assert all(place == stored for new, place in enumerate(found) if stored + new not in kept)


def test_in_a_tie_the_stored_sample_stays():
    assert replacements(torch.zeros(6), 3).tolist() == [3, 3, 3]
    assert replacements(torch.tensor([1.0, 0.0, 1.0, 0.0]), 3).tolist() == [3]


def test_a_sample_that_is_not_waiting_replaces_none():
    value = torch.tensor([0.0, -5.0, 1.0, -torch.inf, 2.0, -torch.inf])
    assert replacements(value, 3).tolist() == [3, 1, 3]


# ---- retrieval and update, followed by plain loops


def batch(labels: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    return corners(labels, torch.Generator().manual_seed(seed), apart=2)


def batches(count: int, classes: int = 4) -> list[tuple[Tensor, Tensor]]:
    return random_batches(count, classes=classes, apart=2)


def learner(**settings: object) -> ASER:
    defaults = {"memory": 40, "replay": 8, "pool": 12, "device": "cpu", "seed": 5}
    return ASER(**{**defaults, **settings})


def taught(count: int, **settings: object) -> ASER:
    made = learner(**settings)
    for x, y in batches(count):
        made.learn(x, y)
    return made


@torch.no_grad()
def naive_values(
    given: ASER, evaluation: tuple[Tensor, Tensor], candidates: tuple[Tensor, Tensor]
) -> list[list[float]]:
    given.model.eval()
    ours, theirs = (given.model.body(x).double() for x in (evaluation[0], candidates[0]))
    given.model.train()
    found = []
    for feature, label in zip(ours, evaluation[1].tolist(), strict=True):
        distance = [float((feature - other).norm()) for other in theirs]
        match = [int(label == other) for other in candidates[1].tolist()]
        found.append(by_recursion(distance, match, given.neighbours))
    return found


def mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


SETTINGS = [{}, {"memory": 9}, {"memory": 15, "pool": 8}, {"neighbours": 1}, {"pool": 20}]


@pytest.mark.parametrize("settings", SETTINGS)
def test_replayed_samples_have_the_highest_adversarial_value(settings):
    given = taught(7, **settings)
    stream = as_samples(given, *batch([0, 1, 1, 3], seed=70))
    state = given.trainer.rngs["draws"].get_state()
    found = given.retrieve(stream)

    given.trainer.rngs["draws"].set_state(state)
    slots = given.store.round_robin_slots(min(given.eligible + given.half, given.memory))
    candidates, judges = slots[: given.eligible], slots[given.eligible :]
    held = [(given.store.x[each], given.store.y[each]) for each in (candidates, judges)]
    helps = mean(naive_values(given, held[1], held[0]))
    intrudes = mean(naive_values(given, (stream.x, stream.y), held[0]))
    worth = [gain - other for gain, other in zip(helps, intrudes, strict=True)]
    order = sorted(range(len(worth)), key=lambda index: -worth[index])
    assert len(found.y) == given.replay
    assert found.weight.tolist() == [1.0] * given.replay
    expected = {tuple(given.store.x[candidates[index]].tolist()) for index in order[: given.replay]}
    assert {tuple(x.tolist()) for x in found.x} == expected
    assert len(judges) == min(given.half, given.memory - given.eligible)


def test_a_memory_smaller_than_the_replay_is_replayed_except_for_one_sample():
    given = taught(3, memory=5)
    found = given.retrieve(as_samples(given, *batch([0, 1], seed=70)))
    assert found.weight.tolist() == [1.0] * 4 + [0.0] * 4
    assert torch.equal(found.x[:4], found.x[4:])
    assert torch.equal(found.y[:4], found.y[4:])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.999])
def test_the_update_keeps_the_most_valuable(monkeypatch, settings, threshold):
    given = taught(7, **settings)
    x, y = batch([0, 1, 1, 3, 9, 9], seed=71)
    given._assign_rows(y.tolist())
    stream = as_samples(given, x, y)
    before_x, before_y = given.store.x.clone(), given.store.y.clone()

    share = [float((before_y[: given.memory] == row).sum()) / given.memory for row in stream.y]
    rare = torch.tensor([part < threshold / 5 for part in share])
    monkeypatch.setattr(given, "is_rare", lambda _: rare)
    state = given.trainer.rngs["draws"].get_state()
    judges = given.store.round_robin_slots(given.half)
    slots = given.store.other_slots(given.half, judges)
    given.trainer.rngs["draws"].set_state(state)
    given.update(stream)

    evaluation = (
        torch.cat([before_x[judges], x[rare]]),
        torch.cat([before_y[judges], stream.y[rare]]),
    )
    candidates = torch.cat([before_x[slots], x]), torch.cat([before_y[slots], stream.y])
    values = naive_values(given, evaluation, candidates)
    total = [sum(column) for column in zip(*values, strict=True)]
    order = sorted(range(len(total)), key=lambda index: -round(total[index], 5))
    kept = order[: given.half]
    expected = [slot for slot in range(given.memory) if slot not in slots.tolist()]
    wanted = [tuple(before_x[slot].tolist()) for slot in expected]
    wanted += [tuple(candidates[0][index].tolist()) for index in kept]
    held = {
        tuple(sample.tolist()): int(label) for sample, label in zip(*held_by(given), strict=True)
    }
    assert sorted(held) == sorted(wanted)
    labels = {
        tuple(sample.tolist()): int(row) for sample, row in zip(before_x, before_y, strict=True)
    }
    labels |= {tuple(sample.tolist()): int(row) for sample, row in zip(x, stream.y, strict=True)}
    assert all(labels[sample] == label for sample, label in held.items())


def held_by(given: ASER) -> tuple[Tensor, Tensor]:
    return given.store.x[: given.memory], given.store.y[: given.memory]


def test_a_class_is_rare_as_often_as_its_share_is_below_the_threshold():
    given = taught(7)
    given.store.y[: given.memory] = torch.tensor([0] * 37 + [1] * 3)
    rows, draws = torch.tensor([0, 1, 2]), 3000
    times = sum(given.is_rare(rows).int() for _ in range(draws)) / draws
    assert times[0] == 0
    assert abs(float(times[1]) - (1 - 4 * 3 / 40)) < 0.05  # 4 classes are seen
    assert times[2] == 1


def test_a_batch_that_fills_the_memory_passes_the_rest_to_the_update(monkeypatch):
    given = taught(2, memory=25)
    x, y = batch([8] * 10, seed=72)  # a new class: all waiting samples are rare
    given._assign_rows(y.tolist())
    stream, before = as_samples(given, x, y), given.store.x.clone()
    offered = []
    monkeypatch.setattr(
        module,
        "replacements",
        lambda value, stored: offered.append(value) or replacements(value, stored),
    )
    given.update(stream)
    assert int(given.store.size) == 25
    assert torch.isneginf(offered[0][-10:]).tolist() == [True] * 5 + [False] * 5
    held = {tuple(sample.tolist()) for sample in given.store.x[:25]}
    assert len(held) == 25
    assert held <= {tuple(sample.tolist()) for sample in torch.cat([before[:20], x])}


def test_new_classes_enter_and_the_memory_stays_balanced():
    stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    given = ASER(memory=60, device="cpu", seed=0)
    for _ in onepass.evaluate(given, stream):
        pass
    counts = torch.bincount(given.store.y[:60], minlength=10)
    assert counts.min() >= 2
    assert counts.max() <= 14


# ---- whole steps


def test_until_the_memory_is_full_it_is_er_with_one_mean():
    settings = {"net": "mlp", "memory": 100, "replay": 64, "seed": 1, "device": "cpu"}
    ours, er = ASER(**settings), onepass.ER(**settings, loss="mean")
    for x, y in batches(6):
        our_step, other = ours.learn(x, y), er.learn(x, y)
        assert torch.allclose(our_step.loss, other.loss, atol=1e-5)
    assert torch.equal(ours.store.x[:100], er.store.x[:100])
    for parameter, other in zip(ours.model.parameters(), er.model.parameters(), strict=True):
        assert torch.allclose(parameter, other, atol=1e-4)


def test_until_the_memory_is_full_the_draw_is_random():
    given = taught(3)
    stream = as_samples(given, *batch([0, 1], seed=3))
    found = Counter()
    for _ in range(300):
        found.update(tuple(sample.tolist()) for sample in given.retrieve(stream).x)
    assert len(found) == 30
    assert max(found.values()) < 2 * min(found.values())


def test_batchnorm_sees_stream_and_replay_together():
    settings = {"memory": 100, "replay": 64, "seed": 1, "device": "cpu", "lr": 0.01}
    apart = []
    for forwards in ("joint", "separate"):
        ours = ASER(**settings, net=NormOnly())
        er = onepass.ER(**settings, net=NormOnly(), loss="mean", forwards=forwards)
        for x, y in batches(6):
            ours.learn(x, y)
            er.learn(x, y)
        apart.append(
            (ours.model.body.norm.running_var - er.model.body.norm.running_var).abs().max()
        )
    joint, separate = apart
    assert joint < 1e-4 < 1e-3 < separate


def test_the_memory_is_valued_after_the_step(monkeypatch):
    assert steps_before("update", learner(), batches(3), monkeypatch) == [1, 2, 3]


def test_scoring_moves_no_statistics_and_needs_no_augmentation():
    given = taught(6, net=NormOnly())
    stream, before = as_samples(given, *batch([0, 1])), given.params_sha256()
    given.retrieve(stream)
    given.update(stream)
    assert given.params_sha256() == before
    assert all(module.training for module in given.model.modules())
    images = onepass.ClassIncremental(onepass.load("synthetic", shape=(3, 8, 8)), tasks=2)
    given = learner(memory=20)
    for index in range(4):
        given.learn(*images.batch(index))
    stream = as_samples(given, *images.batch(4))
    draws = given.trainer.rngs["augmentation"].get_state()
    given.retrieve(stream)
    given.update(stream)
    assert torch.equal(draws, given.trainer.rngs["augmentation"].get_state())


@pytest.mark.parametrize("memory", [2, 3, 9, 30])
def test_short_batches_and_a_single_class(memory):
    given = learner(memory=memory)
    for labels in ([0], [0, 0], [0] * 10, [0], [0, 1], [1] * 12, [2]):
        assert torch.isfinite(given.learn(*batch(labels)).loss)
    assert int(given.store.size) == min(memory, 29)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (74, 820)),
        ({"mirror": True}, (148, 820)),
        ({"memory": 100}, (74, 64 + 36 + 100 + 20)),
        ({"memory": 50}, (74, 49 + 1 + 50 + 20)),
    ],
)
def test_the_cost(settings, expected):
    assert ASER(**settings).cost(10) == expected


@pytest.mark.parametrize(
    ("name", "value"), [("memory", 1), ("replay", 0), ("pool", 63), ("neighbours", 0)]
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        ASER(**{name: value})


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "pool": 200, "neighbours": 3}
    assert defaults(ASER, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(ASER) == {**PLAIN_SGD, "pool": 200, "neighbours": 3}
