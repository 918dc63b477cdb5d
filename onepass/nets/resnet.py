"""ResNet18 for small images: its stem is a 3x3 convolution of stride 1, without pooling."""

from __future__ import annotations

from torch import Tensor, nn

from onepass.nets.fast import Conv, Norm, in_parallel
from onepass.nets.registry import network


class Block(nn.Module):
    """A residual block: two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv(inputs, outputs, 3, stride)
        self.norm1 = Norm(outputs)
        self.conv2 = Conv(outputs, outputs, 3)
        self.norm2 = Norm(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(Conv(inputs, outputs, 1, stride), Norm(outputs))

    def main(self, x: Tensor) -> Tensor:
        """Returns the residual branch before its last norm, which also adds the shortcut."""
        out: Tensor = self.conv2(self.norm1(self.conv1(x), relu=True))
        return out

    def forward(self, x: Tensor) -> Tensor:
        shortcut, out = in_parallel(x, self.shortcut, self.main)
        # the last norm: relu(norm2(out) + shortcut) in one call
        return self.norm2(out, plus=shortcut, relu=True)  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """A ResNet18 that returns 8 x `width` features, for images of 9 pixels a side or more: smaller
    ones end in a single pixel. Much work on replay uses a width of 20."""

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.stem = Conv(channels, width, 3)
        self.norm = Norm(width)
        stages = []
        inputs = width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            stages += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.stages(self.norm(self.stem(x), relu=True))
        return out.mean(dim=(2, 3))  # (samples, 8 width, h/8, w/8) -> (samples, 8 width)


@network("resnet18", takes="images")
def resnet18(shape: tuple[int, ...]) -> nn.Module:
    """ResNet18 (He et al., 2016) with a stem for small images, 512 features."""
    return ResNet18(shape[0])


@network("resnet18-slim", takes="images")
def resnet18_slim(shape: tuple[int, ...]) -> nn.Module:
    """ResNet18 with 20 instead of 64 channels (Lopez-Paz, Ranzato, 2017), 160 features: a tenth of
    the parameters, for laptops."""
    return ResNet18(shape[0], width=20)
