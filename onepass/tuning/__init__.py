"""A search for settings: trials on held-out training data, with Optuna, resumable."""

from onepass.tuning.search import Search, Standing
from onepass.tuning.space import Space
from onepass.tuning.spec import OBJECTIVES, Asked

__all__ = ["OBJECTIVES", "Asked", "Search", "Space", "Standing"]
