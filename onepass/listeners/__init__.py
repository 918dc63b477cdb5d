"""Listeners are told of a run's events: the recorder, the progress bar, probes, tracking."""

from onepass.listeners.audience import Audience
from onepass.listeners.base import Listener, Run
from onepass.listeners.progress import Forwarder, Progress

__all__ = ["Audience", "Forwarder", "Listener", "Progress", "Run"]
