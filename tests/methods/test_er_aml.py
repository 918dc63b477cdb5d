"""ER-AML: the contrastive loss by hand and by plain loops, the draw of partners, and whole
steps.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, PLAIN_SGD, defaults, official
from scipy import stats
from tiny_learners import (
    BOUNDARY,
    Magnify,
    as_images,
    batches,
    naive_cross_entropy,
    on_every_forward,
    parameters,
    small,
)
from torch import Tensor, nn

from onepass import ER, Finetune
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount, Samples
from onepass.base.settings import construct
from onepass.methods.er_aml import ERAML, draw_partners, partner_contrast
from onepass.nets import FIRST_CAPACITY, CosineHead, Head

FIRST_TASK = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1]]
TASKS = [*FIRST_TASK, BOUNDARY, [3, 4, 3, 4], [3, 4, 4], [4, 3], BOUNDARY, [5, 6, 5], [6, 5, 6, 5]]
STREAMS = {
    "tasks": TASKS,
    "lonely samples": [[0, 1], BOUNDARY, [2, 3, 4], [2, 5, 2], [6]],
    "old classes come back": [[0, 1, 0], [1, 2, 0], BOUNDARY, [3, 0, 1], [0, 0, 2], [3, 3, 1]],
    "many classes": [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 16, 35]],
}


def unit(rows: list | Tensor) -> Tensor:
    return F.normalize(torch.as_tensor(rows, dtype=torch.float64))


def samples(z: Tensor, y: list[int], weight: list[float] | None = None) -> Samples:
    ones = torch.ones(len(y)) if weight is None else torch.tensor(weight)
    return Samples(z, torch.tensor(y), ones.to(z.dtype))


def some_samples(count: int, seed: int, weight: list[float] | None = None) -> Samples:
    source = torch.Generator().manual_seed(seed)
    z = unit(torch.randn(count, 5, generator=source))
    return samples(z, [label % 3 for label in range(count)], weight)


def naive(anchors: Samples, items: Samples, temperature: float) -> float:
    """Computes the contrastive loss by plain loops over anchors and items."""
    losses = []
    kept = [j for j in range(len(items.y)) if items.weight[j] > 0]
    for i in range(len(anchors.y)):
        if anchors.weight[i] == 0:
            continue
        scores = {j: float(anchors.x[i] @ items.x[j]) / temperature for j in kept}
        total = math.log(sum(math.exp(score) for score in scores.values()))
        own = [j for j in kept if items.y[j] == anchors.y[i]]
        losses.append(-sum(scores[j] - total for j in own) / len(own))
    return temperature / 0.07 * sum(losses) / len(losses) if losses else 0.0


# ---- the loss


@pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_with_equal_embeddings_the_loss_is_the_logarithm_of_two_n(n, temperature):
    same = unit([[3.0, 4.0]])
    labels = [label % 2 for label in range(n)]
    anchors = samples(same.expand(n, 2), labels)
    items = samples(same.expand(2 * n, 2), labels + [1 - label for label in labels])
    expected = temperature / 0.07 * math.log(2 * n)
    assert partner_contrast(anchors, items, temperature).item() == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_two_orthogonal_classes_have_their_closed_form(temperature):
    right, up = unit([[1.0, 0.0]]), unit([[0.0, 1.0]])
    anchors = samples(right.expand(3, 2), [0] * 3)
    items = samples(torch.cat([right.expand(2, 2), up.expand(5, 2)]), [0] * 2 + [1] * 5)
    expected = temperature / 0.07 * math.log(2 + 5 * math.exp(-1 / temperature))
    assert partner_contrast(anchors, items, temperature).item() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.1, 0.2, 1.0])
def test_the_loss_agrees_with_plain_loops(seed, temperature):
    anchors, items = some_samples(6, seed), some_samples(12, seed + 100)
    got = partner_contrast(anchors, items, temperature).item()
    assert got == pytest.approx(naive(anchors, items, temperature))


def test_samples_of_weight_zero_have_no_influence():
    anchors = some_samples(6, 0, weight=[1, 0, 1, 1, 0, 1])
    items = some_samples(9, 1, weight=[1, 1, 0, 1, 0, 1, 1, 1, 1])
    without = [Samples(*(part[batch.weight > 0] for part in batch)) for batch in (anchors, items)]
    torch.testing.assert_close(
        partner_contrast(anchors, items, 0.2), partner_contrast(*without, 0.2)
    )


def test_the_gradient_agrees_with_finite_differences_and_skips_weight_zero():
    anchors = some_samples(4, 0, weight=[1, 0, 1, 1])
    items = some_samples(6, 1, weight=[1, 1, 0, 1, 1, 1])

    def loss(z: Tensor, w: Tensor) -> Tensor:
        return partner_contrast(anchors._replace(x=z), items._replace(x=w), 0.3)

    inputs = anchors.x.clone().requires_grad_(), items.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, inputs)
    of_anchors, of_items = torch.autograd.grad(loss(*inputs), inputs)
    assert of_anchors.any(dim=1).tolist() == [True, False, True, True]
    assert of_items.any(dim=1).tolist() == [True, True, False, True, True, True]


def test_without_anchors_loss_and_gradient_are_zero():
    anchors, items = some_samples(3, 0, weight=[0] * 3), some_samples(6, 1, weight=[0] * 6)
    z = anchors.x.clone().requires_grad_()
    loss = partner_contrast(anchors._replace(x=z), items, 0.2)
    loss.backward()
    assert loss.item() == 0
    assert z.grad.tolist() == torch.zeros_like(z).tolist()


# ---- partners

BATCH = [0, 1, 0, 2]
MEMORY = [0, 5, 1, 5, 2, 0, 7, 1, 2, 0]
HELD = [True] * 9 + [False]


def chosen(batch: list[int], memory: list[int], held: list[bool], seed: int = 0):
    y, pool = torch.tensor(batch), torch.tensor(batch + memory)
    there = torch.tensor([True] * len(batch) + held)
    places, both = draw_partners(y, pool, there, torch.Generator().manual_seed(seed))
    return places.tolist(), both.tolist()


def allowed(batch: list[int], memory: list[int], held: list[bool]):
    """Returns each sample's possible positives and negatives, by plain loops."""
    there = [True] * len(batch) + held
    pool = list(enumerate(batch + memory))
    return [
        (
            [p for p, other in pool if there[p] and other == label and p != i],
            [p for p, other in pool if there[p] and other != label and other in batch],
        )
        for i, label in enumerate(batch)
    ]


