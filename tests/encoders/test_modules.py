import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tiny_encoders import photo, random_pixels
from torch import nn

from onepass.base.errors import InputError
from onepass.encoders import Encoder


class Colours(nn.Module):
    """Returns the mean of each channel after a batch normalisation."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(x).mean(dim=(2, 3))


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("their_encoders")
    made.colours = Colours
    made.images = nn.Identity
    made.number = lambda: 3
    monkeypatch.setitem(sys.modules, "their_encoders", made)
    return made


def test_a_module_of_the_user_is_frozen_and_gets_pixels_from_0_to_1(module):
    encoder = Encoder("their_encoders:colours@32")
    white = torch.full((3, 3, 40, 40), 255, dtype=torch.uint8)
    before = encoder.sha256
    found = encoder.encode(white)
    torch.testing.assert_close(found, torch.ones(3, 3), atol=1e-4, rtol=0)
    assert torch.equal(encoder.encode(white), found)  # batch statistics would have moved
    assert Encoder("their_encoders:colours@32").sha256 == before
    assert not encoder.exact and encoder.dimension == 3


def test_an_image_depends_on_no_other(module):
    encoder = Encoder("their_encoders:colours@32")
    x = torch.from_numpy(random_pixels(9)).permute(0, 3, 1, 2)
    alone = torch.cat([encoder.encode(one) for one in x.split(1)])
    assert torch.equal(alone, encoder.encode(x))


def test_a_module_joins_our_own(module, tiny):
    encoder = Encoder("their_encoders:colours@32+efficientnet-lite0@32")
    assert encoder.dimension == 1283 and not encoder.exact
    assert encoder.encode([photo()]).shape == (1, 1283)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("their_encoders:images", "must return a vector for each image"),
        ("their_encoders:number", "must return a torch module, not int"),
        ("their_encoders:nothing", "has no 'nothing'"),
        ("no.such_module:make", "there is no module"),
    ],
)
def test_other_modules_are_refused(module, name, match):
    with pytest.raises(InputError, match=match):
        Encoder(name)


def test_timm_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="timm:vit_tiny needs the package timm"):
        Encoder("timm:vit_tiny")


def test_a_model_of_timm_gets_its_own_normalisation_and_size(monkeypatch):
    """A stand-in with timm's two functions: timm itself needs torchvision, so it is untried."""
    asked = {}

    def create_model(name, **options):
        asked.update(options, name=name)
        return Colours()

    config = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "input_size": (3, 48, 48)}
    timm = SimpleNamespace(
        create_model=create_model,
        data=SimpleNamespace(resolve_model_data_config=lambda _: config),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    encoder = Encoder("timm:some.model_v1")
    white = torch.full((1, 3, 40, 40), 255, dtype=torch.uint8)
    torch.testing.assert_close(encoder.encode(white), torch.full((1, 3), 2.0), atol=1e-4, rtol=0)
    assert asked == {"name": "some.model_v1", "pretrained": True, "num_classes": 0}
    assert encoder._networks[0].size == 48
