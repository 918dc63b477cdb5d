"""Optimisers, and what they must know when the head grows."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from onepass.nets import in_parallel

OptimiserKind = Literal["adam", "adamw", "sgd", "nesterov"]
BETAS = (0.9, 0.99)
EPS = 1e-8
MOMENTUM = 0.9
CORRECTED = 2048  # gradients, after which 1 - beta^k is 1 in single precision


class Optimiser(ABC):
    """Moves groups of parameters with torch's fused kernels, through its functional forms: an
    optimiser of torch imports the compiler when it is made, which takes longer than the rest of a
    start, and asks at each step for hooks and a profiler that nobody hangs there."""

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], **settings: Any) -> None:
        self.param_groups = [{"params": list(group), **settings} for group in groups]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    @abstractmethod
    def step(self) -> None:
        """Moves every parameter that has a gradient."""

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                one.grad = None


class SGD(Optimiser):
    """Gradient descent, plain or with Nesterov's momentum."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            moving, gradients = _moving(group)
            momenta: list[Any] = [None] * len(moving)
            if group["momentum"]:
                momenta = [self.state[one].get("momentum_buffer") for one in moving]
            chosen = {name: group[name] for name in ("lr", "weight_decay", "momentum", "nesterov")}
            sgd(moving, gradients, momenta, fused=True, dampening=0, maximize=False, **chosen)
            if group["momentum"]:
                for one, momentum in zip(moving, momenta, strict=True):
                    self.state[one]["momentum_buffer"] = momentum


