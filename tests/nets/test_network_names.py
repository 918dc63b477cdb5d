"""Networks by name: how one is added, what it brings, and that its preprocessing is used."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from isolated_registries import isolate_registries
from torch import nn

import onepass
from onepass import InputError, UnknownNameError, nets
from onepass.nets import MLP, NETWORKS, backbone, network, preprocessing


@pytest.fixture(autouse=True)
def own_networks(monkeypatch):
    isolate_registries(monkeypatch, NETWORKS)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def grown(x):
    """Twice the size and three channels, centred with constants of its own."""
    return (F.interpolate(x, scale_factor=2.0).expand(-1, 3, -1, -1) - 0.5) / 0.25


class Seen(nn.Module):
    """Remembers what it was shown, in every copy."""

    shown: list[torch.Tensor] = []  # noqa: RUF012 - meant to be shared

    def __init__(self, inputs):
        super().__init__()
        self.linear = nn.Linear(inputs, 7)

    def forward(self, x):
        self.shown.append(x.detach().clone())
        return torch.relu(self.linear(x.flatten(1)))


@pytest.fixture
def shapes():
    """Registers a network with preprocessing; gives the shapes for which it was made."""
    Seen.shown.clear()
    asked = []

    @network("grown", takes="images", preprocess=grown)
    def make(shape):
        asked.append(shape)
        return Seen(torch.Size(shape).numel())

    return asked


def images(count=6, seed=0):
    shape = (count, 1, 5, 4)
    return torch.randint(256, shape, generator=generator(seed), dtype=torch.uint8)


def test_every_network_in_a_file_of_the_package_is_imported():
    files = Path(nets.__file__).parent.glob("*.py")
    written = {file.stem for file in files if "\n@network(" in file.read_text()}
    found = {one.make.__module__ for one in NETWORKS.entries.values()}
    assert {f"onepass.nets.{name}" for name in written} == found


def test_the_networks_of_the_package_are_registered_with_a_sentence_each():
    assert {"mlp", "resnet18"} <= set(NETWORKS.entries)
    assert all(one.make.__doc__ for one in NETWORKS.entries.values())


def test_a_network_of_ones_own_has_a_name_like_the_others():
    @network("small", takes="vectors")
    def small(shape):
        return nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU())

    before = torch.get_rng_state()
    one = onepass.ER(net="small", memory=10, device="cpu")
    one.learn(torch.rand(4, 3, generator=generator()), [0, 1, 0, 1])
    assert one.model.body[0].weight.shape == (5, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(backbone("small", (3,), generator(1)), backbone("small", (3,), generator(1)))


def same_state(one, other):
    first, second = one.state_dict(), other.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_name_of_a_network_that_exists_is_refused():
    with pytest.raises(InputError, match="there is a net 'mlp' already"):

        @network("mlp", takes="images")
        def other(shape):
            return MLP(3)

    assert isinstance(backbone("mlp", (4,), generator()), MLP)


@pytest.mark.parametrize(
    ("takes", "shape", "said"),
    [
        ("images", (4,), "takes images, but the samples are feature vectors"),
        ("vectors", (3, 4, 4), "takes vectors, but the samples are images"),
    ],
)
def test_samples_that_a_network_does_not_take_are_refused(takes, shape, said):
    network("one kind", takes=takes)(lambda shape: MLP(3))
    with pytest.raises(InputError, match=said):
        backbone("one kind", shape, generator())
    with pytest.raises(InputError, match=said):
        preprocessing("one kind", shape)


def test_an_unknown_name_is_answered_with_auto_and_all_others():
    network("bignet", takes="images")(lambda shape: MLP(3))
    with pytest.raises(UnknownNameError, match=r"Did you mean 'bignet'\? Valid: auto, bignet, mlp"):
        backbone("bigget", (3, 4, 4), generator())


# ---- networks that bring their values


class Drawn(nn.Module):
    """Draws from the global generator, and keeps a parameter for which there is no rule."""

    def __init__(self, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, 3))

    def forward(self, x):
        return x @ self.weight


def test_a_network_that_initialises_itself_is_the_seeds_and_leaves_the_global_generator():
    network("drawn", takes="vectors", initialises=True)(lambda shape: Drawn(shape[0]))
    before = torch.get_rng_state()
    first, again, other = (backbone("drawn", (4,), generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(first, again)
    assert not same_state(first, other)
    assert first.weight.device.type == "cpu"


def test_without_saying_so_it_is_refused():
    network("drawn", takes="vectors")(lambda shape: Drawn(shape[0]))
    with pytest.raises(InputError, match=r"it \(Drawn\) has 'weight'.*initialises=True"):
        backbone("drawn", (4,), generator())


def test_values_that_it_brings_stay_as_they_are():
    @network("pretrained", takes="vectors", initialises=True)
    def pretrained(shape):
        layer = nn.Linear(shape[0], 2)
        nn.init.constant_(layer.weight, 0.25)
        return layer

    one = onepass.Finetune(net="pretrained", device="cpu")
    one.prepare((3,), torch.float32)
    assert one.model.body.weight.eq(0.25).all()


# ---- networks that bring their preprocessing


def test_preprocessing_is_that_of_the_registered_network_only(shapes):
    assert preprocessing("grown", (1, 5, 4)) is grown
    for net in ("auto", "mlp", nn.Flatten()):
        assert preprocessing(net, (1, 5, 4)) is None


def test_the_network_is_made_for_what_it_sees(shapes):
    backbone("grown", (1, 5, 4), generator())
    assert shapes == [(3, 10, 8)]


def test_training_and_predicting_see_what_the_preprocessing_gives(shapes):
    one = onepass.ER(net="grown", memory=10, device="cpu", augment="none")
    x = images()
    one.learn(x, [0, 1, 0, 1, 0, 1])
    expected = grown(x.float() / 255)
    assert torch.equal(Seen.shown[-1][:6], expected)
    one.predict(x)
    assert torch.equal(Seen.shown[-1], expected)


def test_mean_and_std_have_no_part_beside_it(shapes):
    x, found = images(), []
    for more in ({}, {"mean": (0.3, 0.2), "std": (0.1, 0.2)}):  # of another number of channels
        one = onepass.ER(net="grown", memory=10, device="cpu", **more)
        for _ in range(3):
            one.learn(x, [0, 1, 0, 1, 0, 1])
        found.append(one.params_sha256())
    assert found[0] == found[1]


@pytest.mark.parametrize("mirror", [False, True])
def test_what_comes_out_of_it_is_augmented_and_mirrored(shapes, mirror):
    one = onepass.Finetune(net="grown", device="cpu", mirror=mirror)
    x = images()
    one.learn(x, [0, 1, 0, 1, 0, 1])
    plain = grown(x.float() / 255)
    if mirror:
        plain = torch.cat([plain, plain.flip(3)])
    shown = Seen.shown[-1]
    assert shown.shape == plain.shape
    assert not torch.equal(shown, plain)
    one.views.rng.set_state(onepass.base.seeds.generator(0, "augmentation").get_state())
    assert torch.equal(shown, one.views.augmented(plain))


def test_contrastive_views_cannot_be_had_with_it(shapes):
    one = onepass.ER(net="grown", memory=10, device="cpu", augment="contrastive")
    with pytest.raises(InputError, match="'contrastive' changes the colours of pixels"):
        one.learn(images(), [0, 1, 0, 1, 0, 1])


def test_a_learner_with_it_is_saved_and_goes_on(shapes, tmp_path):
    one = onepass.ER(net="grown", memory=10, device="cpu")
    one.learn(images(), [0, 1, 0, 1, 0, 1])
    one.save(tmp_path / "model.pt")
    again = onepass.open(tmp_path / "model.pt")
    for learner in (one, again):
        learner.learn(images(seed=1), [0, 2, 0, 1, 0, 1])
    assert one.state_sha256() == again.state_sha256()
