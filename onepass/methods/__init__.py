"""The methods, one file each. The imports below are the table of contents; `finetune` also has
`Joint`.

A method imports from `base`, `functional`, `learning`, `memory` and `nets`, but from no other
method. There is one exception: `ocm_gsa` joins two methods. `gsa_variants` is not a method. It
implements the settings of `gsa` that its paper's objective does not need.
"""

from typing import TYPE_CHECKING

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.methods.agem import AGEM as AGEM
    from onepass.methods.aser import ASER as ASER
    from onepass.methods.bic import BiC as BiC
    from onepass.methods.ccil import CCIL as CCIL
    from onepass.methods.co2l import Co2L as Co2L
    from onepass.methods.derpp import DERPP as DERPP
    from onepass.methods.er import ER as ER
    from onepass.methods.er_ace import ERACE as ERACE
    from onepass.methods.er_aml import ERAML as ERAML
    from onepass.methods.finetune import Finetune as Finetune
    from onepass.methods.finetune import Joint as Joint
    from onepass.methods.gdumb import GDumb as GDumb
    from onepass.methods.gsa import GSA as GSA
    from onepass.methods.gsa_released import GSAReleased as GSAReleased
    from onepass.methods.gss import GSS as GSS
    from onepass.methods.il2a import IL2A as IL2A
    from onepass.methods.kernel_lda import KernelLDA as KernelLDA
    from onepass.methods.lucir import LUCIR as LUCIR
    from onepass.methods.mir import MIR as MIR
    from onepass.methods.ncm import NCM as NCM
    from onepass.methods.ocm import OCM as OCM
    from onepass.methods.ocm_gsa import OCMGSA as OCMGSA
    from onepass.methods.rainbow_rt import RainbowRT as RainbowRT
    from onepass.methods.ranpac import RanPAC as RanPAC
    from onepass.methods.ridge import Ridge as Ridge
    from onepass.methods.scr import SCR as SCR
    from onepass.methods.slda import SLDA as SLDA
    from onepass.methods.ssil import SSIL as SSIL

__getattr__, __all__ = attach(__name__)