def test_partners_are_drawn_uniformly_from_the_allowed_ones():
    counts = [(Counter(), Counter()) for _ in BATCH]
    for seed in range(1500):
        (positives, negatives), both = chosen(BATCH, MEMORY, HELD, seed)
        assert all(both)
        for i, (positive, negative) in enumerate(zip(positives, negatives, strict=True)):
            counts[i][0][positive] += 1
            counts[i][1][negative] += 1
    for found, possible in zip(counts, allowed(BATCH, MEMORY, HELD), strict=True):
        for count, places in zip(found, possible, strict=True):
            assert set(count) == set(places)
            assert stats.chisquare([count[place] for place in places]).pvalue > 1e-4


def test_old_classes_are_never_negatives():
    old = {5, 7}
    for seed in range(200):
        (_, negatives), _ = chosen(BATCH, MEMORY, HELD, seed)
        assert not old & {(BATCH + MEMORY)[place] for place in negatives}


@pytest.mark.parametrize(
    ("batch", "memory", "both"),
    [
        ([0, 1, 0], [], [True, False, True]),
        ([0, 1, 0], [1, 5], [True, True, True]),
        ([0, 0, 0], [0, 5, 5], [False, False, False]),
        ([4], [4, 4, 1], [False]),
        ([0, 1], [], [False, False]),
    ],
)
def test_a_sample_without_a_partner_is_marked_and_gets_itself(batch, memory, both):
    (positives, negatives), found = chosen(batch, memory, [True] * len(memory))
    assert found == both
    possible = allowed(batch, memory, [True] * len(memory))
    for i, (of_class, of_others) in enumerate(possible):
        assert positives[i] in (of_class or [i])
        assert negatives[i] in (of_others or [i])


