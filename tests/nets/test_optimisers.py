"""Tests the optimisers, also for parameters that gain rows."""

import pytest
import torch
from torch import nn

from onepass.nets import optimisers

KINDS = ("adam", "adamw", "sgd", "nesterov")


def parameter(rows=4, columns=3, seed=0):
    return nn.Parameter(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)))


def grown(old, rows):
    return nn.Parameter(optimisers.pad_rows(old.detach(), rows - len(old)))


def train(optimizer, target, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        (target * (torch.arange(target.numel()).view_as(target) + step)).sum().backward()
        optimizer.step()


def by_hand(kind, value, gradients, lr, decay):
    """Computes Adam (Kingma and Ba) with coupled or decoupled decay, or gradient descent, plain or
    with Nesterov momentum."""
    value = value.clone()
    m, v = torch.zeros_like(value), torch.zeros_like(value)
    for step, plain in enumerate(gradients, 1):
        gradient = plain if kind == "adamw" else plain + decay * value
        if kind == "adamw":
            value = value * (1 - lr * decay)
        if kind == "sgd":
            value = value - lr * gradient
            continue
        if kind == "nesterov":
            m = 0.9 * m + gradient
            value = value - lr * (gradient + 0.9 * m)
            continue
        m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
        value = value - lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8)
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_each_optimiser_is_its_textbook_rule(kind):
    weight, source = parameter(), torch.Generator().manual_seed(1)
    gradients = [torch.randn(4, 3, generator=source) for _ in range(6)]
    expected = by_hand(kind, weight.detach(), gradients, lr=0.05, decay=0.1)
    optimizer = optimisers.make_optimiser(kind, [weight], lr=0.05, decay=0.1)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    assert torch.allclose(weight, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_only_trainable_parameters_are_taken(kind):
    frozen, trained = parameter().requires_grad_(False), parameter()
    optimizer = optimisers.make_optimiser(kind, [frozen, trained], lr=0.1, decay=0.0)
    taken = [value for group in optimizer.param_groups for value in group["params"]]
    assert [value is trained for value in taken] == [True]


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_growth_keeps_the_moments_of_old_rows_and_zeroes_those_of_new_ones(kind):
    old = parameter()
    optimizer = optimisers.make_optimiser(kind, [old], lr=0.1, decay=0.1)
    train(optimizer, old)
    before = {key: value.clone() for key, value in optimizer.state[old].items()}
    new = grown(old, 7)
    optimisers.replace_parameter(optimizer, old, new)
    after = optimizer.state[new]
    assert after.keys() == before.keys()
    assert int(after["step"]) == 3
    for moment in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(after[moment][:4], before[moment])
        assert before[moment].abs().sum() > 0
        assert after[moment][4:].eq(0).all()
        assert after[moment].shape == new.shape


@pytest.mark.parametrize("kind", KINDS)
def test_after_growth_the_new_parameter_trains_and_the_old_one_is_dropped(kind):
    old, other = parameter(), parameter(seed=1)
    twin = parameter()
    optimizer = optimisers.make_optimiser(kind, [old, other], lr=0.1, decay=0.1)
    alone = optimisers.make_optimiser(kind, [twin], lr=0.1, decay=0.1)
    train(optimizer, old)
    train(alone, twin)
    new = grown(old, 6)
    optimisers.replace_parameter(optimizer, old, new)
    assert [value is new for value in optimizer.param_groups[0]["params"]] == [True, False]
    assert old not in optimizer.state
    kept = old.detach().clone()
    train(optimizer, new)
    train(alone, twin)
    assert torch.equal(old, kept)
    assert torch.allclose(new[:4], twin)


@pytest.mark.parametrize("kind", KINDS)
def test_growth_before_the_first_step_makes_no_moments(kind):
    old = parameter()
    optimizer = optimisers.make_optimiser(kind, [old], lr=0.1, decay=0.0)
    new = grown(old, 6)
    optimisers.replace_parameter(optimizer, old, new)
    train(optimizer, new, steps=1)
    assert not torch.equal(new[:4], old)


@pytest.mark.parametrize("rows", [slice(1, 3), slice(0, 4), slice(2, 2)])
def test_reset_rows_have_no_moments_and_the_others_keep_theirs(rows):
    weight = parameter()
    optimizer = optimisers.make_optimiser("adam", [weight], lr=0.1, decay=0.1)
    train(optimizer, weight)
    before = {key: value.clone() for key, value in optimizer.state[weight].items()}
    optimisers.reset_rows(optimizer, weight, rows)
    others = torch.ones(4, dtype=torch.bool)
    others[rows] = False
    after = optimizer.state[weight]
    for moment in ("exp_avg", "exp_avg_sq"):
        assert after[moment][~others].eq(0).all()
        assert torch.equal(after[moment][others], before[moment][others])
    assert int(after["step"]) == 3


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_row_that_begins_at_step_1000_moves_like_a_new_parameter(kind):
    """Rows 2 and 3 are reset after 1000 steps of the others. The reference for them is a new torch
    Adam on those rows, and for the others a torch Adam that was never interrupted."""
    source = torch.Generator().manual_seed(0)
    start = [parameter(4, 3, seed=1).detach(), parameter(4, 1, seed=2).detach().flatten()]
    settings = {"lr": 0.05, "betas": optimisers.BETAS, "weight_decay": 0.1}
    plain = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]

    def copied(rows=slice(None)):
        return [nn.Parameter(value[rows].clone()) for value in start]

    def move(optimizer, parameters, gradients, rows=slice(None)):
        for value, gradient in zip(parameters, gradients, strict=True):
            value.grad = gradient[rows].clone()
        optimizer.step()

    ours, old, born = copied(), copied(slice(0, 2)), copied(slice(2, 4))
    optimizer = optimisers.make_optimiser(kind, ours, lr=0.05, decay=0.1, rows=ours)
    aged, fresh = plain(old, **settings), plain(born, **settings)
    for step in range(1200):
        gradients = [torch.randn(element.shape, generator=source) for element in start]
        if step == 1000:
            for tensor, value in zip(ours, start, strict=True):
                tensor.data[2:] = value[2:]
                optimisers.reset_rows(optimizer, tensor, slice(2, 4))
        move(optimizer, ours, gradients)
        move(aged, old, gradients, slice(0, 2))
        if step >= 1000:
            move(fresh, born, gradients, slice(2, 4))
            for tensor, young in zip(ours, born, strict=True):
                assert torch.allclose(tensor[2:], young, atol=1e-5)
    for tensor, grown_old in zip(ours, old, strict=True):
        assert torch.allclose(tensor[:2], grown_old, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_resetting_rows_before_the_first_step_does_nothing(kind):
    weight = parameter()
    optimizer = optimisers.make_optimiser(kind, [weight], lr=0.1, decay=0.0)
    optimisers.reset_rows(optimizer, weight, slice(0, 2))
    train(optimizer, weight, steps=1)
    assert not torch.equal(weight, parameter())


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 2)])
def test_padding_puts_zeros_behind_the_last_row(shape):
    padded = optimisers.pad_rows(torch.ones(shape), 2)
    assert padded.shape == (5, *shape[1:])
    assert padded[:3].eq(1).all()
    assert padded[3:].eq(0).all()


