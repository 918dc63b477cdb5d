"""Listeners, which are called at every event of a run, and the audience that calls them. Modules
here import what `evaluation` imports, never `runs`."""

from onepass.evaluation.callbacks.base import EVENTS, Listener, Run
from onepass.evaluation.callbacks.progress import Forwarder, Progress

__all__ = ["EVENTS", "Forwarder", "Listener", "Progress", "Run"]
