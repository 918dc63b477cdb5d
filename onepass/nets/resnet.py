"""ResNet18 for small images: 3x3 stem of stride 1, no pooling before the first block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.nets.parallel import at_once


class Norm(nn.BatchNorm2d):
    """Without the count of batches, which only a cumulative average needs: counting would cost a
    kernel for each of the twenty layers at every step. In evaluation mode it also works under vmap
    in mixed precision, where torch's own does not."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not torch._C._functorch.is_functorch_wrapped_tensor(x):
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return (x * scale[:, None, None] + shift[:, None, None]).to(x.dtype)

    def reset_running_stats(self) -> None:
        assert self.running_mean is not None and self.running_var is not None
        self.running_mean.zero_()
        self.running_var.fill_(1)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = Norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = Norm(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), Norm(outputs)
            )

    def residual(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)))
        out: Tensor = self.norm2(self.conv2(hidden))
        return out

    def forward(self, x: Tensor) -> Tensor:
        shortcut, residual = at_once(x, self.shortcut, self.residual)
        return F.relu(residual + shortcut)


class ResNet18(nn.Module):
    """8 x `width` features by global average pooling; works for any image size from 9 pixels up.
    Much of the field's work with replay has a width of 20."""

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = Norm(width)
        stages = []
        inputs = width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            stages += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.stages(F.relu(self.norm(self.stem(x))))
        return out.mean(dim=(2, 3))
