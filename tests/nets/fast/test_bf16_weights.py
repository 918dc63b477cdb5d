"""Tests that casting all weights together, and BatchNorm under vmap, give the plain numbers."""

import torch

from onepass.nets import Classifier, Head, ResNet18
from onepass.nets.fast import Norm
from onepass.nets.fast.bf16_weights import weights_in_bf16


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_casting_all_weights_together_equals_autocast():
    """Logits and gradients are equal bit for bit."""
    net = Classifier(ResNet18(3), Head(512, 16, generator()), "bf16")
    x = torch.rand(3, 3, 8, 8, generator=generator())
    found = []

    def plain(x):
        with torch.autocast("cpu", torch.bfloat16):
            return net.head(net.body(x)).float()

    for forward in (plain, net, net.train_forward):
        net.zero_grad()
        logits = forward(x)
        logits.square().sum().backward()
        found.append([logits.detach(), *(parameter.grad.clone() for parameter in net.parameters())])
    for expected, *others in zip(*found, strict=True):
        assert all(torch.equal(expected, other) for other in others)


def test_only_matrices_and_filters_are_cast():
    net = Classifier(ResNet18(3), Head(512, 16, generator()), "bf16")
    cast = weights_in_bf16(net)
    assert set(cast) == {name for name, parameter in net.named_parameters() if parameter.ndim > 1}
    assert all(value.dtype == torch.bfloat16 for value in cast.values())


def test_batch_norm_under_vmap_equals_evaluation_also_in_mixed_precision():
    norm = Norm(4).eval()
    norm.running_mean.uniform_(-1, 1, generator=generator())
    norm.running_var.uniform_(0.5, 2, generator=generator())
    x = torch.rand(3, 5, 4, 2, 2, generator=generator())
    alone = torch.stack([norm(batch) for batch in x])
    torch.testing.assert_close(torch.func.vmap(norm)(x), alone)
    low = torch.func.vmap(norm)(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), alone, atol=0.05, rtol=0.02)
