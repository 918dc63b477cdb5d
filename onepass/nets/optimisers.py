"""SGD and Adam for parameters that gain rows while they train, and their saved state."""

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

from onepass.nets.fast import parallel

OptimiserKind = Literal["adam", "adamw", "sgd", "nesterov"]
BETAS = (0.9, 0.99)
EPS = 1e-8
MOMENTUM = 0.9
CORRECTED = 2048  # gradients k; from here on, 1 - beta^k is 1 in single precision


class Optimiser(ABC):
    """An optimiser that calls the functional forms of torch's fused kernels. Parameters come in
    groups, all with the same settings.

    torch's own classes import the compiler when they are made, which takes longer than the rest of
    a start. They also look for hooks and a profiler in each step.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], **settings: Any) -> None:
        self.param_groups = [{"params": list(group), **settings} for group in groups]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    @abstractmethod
    def step(self) -> None:
        """Updates every parameter that has a gradient."""

    @property
    def moments_to_come(self) -> int:
        """The bytes of the moments that do not exist yet: the next step makes them."""
        return sum(
            self.moments_of(group) * parameter.nbytes
            for group in self.param_groups
            for parameter in _moving(group)
            if not self.state.get(parameter)
        )

    @abstractmethod
    def moments_of(self, group: dict[str, Any]) -> int:
        """Returns the number of moments that each parameter of a group has."""

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class SGD(Optimiser):
    """Stochastic gradient descent, plain or with Nesterov momentum."""

    def moments_of(self, group: dict[str, Any]) -> int:
        return int(group["momentum"] > 0)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            moving = _moving(group)
            gradients = [parameter.grad for parameter in moving]
            momenta: list[Any] = [None] * len(moving)
            if group["momentum"]:
                momenta = [self.state[parameter].get("momentum_buffer") for parameter in moving]
            settings = {
                name: group[name] for name in ("lr", "weight_decay", "momentum", "nesterov")
            }
            sgd(moving, gradients, momenta, fused=True, dampening=0, maximize=False, **settings)
            if group["momentum"]:
                for parameter, momentum in zip(moving, momenta, strict=True):
                    self.state[parameter]["momentum_buffer"] = momentum


class Adam(Optimiser):
    """Adam or AdamW. It has two groups: the second is the parameters of the class head, whose rows
    begin to train at different steps. Each of these rows counts its own gradients.

    Adam divides its moments by 1 - beta^k, where k is the number of gradients since they were zero.
    torch counts k per parameter. For a row that begins at step 1000 it would not correct the
    moments, and the row would move up to about twice as far as a new parameter.
    """

    def moments_of(self, group: dict[str, Any]) -> int:
        return 2

    @torch.no_grad()
    def step(self) -> None:
        bodies, rows = self.param_groups
        moving, moving_rows = _moving(bodies), _moving(rows)
        if moving_rows and parallel.is_capturing(
            moving_rows[0]
        ):  # few, and independent of the rest
            parallel.in_parallel(
                moving_rows[0],
                side=lambda _: self._step_rows(moving_rows, rows),
                main=lambda _: self._adam(moving, moving, bodies),
            )
            return
        # Outside of a graph one call is faster. It updates all moments, and moves copies of rows.
        copies = [parameter.clone() for parameter in moving_rows]
        self._adam([*moving, *moving_rows], [*moving, *copies], bodies)
        if moving_rows:
            self._move_rows(moving_rows, rows)

    def _step_rows(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        self._adam(parameters, parameters, {**group, "lr": 0.0})  # updates the moments only
        self._move_rows(parameters, group)

    def _adam(self, parameters: list[Any], moved: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Updates the moments of `parameters` by torch's kernel, and the values of `moved`: the
        parameters themselves, or copies of them."""
        states = [self._moments_of(parameter) for parameter in parameters]
        adam(
            list(moved),
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            decoupled_weight_decay=group["decoupled"],
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=EPS,
            maximize=False,
        )

    def _moments_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = (
                torch.zeros_like(parameter),
                torch.zeros_like(parameter),
            )
        return state

    def _move_rows(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Moves parameters to theta - lr m_hat / (sqrt v_hat + eps), where m_hat = m / (1 -
        beta_1^k), v_hat = v / (1 - beta_2^k), and k is the row's own. Numerator and denominator are
        multiplied by sqrt(1 - beta_2^k), which saves an operation per element."""
        lr = group["lr"]
        count = self._count(parameters[0])  # k of each row                              (rows)
        count.add_(1).clamp_(max=CORRECTED)
        corrections = _corrections(count.device).index_select(0, count)
        rate, root = corrections.unbind(1)
        rate = lr * rate
        for parameter in parameters:
            if group["decoupled"]:
                parameter.mul_(1 - lr * group["weight_decay"])
            m, v = self.state[parameter]["exp_avg"], self.state[parameter]["exp_avg_sq"]
            by_row = (-1,) + (1,) * (parameter.ndim - 1)
            below = v.sqrt().add_(root.view(by_row), alpha=EPS)
            parameter.addcmul_(m / below, rate.view(by_row), value=-1)

    def _count(self, parameter: nn.Parameter) -> Tensor:
        """Returns the number of gradients of each row so far, (rows). It is stored with the first
        parameter of the group, because all have the same rows."""
        state = self.state[parameter]
        if "count" not in state:
            state["count"] = torch.zeros(len(parameter), dtype=torch.int64, device=parameter.device)
        return state["count"]


@lru_cache
def _corrections(device: torch.device) -> Tensor:
    """Returns sqrt(1 - beta_2^k) / (1 - beta_1^k) and sqrt(1 - beta_2^k) for each k up to
    `CORRECTED`, (k, 2). A table takes fewer kernels than computing them in each step."""
    k = torch.arange(CORRECTED + 1, dtype=torch.float64)
    root = (1 - BETAS[1] ** k).sqrt()
    return torch.stack([root / (1 - BETAS[0] ** k), root], dim=1).float().to(device)


def _moving(group: dict[str, Any]) -> list[Any]:
    """Returns the parameters that have a gradient."""
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def make_optimiser(
    kind: OptimiserKind,
    parameters: Iterable[nn.Parameter],
    lr: float,
    decay: float,
    rows: Sequence[nn.Parameter] = (),
) -> Optimiser:
    """Returns an optimiser of the parameters that train. `rows` are those of them whose rows begin
    to train at different steps; they all have the same number of rows. SGD has nothing to count for
    each row and ignores `rows`.

    Fused kernels are several times faster than a loop, on a CPU too. On a GPU one kernel takes 36
    tensors. Sorting puts the largest into the first kernel and leaves the small ones to the second.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    trainable.sort(key=Tensor.numel, reverse=True)
    settings = {"lr": lr, "weight_decay": decay}
    if kind in ("sgd", "nesterov"):
        momentum = MOMENTUM if kind == "nesterov" else 0.0
        return SGD([trainable], momentum=momentum, nesterov=kind == "nesterov", **settings)
    with_rows = {id(parameter) for parameter in rows}
    bodies, last = (
        [parameter for parameter in trainable if (id(parameter) in with_rows) is wanted]
        for wanted in (False, True)
    )
    return Adam([bodies, last], decoupled=kind == "adamw", **settings)


def replace_parameter(optimizer: Optimiser, old: nn.Parameter, new: nn.Parameter) -> None:
    """Replaces a parameter in the optimiser by one with more rows. The old rows keep their moments
    and counts, and the new ones have zeros."""
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    optimizer.state[new] = {
        key: pad_rows(value, len(new) - len(old)) if value.ndim else value
        for key, value in optimizer.state.pop(old, {}).items()
    }


def optimiser_state(
    optimizer: Optimiser, parameters: Sequence[nn.Parameter]
) -> dict[int, dict[str, Any]]:
    """Returns a copy of the state of each parameter that has one, by position in `parameters`. The
    optimiser's own order, by size, is not saved."""
    known = optimizer.state
    return {
        position: copy.deepcopy(known[parameter])
        for position, parameter in enumerate(parameters)
        if parameter in known
    }


def load_optimiser_state(
    optimizer: Optimiser,
    parameters: Sequence[nn.Parameter],
    saved: dict[int, dict[str, Any]],
) -> None:
    """Loads the result of `optimiser_state` into an optimiser that has made no step yet. torch's
    own `load_state_dict` would cast counts to the dtype of the parameter."""
    for position, parameter in enumerate(parameters):
        if position in saved:
            values = saved[position].items()
            optimizer.state[parameter] = {
                name: _copy_with_layout_of(parameter, value) for name, value in values
            }


def _copy_with_layout_of(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """Returns a copy of the value with the parameter's strides, which fused optimisers require.
    Weights of convolutions are channels-last on a GPU, but not on the CPU."""
    alike = value.shape == parameter.shape
    return (
        torch.empty_like(parameter).copy_(value) if alike else value.to(parameter.device, copy=True)
    )


def reset_rows(optimizer: Optimiser, parameter: nn.Parameter, rows: slice) -> None:
    """Sets the moments and counts of these rows to zero. It is called when they begin to train,
    because weight decay may have changed their moments before."""
    for value in optimizer.state.get(parameter, {}).values():  # plain SGD keeps none
        if value.ndim:
            value[rows] = 0


def pad_rows(tensor: Tensor, extra: int) -> Tensor:
    """Returns the tensor with `extra` rows of zeros behind its own."""
    return F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, extra))
