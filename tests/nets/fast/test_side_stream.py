"""Tests the side stream: when work runs, what waits for it, and which tensors it keeps."""

import weakref

import torch

from onepass.nets import SideStream


class Noted:
    """Work that logs when it runs."""

    def __init__(self, streams=None):
        self.log, self.streams = [] if streams is None else streams.log, streams

    def start(self, side, name="work", *used):
        def work():
            self.streams.note(name) if self.streams else self.log.append(name)

        used = used or (torch.ones(2),)
        side.start(work, *used)


def test_outside_a_capture_work_runs_immediately():
    side, noted = SideStream(), Noted()
    noted.start(side, "first")
    noted.start(side, "second")
    assert noted.log == ["first", "second"]
    side.wait()
    assert noted.log == ["first", "second"]


def test_in_a_capture_work_runs_on_the_side_stream_which_is_waited_for_once(streams):
    side, noted = SideStream(), Noted(streams)
    noted.start(side, "first")
    streams.note("main")
    noted.start(side, "second")
    side.wait()
    assert streams.log == [
        "side waits for line",
        "first on side",
        "main on line",
        "side waits for line",
        "second on side",
        "line waits for side",
    ]
    streams.log.clear()
    side.wait()
    assert streams.log == []


def test_tensors_of_captured_work_are_kept_until_the_wait(streams):
    """Otherwise the rest of the step could reuse its GPU memory."""
    side, noted = SideStream(), Noted(streams)
    tensors = [torch.ones(2), torch.zeros(3)]
    found = [weakref.ref(tensor) for tensor in tensors]
    noted.start(side, "work", *tensors)
    tensors.clear()
    assert all(reference() is not None for reference in found)
    side.wait()
    assert all(reference() is None for reference in found)


def test_a_failed_step_is_not_waited_for(streams):
    """Its streams may belong to a failed capture."""
    side, noted = SideStream(), Noted(streams)
    noted.start(side, "work")
    side.drop()
    assert streams.log == ["side waits for line", "work on side"]
    side.wait()
    assert len(streams.log) == 2
