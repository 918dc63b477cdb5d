"""Lines about long work: who hears them, and how sparse they are."""

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.base import news
from onepass.base.news import Line, Pace, heard_by, tell, told_passes


class Clock:
    """Stands in for the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(news, "time", clock)
    return clock


def told_steps(total, seconds, done=0):
    """Returns the steps at which a line is told, with the time since the start and what it says is
    left. The steps take these seconds, in turn."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(news, "time", clock)
        pace, found = Pace(total, done), []
        for step in range(done + 1, total + 1):
            clock.now += seconds[step % len(seconds)]
            if pace.is_due(step):
                found.append((step, clock.now - 1000, pace.left(step)))
    return found


@given(
    st.integers(1, 3000),
    st.lists(st.floats(0, 100), min_size=1, max_size=9),
    st.floats(0, 1, exclude_max=True),
)
def test_lines_are_sparse_however_long_steps_are(total, seconds, fraction):
    found = told_steps(total, seconds, int(fraction * total))
    times = [0.0, *(time for _, time, _ in found)]
    assert len(found) <= 20
    assert all(after - before >= 10 - 1e-6 for before, after in pairwise(times))
    assert all(step < total for step, _, _ in found)


def test_a_slow_run_has_a_line_at_each_twentieth_and_a_quick_one_none():
    assert [step for step, _, _ in told_steps(200, [6.0])] == list(range(10, 200, 10))
    assert told_steps(200, [0.01]) == []


def test_the_time_left_is_of_this_process_also_after_a_resumption():
    """The 180 steps done before count neither as work nor as time."""
    assert told_steps(200, [60.0], done=180)[0] == (190, 600.0, "10.0 m left")
    assert told_steps(200, [60.0])[0] == (10, 600.0, "3.2 h left")


def test_everybody_hears_a_line_while_they_listen():
    outer, inner = [], []
    with heard_by(outer.append):
        with pytest.raises(ZeroDivisionError), heard_by(inner.append):
            tell(Line("a", "note"))
            raise ZeroDivisionError
        tell(Line("b", "work"))
    tell(Line("c", "note"))
    assert [line.text for line in outer] == ["a", "b"]
    assert [line.text for line in inner] == ["a"]


def test_in_python_lines_are_silent_unless_the_logger_shows_infos(caplog, capfd):
    tell(Line("a", "note"))
    assert (caplog.text, capfd.readouterr()) == ("", ("", ""))
    with caplog.at_level(logging.INFO, "onepass"):
        tell(Line("pass 3 of 7", "work"))
    assert caplog.messages == ["pass 3 of 7"]


def test_passes_are_told_while_they_go_on(clock):
    heard = []
    with heard_by(heard.append):
        for _ in told_passes(40, "a fit"):
            clock.now += 30
    assert heard[0] == Line("a fit: pass 2 of 40, 19.0 m left", "work")
    assert len(heard) == 19
