"""Listeners are told of a run's events: the recorder, the progress bar, probes, tracking."""

from onepass.evaluation.callbacks.base import EVENTS, Listener, Run
from onepass.evaluation.callbacks.progress import Forwarder, Progress

__all__ = ["EVENTS", "Forwarder", "Listener", "Progress", "Run"]
