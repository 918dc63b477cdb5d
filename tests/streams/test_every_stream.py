"""Every method learns every kind of stream, with and without given boundaries."""

import pytest

from onepass.learning import registry
from onepass.runs.execute import run_job
from onepass.runs.spec import Job
from onepass.streams import STREAMS

QUICK = ["long-tail:rho=20,class_order=shuffled", "blurry:n=0,m=50,boundaries=false"]
SLOW = ["class-incremental:boundaries=false", "long-tail:rho=20", "blurry:n=50,m=20"]
SLOW += [
    name for name in STREAMS.names() if not any(prefix.startswith(name) for prefix in QUICK + SLOW)
]
# these train mostly by contrast, so their heads learn little in tasks of a few batches
BY_CONTRAST = {"ocm", "ocm-gsa"}
SPECS = [*QUICK, *(pytest.param(spec, marks=pytest.mark.slow) for spec in SLOW)]


OFTEN = ("er", "gsa", "scr", "bic", "gdumb")  # one of each kind; the others run with the slow tests
METHODS = [
    pytest.param(info, id=info.key, marks=[pytest.mark.slow] * (info.key not in OFTEN))
    for info in registry.methods()
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("info", METHODS)
def test_the_method_learns_the_stream(info, spec, tmp_path):
    quick = {name: str(value) for name, value in info.learner.traits.quick.items()}
    every = (
        None if info.learner.traits.trains_to_score else 20
    )  # else it would train anew for each point
    chosen = {"settings": quick, "stream": spec, "every": every}
    job = Job(info.key, dataset="synthetic", memory=60, device="cpu", **chosen)
    result = run_job(job, tmp_path, checkpoint=None)
    little = (
        info.learner.traits.near_fine_tuning or info.key in BY_CONTRAST
    ) and "m=50" not in spec
    assert result.accuracy > (15 if little else 30)
    assert result.variant["stream"] == spec
    assert result.tasks == (1 if info.one_task else 5)
