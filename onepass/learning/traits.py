"""The traits of a method: properties that the learner, the checks and the tables need to know."""

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
        Names of checks of `onepass check` that the method is not expected to pass, each with the
        reason.
    unsupported
        Names of settings that must keep their defaults, each with the reason.
    quick
        Settings and values with which a test takes seconds.
    near_fine_tuning
        Whether the method, by design, is hardly more accurate than fine-tuning if classes do not
        come back.
    capturable
        Whether a step can be captured as a CUDA graph.
    later_steps_differ
        Whether a step may do something else from the second task on than in the first.
    trains_to_score
        Whether the method trains a network each time that it predicts after learning. A run then
        scores it only at the end by default.
    least_memory
        The smallest valid `memory`, in samples.
    """

    exempt: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    near_fine_tuning: bool = False
    capturable: bool = True
    later_steps_differ: bool = False
    trains_to_score: bool = False
    least_memory: int = 0
