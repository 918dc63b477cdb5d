"""How a learner is measured while it learns a stream: the loop, points, scoring, metrics, callbacks
and probes. Modules here import `learning`, `streams` and what is below them, never a run."""
