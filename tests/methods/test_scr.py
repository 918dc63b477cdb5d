"""SCR: closed forms of the loss, steps against plain loops, the review and the class means."""

import math
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from tiny_learners import NormOnly, Trained, corners
from torch import Tensor, nn

from onepass import BalanceProbe
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount, Samples
from onepass.functional import augment
from onepass.functional.views import Augment
from onepass.methods.scr import SCR
from onepass.tools import checks

# ---- small streams and learners


def scr(**settings: object) -> SCR:
    defaults = {
        "net": Trained(),
        "memory": 30,
        "replay": 12,
        "optimizer": "sgd",
        "lr": 0.05,
        "weight_decay": 0.0,
        "augment": "none",
        "device": "cpu",
        "seed": 5,
    }
    return SCR(**{**defaults, **settings})


def batch_of(labels: list[int], seed: int) -> tuple[Tensor, Tensor]:
    return corners(labels, torch.Generator().manual_seed(seed), apart=2)


def images_of(labels: list[int], seed: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    shape = (len(labels), channels, 4, 4)
    return torch.randint(256, shape, generator=source).to(torch.uint8), torch.tensor(labels)


def taught(learner: SCR, *batches: list[int], make=batch_of) -> SCR:
    for seed, labels in enumerate(batches):
        learner.learn(*make(labels, seed))
    return learner


@contextmanager
def seen_by(*modules: nn.Module):
    """Records inputs and outputs of modules."""
    calls: list[tuple[Tensor, Tensor]] = []
    handles = [
        module.register_forward_hook(
            lambda _, arguments, result: calls.append((arguments[0].detach(), result.detach()))
        )
        for module in modules
    ]
    yield calls
    for handle in handles:
        handle.remove()


def bodies(learner: SCR) -> tuple[nn.Module, nn.Module]:
    """Returns the backbone that trains and its evaluation twin."""
    return learner.model.body, learner.trainer.eval_model.body


@contextmanager
def contrasted(learner: SCR):
    """Records the samples of each loss."""
    kept: list[Samples] = []
    original = learner.contrast

    def keep(samples: Samples) -> Tensor:
        kept.append(samples)
        return original(samples)

    learner.contrast = keep
    yield kept
    del learner.contrast


def parameters(learner: SCR) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


# ---- the loss


def one_direction(learner: SCR) -> SCR:
    """Makes all projections equal."""
    last = learner.model.projection[2]
    nn.init.zeros_(last.weight)
    nn.init.ones_(last.bias)
    return learner


@pytest.mark.parametrize("stored", [1, 5, 12, 20])
def test_with_equal_projections_the_loss_counts_the_other_views(stored):
    """The loss is log(2n - 1) for n samples, without the padding of a short memory."""
    learner = one_direction(taught(scr(lr=1e-9), [0] * stored))
    step = learner.learn(*batch_of([0, 1, 1], 7))
    n = 3 + min(stored, 12)
    assert step.loss.item() == pytest.approx(math.log(2 * n - 1), rel=1e-5)


def test_mirror_images_are_further_views():
    learner = taught(scr(mirror=True, lr=1e-9), [0, 1, 0], make=images_of)
    step = one_direction(learner).learn(*images_of([0, 1], 7))
    assert step.loss.item() == pytest.approx(math.log(4 * 5 - 1), rel=1e-5)


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("n", [1, 3])
def test_two_orthogonal_classes_have_the_closed_form(tau, n):
    """The loss is log((v - 1) + v e^{-1/tau}) with v = 2n views of each class."""
    learner = taught(scr(temperature=tau), [0])
    projection = learner.model.projection
    for layer in (projection[0], projection[2]):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    y = torch.tensor([0, 1] * n)
    loss = learner.contrast(Samples(F.one_hot(y, 6).float(), y, torch.ones(2 * n)))
    views = 2 * n
    expected = math.log(views - 1 + views * math.exp(-1 / tau))
    assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def naive_loss(z: list[list[float]], y: list[int], weight: list[float], tau: float) -> float:
    """Computes the loss by plain loops over the views with weight."""
    views = [(view, label) for view, label, w in zip(z, y, weight, strict=True) if w]
    total = 0.0
    for i, (anchor, label) in enumerate(views):
        others = [view for j, view in enumerate(views) if j != i]
        likeness = [
            sum(a * b for a, b in zip(anchor, view, strict=True)) / tau for view, _ in others
        ]
        most = max(likeness)
        log_sum = most + math.log(sum(math.exp(value - most) for value in likeness))
        own = [v - log_sum for v, (_, c) in zip(likeness, others, strict=True) if c == label]
        total -= sum(own) / len(own)
    return total / len(views)


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({}, batch_of),
        ({"first_view": "augmented"}, batch_of),
        ({"temperature": 0.5, "net": "mlp"}, batch_of),
        ({"net": NormOnly()}, batch_of),
        ({"augment": "crop-grey"}, images_of),
        ({"augment": "crop-grey", "first_view": "augmented", "mirror": True}, images_of),
        ({"augment": "contrastive", "mirror": True}, images_of),
    ],
    ids=["default", "augmented", "mlp", "normed", "crop-grey", "two crops", "contrastive"],
)
def test_the_loss_of_every_step_agrees_with_plain_loops(settings, make):
    stream = [[0, 1, 1], [0, 0, 1, 1], [2], [2, 3, 2], [3, 3, 0], list(range(20)), [19, 2]]
    learner = taught(scr(**settings), stream[0], make=make)
    for seed, labels in enumerate(stream[1:], start=1):
        with contrasted(learner) as samples, seen_by(learner.model.projection) as calls:
            step = learner.learn(*make(labels, seed))
        (batch,) = samples
        assert len(calls) == 2  # one for each view
        z = F.normalize(torch.cat([result for _, result in calls])).tolist()
        repeats = len(z) // len(batch.y)
        assert repeats == 2 * learner.views.per_sample
        rows, weight = batch.y.tolist() * repeats, batch.weight.tolist() * repeats
        expected = naive_loss(z, rows, weight, learner.temperature)
        assert step.loss.item() == pytest.approx(expected, rel=1e-4)


