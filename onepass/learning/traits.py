"""The traits of a method, which the learner, the checks and the tables read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The traits of a method's class. A derived class changes some of them by
    `dataclasses.replace`.

    Parameters
    ----------
    exempt
        Checks that do not apply, each with the reason.
    unsupported
        Settings that must keep their defaults, each with the reason.
    quick
        Settings with which a test takes seconds.
    near_fine_tuning
        Whether its accuracy is near that of fine-tuning, by design, if classes do not come back.
    capturable
        Whether a step can be captured as a CUDA graph.
    later_steps_differ
        Whether a step may depend on whether this is the first task.
    trains_to_score
        Whether it trains a network to predict. A run then scores it only at the end by default.
    least_memory
        The smallest `memory` in samples.
    """

    exempt: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    near_fine_tuning: bool = False
    capturable: bool = True
    later_steps_differ: bool = False
    trains_to_score: bool = False
    least_memory: int = 0
