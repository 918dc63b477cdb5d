"""Says how the inputs of a user's network are made: one that normalises them itself would see them
normalised twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onepass.learning.learner import Learner


def describe_inputs(learner: Learner) -> str | None:
    """Returns how the inputs of a network `module:function` are made, for a learner that is
    prepared. Returns None for another network, which we know or the user has registered."""
    from onepass.learning.network_learner import NetworkLearner

    if not isinstance(learner, NetworkLearner):
        return None
    if not isinstance(learner.net, str) or ":" not in learner.net:
        return None
    views = learner.trainer.views
    if views.preprocess is not None:
        how = "its own preprocessing makes its inputs"
    elif views.mean is None:
        how = "its inputs are not normalised; pixels are between 0 and 1"
    else:
        how = (
            "its inputs are normalised by the data's mean and deviation; if it normalises them "
            "itself, give --normalise none, or register it with @network(..., preprocess=...)"
        )
    return f"net {learner.net}: {how}"