def test_a_batch_is_the_stream_batch_and_distinct_samples_of_the_memory():
    learner = taught(scr(), [0, 1, 2], [3, 4])
    x, y = batch_of([5, 0, 5], 9)
    stored = learner.store.x[:5].clone()
    with contrasted(learner) as samples:
        learner.learn(x, y)
    (batch,) = samples
    assert torch.equal(batch.x[:3], x) and batch.weight.tolist() == [1] * 8 + [0] * 7
    drawn = {tuple(row.tolist()) for row in batch.x[3:8]}
    assert drawn == {tuple(row.tolist()) for row in stored}


def test_padding_changes_nothing():
    learner = taught(scr(), [0, 1, 2])
    (x, y), (other, label) = batch_of([0, 1, 1, 2], 3), batch_of([1], 4)
    alone = learner.contrast(Samples(x, y, torch.ones(4)))
    weight = torch.tensor([1.0, 1, 1, 1, 0])
    padded = learner.contrast(Samples(torch.cat([x, other]), torch.cat([y, label]), weight))
    torch.testing.assert_close(padded, alone)


@pytest.mark.parametrize("labels", [[0], [0] * 7, [0, 1, 2, 3, 4]], ids=str)
def test_one_sample_one_class_and_all_different_classes_are_learned(labels):
    learner = taught(scr(), [0], labels)
    before = parameters(learner)
    step = learner.learn(*batch_of(labels, 8))
    assert 0 < step.loss.item() < math.inf
    assert not all(map(torch.equal, before, parameters(learner)))


