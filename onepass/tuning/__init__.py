"""A search for settings: trials on held-out training data, with Optuna, resumable. Modules here
import `executors`, `runs` and what is below them."""
