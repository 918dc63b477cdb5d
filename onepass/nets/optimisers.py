"""Optimisers, and what they must know when the head grows."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.nets import at_once

Kind = Literal["adam", "adamw", "sgd", "nesterov"]
BETAS = (0.9, 0.99)
MOMENTUM = 0.9
CORRECTED = 2048  # gradients, after which 1 - beta^k is 1 in single precision


def _uncompiled(kind: type[torch.optim.Optimizer]) -> Any:
    """torch's optimisers import its compiler, which takes longer than the rest of a start, only to
    tell it to stay away. The methods below that wrapping are the same."""
    names = ("add_param_group", "zero_grad")
    inner = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    inner["step"] = _unwatched(torch.no_grad()(inspect.unwrap(kind.step)))  # as outside
    return type(kind.__name__, (kind,), inner)


def _unwatched(step: Callable[..., Any]) -> Callable[..., Any]:
    """torch puts hooks and the profiler around the step of any optimiser that it has not marked so
    far; nobody hangs anything there, and it costs as much as a few kernels."""
    step.hooked = True  # type: ignore[attr-defined]
    return step


class _RowsOfTheirOwn:
    """Adam whose last group of parameters has rows of different ages: each counts its own steps.

    Adam divides its moments by 1 - beta^k, where k is how many gradients they have gathered since
    they were zero. By the optimiser's count a row that begins at step 1000 would go uncorrected,
    and move up to twice as far as a new parameter does.
    """

    param_groups: list[dict[str, Any]]
    state: dict[nn.Parameter, dict[str, Tensor]]

    @_unwatched
    @torch.no_grad()
    def step(self) -> None:
        *bodies, rows = self.param_groups
        moving = [one for one in rows["params"] if one.grad is not None]
        if not moving:
            self._step_bodies(bodies)
            return
        at_once(  # these are small, and wait for nothing in the rest
            moving[0],
            aside=lambda _: self._step_rows(moving, rows),
            main=lambda _: self._step_bodies(bodies),
        )

    def _step_bodies(self, groups: list[dict[str, Any]]) -> None:
        for group in groups:
            self._adam(group, group["lr"])

    def _step_rows(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        self._adam(group, lr=0.0)  # gathers the moments, and moves nothing
        self._move(parameters, group)

    def _adam(self, group: dict[str, Any], lr: float) -> None:
        """What torch's own step does with a group of one dtype, asking less at each step."""
        state: tuple[list[Tensor], ...] = ([], [], [], [], [], [])
        self._init_group(group, *state)  # type: ignore[attr-defined]  # torch's: made where missing
        parameters, *_, steps = state
        if not parameters:
            return
        torch._foreach_add_(steps, 1)
        kernel = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        kernel(
            *state,
            lr=lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _move(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """theta - lr m_hat / (sqrt v_hat + eps), with m_hat = m / (1 - beta_1^k), v_hat =
        v / (1 - beta_2^k) and the k of each row; numerator and denominator times sqrt(1 - beta_2^k)
        here, which is one operation less for each element."""
        lr, eps = group["lr"], group["eps"]
        count = self._count(parameters[0])  # k, no further than it makes a difference   (rows)
        count.add_(1).clamp_(max=CORRECTED)
        corrections = _corrections(group["betas"], count.device).index_select(0, count)
        rate, root = corrections.unbind(1)
        rate = lr * rate
        for one in parameters:
            if group["decoupled_weight_decay"]:
                one.mul_(1 - lr * group["weight_decay"])
            m, v = self.state[one]["exp_avg"], self.state[one]["exp_avg_sq"]
            by_row = (-1,) + (1,) * (one.ndim - 1)
            below = v.sqrt().add_(root.view(by_row), alpha=eps)
            one.addcmul_(m / below, rate.view(by_row), value=-1)

    def _count(self, parameter: nn.Parameter) -> Tensor:
        """Of each row; one count will do for all parameters, since they have the same rows."""
        state = self.state[parameter]
        if "count" not in state:
            state["count"] = torch.zeros(len(parameter), dtype=torch.int64, device=parameter.device)
        return state["count"]


@lru_cache
def _corrections(betas: tuple[float, float], device: torch.device) -> Tensor:
    """For each k: sqrt(1 - beta_2^k) / (1 - beta_1^k) and sqrt(1 - beta_2^k), (k, 2). A step takes
    them from a table, which is fewer kernels than to compute them."""
    k = torch.arange(CORRECTED + 1, dtype=torch.float64)
    root = (1 - betas[1] ** k).sqrt()
    return torch.stack([root / (1 - betas[0] ** k), root], dim=1).float().to(device)


def _by_rows(kind: type[torch.optim.Optimizer]) -> Any:
    return type(kind.__name__, (_RowsOfTheirOwn, _uncompiled(kind)), {})


Adam, AdamW = _by_rows(torch.optim.Adam), _by_rows(torch.optim.AdamW)
SGD = _uncompiled(torch.optim.SGD)


def make(
    kind: Kind,
    parameters: Iterable[nn.Parameter],
    lr: float,
    decay: float,
    rows: Sequence[nn.Parameter] = (),
) -> torch.optim.Optimizer:
    """`rows` are those of the parameters whose rows start to train at different times, all with the
    same rows.

    Fused, which is several times faster than the plain loop on a CPU too. On a GPU one kernel takes
    36 tensors: the largest share the first, and only small ones are left for the second.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    trainable.sort(key=Tensor.numel, reverse=True)
    made: torch.optim.Optimizer
    if kind == "sgd":
        made = SGD(trainable, lr=lr, weight_decay=decay, fused=True)
    elif kind == "nesterov":
        made = SGD(
            trainable, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=decay, fused=True
        )
    else:
        adam = Adam if kind == "adam" else AdamW
        on_gpu = any(parameter.is_cuda for parameter in trainable)
        aged = {id(one) for one in rows}
        bodies: dict[torch.dtype, list[nn.Parameter]] = {}  # a fused kernel takes one kind of float
        for one in trainable:
            if id(one) not in aged:
                bodies.setdefault(one.dtype, []).append(one)
        last = [one for one in trainable if id(one) in aged]
        groups = [{"params": same} for same in (*bodies.values(), last)]
        made = adam(groups, lr=lr, betas=BETAS, weight_decay=decay, fused=True, capturable=on_gpu)
    return made


def replace(optimizer: torch.optim.Optimizer, old: nn.Parameter, new: nn.Parameter) -> None:
    """`new` has the rows of `old` and more behind: it goes on with the moments of `old`."""
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    optimizer.state[new] = {
        key: pad_rows(value, len(new) - len(old)) if value.ndim else value
        for key, value in optimizer.state.pop(old, {}).items()
    }


def state_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> dict[int, dict[str, Any]]:
    """What it keeps for each, by place among these parameters: its own order is its own affair."""
    known = optimizer.state
    return {
        place: copy.deepcopy(known[one]) for place, one in enumerate(parameters) if one in known
    }


def load_state(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    saved: dict[int, dict[str, Any]],
) -> None:
    """Of an optimiser that has made no step yet. (torch's own way would turn counts into the kind
    of number that the parameter has.)"""
    for place, one in enumerate(parameters):
        if place in saved:
            kept = saved[place].items()
            optimizer.state[one] = {name: _laid_out_as(one, value) for name, value in kept}


def _laid_out_as(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """A copy that lies in memory as the parameter does, which fused optimisers take for granted:
    images on a GPU are channels-last, on the host not."""
    alike = value.shape == parameter.shape
    return (
        torch.empty_like(parameter).copy_(value) if alike else value.to(parameter.device, copy=True)
    )


def forget_rows(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, rows: slice) -> None:
    """Rows that start to train start without moments, whatever decay had gathered there, and count
    their steps from zero."""
    for value in optimizer.state[parameter].values():
        if value.ndim:
            value[rows] = 0


def pad_rows(tensor: Tensor, extra: int) -> Tensor:
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, extra))
