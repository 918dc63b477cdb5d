"""Tests registered networks: how to add one, its own values, and its own preprocessing."""

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
    """Doubles the size and the channels to three, and centres by its own constants."""
    return (F.interpolate(x, scale_factor=2.0).expand(-1, 3, -1, -1) - 0.5) / 0.25


class Seen(nn.Module):
    """A network that records its inputs, in every copy."""

    inputs: list[torch.Tensor] = []  # noqa: RUF012 - meant to be shared

    def __init__(self, inputs):
        super().__init__()
        self.linear = nn.Linear(inputs, 7)

    def forward(self, x):
        self.inputs.append(x.detach().clone())
        return torch.relu(self.linear(x.flatten(1)))


@pytest.fixture
def shapes():
    """Registers a network with preprocessing. Returns the shapes for which it is made."""
    Seen.inputs.clear()
    made_for = []

    @network("grown", takes="images", preprocess=grown)
    def make(shape):
        made_for.append(shape)
        return Seen(torch.Size(shape).numel())

    return made_for


def images(count=6, seed=0):
    shape = (count, 1, 5, 4)
    return torch.randint(256, shape, generator=generator(seed), dtype=torch.uint8)


def test_every_network_in_a_file_of_the_package_is_imported():
    files = Path(nets.__file__).parent.glob("*.py")
    written = {file.stem for file in files if "\n@network(" in file.read_text()}
    found = {entry.make.__module__ for entry in NETWORKS.entries.values()}
    assert {f"onepass.nets.{name}" for name in written} == found


def test_every_network_of_the_package_has_a_docstring():
    assert {"mlp", "resnet18"} <= set(NETWORKS.entries)
    assert all(entry.make.__doc__ for entry in NETWORKS.entries.values())


def test_a_users_network_has_a_name_like_the_others():
    @network("small", takes="vectors")
    def small(shape):
        return nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU())

    before = torch.get_rng_state()
    learner = onepass.ER(net="small", memory=10, device="cpu")
    learner.learn(torch.rand(4, 3, generator=generator()), [0, 1, 0, 1])
    assert learner.model.body[0].weight.shape == (5, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(backbone("small", (3,), generator(1)), backbone("small", (3,), generator(1)))


def same_state(found, expected):
    first, second = found.state_dict(), expected.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_name_of_another_network_is_refused():
    with pytest.raises(InputError, match="there is a net 'mlp' already"):

        @network("mlp", takes="images")
        def other(shape):
            return MLP(3)

    assert isinstance(backbone("mlp", (4,), generator()), MLP)


@pytest.mark.parametrize(
    ("takes", "shape", "message"),
    [
        ("images", (4,), "takes images, but the samples are feature vectors"),
        ("vectors", (3, 4, 4), "takes vectors, but the samples are images"),
    ],
)
def test_samples_that_a_network_does_not_take_are_refused(takes, shape, message):
    network("one kind", takes=takes)(lambda shape: MLP(3))
    with pytest.raises(InputError, match=message):
        backbone("one kind", shape, generator())
    with pytest.raises(InputError, match=message):
        preprocessing("one kind", shape)


def test_the_error_for_an_unknown_name_lists_all_names_and_auto():
    network("bignet", takes="images")(lambda shape: MLP(3))
    with pytest.raises(UnknownNameError, match=r"Did you mean 'bignet'\? Valid: auto, bignet, mlp"):
        backbone("bigget", (3, 4, 4), generator())


# ---- networks with their own values


class Drawn(nn.Module):
    """A network that draws from the global generator and has a parameter without a rule."""

    def __init__(self, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, 3))

    def forward(self, x):
        return x @ self.weight


def test_the_seed_decides_the_values_of_a_network_that_initialises_itself():
    network("drawn", takes="vectors", initialises=True)(lambda shape: Drawn(shape[0]))
    before = torch.get_rng_state()
    first, again, other = (backbone("drawn", (4,), generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert same_state(first, again)
    assert not same_state(first, other)
    assert first.weight.device.type == "cpu"


def test_without_initialises_it_is_refused():
    network("drawn", takes="vectors")(lambda shape: Drawn(shape[0]))
    with pytest.raises(InputError, match=r"it \(Drawn\) has 'weight'.*initialises=True"):
        backbone("drawn", (4,), generator())


def test_its_own_values_are_kept():
    @network("pretrained", takes="vectors", initialises=True)
    def pretrained(shape):
        layer = nn.Linear(shape[0], 2)
        nn.init.constant_(layer.weight, 0.25)
        return layer

    learner = onepass.Finetune(net="pretrained", device="cpu")
    learner.prepare((3,), torch.float32)
    assert learner.model.body.weight.eq(0.25).all()


# ---- networks with their own preprocessing


def test_only_a_registered_network_has_preprocessing(shapes):
    assert preprocessing("grown", (1, 5, 4)) is grown
    for net in ("auto", "mlp", nn.Flatten()):
        assert preprocessing(net, (1, 5, 4)) is None


def test_the_network_is_made_for_the_preprocessed_shape(shapes):
    backbone("grown", (1, 5, 4), generator())
    assert shapes == [(3, 10, 8)]


def test_training_and_prediction_preprocess_their_inputs(shapes):
    learner = onepass.ER(net="grown", memory=10, device="cpu", augment="none")
    x = images()
    learner.learn(x, [0, 1, 0, 1, 0, 1])
    expected = grown(x.float() / 255)
    assert torch.equal(Seen.inputs[-1][:6], expected)
    learner.predict(x)
    assert torch.equal(Seen.inputs[-1], expected)


def test_mean_and_std_are_ignored_with_preprocessing(shapes):
    x, found = images(), []
    for more in ({}, {"mean": (0.3, 0.2), "std": (0.1, 0.2)}):  # of another number of channels
        learner = onepass.ER(net="grown", memory=10, device="cpu", **more)
        for _ in range(3):
            learner.learn(x, [0, 1, 0, 1, 0, 1])
        found.append(learner.params_sha256())
    assert found[0] == found[1]


@pytest.mark.parametrize("mirror", [False, True])
def test_preprocessed_inputs_are_augmented_and_mirrored(shapes, mirror):
    learner = onepass.Finetune(net="grown", device="cpu", mirror=mirror)
    x = images()
    learner.learn(x, [0, 1, 0, 1, 0, 1])
    plain = grown(x.float() / 255)
    if mirror:
        plain = torch.cat([plain, plain.flip(3)])
    seen = Seen.inputs[-1]
    assert seen.shape == plain.shape
    assert not torch.equal(seen, plain)
    learner.views.rng.set_state(onepass.base.seeds.generator(0, "augmentation").get_state())
    assert torch.equal(seen, learner.views.augmented(plain))


def test_contrastive_views_are_refused_with_preprocessing(shapes):
    learner = onepass.ER(net="grown", memory=10, device="cpu", augment="contrastive")
    with pytest.raises(InputError, match="'contrastive' changes the colours of pixels"):
        learner.learn(images(), [0, 1, 0, 1, 0, 1])


def test_a_learner_with_preprocessing_is_saved_and_resumes(shapes, tmp_path):
    value = onepass.ER(net="grown", memory=10, device="cpu")
    value.learn(images(), [0, 1, 0, 1, 0, 1])
    value.save(tmp_path / "model.pt")
    again = onepass.open(tmp_path / "model.pt")
    for learner in (value, again):
        learner.learn(images(seed=1), [0, 2, 0, 1, 0, 1])
    assert value.state_sha256() == again.state_sha256()
