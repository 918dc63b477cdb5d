import numpy as np
import pytest
import torch
from tiny_encoders import random_pixels, tiny_network

from onepass.base.errors import OnepassError
from onepass.encoders import Encoder, engines
from onepass.encoders.engines import (
    Torch,
    answer_sha256,
    choose_engine,
    in_batches,
    strict_float32,
    trial_images,
)
from onepass.encoders.openvino_engine import OpenVINO
from onepass.encoders.whole_numbers import freeze

CPU = torch.device("cpu")


@pytest.fixture
def network():
    return freeze(tiny_network(), whole=True, earlier=True)


@pytest.fixture(autouse=True)
def nothing_refused(monkeypatch):
    monkeypatch.setattr(engines, "_refused", set())


def test_two_engines_have_the_same_bits(network):
    pixels = random_pixels(9)
    first, second = Torch(network, CPU), OpenVINO(network, 32)
    expected = first(pixels)
    assert np.array_equal(second(pixels), expected)
    assert np.array_equal(second(pixels[4:5]), expected[4:5])
    assert choose_engine(network, "tiny", 32, CPU).name == "openvino"


def test_float_engines_agree_nearly_and_an_image_depends_on_no_other():
    network, pixels = freeze(tiny_network(), whole=False), random_pixels(5)
    first, second = Torch(network, CPU), OpenVINO(network, 32)
    np.testing.assert_allclose(second(pixels), first(pixels), rtol=1e-4, atol=1e-4)
    for engine in (first, second):
        alone = np.concatenate([engine(pixels[i : i + 1]) for i in range(5)])
        assert np.array_equal(alone, engine(pixels))


@pytest.mark.parametrize("fault", ["wrong", "fails"])
def test_an_engine_with_other_bits_is_named_once_and_not_used(network, monkeypatch, caplog, fault):
    right = OpenVINO.__call__

    def wrong(self, pixels):
        if fault == "fails":
            raise RuntimeError("no such instruction")
        found = right(self, pixels)
        found[-1, -1] += 1
        return found

    monkeypatch.setattr(OpenVINO, "__call__", wrong)
    for _ in range(2):
        engine = choose_engine(network, "tiny", 32, CPU)
        assert engine.name == "torch"
    assert len(caplog.records) == 1 and "openvino is not used" in caplog.text


def test_torch_itself_must_have_the_pinned_bits(network, monkeypatch):
    answer = answer_sha256(Torch(network, CPU)(trial_images(32, 2)))
    monkeypatch.setitem(engines.ANSWERS, ("tiny", 32), answer)
    choose_engine(network, "tiny", 32, CPU)
    monkeypatch.setitem(engines.ANSWERS, ("tiny", 32), answer[::-1])
    with pytest.raises(OnepassError, match="does not compute tiny exactly on this machine"):
        choose_engine(network, "tiny", 32, CPU)


def test_no_setting_of_the_process_lowers_the_precision(network):
    engine, pixels = Torch(network, CPU), random_pixels(3)
    expected = engine(pixels)
    convolutions = torch.backends.mkldnn.conv
    before = convolutions.fp32_precision
    try:
        convolutions.fp32_precision = "bf16"
        with torch.autocast("cpu", torch.bfloat16):
            assert np.array_equal(engine(pixels), expected)
        assert convolutions.fp32_precision == "bf16"  # the user's setting comes back
    finally:
        convolutions.fp32_precision = before
    with pytest.raises(ZeroDivisionError), strict_float32(CPU):
        assert convolutions.fp32_precision == "ieee"
        _ = 1 / 0
    assert convolutions.fp32_precision == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_the_compiled_network_has_the_same_bits_in_full_batches_and_others(network, monkeypatch):
    """Compiled for a CPU here, since there may be no GPU."""
    monkeypatch.setattr(engines, "COMPILED_BATCH", 4)
    pixels = random_pixels(11)
    assert np.array_equal(engines.Compiled(network, CPU)(pixels), Torch(network, CPU)(pixels))


def test_batches_have_one_shape():
    shapes = []

    def run(part):
        shapes.append(part.shape)
        return part.sum(axis=(1, 2, 3), keepdims=False)[:, None]

    pixels = random_pixels(7, size=4)
    assert in_batches(run, pixels, 3).flatten().tolist() == pixels.sum(axis=(1, 2, 3)).tolist()
    assert set(shapes) == {(3, 4, 4, 3)}


def test_trial_images_reach_the_clips(network):
    clipped = []
    for layer in network.modules():
        if isinstance(layer, type(network.stem)):
            layer.register_forward_hook(
                lambda layer, _, out: clipped.append((layer.high, bool((out == layer.high).any())))
            )
    network(torch.from_numpy(trial_images(32, 2)))
    assert (384, True) in clipped


def test_a_missing_engine_is_named_with_what_it_would_bring(tiny, monkeypatch, caplog):
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    first, again = (Encoder("efficientnet-lite0@32", "cpu") for _ in range(2))
    assert first.engine == again.engine == "torch"
    assert caplog.text.count("pip install openvino makes them about three times as fast") == 1
