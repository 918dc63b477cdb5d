"""Tests that every value of a built network comes from the given generator, or that it is
refused."""

import math

import pytest
import torch
from torch import nn

from onepass import InputError
from onepass.nets import ResNet18, build


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def same_state(found, expected):
    first, second = found.state_dict(), expected.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


class Gain(nn.Module):
    """A user's layer. Its constructor writes values that are lost."""

    def __init__(self, width=3):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.gain * x


class GoodGain(Gain):
    def reset_parameters(self):
        nn.init.normal_(self.gain)


class HalfGain(Gain):
    """A layer that leaves one of its tensors uninitialised."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2, dtype=torch.long))

    def reset_parameters(self):
        nn.init.normal_(self.gain)


class PartlyGain(Gain):
    """A layer that leaves one value of a tensor uninitialised."""

    def reset_parameters(self):
        nn.init.zeros_(self.gain[:-1].detach())


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(2, 2).tril().bool())

    def reset_parameters(self):
        """Draws nothing and does not recompute the mask."""


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4))


class Attribute(nn.Module):
    """A layer with an unregistered tensor, which stays on the meta device."""

    def __init__(self):
        super().__init__()
        self.scale = torch.ones(3)


class WiderLinear(nn.Linear):
    """A known layer with an additional tensor."""

    def __init__(self):
        super().__init__(2, 2)
        self.extra = nn.Parameter(torch.zeros(2))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


# ---- layers that PyTorch resets


def test_known_layers_draw_in_order_and_nothing_else_draws():
    """The order of draws fixes the network of a seed."""
    net = build(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(5, 4)), generator()
    )
    rng = generator()
    for tensor, fan_in in (
        (net[0].weight, 18),
        (net[0].bias, 18),
        (net[2].weight, 5),
        (net[2].bias, 5),
    ):
        bound = 1 / math.sqrt(fan_in)
        expected = torch.empty_like(tensor).uniform_(-bound, bound, generator=rng)
        assert torch.equal(tensor, expected)
    assert net[1].weight.eq(1).all() and net[1].running_var.eq(1).all()


def test_a_resnet_draws_for_its_convolutions_only():
    used, expected = generator(), generator()
    net = build(lambda: ResNet18(3, width=2), used)
    for parameter in (weight for weight in net.parameters() if weight.ndim > 1):
        torch.empty_like(parameter).uniform_(generator=expected)
    assert torch.equal(used.get_state(), expected.get_state())


LAYERS = {
    "LayerNorm": lambda: nn.LayerNorm(4),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "BatchNorm1d": lambda: nn.BatchNorm1d(4),
    "Embedding": lambda: nn.Embedding(5, 4, padding_idx=0),
    "Conv1d": lambda: nn.Conv1d(2, 3, 3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(2, 3, 3),
    "GRU": lambda: nn.GRU(3, 4),
    "one's own": GoodGain,
}


@pytest.mark.parametrize("name", LAYERS)
def test_other_layers_get_the_values_of_their_reset(name):
    net = build(lambda: nn.Sequential(nn.Linear(2, 2), LAYERS[name]()), generator(3))
    rng = generator(3)
    for parameter in net[0].parameters():
        torch.empty_like(parameter).uniform_(generator=rng)
    seed = int(torch.randint(2**62, (), generator=rng))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = LAYERS[name]()
        if isinstance(expected, Gain):
            expected.reset_parameters()
    assert expected.state_dict()
    assert same_state(net[1], expected)


@pytest.mark.parametrize("name", ["Embedding", "Conv1d", "GRU", "one's own"])
def test_the_seed_decides_its_values_and_the_global_generator_stays(name):
    def made(seed):
        return build(lambda: nn.Sequential(LAYERS[name](), LAYERS[name]()), generator(seed))

    before = torch.get_rng_state()
    first, again, other = made(1), made(1), made(2)
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(first, again)
    assert not same_state(first, other)
    assert not same_state(first[0], first[1])


def test_a_layer_without_tensors_is_not_reset_and_draws_nothing():
    used, expected = generator(), generator()
    build(lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.ReLU()), used)
    assert torch.equal(used.get_state(), expected.get_state())


# ---- networks that are refused


@pytest.mark.parametrize(
    ("layer", "tensor"),
    [
        (Gain, "gain"),
        (HalfGain, "count"),
        (PartlyGain, "gain"),
        (Masked, "mask"),
        (Table, "table"),
        (Attribute, "scale"),
        (WiderLinear, "extra"),
        (lambda: nn.MultiheadAttention(4, 2), "in_proj_weight"),
    ],
)
def test_the_error_names_a_layer_with_an_uninitialised_tensor(layer, tensor):
    net = lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer()))  # noqa: E731
    with pytest.raises(InputError) as caught:
        build(net, generator())
    kind = type(layer()).__name__
    for message in (f"'1.0' ({kind})", repr(tensor), "net=…", "initialises=True"):
        assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_error_names_the_network_itself_by_its_class():
    with pytest.raises(InputError, match=r"it \(Gain\) has 'gain'"):
        build(Gain, generator())


def test_shared_parameters_are_refused_and_a_layer_used_twice_is_not():
    with pytest.raises(InputError, match=r"'second' \(Linear\) has 'weight', which another layer"):
        build(Tied, generator())

    def twice():
        layer = nn.Linear(3, 3)
        return nn.Sequential(layer, nn.ReLU(), nn.Sequential(layer))

    net = build(twice, generator())
    assert net[0] is net[2][0]
