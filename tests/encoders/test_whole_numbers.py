import hashlib
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image
from tiny_encoders import random_pixels, tiny_network

from onepass.base.errors import DataError
from onepass.encoders.efficientnet_lite import VARIANTS, pretrained
from onepass.encoders.whole_numbers import (
    DERIVED,
    Convolution,
    fold,
    freeze,
    weights_sha256,
    whole_weights,
    within_bounds,
)


@pytest.fixture(scope="module")
def lite0():
    return pretrained("efficientnet-lite0")


@given(st.integers(0, 10**6), st.sampled_from([128, 384, 1023]), st.integers(-30, 30))
def test_exponents_are_the_largest_within_both_bounds(seed, amax, power):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(4, 7, 1, 1)) * 2.0**power
    weight[0] = 0
    weight[1] = 2.0**power  # exactly a power of two
    bias = rng.normal(size=4) * 2.0**power * rng.choice([0, 1, 1e6])
    whole, offset, exponent = whole_weights(weight, bias, amax)
    flat = whole.reshape(4, -1)
    assert within_bounds(flat, offset, amax).all()
    assert (amax * np.abs(flat).sum(axis=1) + np.abs(offset) < 0.98 * 2**24).all()
    assert np.abs(flat).max() <= 2**11
    finer = np.rint(np.ldexp(weight.reshape(4, -1), exponent[:, None] + 1))
    finer_offset = np.rint(np.ldexp(bias, exponent + 1))
    assert not within_bounds(finer, finer_offset, amax)[1:].any()  # zeros have no finest power


def unit_of(values: np.ndarray) -> np.ndarray:
    """Returns for each row the largest power of two of which all its values are multiples."""
    mantissa, exponent = np.frexp(values)
    digits = np.ldexp(mantissa, 53).astype(np.int64)
    lowest = np.where(digits == 0, 2**53, digits & -digits)
    power = np.where(digits == 0, 1000, np.frexp(lowest.astype(float))[1] - 1 + exponent - 53)
    return np.ldexp(1.0, power.min(axis=1))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_channel_of_a_published_network_is_exact_and_fits_eleven_bits(name):
    network = freeze(pretrained(name), whole=True)
    assert weights_sha256(network) == DERIVED[name]
    before = 128  # the largest input; later layers have the outputs of the layer before
    for layer in network.modules():
        if isinstance(layer, Convolution):
            weight = layer.weight.double().numpy().reshape(len(layer.weight), -1)
            bias = layer.bias.double().numpy()
            unit = unit_of(np.column_stack([weight, bias]))
            sums = before * np.abs(weight).sum(axis=1) + np.abs(bias)
            assert (sums / unit < 2**24).all()
            assert (np.abs(weight).max(axis=1) / unit_of(weight) <= 2**11).all()
            before = layer.high


def test_the_worst_input_is_added_up_as_in_python():
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(3, 500, 1, 1)), rng.normal(size=3)
    whole, offset, _ = whole_weights(weight, bias * 32, 1023)
    worst = 1023 * np.sign(whole)  # (3, 500, 1, 1): the worst input of each channel
    for dtype in (torch.float32, torch.float64):
        w, b, x = (torch.from_numpy(a).to(dtype) for a in (whole, offset, worst))
        found = torch.nn.functional.conv2d(x, w, b).flatten(1).tolist()
        expected = [
            [
                sum(int(a) * int(c) for a, c in zip(row.flat, x.flat, strict=True)) + int(bias)
                for row, bias in zip(whole, offset, strict=True)
            ]
            for x in worst
        ]
        assert found == expected


def test_folding_is_batch_normalisation():
    network = tiny_network()
    stem, norm = network.conv_stem, network.bn0
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    expected = norm.double()(stem.double()(x))
    weight, bias = fold(stem, norm)
    padded = torch.nn.functional.pad(x, (*stem.pads, *stem.pads))
    found = torch.nn.functional.conv2d(
        padded, torch.from_numpy(weight), torch.from_numpy(bias), stride=2
    )
    torch.testing.assert_close(found, expected)