# ---- whole steps


def learner_of(kind: type = ERAML, **settings: object):
    return small(kind, **settings)


@dataclass
class Followed:
    """A step, its partners, and the features of its three forward passes."""

    step: object
    partners: Samples
    features: list[Tensor]
    stored: list[tuple]
    y: Tensor
    contrastive: bool
    seen: set[int]


def followed(learner: ERAML, items: Iterator) -> Iterator[Followed]:
    features: list[Tensor] = []
    partners: list[Samples] = []
    seen: set[int] = set()
    tasks = 0

    def choose_and_tell(stream: Samples) -> Samples:
        partners.append(type(learner).partners(learner, stream))
        return partners[-1]

    learner.partners = choose_and_tell
    for item in items:
        if item == BOUNDARY:
            learner.new_task()
            tasks += 1
            continue
        x, y = item
        if not learner._prepared:
            learner.prepare(tuple(x.shape[1:]), x.dtype)
            on_every_forward(learner, lambda module, given, out: features.append(out.detach()))
        features.clear()
        held = int(learner.store.size)
        at = learner.store.x[:held].clone(), learner.store.y[:held].tolist()
        step = learner.learn(x, y)
        rows = torch.tensor([learner.class_index.row_of[label] for label in y.tolist()])
        seen |= set(rows.tolist())
        stored = [*zip(at[0], at[1], strict=True), *zip(x, rows.tolist(), strict=True)]
        yield Followed(
            step, partners[-1], list(features), stored, rows, bool(tasks and held), set(seen)
        )


SETTINGS = [{}, {"memory": 3}, {"memory": 0}, {"classifier": "linear"}, {"temperature": 0.7}]


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_terms_and_loss_agree_with_plain_loops(name, settings):
    learner = learner_of(**settings)
    for now in followed(learner, batches(STREAMS[name])):
        check_terms(learner, now, copies=1)


def test_mirror_images_count_as_samples():
    learner = learner_of(net=nn.Flatten(), mirror=True)
    for now in followed(learner, as_images(batches(TASKS))):
        assert [len(part) for part in now.features] == [2 * len(now.y), 4 * len(now.y), 24]
        check_terms(learner, now, copies=2)


