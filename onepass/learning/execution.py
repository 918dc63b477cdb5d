"""Engines that execute a step: eagerly, or captured as a CUDA graph and replayed.

Steps are small, so a GPU spends its time waiting for Python and kernel launches. A graph launches
all kernels of a step together. Both engines run the same code of a step.
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
WARM_UP = 3  # eager steps on batches of one shape before a capture


def do_nothing() -> None:
    """Does nothing: the default callback."""


class EagerEngine:
    """An engine that calls the step on every batch. It never calls `replaying`."""

    capture_seconds = 0.0

    def run(
        self, step: StepFunction, x: Tensor, y: Tensor, replaying: Callback = do_nothing
    ) -> Step:
        return step(x, y)

    def reset(self, *, other_step: bool = False) -> None:
        pass


class GraphEngine:
    """An engine that captures the step as a CUDA graph after three eager batches of one shape. It
    replays the graph for every batch of that shape and runs others eagerly. After three eager
    batches of another shape it captures the step for that shape, and drops the earlier graph.

    The graph continues the state of the generators, so it draws the same random numbers as eager
    steps."""

    def __init__(self, generators: Iterable[torch.Generator]) -> None:
        self.generators = [rng for rng in generators if rng.device.type == "cuda"]
        self.side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.x = self.y = torch.empty(0)
        self.size = torch.Size()
        self.row = 0
        self.capture_seconds = 0.0

    def reset(self, *, other_step: bool = False) -> None:
        """Drops the graph, because tensors of the step were replaced. The next batch of its shape
        captures the step again. With `other_step` the step itself has changed. It then runs eagerly
        first, as at the start, because a kernel cannot be captured in its first call."""
        self.graph = None
        if other_step:
            self.row = 0

    def run(
        self, step: StepFunction, x: Tensor, y: Tensor, replaying: Callback = do_nothing
    ) -> Step:
        """Runs the step, or replays its graph, which runs none of its Python. Returns its report.
        `replaying` is called before a replay."""
        if self.graph is None or x.shape != self.x.shape:
            # eager batches of this shape, counted again after an eager one of another shape
            self.row = self.row + 1 if x.shape == self.size else 1
            self.size = x.shape
            if self.row <= WARM_UP:
                return self._run_eagerly(step, x, y)
            self.graph = None
            self.x, self.y = x.clone(), y.clone()
            self.graph = self._capture(step, self.x, self.y)
        # the graph reads its own input tensors
        self.x.copy_(x)
        self.y.copy_(y)
        replaying()
        self.graph.replay()
        # one copy for the loss and all terms, which are scalars
        loss, *terms = self.reported.clone()
        named = dict(zip(self.step.terms, terms, strict=True))
        # copies, because the next replay overwrites the graph's tensors
        return Step(loss, named, tuple(output.clone() for output in self.step.outputs))

    def _run_eagerly(self, step: StepFunction, x: Tensor, y: Tensor) -> Step:
        """Runs the step on a side stream and returns its report. CUDA requires eager runs on a side
        stream before a capture."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            done = step(x, y)
        torch.cuda.current_stream().wait_stream(self.side)
        return done

    def _capture(self, step: StepFunction, x: Tensor, y: Tensor) -> torch.cuda.CUDAGraph:
        """Returns a graph of the step on these tensors. Recording it runs no kernel."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # thread_local: other threads may predict with a snapshot during the capture
        relaxed = torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local")
        with _no_garbage_collected(), relaxed:
            self.step = step(x, y)
            self.reported = torch.stack([self.step.loss, *self.step.terms.values()])
        self.capture_seconds += time.perf_counter() - began
        return graph


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Stops garbage collection in the body: freeing GPU memory would invalidate a capture."""
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
    """Returns an engine. `auto` is a graph on a GPU if the step can be captured, otherwise eager.
    Raises an InputError for `graph` where that is impossible."""
    if kind == "graph" and where.type != "cuda":
        raise InputError("engine 'graph' needs a GPU: choose 'auto' or 'eager'")
    if kind == "graph" and not capturable:
        raise InputError(
            "engine 'graph' is not for this method, whose step cannot be captured: choose 'auto' "
            "or 'eager'"
        )
    if kind == "eager" or where.type != "cuda" or not capturable:
        return EagerEngine()
    return GraphEngine(generators)
