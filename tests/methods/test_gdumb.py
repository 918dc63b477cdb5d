"""GDumb: no training on the stream, and the fit against plain loops."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from expected_settings import defaults, official
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

import onepass
from onepass.base.errors import InputError
from onepass.base.seeds import generator
from onepass.learning.checkpoint.file import open_learner
from onepass.methods.gdumb import Fit, GDumb, cutmix, learning_rate
from onepass.nets import Head


class Flat(nn.Module):
    """A net whose features are the inputs. The class counts the inputs of training forward
    passes."""

    trained = 0

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            Flat.trained += len(x)
        return x.flatten(1)


def gdumb(**settings: object) -> GDumb:
    small = {"memory": 20, "epochs": 4, "device": "cpu", "net": Flat(), "lr": 0.05}
    return GDumb(**{**small, **settings})


def vectors(count: int, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    centre = 3 * torch.eye(classes, 5)
    return centre[y] + torch.randn(count, 5, generator=source), y


def images(count: int, channels: int = 3, side: int = 8) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    shape = (count, channels, side, side)
    return torch.randint(256, shape, generator=source, dtype=torch.uint8), torch.arange(count) % 3


def taught(x: Tensor, y: Tensor, **settings: object) -> GDumb:
    learner = gdumb(**settings)
    for begin in range(0, len(y), 10):
        learner.learn(x[begin : begin + 10], y[begin : begin + 10])
    return learner


# ---- the stream


def test_nothing_is_trained_on_the_stream():
    x, y = vectors(60)
    learner = taught(x[:10], y[:10])
    before = learner.params_sha256()
    for begin in range(10, 60, 10):
        step = learner.learn(x[begin : begin + 10], y[begin : begin + 10])
        assert step.loss.item() == 0 and step.outputs == ()
    learner.end_task()
    assert learner.params_sha256() == before
    assert learner.cost(10) == (0, 0) and learner.trainer.image_counts == {}
    assert not any(learner.state_dict()["optimizer"].values())
    assert learner._scorer is None


def test_the_memory_is_balanced():
    x, y = vectors(120)
    learner = gdumb(memory=21)
    for label in range(3):
        mine = y == label
        learner.learn(x[mine], y[mine])
    assert torch.bincount(learner.store.y[:21]).tolist() == [7, 7, 7]


# ---- the learning rate


def test_the_learning_rate_is_torchs_cosine_with_restarts_after_a_first_tenth():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        optimizer, T_0=1, T_mult=2, eta_min=0.0005
    )
    optimizer.step()
    expected = [0.005]
    for _ in range(255):
        expected.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    found = [learning_rate(epoch, 0.05) for epoch in range(256)]
    assert found == pytest.approx(expected, abs=1e-12)
    assert min(found) == found[255] == pytest.approx(0.0005, abs=1e-5)


# ---- CutMix


def by_loops(pictures: Tensor, partner: list[int], lots: list[float], p: float) -> tuple:
    """Returns the box, pixel by pixel."""
    count, _, height, width = pictures.shape
    whether, share, down, right = lots
    mixed, changed = pictures.clone(), 0
    if whether >= p:
        return mixed, 1.0
    side = math.sqrt(1 - share)
    half = int(side * height) // 2, int(side * width) // 2
    centre = int(down * height), int(right * width)
    for row in range(height):
        for column in range(width):
            inside = all(
                at - reach <= place < at + reach
                for place, at, reach in zip((row, column), centre, half, strict=True)
            )
            changed += inside
            for number in range(count if inside else 0):
                mixed[number, :, row, column] = pictures[partner[number], :, row, column]
    return mixed, 1 - changed / (height * width)


@pytest.mark.parametrize("seed", range(12))
def test_one_box_of_each_image_comes_from_its_partner(seed):
    pictures = torch.rand(5, 2, 6, 9, generator=torch.Generator().manual_seed(seed))
    source, twin = (torch.Generator().manual_seed(100 + seed) for _ in range(2))
    mixed, partner, own = cutmix(pictures, 0.7, source)
    lots = torch.rand(4, generator=twin).tolist()
    expected, share = by_loops(pictures, partner.tolist(), lots, 0.7)
    assert sorted(partner.tolist()) == list(range(5))
    assert torch.equal(mixed, expected)
    assert own.item() == pytest.approx(share, abs=1e-6)


def test_cutmix_happens_with_its_probability_and_takes_about_half_a_side():
    pictures, source = torch.rand(2, 1, 32, 32), torch.Generator().manual_seed(0)
    shares = [cutmix(pictures, 0.5, source)[2].item() for _ in range(2000)]
    untouched = sum(share == 1 for share in shares) / 2000
    assert 0.47 < untouched < 0.56  # half, and boxes without a pixel
    assert all(cutmix(pictures, 0.0, source)[2] == 1 for _ in range(50))
    assert 0 <= min(shares) < 0.2


def test_the_loss_of_a_mixed_batch_weighs_both_labels_by_their_pixels():
    x, y = images(9)
    learner = taught(x, y, cutmix=1.0, augment="none", memory=9, fit_batch=9)
    fit = Fit(learner)
    draws = fit.trainer.rngs["draws"]
    state = draws.get_state()
    weight = torch.tensor([1.0] * 7 + [0.0] * 2)
    logits_of, slots = copy.deepcopy(fit.trainer.model), torch.arange(9).flip(0)
    loss = fit.step(slots, weight).loss
    draws.set_state(state)
    mixed, partner, own = cutmix(x.flip(0).float() / 255, 1.0, draws)
    assert 0 < own < 1
    log_p, y = logits_of(mixed).log_softmax(1), y.flip(0)
    terms = [
        -own * log_p[k, y[k]] - (1 - own) * log_p[k, y[partner[k]]] for k in range(9) if weight[k]
    ]
    torch.testing.assert_close(loss, sum(terms).detach() / 7)


def test_the_fit_trains_on_augmented_images():
    x, y = images(9)
    learner = taught(x, y, cutmix=0.0, memory=9, fit_batch=9)
    fit = Fit(learner)
    trainer = fit.trainer
    draws, views, net = trainer.rngs["draws"], trainer.views, copy.deepcopy(trainer.model)
    state = draws.get_state()
    loss = fit.step(torch.arange(9), torch.ones(9)).loss
    draws.set_state(state)
    of_views = F.cross_entropy(net(views(learner.store.x[:9])), learner.store.y[:9])
    plain = F.cross_entropy(net(views.plain(learner.store.x[:9])), learner.store.y[:9])
    torch.testing.assert_close(loss, of_views.detach())
    assert abs(loss - plain.detach()) > 1e-3


@pytest.mark.parametrize(("channels", "settings"), [(1, {}), (3, {"cutmix": 0.0})])
def test_grey_images_and_a_probability_of_0_are_not_mixed(channels, settings, monkeypatch):
    monkeypatch.setattr("onepass.methods.gdumb.cutmix", None)
    x, y = images(12, channels)
    assert torch.isfinite(taught(x, y, **settings).scores(x)).all()


def test_colour_images_are_mixed(monkeypatch):
    monkeypatch.setattr("onepass.methods.gdumb.cutmix", None)
    x, y = images(12)
    with pytest.raises(TypeError):
        taught(x, y).scores(x)


# ---- the fit


@pytest.mark.parametrize(
    ("net", "share"), [(Flat(), 0.2), (nn.BatchNorm1d(5), 1), (nn.LayerNorm(5), 1)]
)
def test_a_network_without_normalisation_has_a_fifth_of_the_rate(monkeypatch, net, share):
    x, y = vectors(20)
    highest = []
    monkeypatch.setattr(
        "onepass.methods.gdumb.learning_rate", lambda epoch, rate: highest.append(rate) or rate
    )
    taught(x, y, net=net, lr=0.1, epochs=1).scores(x)
    assert highest == [pytest.approx(0.1 * share)]


def by_plain_loops(learner: GDumb, epochs: int, batch: int) -> tuple[Tensor, Tensor, list[float]]:
    """Fits a linear head to vectors with short last batches and torch's plain SGD. Returns weight,
    bias and the norms of the gradients."""
    held = int(learner.store.size)
    x, y = learner.store.x[:held], learner.store.y[:held]
    source = generator(learner.seed, "initialisation of a fit")
    head = Head(x.shape[1], len(learner.classes), source)
    draws, norms = generator(learner.seed, "draws of a fit"), []
    optimizer = torch.optim.SGD(
        head.parameters(), lr=1, momentum=0.9, weight_decay=learner.weight_decay
    )
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = learning_rate(epoch, learner.lr / 5)
        order = torch.rand(held, generator=draws).argsort()
        for begin in range(0, held, batch):
            chosen = order[begin : begin + batch]
            optimizer.zero_grad()
            F.cross_entropy(head(x[chosen]), y[chosen]).backward()
            norm = math.sqrt(
                sum(float((parameter.grad**2).sum()) for parameter in head.parameters())
            )
            norms.append(norm)
            for parameter in head.parameters():
                parameter.grad *= min(1, 10 / (norm + 1e-6))
            optimizer.step()
    return head.weight.detach(), head.bias.detach(), norms


@pytest.mark.parametrize(("memory", "batch"), [(20, 16), (20, 7), (20, 5), (3, 16)])
@pytest.mark.parametrize("scale", [1, 30], ids=["small gradients", "large gradients"])
def test_the_fit_agrees_with_plain_loops(memory, batch, scale):
    x, y = vectors(60)
    learner = taught(scale * x, y, memory=memory, fit_batch=batch, weight_decay=1e-2, epochs=6)
    scores = learner.scores(x)
    weight, bias, norms = by_plain_loops(learner, epochs=6, batch=batch)
    assert (max(norms) > 10) == (scale == 30)
    torch.testing.assert_close(scores, x @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_every_sample_comes_once_in_a_pass_and_padding_of_the_last_batch_has_weight_0(monkeypatch):
    taken = []
    monkeypatch.setattr(Fit, "step", lambda self, slots, weight: taken.append((slots, weight)))
    x, y = vectors(60)
    learner = taught(x, y, memory=20, fit_batch=8, epochs=5)
    held = int(learner.store.size)
    learner.scores(x)
    assert len(taken) == 15 and all(len(slots) == 8 for slots, _ in taken)
    passes = [
        torch.cat([slots[weight > 0] for slots, weight in taken[begin : begin + 3]]).tolist()
        for begin in range(0, 15, 3)
    ]
    assert all(sorted(order) == list(range(held)) for order in passes)
    assert len(set(map(tuple, passes))) == 5
    for begin in range(0, 15, 3):
        often = torch.cat([slots for slots, _ in taken[begin : begin + 3]]).bincount()
        assert len(often) == held and max(often) <= 2


def test_a_memory_smaller_than_a_batch_is_repeated_evenly(monkeypatch):
    taken = []
    monkeypatch.setattr(Fit, "step", lambda self, slots, weight: taken.append((slots, weight)))
    x, y = vectors(3)
    taught(x, y, epochs=4).scores(x)
    for slots, weight in taken:
        assert sorted(slots.bincount().tolist()) == [5, 5, 6]
        assert weight.tolist() == [1] * 3 + [0] * 13


@pytest.mark.parametrize("mirror", [False, True])
def test_images_of_the_fit_are_counted_once_for_each_scored_state(mirror):
    x, y = images(30)
    learner = taught(x, y, memory=21, fit_batch=8, epochs=3, mirror=mirror)
    for repeats in (1, 2):
        Flat.trained = 0
        learner.scores(x)
        learner.predict(x)
        assert Flat.trained == 3 * 24 * (1 + mirror)
        assert learner.trainer.image_counts == {"scores": (repeats * 3 * 24 * (1 + mirror), 0)}
        learner.learn(x[:1], y[:1])


def test_the_same_memory_gives_the_same_network_on_any_stream():
    x, y = vectors(90)
    first = taught(x[:60], y[:60], memory=20)
    second = taught(x[:60], y[:60], memory=20)
    again = first.scores(x)
    for begin in range(60, 90, 10):  # a full class takes no more samples
        second.learn(x[begin : begin + 10], [0] * 10)
    assert torch.equal(first.store.x[:20], second.store.x[:20])
    assert torch.equal(second.scores(x), again)


def test_other_labels_in_the_memory_and_another_seed_give_another_network():
    x, y = vectors(60)
    plain, other = taught(x, y), taught(x, y)
    other.store.y.copy_((other.store.y + 1) % 3)
    assert not torch.allclose(plain.scores(x), other.scores(x))
    assert not torch.allclose(plain.scores(x), taught(x, y, seed=1).scores(x))


def test_fitting_changes_no_generator_and_no_state():
    x, y = images(30)
    learner = taught(x, y)
    state, world = learner.state_sha256(), torch.get_rng_state()
    learner.scores(x)
    assert learner.state_sha256() == state
    assert torch.equal(torch.get_rng_state(), world)


def test_an_opened_learner_fits_the_same_network(tmp_path):
    x, y = vectors(60)
    learner = taught(x, y, net="mlp")
    learner.save(tmp_path / "learner.pt")
    opened = open_learner(tmp_path / "learner.pt", device="cpu")
    assert torch.equal(opened.scores(x), learner.scores(x))


def test_scores_work_where_gradients_are_off():
    x, y = vectors(60)
    with torch.no_grad():
        off = taught(x, y).scores(x)
    assert torch.equal(off, taught(x, y).scores(x))


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "adamw"])
def test_the_memory_is_learned_with_any_optimizer(optimizer):
    x, y = vectors(60)
    learner = taught(x, y, optimizer=optimizer, epochs=32, memory=30)
    held = learner.store.x[:30]
    right = learner.predict(held) == torch.tensor(learner.classes)[learner.store.y[:30]]
    assert right.float().mean() > 0.9


def test_the_users_net_stays_unchanged():
    x, y = vectors(60)
    net = nn.Linear(5, 4)
    before = net.weight.detach().clone()
    learner = taught(x, y, net=net)
    fitted = learner.scorer()
    assert torch.equal(net.weight, before)
    assert not torch.equal(fitted.body.weight, before)


def test_a_step_of_the_fit_stays_on_the_device():
    """A captured step must not read a value on the host, and no shape may depend on data."""
    x, y = images(30)
    fit = Fit(taught(x, y, net="resnet18", mirror=True))
    sources = [*fit.trainer.rngs.values(), *fit.learner.trainer.rngs.values()]
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        fake = copy.deepcopy(fit, {id(source): source.clone_state() for source in sources})
    fake.trainer.optimizer.step = lambda: None
    with mode:
        slots = mode.from_tensor(torch.arange(16))
        assert fake.step(slots, mode.from_tensor(torch.ones(16))).loss.shape == ()


# ---- odd cases


def test_one_sample_is_enough_also_for_a_net_with_statistics():
    x, y = images(1, side=8)
    learner = gdumb(net="resnet18", epochs=1)
    learner.learn(x, y)
    assert learner.scores(x).shape == (1, 1)
    assert torch.isfinite(learner.scores(x)).all()


def test_with_fewer_slots_than_classes_every_class_still_has_a_score():
    x, y = vectors(30)
    learner = taught(x, y, memory=2)
    assert learner.scores(x).shape == (30, 3)


def test_after_the_first_batch_its_classes_are_distinguished():
    x, y = vectors(10, classes=2)
    learner = taught(x, y, epochs=64)
    assert (learner.predict(x) == y).float().mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"memory": 0}, "memory must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"fit_batch": 0}, "fit_batch must be at least 1"),
        ({"cutmix": 1.1}, "cutmix must be between 0 and 1"),
        ({"cutmix": -0.1}, "cutmix must be between 0 and 1"),
        ({"head": "frozen"}, "head must be trained"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings, wanted):
    with pytest.raises(InputError, match=wanted):
        gdumb(**settings)


def test_it_is_scored_only_at_the_end():
    stream = onepass.ClassIncremental(onepass.load("digits"), tasks=5)
    (last,) = onepass.evaluate(GDumb(memory=60, epochs=16, seed=0), stream)
    assert last.task == 4 and last.accuracy > 60


FITTING = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 1e-6, "epochs": 256, "fit_batch": 16}


def test_the_defaults_are_the_papers_with_the_common_augmentation():
    expected = {**FITTING, "augment": "crop-grey"}
    assert defaults(GDumb, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(GDumb) == {**FITTING, "cutmix": 0.5, "mirror": True}


def test_an_emptied_memory_trains_nothing():
    few, many = (GDumb(memory=10, epochs=epochs, device="cpu") for epochs in (1, 8))
    for learner in (few, many):
        learner.learn([[0.5, 1.0], [2.0, 0.0]], [0, 1])
        learner.forget(where=[True, True])
    assert torch.equal(few.scores([[1.0, 1.0]]), many.scores([[1.0, 1.0]]))
