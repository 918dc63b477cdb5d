"""Listeners that measure while any method learns; not one bit of it changes."""

from onepass.probes.balance import BalanceProbe
from onepass.probes.registry import PROBES, check, made, probe

__all__ = ["PROBES", "BalanceProbe", "check", "made", "probe"]
