"""Every method learns every kind of stream, told its boundaries or not."""

import pytest

from onepass.learning import registry
from onepass.runs.execute import run_job
from onepass.runs.spec import Job
from onepass.streams import STREAMS

QUICK = ["long-tail:rho=20,class_order=shuffled", "blurry:n=0,m=50,boundaries=false"]
SLOW = ["class-incremental:boundaries=false", "long-tail:rho=20", "blurry:n=50,m=20"]
SLOW += [name for name in STREAMS.names() if not any(one.startswith(name) for one in QUICK + SLOW)]
# these train by contrast for the most part: tasks of a few batches teach their heads little
BY_CONTRAST = {"ocm", "ocm-gsa"}
SPECS = [*QUICK, *(pytest.param(spec, marks=pytest.mark.slow) for spec in SLOW)]


OFTEN = ("er", "gsa", "scr", "bic", "gdumb")  # of every kind one; the others with what is slow
METHODS = [
    pytest.param(info, id=info.key, marks=[pytest.mark.slow] * (info.key not in OFTEN))
    for info in registry.methods()
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("info", METHODS)
def test_the_method_learns_the_stream(info, spec, tmp_path):
    quick = {name: str(value) for name, value in info.learner.traits.quick.items()}
    every = None if info.learner.traits.trains_to_score else 20  # or it would train anew each time
    chosen = {"settings": quick, "stream": spec, "every": every}
    job = Job(info.key, dataset="synthetic", memory=60, device="cpu", **chosen)
    result = run_job(job, tmp_path, checkpoint=None)
    little = (
        info.learner.traits.near_fine_tuning or info.key in BY_CONTRAST
    ) and "m=50" not in spec
    assert result.accuracy > (15 if little else 30)
    assert result.variant["stream"] == spec
    assert result.tasks == (1 if info.one_task else 5)