class Adam(Optimiser):
    """Adam or AdamW, whose last group of parameters has rows of different ages: each counts its own
    steps.

    Adam divides its moments by 1 - beta^k, where k is how many gradients they have gathered since
    they were zero. By the optimiser's count a row that begins at step 1000 would go uncorrected,
    and move up to twice as far as a new parameter does.
    """

    @torch.no_grad()
    def step(self) -> None:
        bodies, rows = self.param_groups
        moving, _ = _moving(rows)
        if not moving:
            self._adam(bodies, bodies["lr"])
            return
        in_parallel(  # these are small, and wait for nothing in the rest
            moving[0],
            side=lambda _: self._step_rows(moving, rows),
            main=lambda _: self._adam(bodies, bodies["lr"]),
        )

    def _step_rows(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        self._adam(group, lr=0.0)  # gathers the moments, and moves nothing
        self._move(parameters, group)

    def _adam(self, group: dict[str, Any], lr: float | Tensor) -> None:
        moving, gradients = _moving(group)
        states = [self._moments_of(one) for one in moving]
        adam(
            moving,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            decoupled_weight_decay=group["decoupled"],
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=lr,
            weight_decay=group["weight_decay"],
            eps=EPS,
            maximize=False,
        )

    def _moments_of(self, one: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[one]
        if not state:
            state["step"] = torch.zeros((), device=one.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(one), torch.zeros_like(one)
        return state

    def _move(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """theta - lr m_hat / (sqrt v_hat + eps), with m_hat = m / (1 - beta_1^k), v_hat =
        v / (1 - beta_2^k) and the k of each row; numerator and denominator times sqrt(1 - beta_2^k)
        here, which is one operation less for each element."""
        lr = group["lr"]
        count = self._count(parameters[0])  # k, no further than it makes a difference   (rows)
        count.add_(1).clamp_(max=CORRECTED)
        corrections = _corrections(count.device).index_select(0, count)
        rate, root = corrections.unbind(1)
        rate = lr * rate
        for one in parameters:
            if group["decoupled"]:
                one.mul_(1 - lr * group["weight_decay"])
            m, v = self.state[one]["exp_avg"], self.state[one]["exp_avg_sq"]
            by_row = (-1,) + (1,) * (one.ndim - 1)
            below = v.sqrt().add_(root.view(by_row), alpha=EPS)
            one.addcmul_(m / below, rate.view(by_row), value=-1)

    def _count(self, parameter: nn.Parameter) -> Tensor:
        """Of each row; one count will do for all parameters, since they have the same rows."""
        state = self.state[parameter]
        if "count" not in state:
            state["count"] = torch.zeros(len(parameter), dtype=torch.int64, device=parameter.device)
        return state["count"]


@lru_cache
def _corrections(device: torch.device) -> Tensor:
    """For each k: sqrt(1 - beta_2^k) / (1 - beta_1^k) and sqrt(1 - beta_2^k), (k, 2). A step takes
    them from a table, which is fewer kernels than to compute them."""
    k = torch.arange(CORRECTED + 1, dtype=torch.float64)
    root = (1 - BETAS[1] ** k).sqrt()
    return torch.stack([root / (1 - BETAS[0] ** k), root], dim=1).float().to(device)


def _moving(group: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Returns the parameters that have a gradient, and their gradients."""
    moving = [one for one in group["params"] if one.grad is not None]
    return moving, [one.grad for one in moving]


def make_optimiser(
    kind: OptimiserKind,
    parameters: Iterable[nn.Parameter],
    lr: float,
    decay: float,
    rows: Sequence[nn.Parameter] = (),
) -> Optimiser:
    """`rows` are those of the parameters whose rows start to train at different times, all with the
    same rows.

    Fused, which is several times faster than the plain loop on a CPU too. On a GPU one kernel takes
    36 tensors: the largest share the first, and only small ones are left for the second.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    trainable.sort(key=Tensor.numel, reverse=True)
    settings = {"lr": lr, "weight_decay": decay}
    if kind in ("sgd", "nesterov"):
        momentum = MOMENTUM if kind == "nesterov" else 0.0
        return SGD([trainable], momentum=momentum, nesterov=kind == "nesterov", **settings)
    aged = {id(one) for one in rows}
    bodies, last = (
        [one for one in trainable if (id(one) in aged) is with_rows] for with_rows in (False, True)
    )
    return Adam([bodies, last], decoupled=kind == "adamw", **settings)


def replace_parameter(optimizer: Optimiser, old: nn.Parameter, new: nn.Parameter) -> None:
    """`new` has the rows of `old` and more behind: it goes on with the moments of `old`."""
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    optimizer.state[new] = {
        key: pad_rows(value, len(new) - len(old)) if value.ndim else value
        for key, value in optimizer.state.pop(old, {}).items()
    }


def optimiser_state(
    optimizer: Optimiser, parameters: Sequence[nn.Parameter]
) -> dict[int, dict[str, Any]]:
    """What it keeps for each, by place among these parameters: its own order is its own affair."""
    known = optimizer.state
    return {
        place: copy.deepcopy(known[one]) for place, one in enumerate(parameters) if one in known
    }


def load_optimiser_state(
    optimizer: Optimiser,
    parameters: Sequence[nn.Parameter],
    saved: dict[int, dict[str, Any]],
) -> None:
    """Of an optimiser that has made no step yet. (torch's own way would turn counts into the kind
    of number that the parameter has.)"""
    for place, one in enumerate(parameters):
        if place in saved:
            kept = saved[place].items()
            optimizer.state[one] = {name: _copy_with_layout_of(one, value) for name, value in kept}


def _copy_with_layout_of(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """A copy that lies in memory as the parameter does, which fused optimisers take for granted:
    images on a GPU are channels-last, on the host not."""
    alike = value.shape == parameter.shape
    return (
        torch.empty_like(parameter).copy_(value) if alike else value.to(parameter.device, copy=True)
    )


def reset_rows(optimizer: Optimiser, parameter: nn.Parameter, rows: slice) -> None:
    """Rows that start to train start without moments, whatever decay had gathered there, and count
    their steps from zero."""
    for value in optimizer.state[parameter].values():
        if value.ndim:
            value[rows] = 0


def pad_rows(tensor: Tensor, extra: int) -> Tensor:
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, extra))
