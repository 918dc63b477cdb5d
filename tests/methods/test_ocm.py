"""OCM: the sixteen maps, closed forms and limits of the contrasts, every step against the authors'
loss in plain loops, and the previous network.
"""

import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from tiny_learners import Trained, naive_cross_entropy
from torch import Tensor, nn

from onepass.base.errors import InputError
from onepass.base.parts import ImageCount
from onepass.functional.losses import supervised_contrastive
from onepass.methods import ocm as ocm_module
from onepass.methods.ocm import OCM, EmbeddedViews, class_contrast, rotated, stream_contrast

TAU = 0.07


# ---- small streams and learners


def ocm(**settings: object) -> OCM:
    small = {
        "net": Trained(),
        "memory": 30,
        "replay": 6,
        "optimizer": "sgd",
        "lr": 0.05,
        "weight_decay": 0.0,
        "augment": "none",
        "device": "cpu",
        "seed": 5,
    }
    return OCM(**{**small, **settings})


def images_of(labels: list[int], seed: int, shape: tuple[int, ...] = (1, 4, 4)):
    source = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    noise = torch.randint(120, (len(y), *shape), generator=source)
    return (noise + 20 * y.view(-1, 1, 1, 1)).to(torch.uint8), y


def taught(learner: OCM, *tasks: list[list[int]]) -> OCM:
    """Returns the learner after tasks of batches of labels."""
    seed = 0
    for task in tasks:
        learner.new_task()
        for labels in task:
            learner.learn(*images_of(labels, seed))
            seed += 1
    return learner


def in_the_second_task(learner: OCM) -> OCM:
    return taught(learner, [[0, 1, 0, 1], [1, 1, 0]], [[2, 0, 2]])


@contextmanager
def recorded(learner: OCM):
    """Records the draw of a step, its forward passes, and the previous network's outputs."""
    kept: dict[str, list] = {"drawn": [], "embedded": [], "previous": [], "logits": []}

    def keeping(name: str, into: str) -> None:
        original = getattr(learner, name)

        def keep(*arguments):
            made = original(*arguments)
            kept[into].append((arguments, made))
            return made

        setattr(learner, name, keep)

    for name, into in (
        ("draw_replay", "drawn"),
        ("embed", "embedded"),
        ("previous_outputs", "previous"),
        ("forward", "logits"),
    ):
        keeping(name, into)
    yield kept
    for name in ("draw_replay", "embed", "previous_outputs", "forward"):
        delattr(learner, name)


def embedded(
    z: Tensor, key: Tensor, y: list[int], weight: list[float] | None = None
) -> EmbeddedViews:
    return EmbeddedViews(z, key, torch.tensor(y), torch.tensor(weight or [1.0] * len(y)))


def random_views(
    y: list[int], views: int = 2, maps: int = 3, seed: int = 0, **more
) -> EmbeddedViews:
    source = torch.Generator().manual_seed(seed)
    z, key = torch.randn(2, views, maps, len(y), 5, generator=source)
    return embedded(F.normalize(z, dim=-1) / TAU, F.normalize(key, dim=-1), y, **more)


# ---- the maps


def test_the_sixteen_maps_are_distinct_and_the_first_is_the_identity():
    image = torch.arange(36.0).view(1, 1, 6, 6)
    made = rotated(image, 16)
    assert torch.equal(made[:1], image)
    assert len({tuple(image.flatten().tolist()) for image in made}) == 16
    for image in made:  # pixels move but keep their values
        assert sorted(image.flatten().tolist()) == list(range(36))


def test_maps_are_halves_rotated_by_180_degrees_and_rotations_of_the_whole():
    image = torch.arange(16.0).view(4, 4)
    left, right = image[:, :2], image[:, 2:]
    expected = [
        torch.cat(pair, dim=1).rot90(quarters)
        for quarters in range(4)
        for pair in (
            (left, right),
            (left, right.rot90(2)),
            (left.rot90(2), right.rot90(2)),
            (left.rot90(2), right),
        )
    ]
    two = torch.stack([image, 100 + image]).unsqueeze(1)
    made = rotated(two, 16).view(16, 2, 4, 4)
    assert torch.equal(made[:, 0], torch.stack(expected))
    assert torch.equal(made[:, 1], 100 + torch.stack(expected))


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_fewer_maps_are_the_first_maps(count):
    image = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(rotated(image, count), rotated(image, 16)[:count])