def test_a_mask_is_padded_with_false():
    assert optimisers.pad_rows(torch.tensor([True, False]), 2).tolist() == [
        True,
        False,
        False,
        False,
    ]


def test_nesterov_equals_torchs_through_growth_and_resets():
    ours, theirs = parameter(), parameter()
    optimizer = optimisers.make_optimiser("nesterov", [ours], lr=0.05, decay=0.1)
    decay = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    plain = torch.optim.SGD([theirs], lr=0.05, foreach=False, fused=False, **decay)
    train(optimizer, ours, steps=5)
    train(plain, theirs, steps=5)
    assert torch.allclose(ours, theirs, atol=1e-5)
    new = grown(ours, 6)
    optimisers.replace_parameter(optimizer, ours, new)
    optimisers.reset_rows(optimizer, new, slice(0, 1))
    buffer = plain.state[theirs]["momentum_buffer"]
    assert torch.allclose(optimizer.state[new]["momentum_buffer"][1:4], buffer[1:], atol=1e-3)
    assert optimizer.state[new]["momentum_buffer"][[0, 4, 5]].eq(0).all()
    buffer[0] = 0
    for optimizer_of, target in ((optimizer, new), (plain, theirs)):
        target.grad = torch.ones_like(target)
        optimizer_of.step()
    assert torch.allclose(new[:4], theirs, atol=1e-5)


# ---- the order of parameters


def three():
    return [parameter(2, 3, seed=1), parameter(5, 4, seed=2), parameter(3, 3, seed=3)]


def descend(optimizer, parameters, seed):
    source = torch.Generator().manual_seed(seed)
    for tensor in parameters:
        tensor.grad = torch.empty_like(tensor).copy_(torch.randn(tensor.shape, generator=source))
    optimizer.step()