def check_terms(learner: ERAML, now: Followed, copies: int) -> None:
    stream, replay = now.step.outputs
    of_stream, of_partners, _ = now.features
    expected = naive_cross_entropy(stream, now.seen)
    if now.contrastive:
        kept = now.partners.weight
        anchors = Samples(
            F.normalize(of_stream), now.y.repeat(copies), kept[: len(now.y)].repeat(copies)
        )
        items = Samples(
            F.normalize(of_partners), now.partners.y.repeat(copies), kept.repeat(copies)
        )
        expected = naive(anchors, items, learner.temperature)
    replayed = naive_cross_entropy(replay, now.seen)
    assert now.step.terms["stream"].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert now.step.terms["replay"].item() == pytest.approx(replayed, rel=1e-4, abs=1e-5)
    assert now.step.loss.item() == pytest.approx(expected + replayed, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", STREAMS)
def test_partners_are_real_samples_of_the_right_classes(name):
    for now in followed(learner_of(memory=8), batches(STREAMS[name])):
        batch = len(now.y)
        labels = [label for _, label in now.stored]
        for k, (x, y, weight) in enumerate(zip(*now.partners, strict=True)):
            own = int(now.y[k % batch])
            assert any(label == y and torch.equal(x, kept) for kept, label in now.stored)
            if weight:
                assert (int(y) == own) == (k < batch)
                assert int(y) in now.y.tolist()
        for i, own in enumerate(now.y.tolist()):
            has_both = labels.count(own) > 1 and len(set(now.y.tolist())) > 1
            assert now.partners.weight[[i, batch + i]].tolist() == [has_both] * 2


def cosine(kind: type) -> type:
    """Makes another method with the cosine head."""

    @dataclass(kw_only=True, eq=False)
    class OnCosine(kind):
        def make_head(self, features: int, rng: torch.Generator) -> Head:
            return CosineHead(features, FIRST_CAPACITY, rng, 10.0)

    return OnCosine


ALL = {"memory": 100, "replay": 100, "net": "mlp", "lr": 0.1}  # every stored sample is replayed


def test_in_the_first_task_it_is_er_on_the_cosine_head():
    ours = parameters(learner_of(**ALL), FIRST_TASK)
    er = parameters(learner_of(cosine(ER), **ALL), FIRST_TASK)
    torch.testing.assert_close(ours, er, atol=1e-5, rtol=0)


def test_after_the_first_task_it_is_not_er():
    ours = parameters(learner_of(**ALL), TASKS)
    er = parameters(learner_of(cosine(ER), **ALL), TASKS)
    assert float((ours - er).abs().max()) > 1e-3


def test_without_memory_it_is_finetuning_on_the_cosine_head():
    ours = parameters(learner_of(memory=0, net="mlp", lr=0.1), TASKS)
    finetuned = parameters(learner_of(cosine(Finetune), net="mlp", lr=0.1), TASKS)
    torch.testing.assert_close(ours, finetuned, atol=1e-5, rtol=0)


def test_a_batch_of_one_class_has_no_stream_term_after_the_first_task():
    learner = learner_of(net="mlp")
    for item in batches([*TASKS, [6, 6, 6], [5]]):
        if item == BOUNDARY:
            learner.new_task()
            continue
        step = learner.learn(*item)
        if learner.task and len(set(item[1].tolist())) == 1:
            assert step.terms["stream"].item() == 0
            assert step.loss.item() == step.terms["replay"].item() > 0
    assert all(bool(p.isfinite().all()) for p in learner.model.parameters())


def test_after_the_first_task_the_stream_does_not_move_the_head():
    learner, kept = learner_of(), []

    def keep(module: nn.Module, inputs: object, logits: Tensor) -> None:
        logits.retain_grad()
        kept.append(logits)

    learner.prepare((6,), torch.float32)
    learner.model.head.register_forward_hook(keep)
    for item in batches(TASKS):
        if item == BOUNDARY:
            learner.new_task()
            continue
        kept.clear()
        step = learner.learn(*item)
        stream, _ = kept
        assert bool(stream.grad.any()) == (learner.task == 0)
        assert step.outputs[0].weight.tolist() == [float(learner.task == 0)] * len(item[1])


def test_the_length_of_features_does_not_matter():
    small, large = learner_of(net=Magnify(1)), learner_of(net=Magnify(7))
    for item in batches(TASKS):
        if item == BOUNDARY:
            small.new_task()
            large.new_task()
        else:
            torch.testing.assert_close(small.learn(*item).loss, large.learn(*item).loss)


@pytest.mark.parametrize(
    "wrong",
    [{"memory": -1}, {"replay": 0}, {"temperature": 0.0}, {"classifier": "dot"}],
    ids=str,
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ERAML(**wrong)


def test_the_cost_and_the_official_preset():
    assert ERAML().cost(10) == ImageCount(trained=94)
    assert ERAML(mirror=True).cost(10) == ImageCount(trained=188)
    official = construct(ERAML, **ERAML.presets["official"].settings)
    assert (official.classifier, official.optimizer, official.temperature) == ("cosine", "sgd", 0.2)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "temperature": 0.2, "classifier": "cosine"}
    assert defaults(ERAML, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(ERAML) == {**PLAIN_SGD, "classifier": "cosine", "temperature": 0.2}
