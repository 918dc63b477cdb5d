"""Every registered method keeps the contract; what it is exempt from must really not hold."""

import pytest

from onepass import registry
from onepass.checks import CHECKS, exemptions

# Their steps are the longest, and others of their kind are checked at once.
SLOW = ("gss", "ccil", "co2l", "er-aml", "gsa-released", "il2a", "ocm-gsa")
LONG = "a_saved_learner_goes_on_exactly"  # the longest check, which is seldom a method's own affair
FIRST = ("er", "gsa", "lucir", "rainbow-rt")  # of the kinds of things that are kept


def cases():
    for info in registry.methods():
        exempt = exemptions(info.learner)
        for name in CHECKS:
            marks = [pytest.mark.xfail(strict=True, reason=exempt[name])] if name in exempt else []
            late = info.key in SLOW or (name == LONG and info.key not in FIRST)
            marks += [pytest.mark.slow] * late
            yield pytest.param(info.learner, CHECKS[name], id=f"{info.key}-{name}", marks=marks)


@pytest.mark.parametrize(("method", "check"), list(cases()))
def test_the_method_keeps_the_contract(method, check):
    check(method)