@pytest.mark.parametrize(("shape", "maps"), [((1, 4, 4), 16), ((1, 4, 6), 8), ((3, 5, 4), 8)])
def test_images_that_are_not_square_keep_their_shape(shape, maps):
    learner = ocm()
    learner.learn(*images_of([0, 1], 0, shape))
    learner.new_task()
    assert math.isfinite(learner.learn(*images_of([2, 0, 1], 1, shape)).loss)
    assert learner.cost(10) == ImageCount(trained=2 * maps * 16 + 6, scored=(maps + 1) * 6)


# ---- closed forms and limits of the contrasts


@pytest.mark.parametrize("n", [1, 4])
def test_with_equal_projections_contrasts_count_the_views(n):
    """L_u is log N. L_n is log(N - 1), once and 2 (n_i - 1) / n_i times."""
    ones = torch.ones(2, 3, n, 1)
    views = embedded(ones, ones, [0] * n)
    total, own = 2 * 3 * n, 2 * n
    assert class_contrast(views).item() == pytest.approx(math.log(total), rel=1e-5)
    expected = math.log(total - 1) * (1 + 2 * (own - 1) / own)
    assert stream_contrast(views).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("y", [[0, 1, 2], [0, 0, 1, 2, 1, 0]], ids=str)
def test_without_the_window_and_with_one_map_the_stream_contrast_is_supervised_contrast(y):
    """It counts a sample's other view once and its class twice, as far as the class has other
    views."""
    views = random_views(y, maps=1)
    views = views._replace(key=views.z * TAU)
    z, both = views.key.flatten(0, 2), torch.tensor(y).repeat(2)
    weight, own = torch.ones(len(both)), torch.arange(len(y)).repeat(2)
    alone = supervised_contrastive(z, own, weight, TAU)
    by_class = 0.0
    for i, label in enumerate(both.tolist()):
        members = int((both == label).sum())
        anchor = F.one_hot(torch.tensor(i), len(both)).float()
        share = (members - 1) / members / len(both)
        by_class += share * supervised_contrastive(z, both, weight, TAU, anchors=anchor)
    assert stream_contrast(views).item() == pytest.approx((alone + 2 * by_class).item(), rel=1e-5)


def test_with_one_sample_for_each_label_the_stream_contrast_is_unsupervised():
    """A pseudo-class is a view and its other view: the same pair counts once, and twice a half."""
    views = random_views([0, 1, 2], maps=2)
    other = random_views([7, 5, 3], maps=2)
    assert stream_contrast(views).item() == pytest.approx(stream_contrast(other).item())
    z, key = views.z.flatten(0, 2), views.key.flatten(0, 2)
    pairs = (z @ key.T).fill_diagonal_(-math.inf).log_softmax(dim=1)
    own = -pairs[torch.arange(12), torch.arange(12).roll(6)].mean()
    assert stream_contrast(views).item() == pytest.approx(2 * own.item(), rel=1e-5)


def test_with_one_sample_for_each_label_the_memorys_contrast_is_that_of_its_own_views():
    views = random_views([0, 1, 2], maps=2)
    z, key = views.z.flatten(0, 2), views.key.flatten(0, 2)
    pairs, own = (z @ key.T).log_softmax(dim=1), torch.arange(12)
    expected = -(pairs[own, own] + pairs[own, own.roll(6)]).mean() / 2
    assert class_contrast(views).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_previous_network_that_agrees_leaves_only_the_other_pseudo_classes():
    """z' = z, orthogonal and each with its own label, gives log(1 + (N - 1) e^{-1/t})."""
    z = torch.eye(6).view(1, 2, 3, 6)
    loss = class_contrast(embedded(z / 0.5, z, [0, 1, 2]))
    assert loss.item() == pytest.approx(math.log(1 + 5 * math.exp(-1 / 0.5)), rel=1e-5)


