"""Work beside the rest of a step: when it is done, who waits, and what is kept until then."""

import weakref

import torch

from onepass.nets import Aside


class Noted:
    """Work that writes down when it is done."""

    def __init__(self, streams=None):
        self.log, self.streams = [] if streams is None else streams.log, streams

    def start(self, aside, name="work", *used):
        def work():
            self.streams.note(name) if self.streams else self.log.append(name)

        used = used or (torch.ones(2),)
        aside.start(work, *used)


def test_outside_of_a_capture_it_is_done_at_once():
    aside, noted = Aside(), Noted()
    noted.start(aside, "one")
    noted.start(aside, "other")
    assert noted.log == ["one", "other"]
    aside.wait()
    assert noted.log == ["one", "other"]


def test_in_a_capture_it_is_on_a_stream_of_its_own_which_is_waited_for_once(streams):
    aside, noted = Aside(), Noted(streams)
    noted.start(aside, "one")
    streams.note("main")
    noted.start(aside, "other")
    aside.wait()
    assert streams.log == [
        "aside waits for line",
        "one on aside",
        "main on line",
        "aside waits for line",
        "other on aside",
        "line waits for aside",
    ]
    streams.log.clear()
    aside.wait()
    assert streams.log == []


def test_what_captured_work_reads_is_kept_until_it_has_been_waited_for(streams):
    """Or its memory would go to what the rest of the step makes meanwhile."""
    aside, noted = Aside(), Noted(streams)
    tensors = [torch.ones(2), torch.zeros(3)]
    found = [weakref.ref(one) for one in tensors]
    noted.start(aside, "work", *tensors)
    tensors.clear()
    assert all(one() is not None for one in found)
    aside.wait()
    assert all(one() is None for one in found)


def test_a_step_that_failed_is_not_waited_for(streams):
    """Its streams may be of a capture that is no more."""
    aside, noted = Aside(), Noted(streams)
    noted.start(aside, "work")
    aside.forget()
    assert streams.log == ["aside waits for line", "work on aside"]
    aside.wait()
    assert len(streams.log) == 2