def test_the_largest_parameters_come_first():
    """Then one kernel of a fused optimiser takes all large parameters."""
    small, large, middle = parameters = three()
    group, _ = optimisers.make_optimiser("adam", parameters, lr=0.1, decay=0.0).param_groups
    assert [id(value) for value in group["params"]] == [id(large), id(middle), id(small)]


@pytest.mark.parametrize("kind", KINDS)
def test_state_follows_the_order_of_the_parameters_and_resumes_bit_for_bit(kind):
    parameters = three()
    optimizer = optimisers.make_optimiser(kind, parameters, lr=0.1, decay=0.01)
    descend(optimizer, parameters, seed=0)
    saved = optimisers.optimiser_state(optimizer, parameters)
    for place, state in saved.items():
        assert all(value.shape == parameters[place].shape for value in state.values() if value.ndim)

    copies = [nn.Parameter(value.detach().clone()) for value in parameters]
    other = optimisers.make_optimiser(kind, copies, lr=0.1, decay=0.01)
    optimisers.load_optimiser_state(other, copies, saved)
    descend(optimizer, parameters, seed=1)
    descend(other, copies, seed=1)
    assert all(torch.equal(value, copy) for value, copy in zip(parameters, copies, strict=True))


def test_a_saved_state_is_a_copy():
    parameters = three()
    optimizer = optimisers.make_optimiser("adam", parameters, lr=0.1, decay=0.0)
    descend(optimizer, parameters, seed=0)
    saved = optimisers.optimiser_state(optimizer, parameters)
    before = saved[0]["exp_avg"].clone()
    descend(optimizer, parameters, seed=1)
    assert torch.equal(saved[0]["exp_avg"], before)


def filters(channels_last):
    source = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, 3, 3, generator=source)
    order = torch.channels_last if channels_last else torch.contiguous_format
    return nn.Parameter(weight.contiguous(memory_format=order))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("there", [True, False])
def test_state_resumes_with_other_strides(kind, there):
    """Filters are channels-last on a GPU and not on the CPU; fused optimisers require equal
    strides."""
    value = [filters(there)]
    optimizer = optimisers.make_optimiser(kind, value, lr=0.1, decay=0.01)
    descend(optimizer, value, seed=0)
    other = [filters(not there)]
    moved = optimisers.make_optimiser(kind, other, lr=0.1, decay=0.01)
    other[0].data.copy_(value[0].data)
    optimisers.load_optimiser_state(moved, other, optimisers.optimiser_state(optimizer, value))
    for seed in (1, 2):
        descend(optimizer, value, seed)
        descend(moved, other, seed)
    torch.testing.assert_close(value[0], other[0], rtol=1e-6, atol=1e-7)


def test_a_loaded_state_is_a_copy_too():
    parameters = three()
    optimizer = optimisers.make_optimiser("adam", parameters, lr=0.1, decay=0.0)
    descend(optimizer, parameters, seed=0)
    saved = optimisers.optimiser_state(optimizer, parameters)
    before = {name: value.clone() for name, value in saved[1].items()}
    optimisers.load_optimiser_state(optimizer, parameters, saved)
    descend(optimizer, parameters, seed=1)
    assert all(torch.equal(value, before[name]) for name, value in saved[1].items())


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_parameters_of_several_dtypes_train_together(kind):
    """A fused kernel takes one dtype only: on a GPU it would read all tensors as the first."""
    plain = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    ours = [parameter(), nn.Parameter(parameter(seed=1).double()), parameter(seed=2)]
    theirs = [nn.Parameter(tensor.detach().clone()) for tensor in ours]
    optimizer = optimisers.make_optimiser(kind, ours, lr=0.05, decay=0.1)
    other = plain(theirs, lr=0.05, betas=optimisers.BETAS, weight_decay=0.1)
    for seed in range(3):
        descend(optimizer, ours, seed)
        descend(other, theirs, seed)
    for tensor, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_parameter_without_a_gradient_stays_and_its_count_does_too(kind):
    idle, moved = parameter(), parameter(seed=1)
    optimizer = optimisers.make_optimiser(kind, [idle, moved], lr=0.1, decay=0.1, rows=[idle])
    descend(optimizer, [moved], seed=0)
    assert torch.equal(idle, parameter())
    assert idle not in optimizer.state
    assert int(optimizer.state[moved]["step"]) == 1
