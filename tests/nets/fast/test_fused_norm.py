"""Tests the fused BatchNorm kernels against torch. Without a GPU they run in Triton's
interpreter."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onepass
from onepass.learning import trainer as trainer_module
from onepass.nets import compile_kernels
from onepass.nets.fast import norm as norm_module
from onepass.nets.fast.norm import Norm

if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

from onepass.nets.fast import fused_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(2, 1, 1, 1), (10, 64, 4, 4), (3, 20, 5, 5), (1, 33, 7, 3), (9, 40, 6, 6)]


def images(shape, seed, mean=0.0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    drawn = mean + 3 * torch.randn(shape, generator=rng)
    return drawn.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last).requires_grad_()


def a_norm(channels):
    """Returns a layer with weights of both signs and running statistics that are not initial."""
    rng = torch.Generator().manual_seed(5)
    norm = Norm(channels)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor, generator=rng)
    nn.init.uniform_(norm.running_var, 0.5, 2, generator=rng)
    return norm.to(DEVICE)


def by_kernels(norm, x, plus, relu):
    running = (norm.running_mean, norm.running_var)
    weights = (norm.weight, norm.bias)
    return fused_norm.NormReLU.apply(x, plus, *weights, running, norm.momentum, norm.eps, relu)


def by_torch(norm, x, plus, relu):
    """Computes the reference in double precision."""
    mean, var = norm.running_mean.double(), norm.running_var.double()
    weights = (norm.weight.double(), norm.bias.double())
    out = F.batch_norm(x.double(), mean, var, *weights, True, norm.momentum, norm.eps)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
    out = out if plus is None else out + plus
    return F.relu(out) if relu else out


def everything(way, shape, add, relu, mean, dtype=torch.float32):
    """Returns the output, all gradients, and the running statistics afterwards."""
    norm = a_norm(shape[1])
    x = images(shape, 1, mean, dtype)
    plus = images(shape, 2, dtype=dtype) if add else None
    out = way(norm, x, plus, relu)
    calls = [value for value in (x, plus, norm.weight, norm.bias) if value is not None]
    pull = images(shape, 3, dtype=dtype).detach().to(out.dtype)
    found = torch.autograd.grad(out, calls, pull)
    return [value.double() for value in (out, *found, norm.running_mean, norm.running_var)]


@pytest.mark.slow
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_equal_torch_in_double_precision(shape, add, relu):
    got = everything(by_kernels, shape, add, relu, mean=0.0)
    expected = everything(by_torch, shape, add, relu, mean=0.0)
    for first, second in zip(got, expected, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=3e-5)


def test_a_mean_a_thousand_times_the_spread_loses_few_digits():
    got = everything(by_kernels, (9, 40, 6, 6), True, True, mean=3000.0)
    expected = everything(by_torch, (9, 40, 6, 6), True, True, mean=3000.0)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got[-1], expected[-1], rtol=1e-4, atol=0)


def test_in_bfloat16_only_the_results_are_rounded():
    got = everything(by_kernels, (9, 40, 6, 6), True, True, 0.0, torch.bfloat16)
    expected = everything(by_torch, (9, 40, 6, 6), True, True, 0.0, torch.bfloat16)
    for first, second in zip(got, expected, strict=True):
        torch.testing.assert_close(
            first, second, rtol=2**-7, atol=2e-3
        )  # a kernel may round towards zero
    for first, second in zip(got[-2:], expected[-2:], strict=True):  # running statistics are fp32
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_many_partial_results_combine_like_few(monkeypatch):
    shape = (9, 40, 6, 6)
    several = everything(by_kernels, shape, True, True, mean=1.0)
    monkeypatch.setattr(fused_norm, "FEWEST_PIXELS", 10**6)
    one_part = everything(by_kernels, shape, True, True, mean=1.0)
    for first, second in zip(several, one_part, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=3e-5)


def test_more_pixels_than_a_program_reads_together(monkeypatch):
    monkeypatch.setattr(fused_norm, "PIXELS", 16)
    got = everything(by_kernels, (9, 40, 6, 6), True, True, mean=0.0)
    expected = everything(by_torch, (9, 40, 6, 6), True, True, mean=0.0)
    for first, second in zip(got, expected, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=3e-5)


def test_plus_and_gradient_may_have_other_strides():
    norm, x = a_norm(8), images((5, 8, 3, 3), 1)
    plus, pull = (images((5, 8, 3, 3), seed).detach().contiguous() for seed in (2, 3))
    plus.requires_grad_()
    expected = torch.autograd.grad(by_torch(norm, x, plus, True), (x, plus), pull.double())
    got = torch.autograd.grad(by_kernels(norm, x, plus, True), (x, plus), pull)
    for first, second in zip(got, expected, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_module_adds_and_rectifies(training):
    norm, plus = a_norm(8).train(training), images((5, 8, 3, 3), 2)
    x = images((5, 8, 3, 3), 1)
    before = norm.running_mean.clone()
    normed = nn.BatchNorm2d.forward(norm, x)
    norm.running_mean.copy_(before)
    assert torch.equal(norm(x), normed)
    assert torch.equal(norm(x, relu=True), F.relu(normed))
    assert torch.equal(norm(x, plus=plus, relu=True), F.relu(normed + plus))
    assert torch.equal(norm(x, plus=plus), normed + plus)


# ---- the choice between kernels and torch


@pytest.fixture
def asked_anew():
    norm_module._triton_works.cache_clear()
    yield
    norm_module._triton_works.cache_clear()


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_the_module_passes_the_same_arguments_to_kernels_and_torch(monkeypatch, add, relu):
    found = []
    for fused in (False, True):
        monkeypatch.setattr(norm_module, "_fusable", lambda x, fused=fused: fused)
        norm, x = a_norm(8), images((5, 8, 3, 3), 1)
        norm.momentum, norm.eps = 0.3, 0.1
        out = norm(x, images((5, 8, 3, 3), 2) if add else None, relu)
        name = type(out.grad_fn).__name__
        assert ("NormReLU" in name) == fused
        found.append((out, norm.running_mean, norm.running_var))
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_evaluation_does_not_use_the_kernels(monkeypatch):
    monkeypatch.setattr(norm_module, "_fusable", lambda x: True)
    norm, x = a_norm(8).eval(), images((5, 8, 3, 3), 1)
    before = norm.running_mean.clone()
    assert "NormReLU" not in type(norm(x).grad_fn).__name__
    assert torch.equal(norm.running_mean, before)


def test_triton_works_here(asked_anew):
    assert norm_module._triton_works(torch.device(DEVICE))


def test_without_triton_torch_is_used(asked_anew, monkeypatch):
    monkeypatch.setattr(norm_module, "find_spec", lambda name: None)
    assert not norm_module._triton_works(torch.device(DEVICE))


def test_if_triton_fails_torch_is_used_and_a_warning_says_why(asked_anew, monkeypatch):
    def fail(*arguments, **more):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(fused_norm.NormReLU, "apply", fail)
    with pytest.warns(UserWarning, match="no compiler"):
        assert not norm_module._triton_works(torch.device(DEVICE))


def test_kernels_are_compiled_for_norms_on_a_gpu_only(monkeypatch):
    """The device is that of the parameters, as in a step: cuda differs from cuda:0."""
    calls = []
    monkeypatch.setattr(norm_module, "_triton_works", calls.append)
    compile_kernels(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Norm(2)))
    assert not calls
    there = Norm(2)
    there._parameters["weight"] = SimpleNamespace(is_cuda=True, device=torch.device("cuda:0"))
    compile_kernels(nn.Sequential(nn.Flatten(), nn.Sequential(there)))
    assert calls == [torch.device("cuda:0")]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_learner_compiles_before_its_first_step(monkeypatch, precision):
    calls = []
    monkeypatch.setattr(trainer_module, "compile_kernels", calls.append)
    learner = onepass.ER(net="resnet18", precision=precision, device="cpu", memory=5)
    learner.prepare((3, 9, 9), torch.uint8)
    assert calls == ([learner.model.body] if precision == "bf16" else [])


def test_the_trial_runs_all_variants_of_the_kernels_with_gradients(asked_anew, monkeypatch):
    used, backward = [], []
    for name, log in (("forward", used), ("backward", backward)):
        method = getattr(fused_norm.NormReLU, name)

        def noted(ctx, *arguments, method=method, log=log):
            log.append(arguments)
            return method(ctx, *arguments)

        monkeypatch.setattr(fused_norm.NormReLU, name, staticmethod(noted))
    with torch.no_grad():
        assert norm_module._triton_works(torch.device(DEVICE))
    calls = {(plus is not None, relu) for _, plus, *_, relu in used}
    assert calls == {(False, False), (False, True), (True, True)}
    assert len(backward) == len(used)
