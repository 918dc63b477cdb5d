"""Listeners that are told what happens while a stream is learned, and the audience that tells them.
Modules here import what `evaluation` imports, never a run."""

from onepass.evaluation.callbacks.base import EVENTS, Listener, Run
from onepass.evaluation.callbacks.progress import Forwarder, Progress

__all__ = ["EVENTS", "Forwarder", "Listener", "Progress", "Run"]
