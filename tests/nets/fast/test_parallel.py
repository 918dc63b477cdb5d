"""Tests which work a captured step puts on other streams. Here fake streams log their calls; on a
GPU, the contract compares captured steps with eager ones."""

import pytest
import torch
from torch import nn

import onepass
from onepass.nets.fast import bf16_weights, conv, parallel
from onepass.nets.fast.bf16_weights import weights_in_bf16
from onepass.nets.fast.conv import Conv
from onepass.nets.fast.parallel import in_parallel


def test_outside_a_capture_branches_run_in_order():
    assert not parallel.is_capturing(torch.ones(2))
    first, second = in_parallel(torch.ones(2), lambda x: x + 1, lambda x: x + 2)
    assert first.tolist() == [2, 2] and second.tolist() == [3, 3]


@pytest.mark.parametrize("several", [False, True])
def test_a_branch_starts_after_earlier_work_and_is_waited_for(streams, several):
    def side(x):
        streams.note("side")
        return {"a": x + 1, "b": x + 3} if several else x + 1

    def main(x):
        streams.note("main")
        return x + 2

    first, second = in_parallel(torch.ones(1), side, main)
    assert (first["a"] if several else first) == 2 and second == 3
    assert streams.log == [
        "branch waits for line",
        "side on branch",
        "main on line",
        "line waits for branch",
        *["kept for line"] * (1 + several),
    ]


def test_a_branch_may_return_none(streams):
    assert in_parallel(torch.ones(1), lambda x: None, lambda x: None) == (None, None)
    assert streams.log == ["branch waits for line", "line waits for branch"]


SIZES = [(3, 1, 8, 8), (3, 2, 8, 8), (3, 2, 7, 9), (1, 2, 8, 8), (1, 2, 9, 7), (5, 3, 11, 10)]


def both(size, stride, height, width):
    torch.manual_seed(0)
    ours = Conv(3, 4, size, stride).double()
    plain = nn.Conv2d(3, 4, size, stride, padding=size // 2, bias=False).double()
    plain.load_state_dict(ours.state_dict())
    return ours, plain, torch.randn(2, 3, height, width, dtype=torch.float64)


@pytest.mark.parametrize("case", SIZES)
def test_with_or_without_a_side_stream_it_is_a_convolution(streams, case):
    ours, plain, x = both(*case)
    found = []
    for net in (ours, plain):
        images = x.clone().requires_grad_()
        out = net(images)
        (out * torch.arange(out.numel(), dtype=torch.float64).view_as(out)).sum().backward()
        found.append((out, images.grad, net.weight.grad))
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_gradients_of_weights_have_their_own_nodes_and_stream(streams, monkeypatch):
    ours, _, x = both(3, 1, 8, 8)
    forward = conv._Weights.forward

    def noted(*arguments):
        streams.note("weights")
        return forward(*arguments)

    monkeypatch.setattr(conv._Weights, "forward", staticmethod(noted))
    out = ours(x.requires_grad_())
    assert streams.log == [
        "weights waits for line",
        "weights on weights",
        "line waits for weights",
        "kept for weights",
    ]
    names = {node.name() for node, _ in out.grad_fn.next_functions if node is not None}
    assert "_WeightsBackward" in names


@pytest.mark.parametrize("what", ["no gradient", "other precision", "not captured"])
def test_otherwise_it_is_torchs_convolution(streams, monkeypatch, what):
    ours, _, x = both(3, 1, 8, 8)
    x.requires_grad_(what != "no gradient")
    if what == "not captured":
        monkeypatch.setattr(conv, "is_capturing", lambda x: False)
    if what == "other precision":
        with torch.autocast("cpu", torch.bfloat16):
            out = ours.float()(x.bfloat16())
    else:
        out = ours(x)
    assert out.grad_fn.name() == "ConvolutionBackward0"
    assert not streams.log


def test_the_memory_is_updated_beside_the_optimiser(streams, monkeypatch):
    learner = onepass.ER(memory=5, device="cpu")
    x = torch.rand(4, 3)
    learner.learn(x, [0, 1, 0, 1])
    streams.log.clear()
    optimizer = learner.trainer.optimizer
    add, update = learner.store.add, optimizer.step
    monkeypatch.setattr(learner.store, "add", lambda *a: (streams.note("memory"), add(*a))[1])
    monkeypatch.setattr(optimizer, "step", lambda: (streams.note("optimiser"), update())[1])
    learner.learn(x, [0, 1, 0, 1])
    assert streams.log == [
        "side waits for line",
        "memory on side",
        "optimiser on line",
        "branch waits for line",  # the head's rows beside the other parameters
        "line waits for branch",
        "line waits for side",
    ]


def test_weights_are_cast_beside_the_views(streams, monkeypatch):
    learner = onepass.ER(memory=5, device="cpu", precision="bf16")
    x = torch.rand(4, 3)
    learner.learn(x, [0, 1, 0, 1])
    streams.log.clear()
    views = learner.views
    cast = lambda net: (streams.note("casts"), weights_in_bf16(net))[1]  # noqa: E731
    monkeypatch.setattr(bf16_weights, "weights_in_bf16", cast)
    monkeypatch.setattr(learner.trainer, "views", Noted(views, lambda: streams.note("views")))
    learner.learn(x, [0, 1, 0, 1])
    assert streams.log[:4] == [
        "branch waits for line",
        "casts on branch",
        "views on line",
        "line waits for branch",
    ]


class Noted:
    """Views that log when they are made."""

    def __init__(self, views, say):
        self.views, self.say = views, say

    def __call__(self, x):
        self.say()
        return self.views(x)

    def __getattr__(self, name):
        return getattr(self.views, name)
