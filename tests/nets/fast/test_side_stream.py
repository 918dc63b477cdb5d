"""Work beside the rest of a step: when it is done, who waits, and what is kept until then."""

import weakref

import torch

from onepass.nets import SideStream


class Noted:
    """Work that writes down when it is done."""

    def __init__(self, streams=None):
        self.log, self.streams = [] if streams is None else streams.log, streams

    def start(self, side, name="work", *used):
        def work():
            self.streams.note(name) if self.streams else self.log.append(name)

        used = used or (torch.ones(2),)
        side.start(work, *used)


def test_outside_of_a_capture_it_is_done_at_once():
    side, noted = SideStream(), Noted()
    noted.start(side, "one")
    noted.start(side, "other")
    assert noted.log == ["one", "other"]
    side.wait()
    assert noted.log == ["one", "other"]


def test_in_a_capture_it_is_on_a_stream_of_its_own_which_is_waited_for_once(streams):
    side, noted = SideStream(), Noted(streams)
    noted.start(side, "one")
    streams.note("main")
    noted.start(side, "other")
    side.wait()
    assert streams.log == [
        "side waits for line",
        "one on side",
        "main on line",
        "side waits for line",
        "other on side",
        "line waits for side",
    ]
    streams.log.clear()
    side.wait()
    assert streams.log == []


def test_what_captured_work_reads_is_kept_until_it_has_been_waited_for(streams):
    """Or its memory would go to what the rest of the step makes meanwhile."""
    side, noted = SideStream(), Noted(streams)
    tensors = [torch.ones(2), torch.zeros(3)]
    found = [weakref.ref(one) for one in tensors]
    noted.start(side, "work", *tensors)
    tensors.clear()
    assert all(one() is not None for one in found)
    side.wait()
    assert all(one() is None for one in found)


def test_a_step_that_failed_is_not_waited_for(streams):
    """Its streams may be of a capture that is no more."""
    side, noted = SideStream(), Noted(streams)
    noted.start(side, "work")
    side.forget()
    assert streams.log == ["side waits for line", "work on side"]
    side.wait()
    assert len(streams.log) == 2
