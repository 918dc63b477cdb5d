"""Searches settings with Optuna, by trials on held-out training data; a search is resumable.
Modules here import `executors`, `runs` and layers below them."""