# ---- the views


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("name", ["crop-grey", "contrastive"])
@pytest.mark.parametrize("first_view", ["plain", "augmented"])
def test_the_second_view_is_augmented_and_the_first_as_it_is_set(first_view, name, mirror):
    settings = {"augment": name, "first_view": first_view, "mirror": mirror}
    learner = scr(net=nn.Flatten(), mean=(0.5,), std=(0.2,), **settings)
    learner = taught(learner, [0, 1, 0], make=images_of)
    with contrasted(learner) as samples, seen_by(*bodies(learner)) as calls:
        learner.learn(*images_of([0, 1], 7))
    plain = (samples[0].x.float() / 255 - 0.5) / 0.2
    plain = torch.cat([plain, plain.flip(3)]) if mirror else plain
    first, second = (inputs for inputs, _ in calls)
    changed = [not torch.allclose(view, plain, atol=1e-3) for view in (first, second)]
    assert changed == [first_view == "augmented", True]
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("name", ["crop-grey", "contrastive"])
def test_the_augmentation_is_the_one_that_is_set(name):
    learner = scr(augment=name)
    learner.prepare((3, 4, 4), torch.uint8)
    x, _ = images_of([0] * 20, 1, channels=3)
    source = learner.trainer.rngs["augmentation"].clone_state()
    augmentation, area = {
        "crop-grey": (augment.crop_grey, (0.6, 1.0)),
        "contrastive": (augment.contrastive_view, (0.2, 1.0)),
    }[name]
    windows = augment.WholePixelCrops(4, 4, area, source.device)
    expected = augmentation(x.float() / 255, source, augment.pixel_centres(4, 4), windows)
    assert torch.equal(learner.views(x), expected)


def test_the_first_view_is_plain_by_default():
    assert SCR().first_view == "plain"


# ---- the first batch


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_the_first_batch_is_kept_and_not_trained_on(optimizer):
    learner = scr(net=NormOnly(), optimizer=optimizer, weight_decay=0.1)
    learner.prepare((6,), torch.float32)
    before = learner.params_sha256()
    step = learner.learn(*batch_of([0, 1, 0], 1))
    assert learner.params_sha256() == before
    assert step.loss.item() == 0 and int(learner.store.size) == 3
    learner.learn(*batch_of([0], 2))
    assert learner.params_sha256() != before


def test_after_the_first_batch_every_class_can_be_predicted():
    learner = taught(scr(), [0, 1, 2])
    x, _ = batch_of([0, 1, 2], 0)
    assert learner.predict(x).tolist() == [0, 1, 2]


# ---- parameters that train


def test_the_head_never_moves_and_everything_else_trains():
    learner = scr(net="mlp", optimizer="adam", weight_decay=0.1)
    learner.prepare((6,), torch.float32)
    born = [parameter.detach().clone() for parameter in learner.model.head.parameters()]
    taught(learner, [0, 1, 0], [1, 1, 2], [2, 0]).end_task()
    assert all(map(torch.equal, born, learner.model.head.parameters()))
    rest = [p for name, p in learner.model.named_parameters() if not name.startswith("head")]
    assert len(rest) == 8
    assert all(p.grad is not None and bool(p.grad.any()) for p in rest)


def test_the_projection_has_the_papers_layers():
    learner = taught(scr(net="mlp"), [0])
    first, between, last = learner.model.projection
    assert isinstance(between, nn.ReLU)
    assert [first.weight.shape, last.weight.shape] == [(400, 400), (128, 400)]


def test_the_gradient_probe_has_nothing_to_measure():
    learner, probe = scr(), BalanceProbe()
    for seed in range(2):
        probe.stepped(learner, learner.learn(*batch_of([0, 1], seed)))
    assert all(math.isnan(rate) for rate in probe.a_pn().values())


# ---- the review


def test_a_review_is_a_step_along_a_tenth_of_the_memorys_gradient():
    learner = taught(scr(replay=40), [0, 1, 0, 1], [1, 2, 2])
    whole = Samples(learner.store.x[:7], learner.store.y[:7], torch.ones(7))
    gradients = learner.trainer.gradients(learner.contrast(whole))
    before = parameters(learner)
    learner.end_task()
    for old, gradient, new in zip(before, gradients, parameters(learner), strict=True):
        torch.testing.assert_close(new, old - 0.05 * gradient / 10, rtol=1e-4, atol=1e-7)
    assert any(bool(gradient.any()) for gradient in gradients)


