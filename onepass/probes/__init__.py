"""Listeners that measure while any method learns; not one bit of it changes."""

from onepass.probes.balance import BalanceProbe
from onepass.probes.registry import made, probe, probes

__all__ = ["BalanceProbe", "made", "probe", "probes"]
