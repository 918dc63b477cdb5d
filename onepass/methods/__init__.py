"""One import line for each method: the table of contents."""

from onepass.methods.agem import AGEM
from onepass.methods.aser import ASER
from onepass.methods.derpp import DERPP
from onepass.methods.er import ER
from onepass.methods.er_ace import ERACE
from onepass.methods.er_aml import ERAML
from onepass.methods.finetune import Finetune, Joint
from onepass.methods.gdumb import GDumb
from onepass.methods.gsa import GSA
from onepass.methods.gsa_released import GSAReleased
from onepass.methods.gss import GSS
from onepass.methods.mir import MIR
from onepass.methods.rainbow_rt import RainbowRT
from onepass.methods.scr import SCR

__all__ = [
    "AGEM",
    "ASER",
    "DERPP",
    "ER",
    "ERACE",
    "ERAML",
    "GSA",
    "GSS",
    "MIR",
    "SCR",
    "Finetune",
    "GDumb",
    "GSAReleased",
    "Joint",
    "RainbowRT",
]
