"""Co2L: the two terms against plain loops and closed forms, the limits, and the fitted
classifier.
"""

import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from sklearn.linear_model import LogisticRegression
from tiny_learners import (
    BOUNDARY,
    NormOnly,
    as_images,
    batches,
    learned,
    on_every_forward,
    small,
    with_batchnorm,
)
from torch import Tensor, nn

from onepass import SCR
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount
from onepass.methods.co2l import RIDGE, Co2L, FittedLinear, relation_distillation

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1], BOUNDARY, [3, 4, 3, 4], [3], [4, 3, 0], BOUNDARY, [5]]


def co2l(**settings: object) -> Co2L:
    return small(Co2L, **{"lr": 0.02, "net": "mlp", **settings})


def units(seed: int, samples: int = 7, numbers: int = 3) -> Tensor:
    return F.normalize(torch.randn(samples, numbers, generator=torch.Generator().manual_seed(seed)))


# ---- relations


def naive_relations(z: Tensor, previous: Tensor, weight: Tensor, k: float, past: float) -> float:
    """Computes L_ird by plain loops over the samples with weight."""
    there = [i for i, w in enumerate(weight.tolist()) if w]

    def relation(rows: Tensor, i: int, t: float) -> dict[int, float]:
        likeness = {j: float(rows[i].double() @ rows[j].double()) / t for j in there if j != i}
        most = max(likeness.values())
        total = most + math.log(sum(math.exp(value - most) for value in likeness.values()))
        return {j: value - total for j, value in likeness.items()}

    each = []
    for i in there:
        now, then = relation(z, i, k), relation(previous, i, past)
        each.append(-sum(math.exp(then[j]) * now[j] for j in now))
    return sum(each) / len(each)


def test_relations_agree_with_plain_loops_over_samples_with_weight():
    weight = torch.tensor([1.0, 1, 0, 1, 1, 0, 1])
    got = relation_distillation(units(0), units(1), weight, 0.2, 0.05)
    assert got.item() == pytest.approx(naive_relations(units(0), units(1), weight, 0.2, 0.05))


def test_relations_of_equal_networks_at_one_temperature_are_entropies_with_zero_gradient():
    free = units(2).double().requires_grad_()
    z = F.normalize(free)
    value = relation_distillation(z, z.detach(), torch.ones(7), 0.3, 0.3)
    value.backward()
    likeness = (z @ z.T / 0.3).detach().fill_diagonal_(-torch.inf)
    entropy = torch.distributions.Categorical(logits=likeness).entropy().mean()
    assert value.item() == pytest.approx(entropy.item())
    assert float(free.grad.abs().max()) < 1e-9


# ---- whole steps


@contextmanager
def projected(learner: Co2L):
    """Yields the list of projections by the network and by the previous one: two entries a step."""
    found: list[Tensor] = []
    handles = [
        net.projection.register_forward_hook(lambda *given: found.append(given[2].detach()))
        for net in (learner.model, learner.previous.model)
    ]
    yield found
    for handle in handles:
        handle.remove()


def naive_contrast(z: Tensor, y: list[int], weight: list, anchors: set[int], t: float) -> float:
    """Computes the contrast by plain loops: anchors of some classes, a mean over all views with
    weight."""
    views = [(view, label) for view, label, w in zip(z.double(), y, weight, strict=True) if w]
    total = 0.0
    for i, (anchor, label) in enumerate(views):
        if label in anchors:
            others = [view for j, view in enumerate(views) if j != i]
            likeness = [float(anchor @ view) / t for view, _ in others]
            log_sum = torch.tensor(likeness).double().logsumexp(dim=0).item()
            own = [v - log_sum for v, (_, c) in zip(likeness, others, strict=True) if c == label]
            total -= sum(own) / len(own)
    return t / 0.07 * total / len(views)