@pytest.mark.parametrize("contrast", [class_contrast, stream_contrast])
def test_samples_of_weight_zero_change_nothing(contrast):
    whole = random_views([0, 1, 0, 2, 2], weight=[1.0, 1.0, 1.0, 0.0, 0.0])
    part = EmbeddedViews(whole.z[:, :, :3], whole.key[:, :, :3], whole.y[:3], whole.weight[:3])
    torch.testing.assert_close(contrast(whole), contrast(part))


@pytest.mark.parametrize("contrast", [class_contrast, stream_contrast])
def test_gradients_agree_with_finite_differences(contrast):
    views = random_views([0, 1, 0, 2], maps=2, weight=[1.0, 1.0, 1.0, 0.0])
    z, key = views.z.double().requires_grad_(), views.key.double().requires_grad_()

    def of(z: Tensor, key: Tensor) -> Tensor:
        return contrast(EmbeddedViews(z, key, views.y, views.weight.double()))

    assert torch.autograd.gradcheck(of, (z, key))


# ---- every step against the authors' formulas in plain loops


def pairs(z: list[list[float]], keys: list[list[float]]) -> list[list[float]]:
    return [[sum(a * b for a, b in zip(query, key, strict=True)) for key in keys] for query in z]


def surprise(row: list[float], j: int, left_out: int | None) -> float:
    """Returns -log of the softmax of a row of similarities at j."""
    return math.log(sum(math.exp(s - row[j]) for k, s in enumerate(row) if k != left_out))


