"""Listeners that measure while any method learns; not one bit of it changes."""

from onepass.evaluation.probes.balance import BalanceProbe
from onepass.evaluation.probes.bias import BiasProbe
from onepass.evaluation.probes.logits import LogitsProbe
from onepass.evaluation.probes.losses import LossesProbe
from onepass.evaluation.probes.registry import PROBES, check, made, probe

__all__ = [
    "PROBES",
    "BalanceProbe",
    "BiasProbe",
    "LogitsProbe",
    "LossesProbe",
    "check",
    "made",
    "probe",
]
