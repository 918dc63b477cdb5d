"""Every registered method keeps the contract, and each exempt check really fails."""

import pytest

from onepass.learning import registry
from onepass.tools.checks import checks_for, exemptions

# Their steps are the longest, or those of `finetune`; others of their kind are checked at once.
SLOW = ("gss", "ccil", "co2l", "er-aml", "gsa-released", "il2a", "joint", "ocm-gsa")
# These are the learner's affair and seldom a method's, which gets rows and not a stream. Files of
# most methods are also opened in `test_checkpoint.py`.
OF_THE_LEARNER = (
    "a_saved_learner_goes_on_exactly",
    "boundaries_are_inferred",
    "labels_are_only_names",
    "nobody_tells_the_future",
    "probing_changes_nothing",
    "training_does_not_notice_an_average",
)
FIRST = ("er", "gsa", "lucir", "rainbow-rt", "ridge")  # of the kinds of things that are kept


def cases():
    for info in registry.methods():
        exempt = exemptions(info.learner)
        for name, check in checks_for(info.learner).items():
            marks = [pytest.mark.xfail(strict=True, reason=exempt[name])] if name in exempt else []
            late = info.key in SLOW or (name in OF_THE_LEARNER and info.key not in FIRST)
            marks += [pytest.mark.slow] * late
            yield pytest.param(info.learner, check, id=f"{info.key}-{name}", marks=marks)


@pytest.mark.parametrize(("method", "check"), list(cases()))
def test_the_method_keeps_the_contract(method, check):
    check(method)
