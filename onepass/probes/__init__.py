"""Listeners that measure while any method learns; not one bit of it changes."""

from onepass.probes.balance import BalanceProbe
from onepass.probes.bias import BiasProbe
from onepass.probes.logits import LogitsProbe
from onepass.probes.losses import LossesProbe
from onepass.probes.registry import PROBES, check, made, probe

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