def test_folding_rounds_as_fractions_do():
    """Each weight is one product of a float64 scale, which IEEE 754 rounds in one way only."""
    network = tiny_network()
    weight, _ = fold(network.conv_stem, network.bn0)
    norm = network.bn0
    scale = np.float64(norm.weight[0]) / np.sqrt(np.float64(norm.running_var[0]) + norm.eps)
    exact = Fraction(float(network.conv_stem.weight[0, 0, 0, 0])) * Fraction(float(scale))
    assert weight[0, 0, 0, 0] == exact.numerator / exact.denominator  # correctly rounded in Python


def test_a_convolution_clips_and_then_rounds_half_to_even():
    shape = tiny_network().blocks[0].project_conv
    layer = Convolution(np.full((1, 1, 1, 1), 0.25), np.zeros(1), shape, low=0, high=6, rounds=True)
    layer.groups = 1
    x = torch.tensor([-3.0, 2.0, 6.0, 10.0, 25.0, 27.0]).reshape(6, 1, 1, 1)
    assert layer(x).flatten().tolist() == [0, 0, 2, 2, 6, 6]


def test_features_have_the_same_bits_in_any_form():
    network, pixels = freeze(tiny_network(), whole=True, earlier=True), random_pixels(11)
    x = torch.from_numpy(pixels)
    together = network(x)
    assert torch.equal(together, together.round()) and together.abs().max() > 100
    order = torch.randperm(11)
    assert torch.equal(network(x[order]), together[order])
    assert torch.equal(torch.cat([network(one) for one in x.split(1)]), together)
    assert torch.equal(torch.cat([network(some) for some in x.split(4)]), together)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    assert torch.equal(network(x), together)
    torch.set_num_threads(threads)
    assert torch.equal(network.to(memory_format=torch.channels_last)(x), together)
    assert torch.equal(network.double()(x).float(), together)


def test_earlier_blocks_are_at_5_11_and_15_sixteenths_of_lite0(lite0):
    network = freeze(lite0, whole=True, earlier=True)
    assert [(block + 1) / 16 for block in network.pooled_blocks] == [5 / 16, 11 / 16, 15 / 16]
    assert network.widths == [40, 112, 192, 1280]


def test_whole_features_point_where_the_float_ones_do(lite0):
    pictures = [Image.fromarray(load_sample_image(f"{n}.jpg")) for n in ("china", "flower")]
    pixels = torch.from_numpy(np.stack([np.array(p.resize((224, 224))) for p in pictures]))
    whole, original = freeze(lite0, whole=True)(pixels), freeze(lite0, whole=False)(pixels)
    assert float(torch.cosine_similarity(whole, original).min()) > 0.99
    expected = lite0.features((pixels.permute(0, 3, 1, 2) - 127.0) / 128)
    torch.testing.assert_close(original, expected, atol=2e-5, rtol=1e-4)


PINNED = "399f294665e7ec5d"


def test_features_of_lite0_are_pinned(lite0):
    """The same hash on every machine: whole numbers alone lead from the pixels to it."""
    pixels = torch.from_numpy(random_pixels(2, 224, seed=1))
    found = freeze(lite0, whole=True)(pixels).numpy().astype("<f4").tobytes()
    assert hashlib.sha256(found).hexdigest()[:16] == PINNED


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits",
    [
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
    ],
    ids=lambda limits: " ".join(limits.values()),
)
def test_neither_instructions_nor_modes_of_the_processor_change_a_bit(limits):
    helpers = str(Path(__file__).parents[1] / "helpers")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({helpers!r})\n{OTHER_PROCESS}"],
        env=os.environ | limits,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [PINNED, PINNED]


OTHER_PROCESS = """
import hashlib, torch
from tiny_encoders import random_pixels
from onepass.encoders.efficientnet_lite import pretrained
from onepass.encoders.engines import Torch
from onepass.encoders.openvino_engine import OpenVINO
from onepass.encoders.whole_numbers import freeze
network = freeze(pretrained("efficientnet-lite0"), whole=True)
for engine in (Torch(network, torch.device("cpu")), OpenVINO(network, 224)):
    found = engine(random_pixels(2, 224, seed=1)).astype("<f4").tobytes()
    print(hashlib.sha256(found).hexdigest()[:16])
"""


@settings(max_examples=5)
@given(st.sampled_from([float("nan"), float("inf")]), st.booleans())
def test_numbers_that_are_not_finite_are_refused(value, whole):
    network = tiny_network()
    network.blocks[1].depthwise_conv.weight.data[0] = value
    with pytest.raises(DataError, match="not finite"):
        freeze(network, whole=whole)
