"""The methods that train a network: those with a head, a loss and an optimiser."""

from onepass.learning import registry
from onepass.learning.network_learner import NetworkLearner

NETWORK_METHODS = [
    info.key for info in registry.methods() if issubclass(info.learner, NetworkLearner)
]
