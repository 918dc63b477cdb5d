import pickle
from typing import ClassVar

import numpy as np
import pytest
import torch
from isolated_registries import isolate_registries
from PIL import Image
from tiny_encoders import photo, random_pixels

import onepass
from onepass.base.errors import InputError, UnknownNameError
from onepass.encoders import Encoder
from onepass.encoders.registry import ENCODERS, canonical, list_encoders
from onepass.encoders.registry import encoder as register
from onepass.functional.grid import standardise

NAME = "efficientnet-lite0@32"


@pytest.fixture
def images():
    return torch.from_numpy(random_pixels(37, 24)).permute(0, 3, 1, 2).contiguous()


def test_a_sample_has_the_same_bits_alone_and_among_others(tiny, images):
    encoder = Encoder(NAME)
    together = encoder.encode(images)
    assert together.shape == (37, 1280) and together.dtype == torch.float32
    assert torch.equal(together, together.round())
    assert torch.equal(torch.cat([encoder.encode(one) for one in images.split(1)]), together)
    assert torch.equal(torch.cat([encoder.encode(some) for some in images.split(7)]), together)
    order = torch.randperm(37)
    assert torch.equal(encoder.encode(images[order]), together[order])
    assert torch.equal(encoder.encode(list(images)), together)
    assert torch.equal(Encoder(NAME).encode(images.numpy()), together)


def test_float_features_are_near_and_say_what_computed_them(tiny, images):
    whole, original = Encoder(NAME), Encoder("efficientnet-lite0:float@32")
    found = original.encode(images)
    assert float(torch.cosine_similarity(found, whole.encode(images)).min()) > 0.95
    with torch.no_grad():
        x = original.encode(random_image := [photo(width=32, height=32)])
        pixels = torch.from_numpy(np.array(random_image[0])).permute(2, 0, 1)[None]
        expected = tiny["efficientnet-lite0"].features((pixels - 127.0) / 128)
    torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-3)
    assert whole.exact and not original.exact
    assert {"engine", "processor"} <= original.identity().keys() - whole.identity().keys()


def test_joined_features_are_standardised_one_by_one(tiny, images):
    one, two = Encoder(NAME), Encoder("efficientnet-lite1@64")
    joined = Encoder("efficientnet-lite0@32+efficientnet-lite1@64")
    expected = [standardise(encoder.encode(images)) for encoder in (one, two)]
    assert torch.equal(joined.encode(images), torch.cat(expected, dim=1))
    assert joined.dimension == 2560 and joined.exact


def test_earlier_layers_are_joined_before_the_last(tiny, images):
    plain, earlier = Encoder(NAME), Encoder(f"{NAME}^")
    found = earlier.encode(images)
    assert found.shape[1] == earlier.dimension > 1280
    assert torch.equal(found[:, -1280:], standardise(plain.encode(images)))


def test_mirror_images_have_the_same_features(tiny, images):
    encoder = Encoder(f"{NAME}+mirror")
    square = torch.from_numpy(random_pixels(5, 32)).permute(0, 3, 1, 2)
    found = encoder.encode(square)
    assert torch.equal(encoder.encode(square.flip(3)), found)
    plain = Encoder(NAME)
    assert torch.equal(found, plain.encode(square) + plain.encode(square.flip(3)))
    mean = Encoder("efficientnet-lite0:float@32+mirror").encode(square)
    assert float(torch.cosine_similarity(mean, found).min()) > 0.95
    assert float(mean.max()) <= 6


def test_the_hash_changes_with_all_that_changes_features(tiny):
    names = [
        NAME,
        "efficientnet-lite0@64",
        f"{NAME}^",
        f"{NAME}+mirror",
        "efficientnet-lite0:float@32",
        "efficientnet-lite1@32",
        f"{NAME}+efficientnet-lite1@32",
    ]
    hashes = [Encoder(name).sha256 for name in names]
    assert len(set(hashes)) == len(names)
    assert Encoder(NAME).sha256 == hashes[0]


def test_a_pickled_encoder_holds_no_weights(tiny, images):
    encoder = Encoder(NAME)
    content = pickle.dumps(encoder)
    assert len(content) < 200
    assert torch.equal(pickle.loads(content).encode(images), encoder.encode(images))


def test_progress_counts_the_samples(tiny, images):
    done = []
    Encoder(NAME).encode(images, progress=done.append)
    assert sum(done) == 37 and len(done) > 1


def test_the_published_encoder_is_found_at_the_top():
    encoder = onepass.Encoder("efficientnet-lite0@224")
    assert encoder.name == "efficientnet-lite0"
    found = encoder.encode([photo(), photo(1, 300, 200)])
    assert torch.equal(found, found.round()) and encoder.engine == "openvino"


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("efficientnet-lite3", UnknownNameError, "Did you mean 'efficientnet-lite"),
        ("efficientnet-lite0:flaot", UnknownNameError, "efficientnet-lite0:float"),
        ("efficientnet-lite0@5", InputError, "between 32 and 512"),
        ("efficientnet-lite0@9999999999999", InputError, "between 32 and 512"),
        ("efficientnet-lite0@224+efficientnet-lite0", InputError, "with itself"),
        ("+mirror", InputError, "is not an encoder's name"),
        ("mirror", InputError, "follows the name of an encoder"),
        ("mirror+efficientnet-lite0", InputError, "is not an encoder's name"),
        ("", InputError, "is not an encoder's name"),
        ("efficientnet-lite0^^", InputError, "is not an encoder's name"),
        ("my.module:make^", InputError, "earlier layers of our own networks"),
        (7, InputError, "must be text"),
    ],
)
def test_a_wrong_name_says_what_is_valid(name, error, match):
    with pytest.raises(error, match=match):
        canonical(name)


def test_a_usual_size_is_left_out_of_the_name():
    assert str(canonical("efficientnet-lite2@260^+mirror")) == "efficientnet-lite2^+mirror"
    assert str(canonical("efficientnet-lite2@192")) == "efficientnet-lite2@192"


class Corner:
    """Returns the colour of the first pixel."""

    takes, size, widths, exact, engine = "images", 40, [3], True, "python"
    facts: ClassVar = {"corner": 1}

    def encode(self, samples):
        return torch.from_numpy(samples[:, 0, 0].astype(np.float32))


def test_an_encoder_of_the_users_own_gets_a_name(monkeypatch):
    isolate_registries(monkeypatch, ENCODERS)

    @register("corner", takes="images", variants={"": ("a corner", 3, "")}, size=40)
    def corner(part, device):
        return Corner()

    red = torch.zeros(2, 3, 40, 40, dtype=torch.uint8)
    red[:, 0] = 200
    assert Encoder("corner").encode(red).tolist() == [[200, 0, 0]] * 2
    assert {row["encoder"]: row["what"] for row in list_encoders()}["corner"] == "a corner"
    with pytest.raises(UnknownNameError, match="corner:other"):
        Encoder("corner:other")


def test_every_kind_and_shape_of_picture_has_features(tiny):
    modes = ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16"]
    pictures = [Image.new(mode, size) for mode in modes for size in [(1, 1), (700, 1), (3, 50)]]
    found = Encoder(NAME).encode(pictures)
    assert bool(torch.isfinite(found).all()) and found.shape == (30, 1280)
