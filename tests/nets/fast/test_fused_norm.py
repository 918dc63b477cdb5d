"""BatchNorm with what follows it: torch's own and our kernels say the same. Without a GPU the
kernels run in Triton's interpreter, on the host."""

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
    """Weights of both signs, and running statistics that are not those of a beginning."""
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
    """In double precision."""
    mean, var = norm.running_mean.double(), norm.running_var.double()
    weights = (norm.weight.double(), norm.bias.double())
    out = F.batch_norm(x.double(), mean, var, *weights, True, norm.momentum, norm.eps)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
    out = out if plus is None else out + plus
    return F.relu(out) if relu else out


def everything(way, shape, add, relu, mean, dtype=torch.float32):
    """Output, gradients of all that has one, and the statistics that are left behind."""
    norm = a_norm(shape[1])
    x = images(shape, 1, mean, dtype)
    plus = images(shape, 2, dtype=dtype) if add else None
    out = way(norm, x, plus, relu)
    asked = [one for one in (x, plus, norm.weight, norm.bias) if one is not None]
    pull = images(shape, 3, dtype=dtype).detach().to(out.dtype)
    found = torch.autograd.grad(out, asked, pull)
    return [one.double() for one in (out, *found, norm.running_mean, norm.running_var)]


@pytest.mark.slow
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_give_what_torch_gives_in_double_precision(shape, add, relu):
    got = everything(by_kernels, shape, add, relu, mean=0.0)
    expected = everything(by_torch, shape, add, relu, mean=0.0)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=3e-5)


def test_a_mean_a_thousand_times_the_spread_costs_few_digits():
    got = everything(by_kernels, (9, 40, 6, 6), True, True, mean=3000.0)
    expected = everything(by_torch, (9, 40, 6, 6), True, True, mean=3000.0)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got[-1], expected[-1], rtol=1e-4, atol=0)


def test_in_bfloat16_only_the_results_are_rounded():
    got = everything(by_kernels, (9, 40, 6, 6), True, True, 0.0, torch.bfloat16)
    expected = everything(by_torch, (9, 40, 6, 6), True, True, 0.0, torch.bfloat16)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-7, atol=2e-3)  # it may round towards zero
    for one, other in zip(got[-2:], expected[-2:], strict=True):  # fp32, not rounded at all
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_many_parts_are_put_together_as_few_are(monkeypatch):
    shape = (9, 40, 6, 6)
    several = everything(by_kernels, shape, True, True, mean=1.0)
    monkeypatch.setattr(fused_norm, "FEWEST_PIXELS", 10**6)
    one_part = everything(by_kernels, shape, True, True, mean=1.0)
    for one, other in zip(several, one_part, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=3e-5)


def test_more_pixels_than_a_program_reads_at_a_time(monkeypatch):
    monkeypatch.setattr(fused_norm, "PIXELS", 16)
    got = everything(by_kernels, (9, 40, 6, 6), True, True, mean=0.0)
    expected = everything(by_torch, (9, 40, 6, 6), True, True, mean=0.0)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=3e-5)


def test_what_is_added_and_what_pulls_may_lie_otherwise_in_memory():
    norm, x = a_norm(8), images((5, 8, 3, 3), 1)
    plus, pull = (images((5, 8, 3, 3), seed).detach().contiguous() for seed in (2, 3))
    plus.requires_grad_()
    expected = torch.autograd.grad(by_torch(norm, x, plus, True), (x, plus), pull.double())
    got = torch.autograd.grad(by_kernels(norm, x, plus, True), (x, plus), pull)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_module_adds_and_cuts_off_what_is_negative(training):
    norm, plus = a_norm(8).train(training), images((5, 8, 3, 3), 2)
    x = images((5, 8, 3, 3), 1)
    before = norm.running_mean.clone()
    normed = nn.BatchNorm2d.forward(norm, x)
    norm.running_mean.copy_(before)
    assert torch.equal(norm(x), normed)
    assert torch.equal(norm(x, relu=True), F.relu(normed))
    assert torch.equal(norm(x, plus=plus, relu=True), F.relu(normed + plus))
    assert torch.equal(norm(x, plus=plus), normed + plus)


# ---- the module's choice between the two


@pytest.fixture
def asked_anew():
    norm_module._triton_works.cache_clear()
    yield
    norm_module._triton_works.cache_clear()


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_the_module_gives_its_kernels_what_it_gives_torch(monkeypatch, add, relu):
    found = []
    for fused in (False, True):
        monkeypatch.setattr(norm_module, "_fusable", lambda x, fused=fused: fused)
        norm, x = a_norm(8), images((5, 8, 3, 3), 1)
        norm.momentum, norm.eps = 0.3, 0.1
        out = norm(x, images((5, 8, 3, 3), 2) if add else None, relu)
        name = type(out.grad_fn).__name__
        assert ("NormReLU" in name) == fused
        found.append((out, norm.running_mean, norm.running_var))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_in_evaluation_the_kernels_have_no_part(monkeypatch):
    monkeypatch.setattr(norm_module, "_fusable", lambda x: True)
    norm, x = a_norm(8).eval(), images((5, 8, 3, 3), 1)
    before = norm.running_mean.clone()
    assert "NormReLU" not in type(norm(x).grad_fn).__name__
    assert torch.equal(norm.running_mean, before)


def test_triton_works_here(asked_anew):
    assert norm_module._triton_works(torch.device(DEVICE))


def test_without_triton_torch_does_it(asked_anew, monkeypatch):
    monkeypatch.setattr(norm_module, "find_spec", lambda name: None)
    assert not norm_module._triton_works(torch.device(DEVICE))


def test_where_triton_fails_torch_does_it_and_says_why(asked_anew, monkeypatch):
    def fail(*arguments, **more):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(fused_norm.NormReLU, "apply", fail)
    with pytest.warns(UserWarning, match="no compiler"):
        assert not norm_module._triton_works(torch.device(DEVICE))


def test_only_norms_on_a_gpu_are_compiled_for(monkeypatch):
    """For the device of the parameters, by which the step asks too: cuda is not cuda:0."""
    asked = []
    monkeypatch.setattr(norm_module, "_triton_works", asked.append)
    compile_kernels(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Norm(2)))
    assert not asked
    there = Norm(2)
    there._parameters["weight"] = SimpleNamespace(is_cuda=True, device=torch.device("cuda:0"))
    compile_kernels(nn.Sequential(nn.Flatten(), nn.Sequential(there)))
    assert asked == [torch.device("cuda:0")]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_learner_compiles_before_its_first_step(monkeypatch, precision):
    asked = []
    monkeypatch.setattr(trainer_module, "compile_kernels", asked.append)
    one = onepass.ER(net="resnet18", precision=precision, device="cpu", memory=5)
    one.prepare((3, 9, 9), torch.uint8)
    assert asked == ([one.model.body] if precision == "bf16" else [])


def test_the_trial_runs_all_that_a_network_uses_and_asks_for_gradients_itself(
    asked_anew, monkeypatch
):
    used, backward = [], []
    for name, log in (("forward", used), ("backward", backward)):
        method = getattr(fused_norm.NormReLU, name)

        def noted(ctx, *arguments, method=method, log=log):
            log.append(arguments)
            return method(ctx, *arguments)

        monkeypatch.setattr(fused_norm.NormReLU, name, staticmethod(noted))
    with torch.no_grad():
        assert norm_module._triton_works(torch.device(DEVICE))
    asked = {(plus is not None, relu) for _, plus, *_, relu in used}
    assert asked == {(False, False), (False, True), (True, True)}
    assert len(backward) == len(used)