@pytest.mark.parametrize(
    ("settings", "images"),
    [
        ({}, False),
        ({"temperature": 0.1, "distillation": 3.0, "relation_temperature": 0.5}, False),
        ({"net": NormOnly()}, False),
        ({"augment": "crop-grey", "mirror": True}, True),
    ],
    ids=["default", "settings", "normed", "images"],
)
def test_every_step_agrees_with_plain_loops(settings, images, monkeypatch):
    learner, first, stream = co2l(**settings), 0, batches(TASKS)
    drawn = []
    for item in as_images(stream) if images else stream:
        if item == BOUNDARY:
            first = len(learner.classes)
            learner.new_task()
            continue
        if not learner.steps:
            learner.prepare(tuple(item[0].shape[1:]), item[0].dtype)
            draw = learner.store.draw
            keep = lambda *a, draw=draw, **k: drawn.append(draw(*a, **k)) or drawn[-1]  # noqa: E731
            monkeypatch.setattr(learner.store, "draw", keep)
        with projected(learner) as found:
            step = learner.learn(*item)
        z, held = (F.normalize(projections) for projections in found)
        times = 2 * learner.views_per_sample
        rows = torch.tensor([learner.class_index.row_of[label] for label in item[1].tolist()])
        y = torch.cat([rows, drawn[-1].y]).repeat(times)
        weight = torch.cat([torch.ones(len(rows)), drawn[-1].weight]).repeat(times)
        assert len(z) == len(y)
        new = set(range(first, len(learner.classes)))
        contrast = naive_contrast(z, y.tolist(), weight.tolist(), new, learner.temperature)
        k = learner.relation_temperature
        relations = naive_relations(z, held, weight, k, 0.01) if first else 0.0
        got = {name: term.item() for name, term in step.terms.items()}
        assert got == pytest.approx({"contrast": contrast, "relations": relations}, rel=2e-4)
        loss = contrast + learner.distillation * relations
        assert step.loss.item() == pytest.approx(loss, rel=2e-4)


@pytest.mark.parametrize("teacher", ["evaluation", "training"])
def test_the_teacher_normalises_by_its_running_statistics_or_by_those_of_the_batch(teacher):
    """The relations are those of projections that are computed from the copy's tensors."""
    learner = learned(co2l(net=NormOnly(), teacher=teacher), batches([[0, 1, 2, 1]] * 5))
    learner.new_task()
    copied = {name: value.clone() for name, value in learner.previous.model.state_dict().items()}
    running = [copied["body.norm.running_mean"], copied["body.norm.running_var"]]
    inputs: list[Tensor] = []
    learner.model.body.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with projected(learner) as found:
        step = learner.learn(*next(iter(batches([[3, 4, 3, 4]], seed=1))))
    (x,) = inputs
    of_batch = [x.mean(dim=0), x.var(dim=0, unbiased=False)]
    mean, variance = of_batch if teacher == "training" else running
    h = (x - mean) / (variance + 1e-5).sqrt()
    h = h * copied["body.norm.weight"] + copied["body.norm.bias"]
    hidden = F.linear(h, copied["projection.0.weight"], copied["projection.0.bias"]).relu()
    held = F.linear(hidden, copied["projection.2.weight"], copied["projection.2.bias"])
    z, weight = F.normalize(found[0]), torch.ones(len(x))
    relations = naive_relations(z, F.normalize(held), weight, 0.2, 0.01)
    assert step.terms["relations"].item() == pytest.approx(relations, rel=1e-3)
    after = learner.previous.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in copied.items())


def test_a_resumed_teacher_in_training_mode_teaches_the_same():
    learner = learned(co2l(net=with_batchnorm(), teacher="training"), batches(TASKS[:5]))
    again = co2l(net=with_batchnorm(), teacher="training")
    again.load_state_dict(learner.state_dict())
    for resumed in (learner, again):
        learned(resumed, batches([[3, 4], [4, 3], BOUNDARY, [*range(5, 22)], [5, 6]], seed=1))
    assert learner.state_sha256() == again.state_sha256()


def test_the_first_task_is_scr_up_to_a_factor():
    """The factor is t / 0.07. Every sample is stored and drawn, and without augmentation all views
    are alike."""
    first, second = batches([[0, 1, 2, 1], [2, 0, 1]])
    learner, other = co2l(temperature=0.2), small(SCR, net="mlp", temperature=0.2, lr=1e-9)
    other.learn(*first)  # it is stored but not trained on
    learner.prepare((6,), torch.float32)
    learner.store.add(*first)
    learner.trainer.add_rows(0, 3)
    learner.class_index.enter([0, 1, 2])
    learner.model.load_state_dict(other.model.state_dict())
    got, expected = learner.learn(*second).loss, other.learn(*second).loss
    torch.testing.assert_close(got, 0.2 / 0.07 * expected)