def test_a_review_takes_each_stored_sample_once_in_random_order_and_equal_pieces():
    learner = taught(scr(memory=25, replay=12), [0, 1] * 10, [0, 1] * 10)
    orders = []
    for _ in range(2):
        with contrasted(learner) as samples:
            learner.on_task_end()
        assert sorted(len(batch.y) for batch in samples) == [8, 8, 9]
        assert all(bool((batch.weight == 1).all()) for batch in samples)
        x, y = (torch.cat(parts) for parts in list(zip(*samples, strict=True))[:2])
        place = [int((learner.store.x[:25] == sample).all(dim=1).nonzero()) for sample in x]
        assert sorted(place) == list(range(25))
        assert torch.equal(y, learner.store.y[place])
        orders.append(place)
    assert orders[0] != orders[1] and list(range(25)) not in orders


def test_every_task_end_is_reviewed_once_and_counted():
    learner = taught(scr(memory=20, replay=8), [0, 1] * 3, [0, 1] * 3)
    with seen_by(*bodies(learner)) as calls:
        learner.end_task()
        learner.new_task()
    assert sum(len(inputs) for inputs, _ in calls) == 2 * 12
    assert learner.trainer.image_counts == {"task ends": ImageCount(trained=24)}
    taught(learner, [2] * 9).new_task()
    assert learner.trainer.image_counts == {"task ends": ImageCount(trained=24 + 40)}


def test_the_review_of_mirrored_images_is_counted():
    learner = taught(scr(mirror=True), [0, 1, 0], [0], make=images_of)
    with seen_by(*bodies(learner)) as calls:
        learner.end_task()
    assert (
        learner.trainer.image_counts["task ends"]
        == ImageCount(trained=sum(len(x) for x, _ in calls))
        == (16, 0)
    )


def test_without_review_the_end_of_a_task_changes_nothing():
    learner = taught(scr(review=False), [0, 1], [0, 1])
    before = learner.params_sha256()
    learner.end_task()
    assert learner.params_sha256() == before and learner.trainer.image_counts == {}


# ---- class means


def naive_predictions(learner: SCR, x: Tensor) -> list[int]:
    """Predicts from the raw samples of the memory, one by one."""
    held = int(learner.store.size)
    learner.model.eval()
    with torch.no_grad():
        units = [
            F.normalize(learner.model.body(sample[None]))[0] for sample in learner.store.x[:held]
        ]
        queries = [F.normalize(learner.model.body(sample[None]))[0] for sample in x]
    learner.model.train()
    labels = [learner.classes[row] for row in learner.store.y[:held].tolist()]
    means = {}
    for label in set(labels):
        own = torch.stack([u for u, c in zip(units, labels, strict=True) if c == label])
        means[label] = own.mean(dim=0) / own.mean(dim=0).norm()
    return [min(means, key=lambda c: float((q - means[c]).norm())) for q in queries]


@pytest.mark.parametrize("net", [Trained(), NormOnly(), "mlp"], ids=["times", "normed", "mlp"])
def test_predictions_are_those_of_plain_loops_over_the_memory(net):
    learner = taught(scr(net=net), [3, 1, 3], [1, 1, 7, 0], [0, 7, 7, 3])
    x, _ = batch_of(list(range(8)) * 5, 30)
    assert learner.predict(x).tolist() == naive_predictions(learner, x)
    learner.end_task()  # its review moves the means
    assert learner.predict(x).tolist() == naive_predictions(learner, x)


def test_means_use_features_and_not_projections():
    learner = taught(scr(lr=1e-9), [0, 1, 2])
    x, _ = batch_of([0, 1, 2, 0], 4)
    before = learner.scores(x)
    with torch.no_grad():
        for parameter in learner.model.projection.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    learner._scorer = None
    assert torch.equal(learner.scores(x), before)


def test_means_use_images_without_augmentation():
    learner = scr(augment="contrastive", mirror=True, mean=(0.4,), std=(0.3,), net=nn.Flatten())
    taught(learner, [0, 1, 0, 1], make=images_of)
    with seen_by(*bodies(learner)) as calls:
        learner.scorer()
    ((inputs, _),) = calls
    torch.testing.assert_close(inputs, (learner.store.x[:4].float() / 255 - 0.4) / 0.3)


