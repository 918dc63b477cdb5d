"""What is observed while any method learns; attaching a probe changes no bit of it."""

from onepass.probes.balance import BalanceProbe

__all__ = ["BalanceProbe"]
