"""GSS against its rules: closed forms, frequencies, and plain loops over autograd."""

import itertools
import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, PLAIN_SGD, defaults, official
from tiny_learners import as_samples, corners, random_batches, steps_before
from torch import Tensor, nn

import onepass
from onepass.base.errors import InputError
from onepass.base.parts import Samples
from onepass.methods import gss as module
from onepass.methods.gss import GSS, ScoredMemory, cosines, replacement_probability


def batch(labels: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    return corners(labels, torch.Generator().manual_seed(seed))


class Small(nn.Module):
    """A net with BatchNorm, whose running statistics scoring must not move."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def small_net() -> nn.Module:
    kept = torch.get_rng_state()
    torch.manual_seed(3)
    net = Small()
    torch.set_rng_state(kept)
    return net


def learner(**settings: object) -> GSS:
    defaults = {
        "net": small_net(),
        "memory": 25,
        "replay": 8,
        "subsets": 3,
        "subset_size": 4,
        "device": "cpu",
        "seed": 5,
    }
    return GSS(**{**defaults, **settings})


def taught(count: int, **settings: object) -> GSS:
    made = learner(**settings)
    for x, y in random_batches(count):
        made.learn(x, y)
    return made


# ---- cosines


def vectors(given: dict[str, Tensor]) -> list[Tensor]:
    rows = range(len(next(iter(given.values()))))
    return [
        torch.cat([gradient[row].flatten() for gradient in given.values()]).double() for row in rows
    ]


def random_gradients(count: int, seed: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(count, 3, 2, 2, generator=source),
        "b": torch.randn(count, 5, generator=source),
    }


@pytest.mark.parametrize("pieces", [3, module.PIECES])  # longer than one number each, and not
def test_cosines_agree_with_whole_vectors_and_the_last_row_is_the_mean(pieces, monkeypatch):
    monkeypatch.setattr(module, "PIECES", pieces)
    singles, subsets = random_gradients(4, 0), random_gradients(3, 1)
    rows = vectors(singles)
    rows.append(torch.stack(rows).mean(dim=0))
    expected = [
        [float(torch.dot(row, other) / (row.norm() * other.norm())) for other in vectors(subsets)]
        for row in rows
    ]
    assert torch.allclose(cosines(singles, subsets), torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize("of_subsets", [1e-30, 1.0, 1e25])
@pytest.mark.parametrize("of_singles", [1e-30, 1e-12, 1e-3, 1e25])
def test_cosines_do_not_depend_on_the_scale_of_the_loss(of_singles, of_subsets):
    singles, subsets = random_gradients(4, 0), random_gradients(3, 1)
    scaled = [
        {name: scale * gradient for name, gradient in given.items()}
        for scale, given in ((of_singles, singles), (of_subsets, subsets))
    ]
    assert torch.allclose(cosines(*scaled), cosines(singles, subsets), atol=1e-6)


def test_a_sample_with_a_tiny_gradient_hardly_moves_the_mean():
    singles, subsets = random_gradients(4, 0), random_gradients(3, 1)
    one_is_tiny = {name: gradient.clone() for name, gradient in singles.items()}
    for gradient in one_is_tiny.values():
        gradient[2] *= 1e-25
    rest = {name: gradient[[0, 1, 3]] for name, gradient in singles.items()}
    found = cosines(one_is_tiny, subsets)
    assert torch.allclose(found[-1], cosines(rest, subsets)[-1], atol=1e-6)
    assert torch.allclose(found[2], cosines(singles, subsets)[2], atol=1e-6)


def test_cosines_stay_between_minus_one_and_one_and_are_zero_for_a_vanished_gradient():
    singles = random_gradients(4, 0)
    singles = {name: torch.cat([gradient, 0 * gradient[:1]]) for name, gradient in singles.items()}
    opposite = {name: -gradient for name, gradient in singles.items()}
    for other, sign in ((singles, 1), (opposite, -1)):
        found = cosines(singles, other)
        assert found.abs().max() <= 1
        assert torch.allclose(found[:4, :4].diagonal(), torch.full((4,), float(sign)))
        assert not found[4].any() and not found[:, 4].any()


# ---- exchanges


def test_the_probability_of_replacing():
    pairs = {(0, 0): 0.5, (1, -1): 1.0, (-1, 0.3): 0.0, (-1, -1): 0.0, (0.5, 0.25): 1.5 / 2.75}
    for (victim, new), expected in pairs.items():
        found = replacement_probability(torch.tensor(float(victim)), torch.tensor(float(new)))
        assert float(found) == pytest.approx(expected)


def scored(scores: list[float], seed: int = 0, room: int = 0) -> ScoredMemory:
    """Makes a memory with these scores; sample i has class i and all values i."""
    source = torch.Generator().manual_seed(seed)
    fields = {"score": torch.zeros(())}
    store = ScoredMemory(len(scores) + room, (2,), torch.float32, source, fields)
    y = torch.arange(len(scores))
    store.add(y.view(-1, 1).expand(-1, 2).float(), y, score=torch.tensor(scores))
    return store


def in_order(weights: list[float], picks: tuple[int, ...]) -> float:
    """Returns the probability of drawing these in this order, without replacement."""
    left, probability = sum(weights), 1.0
    for pick in picks:
        probability *= weights[pick] / left
        left -= weights[pick]
    return probability


@pytest.mark.parametrize("count", [1, 2])
def test_victims_are_drawn_in_proportion_to_the_score_above_the_lowest(count):
    scores = [0.1, -0.5, 0.9, 0.3]
    weights = [score - min(scores) for score in scores]
    store, draws = scored(scores), 4000
    found = Counter(tuple(store.victims(count).tolist()) for _ in range(draws))
    for picks in itertools.permutations((0, 2, 3), count):
        expected = in_order(weights, picks)
        spread = math.sqrt(expected * (1 - expected) / draws)
        assert abs(found[picks] / draws - expected) < 5 * spread
    assert all(1 not in picks for picks in found)


def test_equal_scores_make_equally_likely_victims():
    store, draws = scored([0.1] * 4), 2000
    found = Counter(slot for _ in range(draws) for slot in store.victims(2).tolist())
    assert set(found) == {0, 1, 2, 3}
    assert all(abs(times / draws - 0.5) < 0.06 for times in found.values())


def test_missing_victims_are_the_scratch_row():
    assert sorted(scored([0.2, 0.2, 0.2, 0.7]).victims(3).tolist()) == [3, 4, 4]
    assert scored([0.7] + [0.2] * 30).victims(3).tolist() == [0, 31, 31]
    assert sorted(scored([0.2, 0.2]).victims(5).tolist()) == [0, 1, 2, 2, 2]


def test_a_rejected_sample_in_the_scratch_row_is_not_a_victim():
    store = scored([0.1, 0.2, 0.3])
    store.fields["score"][-1] = 0.9
    found = {slot for _ in range(50) for slot in store.victims(1).tolist()}
    assert found == {1, 2}


NEWCOMERS = torch.full((3, 2), 70.0), torch.tensor([7, 8, 9])
YES, NO = torch.tensor(True), torch.tensor(False)


@pytest.mark.parametrize(
    ("scores", "new", "diverse", "room"),
    [
        ([1.0] * 5, -1.0, NO, 0),
        ([1.0] * 5, -1.0, YES, 1),
        ([-1.0] * 5, 0.0, YES, 0),
        ([-1.0] * 5, -1.0, YES, 0),
    ],
    ids=["similar batch", "free slots", "most diverse victims", "all at minus one"],
)
def test_nothing_is_exchanged(scores, new, diverse, room):
    store = scored(scores, room=room)
    before = store.state_dict()
    store.exchange(*NEWCOMERS, torch.full((3,), new), diverse)
    after = store.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_redundant_victim_is_always_replaced_and_the_newcomers_score_is_stored():
    store = scored([1.0] * 5)
    store.exchange(*NEWCOMERS, torch.tensor([-1.0, -1.0, -1.0]), YES)
    new = store.y[:5] >= 7
    assert sorted(store.y[:5][new].tolist()) == [7, 8, 9]
    assert torch.equal(store.fields["score"][:5], torch.where(new, -1.0, 1.0))
    assert torch.equal(store.x[:5, 0] == 70, new)


def test_exchanges_happen_with_the_probability_of_the_scores():
    scores, new, times, draws = [0.6] * 5, -0.2, 0, 3000
    store = scored(scores)
    for _ in range(draws):
        store.fields["score"].fill_(0.6)
        store.y.zero_()
        store.exchange(NEWCOMERS[0][:1], NEWCOMERS[1][:1], torch.tensor([new]), YES)
        times += int((store.y[:5] == 7).sum())
    assert abs(times / draws - 1.6 / (1.6 + 0.8)) < 0.04


# ---- scores


def naive_gradient(given: GSS, x: Tensor, y: Tensor) -> Tensor:
    """Returns the gradient of the mean cross-entropy over the seen rows, by autograd, as one
    vector."""
    logits = given.model(given.views.normalise(x))[:, given.seen]
    found = torch.autograd.grad(
        F.cross_entropy(logits, y), given.trainer.trainable, allow_unused=True
    )
    filled = [
        torch.zeros_like(parameter) if part is None else part
        for parameter, part in zip(given.trainer.trainable, found, strict=True)
    ]
    return torch.cat([part.flatten() for part in filled]).double()


def naive_scores(given: GSS, slots: list[int], stream: Samples) -> tuple[list[float], float]:
    """Computes c_i and c subset by subset, sample by sample."""
    given.model.eval()
    subsets = []
    for first in range(0, len(slots), given.subset_size):
        subset = slots[first : first + given.subset_size]
        subsets.append(naive_gradient(given, given.store.x[subset], given.store.y[subset]))

    def best(x: Tensor, y: Tensor) -> float:
        own = naive_gradient(given, x, y)
        return max(float(F.cosine_similarity(own, other, dim=0)) for other in subsets)

    each = [best(stream.x[i : i + 1], stream.y[i : i + 1]) for i in range(len(stream.y))]
    overall = best(stream.x, stream.y)
    given.model.train()
    return each, overall


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"memory": 10},
        {"memory": 3},
        {"memory": 200, "subsets": 20},
        {"mean": (0.5,), "std": (2.0,)},
        {"head": "frozen"},
    ],
    ids=["plain", "subsets run short", "less than one subset", "filling", "normalised", "frozen"],
)
def test_scores_agree_with_plain_loops(settings):
    given = taught(5, **settings)
    stream = as_samples(given, *batch([0, 1, 2, 3, 0], seed=77))
    state = given.trainer.rngs["draws"].get_state()
    slots, genuine = given.store.draw_slots(given.subsets * given.subset_size)
    drawn = [slot for slot, real in zip(slots.tolist(), genuine.tolist(), strict=True) if real]
    assert len(set(drawn)) == min(given.subsets * given.subset_size, int(given.store.size))
    given.trainer.rngs["draws"].set_state(state)
    score, diverse = given.scores_of(stream)
    expected, overall = naive_scores(given, drawn, stream)
    assert torch.allclose(score, torch.tensor(expected), atol=1e-5)
    assert bool(diverse) == (overall < 0)


def test_both_kinds_of_batches_occur_and_are_distinguished():
    given = taught(8)
    kinds = set()
    for seed in range(12):
        stream = as_samples(given, *batch([seed % 4] * 3, seed=seed))
        state = given.trainer.rngs["draws"].get_state()
        slots, _ = given.store.draw_slots(12)
        given.trainer.rngs["draws"].set_state(state)
        _, diverse = given.scores_of(stream)
        _, overall = naive_scores(given, slots.tolist(), stream)
        assert bool(diverse) == (overall < 0)
        kinds.add(bool(diverse))
    assert kinds == {True, False}


def test_scoring_moves_no_statistics_and_needs_no_augmentation():
    source = onepass.ClassIncremental(onepass.load("synthetic", shape=(3, 8, 8)), tasks=2)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    given = learner(net=net)
    for index in range(3):
        given.learn(*source.batch(index))
    x, y = source.batch(3)
    found = []
    for seed in (1, 2):
        given.trainer.rngs["augmentation"].manual_seed(seed)
        given.trainer.rngs["draws"].manual_seed(0)
        before = given.params_sha256()
        found.append(given.scores_of(as_samples(given, x, y))[0])
        assert given.params_sha256() == before
    assert torch.equal(*found)
    assert all(module.training for module in given.model.modules())


# ---- whole steps


def test_batchnorm_sees_stream_and_replay_together():
    """With all samples stored and replayed, the method is ER."""
    both = []
    settings = {"memory": 200, "replay": 200, "lr": 0.1, "optimizer": "sgd", "augment": "none"}
    for forwards in ("joint", "separate"):
        er = onepass.ER(net=small_net(), device="cpu", seed=5, forwards=forwards, **settings)
        ours = learner(**settings)
        for x, y in random_batches(6):
            er.learn(x, y)
            ours.learn(x, y)
        pairs = zip(ours.model.parameters(), er.model.parameters(), strict=True)
        both.append(max((mine - other).detach().abs().max() for mine, other in pairs))
    joint, separate = both
    assert joint < 1e-4 < 1e-3 < separate


def test_gradients_are_compared_after_the_step(monkeypatch):
    assert steps_before("scores_of", learner(), random_batches(3), monkeypatch) == [1, 2, 3]


def test_the_memory_fills_in_order_and_the_last_batch_is_cut(monkeypatch):
    monkeypatch.setattr(module, "cosines", lambda new, kept: cosines(new, kept) * 0 - 0.3)
    given, stream = learner(memory=25), random_batches(3)
    for x, y in stream:
        given.learn(x, y)
    assert int(given.store.size) == 25
    assert torch.equal(given.store.x[:25], torch.cat([x for x, _ in stream])[:25])
    expected = torch.tensor([0.1] * 10 + [-0.3] * 15)  # the memory is empty for the first batch
    assert torch.allclose(given.store.fields["score"][:25], expected)


@pytest.mark.parametrize("value", [0.0, 0.4])
def test_a_similar_batch_never_changes_a_full_memory(monkeypatch, value):
    given = taught(3)
    before = given.store.state_dict()
    monkeypatch.setattr(module, "cosines", lambda new, kept: cosines(new, kept) * 0 + value)
    weights = given.params_sha256()
    for x, y in random_batches(8):
        given.learn(x, y)
    after = given.store.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert given.params_sha256() != weights


def test_a_diverse_batch_changes_a_full_memory(monkeypatch):
    given = taught(3)
    before = given.store.x.clone()
    monkeypatch.setattr(module, "cosines", lambda new, kept: cosines(new, kept) * 0 - 0.1)
    x, y = batch([0] * 10, seed=50)
    given.learn(x, y)
    changed = (given.store.x[:25] != before[:25]).any(dim=1)
    assert 0 < int(changed.sum()) <= 10
    assert all((row == x).all(dim=1).any() for row in given.store.x[:25][changed])
    assert torch.allclose(given.store.fields["score"][:25][changed], torch.tensor(-0.1))


def test_while_all_samples_are_stored_and_replayed_it_trains_as_er():
    settings = {"net": "mlp", "memory": 60, "replay": 64, "seed": 1, "device": "cpu"}
    ours, er = GSS(**settings), onepass.ER(**settings)
    for x, y in random_batches(5):
        ours.learn(x, y)
        er.learn(x, y)
    for parameter, other in zip(ours.model.parameters(), er.model.parameters(), strict=True):
        assert torch.allclose(parameter, other, atol=1e-4)


@pytest.mark.parametrize("memory", [1, 4, 30])
def test_short_batches_and_a_single_class(memory):
    given = learner(memory=memory, net="mlp")
    for labels in ([0], [0, 0], [0] * 10, [0], [0, 1], [1] * 12, [2]):
        loss = given.learn(*batch(labels)).loss
        assert torch.isfinite(loss)
        assert torch.isfinite(given.store.fields["score"]).all()
    assert int(given.store.size) == min(memory, 29)


@pytest.mark.parametrize(("mirror", "trained"), [(False, 74 + 110), (True, 148 + 110)])
def test_the_cost(mirror, trained):
    assert GSS(mirror=mirror).cost(10) == (trained, 0)


@pytest.mark.parametrize("name", ["memory", "replay", "subsets", "subset_size"])
def test_bad_settings_are_refused(name):
    with pytest.raises(InputError, match=name):
        GSS(**{name: 0})


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "subsets": 10, "subset_size": 10}
    assert defaults(GSS, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(GSS) == {**PLAIN_SGD, "lr": 0.01}


def test_cosines_of_a_parameter_that_is_a_single_number():
    """Its gradient has only the dimension of the samples."""
    gradients = {"factor": torch.tensor([1.0, -2.0]), "bias": torch.tensor([[0.0], [0.0]])}
    assert cosines(gradients, gradients).tolist() == [[1, -1], [-1, 1], [-1, 1]]
