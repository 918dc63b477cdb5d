"""Measures a learner while it learns a stream: the loop, points, scoring, metrics, callbacks and
probes. Modules here import `learning`, `streams` and layers below them, never `runs`."""
