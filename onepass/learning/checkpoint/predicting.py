"""The scorer's own tensors, which a file without the memory holds, so that its learner can still
predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from onepass.base.expect import expect_alike
from onepass.learning.memory_contents import stores_of

if TYPE_CHECKING:
    from onepass.learning.network_learner import NetworkLearner


def scorer_state(learner: NetworkLearner) -> dict[str, Any] | None:
    """Returns those tensors of the scorer that are not the network's, for a file without the
    memory. Returns None if the method has no memory, or has learned nothing yet."""
    if not learner.steps or not stores_of(learner):
        return None
    with learner._lock.reading():
        return _own_tensors(learner._current_scorer(), learner.trainer.predicting_model)


def restrict_to_predicting(learner: NetworkLearner, state: dict[str, Any]) -> None:
    """Loads a `scorer_state` in place of the missing memory. From now on the learner only
    predicts."""
    made = learner._current_scorer()  # made from an empty memory; its values are loaded below
    own = _own_tensors(made, learner.trainer.predicting_model)
    expect_alike(state, own, "scorer")
    for name, value in own.items():
        value.copy_(state[name])
    learner._only_predicts = True


def _own_tensors(scorer: nn.Module, network: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a scorer that are not the network's, by name."""
    if scorer is network:
        return {}
    # the network may be a submodule of the scorer; its tensors are in the state already
    shared = tuple(f"{name}." for name, module in scorer.named_modules() if module is network)
    return {
        name: value for name, value in scorer.state_dict().items() if not name.startswith(shared)
    }
