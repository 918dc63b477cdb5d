"""Tests gradients of many mini-batches in one pass against a loop of autograd."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import vmap

from onepass.base.parts import Output
from onepass.functional.losses import cross_entropy
from onepass.nets import MLP, Classifier, Head, ResNet18, build, gradients_per_batch, tied_eval_copy

CLASSES = 5
SEEN = torch.arange(8) < CLASSES


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(dim=(2, 3))


BODIES = {
    "mlp": (lambda: MLP(3 * 10 * 10, width=7), 7),
    "convolutions": (Convolutions, 6),
    "resnet18": (lambda: ResNet18(3), 512),
}


def classifier(name: str, seed: int = 0) -> Classifier:
    """Returns a network with BatchNorm statistics that are not the initial ones."""
    rng = torch.Generator().manual_seed(seed)
    make, features = BODIES[name]
    model = Classifier(build(make, rng), Head(features, len(SEEN), rng))
    model(torch.randn(6, 3, 10, 10, generator=rng))
    return model


def batches(count: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(count, size, 3, 10, 10, generator=rng)
    y = torch.randint(CLASSES, (count, size), generator=rng)
    return x, y, torch.rand(count, size, generator=rng)


def loss(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return cross_entropy(Output(logits, y, weight), among=SEEN)


def one_by_one(model: Classifier, *of: Tensor) -> list[list[Tensor]]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = []
    for x, y, weight in zip(*of, strict=True):
        found.append(list(torch.autograd.grad(loss(model(x), y, weight), trained)))
    return found


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", BODIES)
def test_it_equals_a_loop_of_autograd(name, size):
    model, given = tied_eval_copy(classifier(name)), batches(3, size)
    found = gradients_per_batch(model, loss, *given)
    expected = one_by_one(model, *given)
    assert list(found) == [key for key, _ in model.named_parameters()]
    for index, gradients in enumerate(expected):
        for first, second in zip(found.values(), gradients, strict=True):
            assert torch.allclose(first[index], second, atol=1e-6, rtol=1e-4)


def test_the_mean_over_single_samples_is_the_gradient_of_the_batch():
    model, (x, y, _) = tied_eval_copy(classifier("convolutions")), batches(1, 6)
    ones = torch.ones(1, 6)
    gradients_of_samples = gradients_per_batch(model, loss, x, y, ones)
    single = gradients_per_batch(model, loss, *(part.transpose(0, 1) for part in (x, y, ones)))
    for name, gradient in gradients_of_samples.items():
        assert torch.allclose(single[name].mean(dim=0), gradient[0], atol=1e-6)


def test_only_trainable_parameters_have_a_gradient_and_nothing_changes():
    model, given = classifier("convolutions"), batches(2, 3)
    model.body.layers[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = gradients_per_batch(tied_eval_copy(model), loss, *given)
    assert set(dict(model.named_parameters())) - set(found) == {"body.layers.0.weight"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(gradient.requires_grad for gradient in found.values())


def test_on_a_gpu_images_under_vmap_are_not_made_channels_last():
    """A fake tensor reports a GPU that this machine need not have."""
    model = Classifier(nn.Flatten(), nn.Identity())
    with FakeTensorMode(), torch.no_grad():
        images = torch.empty(4, 2, 3, 8, 8, device="cuda")
        assert vmap(model)(images).shape == (4, 2, 192)