def test_means_are_computed_in_pieces_once_for_each_state_and_counted():
    learner = taught(scr(memory=600), [0, 1] * 300)
    x, _ = batch_of([0, 1], 3)
    with seen_by(*bodies(learner)) as calls:
        learner.predict(x)
        learner.predict(x)
        assert [len(inputs) for inputs, _ in calls] == [512, 88, 2, 2]
        learner.learn(x, [0, 1])
        learner.predict(x)
    assert learner.trainer.image_counts == {"scores": ImageCount(trained=0, scored=1200)}


def test_scoring_does_not_move_batchnorm():
    learner = taught(scr(net=NormOnly()), [0, 1], [0, 1, 1])
    before = learner.params_sha256()
    learner.predict(batch_of([0, 1], 3)[0])
    assert learner.params_sha256() == before and learner.model.training


def test_a_class_that_the_memory_has_lost_is_not_predicted():
    learner = taught(scr(memory=1), [0, 1, 2, 3], [4, 5], [0, 1])
    (row,) = learner.store.y[:1].tolist()
    scores = learner.scores(batch_of(list(range(6)) * 3, 9)[0])
    assert scores.shape == (18, 6) and bool(torch.isfinite(scores).all())
    assert set(scores.argmax(dim=1).tolist()) == {row}


def test_one_stored_sample_for_each_class_makes_a_nearest_neighbour():
    learner = taught(scr(), [0, 1, 2, 3, 4, 5])
    (x, _), (stored, _) = batch_of(list(range(6)) * 4, 9), batch_of([0, 1, 2, 3, 4, 5], 0)
    cosine = torch.cosine_similarity(x.unsqueeze(1), stored, dim=2)
    assert torch.equal(learner.predict(x), cosine.argmax(dim=1))


# ---- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 0}, "memory must be at least 1"),
        ({"replay": 0}, "replay must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"temperature": -0.1}, "temperature must be positive"),
        ({"temperature": math.nan}, "temperature must be a number"),
        ({"first_view": "raw"}, "first_view must be plain or augmented"),
        ({"review": "yes"}, "review must be true or false"),
        (
            {"augment": "colours"},
            "augment must be crop-grey or",
        ),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        SCR(**settings)


def test_the_official_preset_learns():
    chosen = {**SCR.presets["official"].settings, "memory": 20, "device": "cpu"}
    learner = SCR(**chosen)
    for seed in range(3):
        x, y = images_of([0, 1, 2], seed, channels=3)
        assert math.isfinite(learner.learn(x, y).loss)
    assert (learner.replay, learner.optimizer, learner.review) == (100, "sgd", True)
    assert learner.cost(10) == ImageCount(trained=220)


def test_half_precision_stays_close_and_gives_fp32_scores():
    x, _ = batch_of([0, 1, 2], 5)
    scores = [
        taught(scr(net="mlp", precision=name), [0, 1, 2], [0, 1, 2]).scores(x)
        for name in ("fp32", "bf16")
    ]
    assert scores[1].dtype == torch.float32 and not torch.equal(*scores)
    torch.testing.assert_close(*scores, atol=0.02, rtol=0)


@dataclass(kw_only=True, eq=False)
class Official(SCR):
    """SCR with the contrastive augmentation. The contract is checked elsewhere with the default
    one."""

    augment: Augment = "contrastive"
    mirror: bool = True


@pytest.mark.parametrize(
    "name",
    [
        "the_step_stays_on_the_device",
        "declared_images_are_counted",
        "same_seed_same_bits",
        "global_generators_are_left_alone",
        "extreme_inputs_stay_finite",
        "modes_are_restored",
    ],
)
def test_the_contract_holds_with_contrastive_views_and_mirror_images(name):
    checks.CHECKS[name](Official)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "temperature": 0.1, "review": True}
    assert defaults(SCR, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(SCR) == {
        "optimizer": "sgd",
        "lr": 0.1,
        "weight_decay": 0.0,
        "replay": 100,
        "temperature": 0.1,
        "augment": "contrastive",
    }
