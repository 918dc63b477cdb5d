"""How a step is executed: eagerly, or captured once as a CUDA graph and replayed.

Steps are small, so a GPU waits for Python and kernel launches rather than for arithmetic. A graph
launches all kernels of a step at once. The step's code is the same in both.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.base.parts import Step

EngineKind = Literal["auto", "eager", "graph"]
StepFunction = Callable[[Tensor, Tensor], Step]
Callback = Callable[[], None]
WARM_UP = 3


def do_nothing() -> None:
    """Takes no notice."""


class EagerEngine:
    """Calls the step."""

    capture_seconds = 0.0

    def run(
        self, step: StepFunction, x: Tensor, y: Tensor, replaying: Callback = do_nothing
    ) -> Step:
        return step(x, y)

    def reset(self, *, other_step: bool = False) -> None:
        pass


class GraphEngine:
    """Captures the step when a few batches of one size have come in a row, and replays it for every
    batch of that size; others run eagerly. Captured generators go on where they were, so the
    numbers drawn are those of the eager step."""

    def __init__(self, generators: Iterable[torch.Generator]) -> None:
        self.generators = [one for one in generators if one.device.type == "cuda"]
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.x = self.y = torch.empty(0)
        self.size = torch.Size()
        self.row = 0
        self.capture_seconds = 0.0

    def reset(self, *, other_step: bool = False) -> None:
        """The tensors of the step have changed: capture anew. Another step is run eagerly first,
        as the one before was: what its kernels set up at their first call cannot be captured."""
        self.graph = None
        if other_step:
            self.row = 0

    def run(
        self, step: StepFunction, x: Tensor, y: Tensor, replaying: Callback = do_nothing
    ) -> Step:
        """Runs the step, or calls `replaying` and replays it, which runs no Python of the step."""
        if self.graph is None or x.shape != self.x.shape:
            # how many batches of this size have come in a row
            self.row = self.row + 1 if x.shape == self.size else 1
            self.size = x.shape
            if self.row <= WARM_UP:
                return self._run_eagerly(step, x, y)
            self.graph = None
            self.x, self.y = x.clone(), y.clone()
            self.graph = self._capture(step, self.x, self.y)
        # the graph reads its own tensors, so the batch goes there
        self.x.copy_(x)
        self.y.copy_(y)
        replaying()
        self.graph.replay()
        loss, *terms = self.reported.clone()
        named = dict(zip(self.step.terms, terms, strict=True))
        # copies, since the next replay writes into the graph's own tensors
        return Step(loss, named, tuple(output.clone() for output in self.step.outputs))

    def _run_eagerly(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        """On a stream of its own, as capture asks of what it will capture."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            done = step(x, y)
        torch.cuda.current_stream().wait_stream(self.side)
        return done

    def _capture(self, step: StepFunction, x: Tensor, y: Tensor) -> torch.cuda.CUDAGraph:
        """Records the step on these tensors without running it."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # other threads may go on predicting, with a snapshot, while this one captures
        relaxed = torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local")
        with _no_garbage_collected(), relaxed:
            self.step = step(x, y)
            self.reported = torch.stack([self.step.loss, *self.step.terms.values()])
        self.capture_seconds += time.perf_counter() - began
        return graph


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Whatever garbage there is: to free it on the GPU meanwhile would spoil the capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def make_engine(
    kind: EngineKind, capturable: bool, where: torch.device, generators: Iterable[torch.Generator]
) -> EagerEngine | GraphEngine:
    """`auto` is a graph on a GPU, for methods whose step can be captured."""
    if kind == "graph" and where.type != "cuda":
        raise InputError("engine 'graph' needs a GPU")
    if kind == "graph" and not capturable:
        raise InputError("engine 'graph' is not for this method: its step cannot be captured")
    if kind == "eager" or where.type != "cuda" or not capturable:
        return EagerEngine()
    return GraphEngine(generators)
