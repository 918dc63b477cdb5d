"""A search for settings: trials on held-out training data, with Optuna, resumable."""

from onepass.tune.asked import OBJECTIVES, Asked
from onepass.tune.search import Search, Standing
from onepass.tune.space import Space

__all__ = ["OBJECTIVES", "Asked", "Search", "Space", "Standing"]
