"""One import line for each method: the table of contents."""

from onepass.methods.er import ER
from onepass.methods.finetune import Finetune, Joint
from onepass.methods.gsa import GSA
from onepass.methods.gsa_released import GSAReleased

__all__ = ["ER", "GSA", "Finetune", "GSAReleased", "Joint"]
