"""The RAM of a forward pass is known without computing it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.nets import Classifier, Head, ResNet18, pass_bytes


def bytes_of(body: nn.Module, shape: tuple[int, ...], *, graded: bool = True) -> int | None:
    with torch.set_grad_enabled(graded):
        return pass_bytes(Classifier(body, Head(4, 4, torch.Generator())), torch.rand(shape))


def test_a_pass_with_gradients_holds_all_layers_and_one_without_only_two() -> None:
    layers = nn.Sequential(*[nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()] * 5)
    output = 7 * 4 * 16 * 16 * 4  # images, channels, pixels, bytes
    # each tanh keeps its output, and the last convolution's is there too
    assert bytes_of(layers, (7, 4, 16, 16)) == (5 + 1) * output
    assert bytes_of(layers, (7, 4, 16, 16), graded=False) == 2 * output


def test_the_bytes_grow_with_the_images_and_not_with_the_weights() -> None:
    few, many = (bytes_of(ResNet18(width=8), (count, 3, 32, 32)) for count in (10, 20))
    assert few is not None and many is not None and 1.99 * few < many < 2.01 * few
    wide = nn.Sequential(nn.Flatten(), nn.Linear(10**4, 100), nn.ReLU())
    assert bytes_of(wide, (3, 1, 100, 100)) == 2 * 3 * 100 * 4


def test_attention_takes_what_it_takes_on_this_device() -> None:
    """On torch's meta device, unlike on a CPU, it would keep a number for each pair of tokens."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.make(x).unsqueeze(1)  # (samples, 1 head, tokens, 4)
            return F.scaled_dot_product_attention(tokens, tokens, tokens)

    found = bytes_of(Attention(), (2, 4096, 4))
    assert found is not None and found < 2 * 4096 * 4096


class Odd(nn.Module):
    """A network that does something that fake tensors may not be able to do."""

    def __init__(self, does: str) -> None:
        super().__init__()
        self.does, self.inner, self.plain = does, nn.Linear(3, 4), torch.ones(4, 4)
        self.norm, self.calls = nn.BatchNorm1d(4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        features: Tensor = self.norm(self.inner(x) @ self.plain)
        if self.does == "reads":
            return features * float(x.max())
        if self.does == "decides":
            return features if x.sum() > 0 else -features
        if self.does == "leaves torch":
            return features + torch.from_numpy(x.detach().numpy()).sum()
        return F.dropout(features) + torch.rand(4)


@pytest.mark.parametrize("does", ["reads", "decides", "leaves torch"])
def test_a_network_that_needs_values_has_no_figure(
    does: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bytes_of(Odd(does), (2, 3)) is None
    assert capfd.readouterr() == ("", "")


def test_nothing_changes() -> None:
    net = Odd("draws").train()
    classifier, x = Classifier(net, Head(4, 4, torch.Generator())), torch.rand(2, 3)
    before, drawn = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    assert (pass_bytes(classifier, x) or 0) > 0
    now = net.state_dict()
    assert all(torch.equal(now[name], before[name]) for name in before)
    assert torch.equal(torch.get_rng_state(), drawn)
