"""The contract that every method keeps, as check functions: exact resume, bounded memory, ...

Our tests run every check on every registered method. `check_method` runs them on your own. Modules
here may import whatever `onepass.tools` may.

>>> from onepass.tools.checks import check_method
>>> import onepass
>>> outcome = check_method(onepass.ER)
>>> outcome.failed, len(outcome.passed) >= 20
({}, True)

If a check cannot apply to a method, the method's traits name the check and the reason in `exempt`.
"""

from typing import TYPE_CHECKING

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.tools.checks.contract import CHECKS as CHECKS
    from onepass.tools.checks.contract import NEEDS_GPU as NEEDS_GPU
    from onepass.tools.checks.contract import Outcome as Outcome
    from onepass.tools.checks.contract import check_method as check_method
    from onepass.tools.checks.contract import checks_for as checks_for
    from onepass.tools.checks.contract import exemptions as exemptions
    from onepass.tools.checks.contract import run_checks as run_checks

__getattr__, __all__ = attach(__name__)
