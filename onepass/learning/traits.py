"""What is true of a method, for the learner, the checks and the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a method's class says of itself; a method that derives from another one's class changes
    some of its traits by `dataclasses.replace`.

    Parameters
    ----------
    exempt
        Checks that cannot apply, with the reason.
    unsupported
        Settings that must stay as by default, its own or inherited ones, each with the reason.
    quick
        Settings under which a test takes seconds.
    near_fine_tuning
        It is near fine-tuning by design, where classes do not come back.
    capturable
        Whether a step can be a CUDA graph.
    later_steps_differ
        Then a step may ask if this is the first task.
    trains_to_score
        Then it is scored at the end only, unless asked.
    least_memory
        How many samples a memory must hold.
    """

    exempt: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    near_fine_tuning: bool = False
    capturable: bool = True
    later_steps_differ: bool = False
    trains_to_score: bool = False
    least_memory: int = 0
