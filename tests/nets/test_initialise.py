"""Building a network: every value is drawn from our generator, or the network is refused."""

import math

import pytest
import torch
from torch import nn

from onepass import InputError
from onepass.nets import ResNet18, build


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def same_state(one, other):
    first, second = one.state_dict(), other.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


class Gain(nn.Module):
    """A layer of one's own; what its constructor writes is lost."""

    def __init__(self, width=3):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.gain * x


class GoodGain(Gain):
    def reset_parameters(self):
        nn.init.normal_(self.gain)


class HalfGain(Gain):
    """Forgets one of its tensors."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2, dtype=torch.long))

    def reset_parameters(self):
        nn.init.normal_(self.gain)


class PartlyGain(Gain):
    """Forgets one of its values."""

    def reset_parameters(self):
        nn.init.zeros_(self.gain[:-1].detach())


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(2, 2).tril().bool())

    def reset_parameters(self):
        """Has nothing to draw, and does not compute the mask again."""


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4))


class Attribute(nn.Module):
    """A tensor that is not registered: nothing moves it from the meta device."""

    def __init__(self):
        super().__init__()
        self.scale = torch.ones(3)


class WiderLinear(nn.Linear):
    """A known layer with a tensor more."""

    def __init__(self):
        super().__init__(2, 2)
        self.extra = nn.Parameter(torch.zeros(2))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight


# ---- layers that PyTorch resets


def test_layers_known_by_name_draw_one_after_another_and_nothing_between():
    """The order of draws is what keeps a seed's network as it is."""
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


def test_a_resnet_draws_for_its_convolutions_and_for_nothing_else():
    used, expected = generator(), generator()
    net = build(lambda: ResNet18(3, width=2), used)
    for parameter in (one for one in net.parameters() if one.ndim > 1):
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
def test_another_layer_has_the_values_that_its_reset_gives(name):
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
def test_its_values_are_the_seeds_and_the_global_generator_stays(name):
    def made(seed):
        return build(lambda: nn.Sequential(LAYERS[name](), LAYERS[name]()), generator(seed))

    before = torch.get_rng_state()
    first, again, other = made(1), made(1), made(2)
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(first, again)
    assert not same_state(first, other)
    assert not same_state(first[0], first[1])


def test_a_layer_without_tensors_is_not_asked_and_draws_nothing():
    used, expected = generator(), generator()
    build(lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), nn.ReLU()), used)
    assert torch.equal(used.get_state(), expected.get_state())


# ---- what is refused


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
def test_a_layer_that_would_keep_values_nobody_chose_is_named(layer, tensor):
    net = lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer()))  # noqa: E731
    with pytest.raises(InputError) as caught:
        build(net, generator())
    kind = type(layer()).__name__
    for said in (f"'1.0' ({kind})", repr(tensor), "net=…", "initialises=True"):
        assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_network_itself_is_named_by_its_class():
    with pytest.raises(InputError, match=r"it \(Gain\) has 'gain'"):
        build(Gain, generator())


def test_layers_that_share_a_parameter_are_refused_and_a_layer_used_twice_is_not():
    with pytest.raises(InputError, match=r"'second' \(Linear\) has 'weight', which another layer"):
        build(Tied, generator())

    def twice():
        layer = nn.Linear(3, 3)
        return nn.Sequential(layer, nn.ReLU(), nn.Sequential(layer))

    net = build(twice, generator())
    assert net[0] is net[2][0]