def naive_contrast(z, keys, labels, *, stream: bool) -> float:
    """Computes L_n, or L_u and L_p, over views with weight. The other view of i lies half of the
    length away."""
    total, similar = 0.0, pairs(z, keys)
    for i, row in enumerate(similar):
        members = [j for j, label in enumerate(labels) if label == labels[i]]
        out = i if stream else None
        to_class = sum(surprise(row, j, out) for j in members if j != out) / len(members)
        if stream:
            other = (i + len(z) // 2) % len(z)
            total += surprise(row, other, out) + 2 * to_class
        else:
            total += to_class
    return total / len(z)


def listed(views: EmbeddedViews) -> tuple[list, list, list]:
    """Returns z, keys and pseudo-classes of the views with weight."""
    numbers = [], [], []
    for view in range(len(views.z)):
        for turn in range(views.z.shape[1]):
            for n, label in enumerate(views.y.tolist()):
                if views.weight[n]:
                    numbers[0].append(views.z[view, turn, n].tolist())
                    numbers[1].append(views.key[view, turn, n].tolist())
                    numbers[2].append((label, turn))
    return numbers


STREAM = ([[0, 1, 0], [1, 1, 0, 0]], [[2, 0, 2], [2], [3, 2, 3, 3]], [[4, 0], [5, 4]])


@pytest.mark.parametrize(
    "settings",
    [{}, {"scale": 0.5, "temperature": 0.2, "strength": 3.0}, {"mirror": True}, {"net": "mlp"}],
    ids=str,
)
def test_every_step_is_the_sum_of_its_terms_by_plain_loops(settings):
    learner = ocm(rotations=3, augment="crop-grey", **settings)
    seed = 0
    for number, task in enumerate(STREAM):
        learner.new_task()
        for labels in task:
            with recorded(learner) as kept:
                step = learner.learn(*images_of(labels, seed))
            seed += 1
            ((_, made),) = kept["embedded"]
            (_, (out,)) = kept["logits"][0]
            seen = set(range(len(learner.classes)))
            expected = {
                "L_n": naive_contrast(*listed(made[0]), stream=True),
                "labels": naive_cross_entropy(out, seen),
            }
            if number:
                ((_, (past, taught_logits)),) = kept["previous"]
                first = made[1]._replace(
                    z=made[1].z[:1] / learner.scale, key=past.view_as(made[1].key[:1])
                )
                known = int(learner.previous.known.sum())
                error = (out.logits[:, :known] - taught_logits[:, :known]).square()
                counted = error.detach()[out.weight > 0]
                expected["L_u"] = naive_contrast(*listed(made[1]), stream=False)
                expected["L_p"] = naive_contrast(*listed(first), stream=False)
                expected["logits"] = learner.strength * float(counted.mean())
            assert {name: float(value) for name, value in step.terms.items()} == pytest.approx(
                expected, rel=1e-3, abs=1e-4
            )
            assert float(step.loss) == pytest.approx(sum(expected.values()), rel=1e-3)


def test_similarities_use_the_projection_and_a_changing_window():
    learner = ocm(net="mlp", rotations=1, scale=0.5, lr=1e-9)
    x, y = images_of([0, 1, 2], 1)
    windows = set()
    for _ in range(8):
        with recorded(learner) as kept:
            learner.learn(x, y)
        ((_, (views,)),) = kept["embedded"]
        z = views.z.detach() * TAU / 0.5
        torch.testing.assert_close(z.norm(dim=-1), torch.ones(2, 1, 3))
        window = views.key.detach() - z
        assert window.shape == (2, 1, 3, 128)
        windows.add(round(float(window.sum()), 3))
    assert len(windows) > 4  # of the same features


def test_stream_and_memory_have_separate_windows():
    learner = in_the_second_task(ocm(net="mlp", rotations=1, replay=4, lr=1e-9))
    x, y = images_of([2, 2], 1)
    learner.store.x[:], learner.store.y[:] = x[:1], learner.class_index.row_of[2]
    with recorded(learner) as kept:
        learner.learn(x[:1], y[:1])
    ((_, (new, held)),) = kept["embedded"]
    torch.testing.assert_close(new.z[0, 0, 0], held.z[0, 0, 0])
    assert not torch.allclose(new.key[0, 0, 0], held.key[0, 0, 0])


def test_a_window_lies_inside_the_features(monkeypatch):
    learner = ocm(net="mlp", rotations=1, lr=1e-9)
    learner.prepare((1, 4, 4), torch.uint8)
    limits = []

    def last(high, size, **_):
        limits.append(high)
        return torch.full(size, high - 1)

    x, y = images_of([0, 1], 1)
    learner.learn(x, y)
    features = F.normalize(learner.trainer.eval_model.features(learner.views.normalise(x)))
    monkeypatch.setattr(ocm_module.torch, "randint", last)
    with recorded(learner) as kept:
        learner.learn(x, y)
    ((_, (views,)),) = kept["embedded"]
    window = (views.key - views.z * TAU)[0, 0]
    assert limits == [400 - 128]
    torch.testing.assert_close(window, features[:, 271:399], atol=1e-5, rtol=0)


# ---- draws, forward passes and the previous network


def test_the_first_task_trains_on_the_stream_alone():
    learner = taught(ocm(), [[0, 1, 0, 1], [1, 0]])
    with recorded(learner) as kept:
        step = learner.learn(*images_of([0, 1, 1], 9))
    assert set(step.terms) == {"L_n", "labels"}
    assert not kept["drawn"] and not kept["previous"]
    assert len(step.outputs[0].y) == 3


def test_after_the_first_task_the_streams_labels_are_not_classified():
    learner = in_the_second_task(ocm())
    with recorded(learner) as kept:
        step = learner.learn(*images_of([2, 2, 3], 9))
    ((_, replay),) = kept["drawn"]
    assert torch.equal(step.outputs[0].y, replay.y) and len(kept["logits"]) == 1


@pytest.mark.parametrize(("classes", "counting"), [(1, 14), (2, 21), (4, 35), (9, 64)])
def test_the_number_of_replayed_samples_grows_with_the_classes(classes, counting):
    """It is min(64, 7 |seen|), with one class of the second task."""
    learner = ocm(memory=100, replay=64, rotations=1)
    learner.learn(*images_of([label % classes for label in range(90)], 0))
    learner.new_task()
    with recorded(learner) as kept:
        learner.learn(*images_of([20], 1))
    ((_, replay),) = kept["drawn"]
    assert int(replay.weight.sum()) == counting
    assert bool((replay.weight[:counting] == 1).all())


def test_the_second_view_is_augmented_and_the_first_is_not():
    learner = in_the_second_task(ocm(augment="crop-grey", net=nn.Flatten(), rotations=2))
    seen = []
    handle = learner.model.body.register_forward_hook(lambda _, given, made: seen.append(given[0]))
    x, y = images_of([2, 3], 9)
    with recorded(learner) as kept:
        learner.learn(x, y)
    handle.remove()
    ((_, replay),) = kept["drawn"]
    first, second = seen[0].chunk(2)
    plain = torch.cat([rotated(batch.float() / 255, 2) for batch in (x, replay.x)])
    assert torch.equal(first, plain) and len(seen) == 2
    assert not torch.allclose(first, second, atol=1e-3)


def test_the_previous_network_gets_the_memorys_rotations_and_another_view_in_one_forward():
    learner = in_the_second_task(ocm(augment="crop-grey", net=nn.Flatten(), rotations=2))
    before, seen = learner.previous.state_dict(), []
    body, own = learner.previous.model.body, []
    hooks = [
        body.register_forward_hook(lambda _, given, made: seen.append((given[0], made))),
        learner.model.body.register_forward_hook(lambda _, given, made: own.append(given[0])),
    ]
    with recorded(learner) as kept:
        learner.learn(*images_of([2, 3], 9))
    for hook in hooks:
        hook.remove()
    ((inputs, features),) = seen
    (((_, turns), _),) = kept["embedded"]
    assert torch.equal(inputs[:12], turns[1]) and len(inputs) == 12 + 6
    for other in (own[1], turns[1][:6]):  # an augmented view with its own draw
        assert not torch.allclose(inputs[12:], other, atol=1e-3)
    assert not features.requires_grad
    for name, value in learner.previous.state_dict()["model"].items():
        assert torch.equal(value, before["model"][name])


def test_logits_are_distilled_for_the_classes_that_the_previous_network_knew():
    learner = in_the_second_task(ocm(strength=1.0))
    assert learner.previous.known.sum() == 2
    with recorded(learner) as kept:
        step = learner.learn(*images_of([2, 3], 9))
    (_, (out,)) = kept["logits"][0]
    ((_, (_, logits)),) = kept["previous"]
    counts = out.weight > 0
    expected = F.mse_loss(out.logits[counts, :2], logits[counts, :2])
    assert step.terms["logits"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_strength_zero_switches_the_distillation_off():
    step = in_the_second_task(ocm(strength=0.0)).learn(*images_of([2, 3], 9))
    assert step.terms["logits"].item() == 0


def test_every_parameter_of_the_network_trains():
    learner = in_the_second_task(ocm(net="mlp"))
    for name, parameter in learner.model.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert learner.model.projection.weight.shape == (128, 400)


def test_vectors_are_their_own_only_view():
    learner = ocm(net="mlp")
    x, y = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), torch.arange(4) % 2
    learner.learn(x, y)
    assert learner.cost(10) == ImageCount(trained=2 * 16 + 6, scored=2 * 6)


# ---- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 0}, "memory must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"strength": -1.0}, "strength must be zero or more"),
        ({"rotations": 0}, "rotations must be between 1 and 16"),
        ({"rotations": 17}, "rotations must be between 1 and 16"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        OCM(**settings)


def test_the_cost_is_that_of_the_paper():
    assert OCM().cost(10) == ImageCount(trained=2432, scored=1088)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "temperature": 0.07, "scale": 1.0, "strength": 1.0}
    assert defaults(OCM, expected) == expected
    assert OCM().rotations == 16


def test_the_official_preset_has_the_values_of_its_source():
    assert official(OCM) == {"augment": "crop-grey-flip"}
