"""Fake CUDA streams, for machines without a GPU."""

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from onepass.nets.fast import conv, parallel, side_stream


class Streams:
    """Fake streams by name, with the current one and a log of all events."""

    def __init__(self):
        self.current, self.log = "line", []

    def make(self, name):
        streams = self

        class Stream:
            def __str__(self):
                return name

            def wait_stream(self, other):
                streams.log.append(f"{name} waits for {other}")

        return Stream()

    @contextmanager
    def on(self, stream):
        self.current, before = str(stream), self.current
        yield
        self.current = before

    def note(self, what):
        self.log.append(f"{what} on {self.current}")


@pytest.fixture
def streams(monkeypatch):
    """Pretends that every tensor is being captured, on streams that log their calls."""
    made = Streams()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made.make(made.current))
    monkeypatch.setattr(torch.cuda, "stream", made.on)
    for module in (parallel, conv, side_stream):
        monkeypatch.setattr(module, "is_capturing", lambda x: True)
        monkeypatch.setattr(module, "stream_for", lambda purpose, device: made.make(purpose))
    kept = lambda tensor, stream: made.log.append(f"kept for {stream}")  # noqa: E731
    monkeypatch.setattr(Tensor, "record_stream", kept)
    return made
