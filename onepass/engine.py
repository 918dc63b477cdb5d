"""How a step is executed: eagerly, or captured once as a CUDA graph and replayed.

Steps are small, so a GPU waits for Python and kernel launches rather than for arithmetic. A graph
launches all kernels of a step at once. The step's code is the same in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor

from onepass.errors import InputError
from onepass.parts import Step

Kind = Literal["auto", "eager", "graph"]
StepFunction = Callable[[Tensor, Tensor], Step]
WARM_UP = 3


class Eager:
    """Calls the step."""

    capture_seconds = 0.0

    def run(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        return step(x, y)

    def reset(self) -> None:
        pass


class Graph:
    """Captures the step after a few eager ones and replays it for every batch of the same size;
    batches of another size run eagerly. Captured generators go on where they were, so the numbers
    drawn are those of the eager step."""

    def __init__(self, generators: Iterable[torch.Generator]) -> None:
        self.generators = [one for one in generators if one.device.type == "cuda"]
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.warm = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.x: Tensor | None = None
        self.capture_seconds = 0.0

    def reset(self) -> None:
        """The tensors of the step have changed: capture anew."""
        self.graph = None

    def run(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        if self.x is None:
            self.x, self.y = x.clone(), y.clone()
        if x.shape != self.x.shape or self.warm < WARM_UP:
            return self._eagerly(step, x, y)
        self.x.copy_(x)
        self.y.copy_(y)
        if self.graph is None:
            self._capture(step, self.x, self.y)
        assert self.graph is not None
        self.graph.replay()
        loss, *terms = self.reported.clone()
        return Step(loss, dict(zip(self.step.terms, terms, strict=True)), self.step.outputs)

    def _eagerly(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        """On a stream of its own, as capture asks of what it will capture."""
        self.warm += 1
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            done = step(x, y)
        torch.cuda.current_stream().wait_stream(self.side)
        return done

    def _capture(self, step: StepFunction, x: Tensor, y: Tensor) -> None:
        """Records the step without running it."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=self.side):
            self.step = step(x, y)
            self.reported = torch.stack([self.step.loss, *self.step.terms.values()])
        self.graph = graph
        self.capture_seconds += time.perf_counter() - began


def make(
    kind: Kind, capturable: bool, where: torch.device, generators: Iterable[torch.Generator]
) -> Eager | Graph:
    """`auto` is a graph on a GPU, for methods whose step can be captured."""
    if kind == "graph" and where.type != "cuda":
        raise InputError("engine 'graph' needs a GPU")
    if kind == "graph" and not capturable:
        raise InputError("engine 'graph' is not for this method: its step cannot be captured")
    if kind == "eager" or where.type != "cuda" or not capturable:
        return Eager()
    return Graph(generators)
