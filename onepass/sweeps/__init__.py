"""Sweeps of many runs: the file that lists them, their expected durations, their order and their
execution. Modules here import `executors`, `runs` and layers below them."""
