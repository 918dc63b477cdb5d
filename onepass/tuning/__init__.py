"""Searches a method's best settings with Optuna. Each trial runs one choice of settings and is
scored on held-out training data. A search is resumable.
Modules here import `executors`, `runs` and layers below them."""
