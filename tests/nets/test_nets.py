"""Tests networks, the head as it grows, and which of its rows train."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onepass
from onepass import InputError, UnknownNameError
from onepass.learning import trainer
from onepass.nets import MLP, Classifier, CosineHead, Head, ResNet18, backbone, feature_count


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters(net):
    return sum(parameter.numel() for parameter in net.parameters())


def vectors(labels, features=6, seed=0):
    y = torch.as_tensor(labels)
    return torch.randn(len(y), features, generator=generator(seed)), y


def same_state(found, expected):
    first, second = found.state_dict(), expected.state_dict()
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


class Body(nn.Module):
    """A user's network with BatchNorm."""

    def __init__(self, features=6, seed=1):
        super().__init__()
        self.linear = nn.Linear(features, 5)
        self.norm = nn.BatchNorm1d(5)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1, 1, generator=generator(seed))

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


# ---- sizes


def test_resnet18_has_the_parameters_of_the_paper():
    assert parameters(ResNet18()) == 11_168_832


def test_resnet18_of_width_20_has_1_1_million_parameters_with_100_classes():
    head = nn.Linear(160, 100)
    assert parameters(ResNet18(width=20)) + parameters(head) == 1_109_240


@pytest.mark.parametrize("size", [32, 64])
def test_resnet18_returns_512_features_for_both_image_sizes(size):
    body = backbone("resnet18", (3, size, size), generator())
    features = body(torch.rand(2, 3, size, size, generator=generator()))
    assert features.shape == (2, 512)
    assert features.isfinite().all()


def by_the_paper(weights, x):
    """Computes a ResNet18's forward pass in training from its weights (He et al., figure 5,
    left)."""

    def norm(x, name):
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        var, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0, keepdim=True)
        return (x - mean) / (var + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]

    def conv(x, name, stride=1):
        filters = weights[f"{name}.weight"]
        return F.conv2d(x, filters, stride=stride, padding=filters.shape[2] // 2)

    x = norm(conv(x, "stem"), "norm").clamp(min=0)
    for number in range(8):
        block, stride = f"stages.{number}", 2 if number in (2, 4, 6) else 1
        hidden = norm(conv(x, f"{block}.conv1", stride), f"{block}.norm1").clamp(min=0)
        residual = norm(conv(hidden, f"{block}.conv2"), f"{block}.norm2")
        if stride == 2:
            x = norm(conv(x, f"{block}.shortcut.0", stride), f"{block}.shortcut.1")
        x = (x + residual).clamp(min=0)
    return x.mean(dim=(2, 3))


def test_resnet18_computes_the_network_of_its_paper():
    net = ResNet18(width=6).double()
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, generator=generator())
    x = torch.randn(4, 3, 16, 16, generator=generator(), dtype=torch.float64)
    expected = by_the_paper(dict(net.named_parameters()), x)
    torch.testing.assert_close(net(x), expected)
    pulls = torch.randn(expected.shape, generator=generator(1), dtype=torch.float64)
    asked = list(net.parameters())
    got = torch.autograd.grad(net(x), asked, pulls)
    for first, second in zip(got, torch.autograd.grad(expected, asked, pulls), strict=True):
        torch.testing.assert_close(first, second, atol=1e-9, rtol=1e-6)


def test_the_slim_resnet18_has_a_name():
    learner = onepass.ER(net="resnet18-slim", memory=5, device="cpu")
    learner.prepare((3, 32, 32), torch.uint8)
    assert learner.model.head.weight.shape[1] == 160


def test_resnet18_takes_greyscale_images():
    assert feature_count(backbone("resnet18", (1, 32, 32), generator()), torch.zeros(1, 1, 32, 32))


def test_the_mlp_has_the_parameters_of_the_paper():
    assert parameters(Classifier(MLP(784), Head(400, 10, generator()))) == 478_410


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((9,), MLP), ((1, 28, 28), MLP), ((3, 28, 20), MLP), ((3, 29, 20), ResNet18)],
)
def test_auto_is_an_mlp_for_vectors_and_small_images_and_resnet18_above(shape, kind):
    assert isinstance(backbone("auto", shape, generator()), kind)


def test_the_error_for_an_unknown_net_names_the_nearest_one():
    with pytest.raises(UnknownNameError, match="resnet18"):
        backbone("resnet", (3, 32, 32), generator())


def test_resnet18_on_vectors_is_refused():
    with pytest.raises(InputError, match="feature vectors"):
        backbone("resnet18", (10,), generator())


# ---- initialisation


