"""One import line for each method: the table of contents."""

from onepass.methods.agem import AGEM
from onepass.methods.derpp import DERPP
from onepass.methods.er import ER
from onepass.methods.er_ace import ERACE
from onepass.methods.er_aml import ERAML
from onepass.methods.finetune import Finetune, Joint
from onepass.methods.gsa import GSA
from onepass.methods.gsa_released import GSAReleased
from onepass.methods.mir import MIR

__all__ = [
    "AGEM",
    "DERPP",
    "ER",
    "ERACE",
    "ERAML",
    "GSA",
    "MIR",
    "Finetune",
    "GSAReleased",
    "Joint",
]