@pytest.mark.parametrize("name", ["crop-grey", "contrastive"])
def test_both_views_are_augmented(name):
    learner, seen = co2l(net=nn.Flatten(), augment=name), []
    images = torch.randint(256, (3, 3, 6, 6), generator=torch.Generator().manual_seed(0))
    images = images.to(torch.uint8)
    learner.learn(images, [0, 1, 0])
    on_every_forward(learner, lambda *given: seen.append(given[1][0]))
    learner.learn(images, [0, 1, 0])
    (views,) = seen  # one joint forward
    first, second = (half[:3] for half in views.chunk(2))
    plain = images.float() / 255
    assert not torch.allclose(first, plain, atol=1e-3)
    assert not torch.allclose(second, plain, atol=1e-3)
    assert not torch.allclose(first, second, atol=1e-3)


def test_the_first_batch_trains_without_replay():
    learner = co2l()
    learner.prepare((6,), torch.float32)
    before = learner.params_sha256()
    step = learner.learn(*next(iter(batches([[0, 1, 0]]))))
    assert step.loss.item() > 0 and learner.params_sha256() != before


def test_the_head_never_moves_and_everything_else_trains():
    learner = co2l(optimizer="adam", weight_decay=0.1)
    learner.prepare((6,), torch.float32)
    born = [parameter.detach().clone() for parameter in learner.model.head.parameters()]
    learned(learner, batches(TASKS))
    assert all(map(torch.equal, born, learner.model.head.parameters()))
    rest = [p for name, p in learner.model.named_parameters() if not name.startswith("head")]
    assert len(rest) == 8 and all(bool(p.grad.any()) for p in rest)


# ---- the classifier


def test_the_fit_is_scikit_learns_logistic_regression_with_balanced_classes():
    """All features point into one orthant, as after a ReLU; plain gradient steps are slow there."""
    source = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 20 % 12  # some classes have twice as many
    features = torch.randn(300, 16, generator=source) + 0.5 * F.one_hot(y, 16) + 4
    fitted = FittedLinear(features, y, torch.tensor([True] * 12 + [False]))

    inputs = F.pad(F.normalize(features), (0, 1), value=1.0)
    share = 1 / (12 * torch.bincount(y)[y])
    solver = LogisticRegression(C=1 / RIDGE, fit_intercept=False, tol=1e-7, max_iter=10_000)
    solver.fit(inputs.double().numpy(), y, sample_weight=share.double().numpy())
    expected = solver.predict_proba(inputs.double().numpy())
    got = fitted(features)[:, :12].softmax(dim=1).double().numpy()
    assert abs(got - expected).max() < 0.005
    assert not bool(fitted.weight[12].any())  # a class that was never seen takes no part


def test_scores_do_not_change_with_the_scale_of_features():
    features, y = units(6, samples=8), torch.arange(8) % 2
    seen = torch.tensor([True, True])
    plain, larger = (FittedLinear(scale * features, y, seen) for scale in (1.0, 1e4))
    torch.testing.assert_close(plain(features), larger(7 * features), rtol=1e-3, atol=1e-3)


def test_the_classifier_is_fitted_to_features_of_the_raw_memory_in_evaluation_mode():
    learner = learned(co2l(net=NormOnly(), memory=6), batches(TASKS[:3]))
    before, held = learner.state_sha256(), int(learner.store.size)
    x = learner.store.x[:held]
    norm = learner.model.body.norm
    features = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    expected = FittedLinear(features.detach(), learner.store.y[:held], learner.seen)(features)
    torch.testing.assert_close(learner.scores(x), expected[:, :3].detach(), rtol=1e-3, atol=1e-4)
    assert learner.state_sha256() == before
    assert learner.trainer.image_counts == {"scores": ImageCount(trained=0, scored=6)}


# ---- settings


def test_the_previous_network_gets_the_same_inputs_as_the_network():
    assert co2l(replay=12).cost(10) == ImageCount(trained=44, scored=44)


def test_the_defaults_are_the_common_setting():
    expected = COMPARABLE | {"replay": 64, "temperature": 0.5, "distillation": 1.0}
    expected |= {"relation_temperature": 0.2, "previous_temperature": 0.01}
    expected["teacher"] = "evaluation"
    assert defaults(Co2L, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    temperatures = {"relation_temperature": 0.2, "previous_temperature": 0.01, "temperature": 0.5}
    optimiser = {"optimizer": "nesterov", "lr": 0.5, "weight_decay": 1e-4}
    others = {"distillation": 1.0, "augment": "contrastive", "teacher": "training"}
    assert official(Co2L) == optimiser | temperatures | others


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.0},
        {"relation_temperature": 0.0},
        {"previous_temperature": -1.0},
        {"distillation": -0.1},
        {"teacher": "frozen"},
        {"memory": 0},
    ],
)
def test_bad_settings_are_refused_by_name(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        Co2L(**setting)
