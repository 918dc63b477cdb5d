"""Tests the virtual step against a real step on a copy."""

import copy

import pytest
import torch
from torch import nn

from onepass.nets import (
    Classifier,
    Head,
    logits_with,
    parameters_after_step,
    tied_eval_copy,
    zero_frozen_rows,
)

LR = 0.3


def a_model(precision="fp32"):
    rng = torch.Generator().manual_seed(0)
    body = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    for parameter in body.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=rng)
    head = Head(4, 8, rng)
    head.free[:3] = True
    return Classifier(body, head, precision)


def inputs(samples=7, seed=1):
    return torch.randn(samples, 5, generator=torch.Generator().manual_seed(seed))


def gradients_of(model):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(model(inputs())[:, :3].square().mean(), trained))


def really_stepped(model, gradients):
    """Returns a copy after a step of torch's SGD, with its rows reset as in a learner."""
    other = copy.deepcopy(model)
    trained = [weight for weight in other.parameters() if weight.requires_grad]
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient
    torch.optim.SGD(trained, lr=LR).step()
    other.head.restore()
    return other


def random_gradients(model):
    rng = torch.Generator().manual_seed(2)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [torch.randn(parameter.shape, generator=rng) for parameter in trained]


def test_the_parameters_are_those_after_a_plain_gradient_step():
    model = a_model()
    gradients = gradients_of(model)
    taken = dict(really_stepped(model, gradients).named_parameters())
    virtual = parameters_after_step(model, gradients, LR)
    assert list(virtual) == list(taken)
    for name, value in virtual.items():
        torch.testing.assert_close(value, taken[name].detach())
        assert not value.requires_grad
    moved = [
        name
        for name, parameter in model.named_parameters()
        if not torch.equal(parameter, virtual[name])
    ]
    assert "body.0.weight" in moved and "head.weight" in moved


def test_rows_that_do_not_train_stay_in_a_virtual_step():
    model = a_model()
    gradients = random_gradients(model)
    virtual = parameters_after_step(model, gradients, LR)
    taken = really_stepped(model, gradients).head
    torch.testing.assert_close(virtual["head.weight"], taken.weight.detach())
    torch.testing.assert_close(virtual["head.bias"], taken.bias.detach())
    assert torch.equal(virtual["head.weight"][3:], model.head.weight[3:])
    assert torch.equal(virtual["head.bias"][3:], model.head.bias[3:])
    assert not bool((virtual["head.weight"][:3] == model.head.weight[:3]).any())


def test_only_gradients_of_frozen_rows_are_zeroed():
    model = a_model()
    gradients = random_gradients(model)
    names = [name for name, _ in model.named_parameters()]
    got = dict(zip(names, zero_frozen_rows(model, gradients), strict=True))
    for name, gradient in zip(names, gradients, strict=True):
        if name.startswith("head."):
            assert torch.equal(got[name][:3], gradient[:3])
            assert not bool(got[name][3:].any())
        else:
            assert torch.equal(got[name], gradient)


def test_frozen_parameters_are_left_out():
    model = a_model()
    model.body[0].weight.requires_grad_(False)
    virtual = parameters_after_step(model, gradients_of(model), LR)
    assert "body.0.weight" not in virtual and "body.0.bias" in virtual
    taken = really_stepped(model, gradients_of(model))
    expected = tied_eval_copy(taken)(inputs(seed=3)).detach()
    got = logits_with(tied_eval_copy(model), virtual, inputs(seed=3))
    torch.testing.assert_close(got, expected)


def test_modules_beside_backbone_and_head_take_the_step_too():
    model = a_model()
    model.add_module("extra", nn.Linear(2, 1))
    gradients = random_gradients(model)
    virtual = parameters_after_step(model, gradients, LR)
    expected = model.extra.bias.detach() - LR * gradients[-1]
    torch.testing.assert_close(virtual["extra.bias"], expected)


def test_a_gradient_too_few_is_an_error():
    model = a_model()
    with pytest.raises(ValueError, match="zip"):
        parameters_after_step(model, random_gradients(model)[:-1], LR)


def test_a_step_of_length_zero_changes_no_bit():
    model = a_model()
    virtual = parameters_after_step(model, random_gradients(model), 0.0)
    x = inputs(seed=3)
    eval_copy = tied_eval_copy(model)
    assert torch.equal(logits_with(eval_copy, virtual, x), logits_with(eval_copy, {}, x))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_logits_equal_those_after_a_real_step(precision):
    model = a_model(precision)
    gradients = [gradient.detach() for gradient in gradients_of(model)]
    other = really_stepped(model, gradients)
    other.precision = "fp32"  # the precision of virtual logits
    x = inputs(seed=3)
    expected = tied_eval_copy(other)(x).detach()
    eval_copy = tied_eval_copy(model)
    got = logits_with(eval_copy, parameters_after_step(model, gradients, LR), x)
    assert got.dtype == torch.float32 and not got.requires_grad
    torch.testing.assert_close(got, expected)
    own = logits_with(eval_copy, {}, x)
    assert float((got - own).abs().max()) > 0.1


def test_without_parameters_the_logits_are_the_networks_own():
    model = a_model()
    expected = tied_eval_copy(model)(inputs()).detach()
    got = logits_with(tied_eval_copy(model), {}, inputs())
    assert torch.equal(got, expected)
    assert not torch.equal(got, model(inputs()).detach())  # training changes BatchNorm's statistics


def test_a_samples_logits_do_not_depend_on_the_others():
    model = a_model()
    virtual = parameters_after_step(model, gradients_of(model), LR)
    x, eval_copy = inputs(seed=3), tied_eval_copy(model)
    each = torch.cat([logits_with(eval_copy, virtual, sample) for sample in x.split(1)])
    torch.testing.assert_close(logits_with(eval_copy, virtual, x), each)


def test_the_network_does_not_change():
    model = a_model()
    model.body[2].eval()
    gradients = gradients_of(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    identities = [id(parameter) for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    logits_with(tied_eval_copy(model), parameters_after_step(model, gradients, LR), inputs(seed=3))
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
