"""Probes: listeners that measure while a method learns, without changing a single bit of the run.
Modules here import what `evaluation` imports."""

from typing import TYPE_CHECKING

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.evaluation.probes.balance import BalanceProbe as BalanceProbe
    from onepass.evaluation.probes.bias import BiasProbe as BiasProbe
    from onepass.evaluation.probes.logits import LogitsProbe as LogitsProbe
    from onepass.evaluation.probes.losses import LossesProbe as LossesProbe
    from onepass.evaluation.probes.registry import PROBES as PROBES
    from onepass.evaluation.probes.registry import expect_probes as expect_probes
    from onepass.evaluation.probes.registry import make_probes as make_probes
    from onepass.evaluation.probes.registry import probe as probe

__getattr__, __all__ = attach(__name__)