@pytest.mark.parametrize(("net", "shape"), [("mlp", (1, 8, 8)), ("resnet18", (3, 32, 32))])
def test_making_a_net_leaves_the_global_generator_and_repeats_for_a_seed(net, shape):
    before = torch.get_rng_state()
    first, again, other = (backbone(net, shape, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(first, again)
    assert not same_state(first, other)


def test_weights_are_drawn_as_pytorch_draws_them():
    """The reference is layers that PyTorch has initialised."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = ResNet18().state_dict()
    ours = backbone("resnet18", (3, 32, 32), generator()).state_dict()
    for name in (name for name in theirs if theirs[name].ndim > 1):
        for measure in (torch.amax, torch.amin, torch.std):
            found, expected = float(measure(ours[name])), float(measure(theirs[name]))
            assert found == pytest.approx(expected, rel=0.04), name


def test_batch_norm_starts_as_the_identity():
    body = backbone("resnet18", (3, 32, 32), generator())
    norms = [module for module in body.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 20
    for norm in norms:
        assert norm.running_mean.eq(0).all()
        assert norm.running_var.eq(1).all()
        assert norm.num_batches_tracked is None


# ---- a user's network


def test_the_users_module_is_copied_and_never_changed():
    own = Body()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    learner = onepass.ER(net=own, memory=10, device="cpu")
    for seed in range(5):
        learner.learn(*vectors([0, 1, 0, 1], seed=seed))
    assert all(torch.equal(before[name], value) for name, value in own.state_dict().items())
    assert not same_state(learner.model.body, own)


def test_counting_features_changes_neither_statistics_nor_mode():
    for training in (True, False):
        body = Body().train(training)
        before = {name: value.clone() for name, value in body.state_dict().items()}
        assert feature_count(body, vectors([0, 1, 2])[0]) == 5
        assert all(torch.equal(before[name], value) for name, value in body.state_dict().items())
        assert body.training == body.norm.training == training


@pytest.mark.parametrize("net", [nn.Identity(), nn.Flatten(0)], ids=["images", "no samples"])
def test_a_net_that_returns_no_features_per_sample_is_refused(net):
    with pytest.raises(InputError, match=r"must return \(samples, features\)"):
        feature_count(net, torch.zeros(2, 3, 4, 4))


def test_frozen_parameters_do_not_change():
    own = Body()
    own.linear.requires_grad_(False)
    learner = onepass.Finetune(net=own, device="cpu")
    for seed in range(3):
        learner.learn(*vectors([0, 1, 0, 1], seed=seed))
    assert torch.equal(learner.model.body.linear.weight, own.linear.weight)
    assert not torch.equal(learner.model.body.norm.weight, own.norm.weight)


# ---- the head


def test_a_head_is_a_linear_layer():
    head, x = Head(4, 3, generator()), torch.randn(5, 4, generator=generator(1))
    expected = torch.stack([(head.weight * row).sum(1) + head.bias for row in x])
    assert torch.allclose(head(x), expected)


def test_initial_rows_are_uniform_within_one_over_the_root_of_the_features():
    head, bound = Head(400, 64, generator()), 1 / math.sqrt(400)
    values = torch.cat([head.weight.flatten(), head.bias]).detach()
    assert float(values.abs().max()) <= bound
    assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert float(head.bias.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.3)


@pytest.mark.parametrize("path", [(4, 32), (1, 2, 4, 8, 16, 32), (16, 32), (5, 21, 32)])
def test_a_rows_initial_value_does_not_depend_on_how_the_head_grew(path):
    first, *later = path
    rng = generator(3)
    grown, whole = Head(7, first, rng), Head(7, 32, generator(3))
    for capacity in later:
        grown.grow(capacity, rng)
    assert grown.capacity == 32
    assert torch.equal(grown.weight, whole.weight)
    assert torch.equal(grown.bias, whole.bias)


def test_growing_keeps_rows_and_the_mask_of_free_rows():
    head = Head(3, 2, generator())
    head.free[0] = True
    with torch.no_grad():
        head.weight[0] = 5
    head.grow(4, generator(1))
    assert head.weight[0].tolist() == [5, 5, 5]
    assert head.free.tolist() == [True, False, False, False]


def test_cosines_depend_neither_on_the_length_of_features_and_rows_nor_on_the_bias():
    source = generator()
    head = CosineHead(4, 6, source, scale=5.0)
    features = torch.randn(7, 4, generator=source)
    logits = head(features)
    expected = 5 * torch.cosine_similarity(features.unsqueeze(1), head.weight, dim=2)
    torch.testing.assert_close(logits, expected)
    assert bool((logits.abs() <= 5 + 1e-5).all())
    stretch = torch.tensor([1e-3, 0.5, 1, 2, 10, 1e3, 1e4])
    torch.testing.assert_close(head(features * stretch.unsqueeze(1)), logits)
    with torch.no_grad():
        head.weight *= stretch[:6].unsqueeze(1)
        head.bias += 100
    torch.testing.assert_close(head(features), logits)
    assert bool(torch.isfinite(head(torch.zeros(1, 4))).all())


def learned(count, rows, **settings):
    """Returns a learner after some steps on these classes, and its head before the first step."""
    learner = onepass.ER(memory=20, device="cpu", seed=1, **settings)
    labels = torch.tensor(rows).repeat(4)
    for seed in range(count):
        learner.learn(*vectors(labels, seed=seed))
        if not seed:
            birth = learner.model.head.held_weight.clone(), learner.model.head.held_bias.clone()
    return learner, birth


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_spare_rows_do_not_move(optimizer):
    learner, (weight, bias) = learned(20, [0, 1], optimizer=optimizer, weight_decay=0.1)
    head = learner.model.head
    assert torch.equal(head.weight[2:], weight[2:])
    assert torch.equal(head.bias[2:], bias[2:])
    assert not torch.equal(head.weight[:2], weight[:2])


def test_spare_rows_would_shrink_if_they_were_not_reset(monkeypatch):
    """With coupled decay, Adam moves a row without gradient by about lr in each step."""
    monkeypatch.setattr(Head, "restore", lambda head: None)
    learner, (weight, _) = learned(20, [0, 1], weight_decay=1e-4, lr=1e-3)
    now, birth = learner.model.head.weight[2:].detach(), weight[2:]
    assert float((now - birth).abs().median()) > 10 * 1e-3
    assert float(now.abs().sum()) < 0.7 * float(birth.abs().sum())


def test_a_frozen_head_trains_only_in_the_first_task():
    learner, (birth, birth_bias) = learned(5, [0, 1], head="frozen")
    weight, bias = learner.model.head.weight.clone(), learner.model.head.bias.clone()
    assert not torch.equal(weight[:2], birth[:2])
    for task in range(1, 3):
        learner.new_task()
        body = learner.model.body.first.weight.clone()
        for seed in range(5):
            learner.learn(*vectors([2 * task, 2 * task + 1, 0, 1], seed=10 * task + seed))
        assert not torch.equal(learner.model.body.first.weight, body)
        assert torch.equal(learner.model.head.weight, weight)
        assert torch.equal(learner.model.head.bias, bias)
    assert torch.equal(learner.model.head.weight[2:], birth[2:])
    assert torch.equal(learner.model.head.bias[2:], birth_bias[2:])


def test_an_inferred_boundary_freezes_the_head_too():
    learner, (birth, _) = learned(5, [0, 1], head="frozen", gap=2)
    before = learner.model.head.weight.clone()
    learner.learn(*vectors([2, 3, 2, 3]))
    assert learner.task == 1
    assert torch.equal(learner.model.head.weight, before)
    assert torch.equal(learner.model.head.weight[2:], birth[2:])


def test_initial_rows_are_equal_whether_classes_come_together_or_one_by_one():
    def rows(batches):
        learner = onepass.Finetune(head="frozen", device="cpu", seed=4)
        learner.learn(*vectors([0, 1]))
        learner.new_task()
        for batch in batches:
            learner.learn(*vectors(batch))
        assert learner.model.head.capacity == 64
        return learner.model.head.weight[2:40], learner.model.head.bias[2:40]

    at_once, one_by_one = rows([list(range(2, 40))]), rows([[label] for label in range(2, 40)])
    assert torch.equal(at_once[0], one_by_one[0])
    assert torch.equal(at_once[1], one_by_one[1])


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_growing_head_learns_the_same_as_a_large_one(optimizer, monkeypatch):
    def run(capacity):
        monkeypatch.setattr(trainer, "FIRST_CAPACITY", capacity)
        learner = onepass.Finetune(optimizer=optimizer, device="cpu")
        for step in range(24):
            learner.learn(*vectors([step // 2, step // 2 + 1, step // 3, 0], seed=step))
            assert step or learner.model.head.capacity == capacity
        return learner.scores(vectors(range(10), seed=99)[0])

    assert torch.allclose(run(2), run(64), atol=1e-4)


def test_a_net_that_returns_no_tensor_is_refused():
    class Two(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(InputError, match="a tensor, but it returned a tuple"):
        onepass.ER(net=Two(), memory=5).learn(torch.zeros(4, 3), [0, 1, 0, 1])


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_callers_autocast_does_not_affect_an_fp32_net(by_hand):
    net = Classifier(MLP(6), Head(400, 4, torch.Generator().manual_seed(0)))
    x = torch.rand(3, 6)
    plain = net(x)
    with torch.autocast("cpu", torch.bfloat16):
        inside = net.on(net.head, net.features(x)) if by_hand else net(x)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, plain)
