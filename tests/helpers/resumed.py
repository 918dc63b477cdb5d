"""Small learners that stop within a stream, and the stream."""

import onepass
from onepass import ClassIncremental
from onepass.base.settings import construct, setting_names
from onepass.evaluation.loop import Tick, learn_and_score
from onepass.learning import registry


def coloured_stream():
    """Returns a stream of colour images that grows the head, so that every generator draws."""
    data = onepass.load(
        "synthetic", classes=20, train_per_class=4, test_per_class=2, shape=(3, 6, 6), noise=0.1
    )
    return ClassIncremental(data, tasks=5, batch=2, seed=0)


def small(key, **settings):
    kind = registry.get(key).learner
    memory = {"memory": 12} if "memory" in setting_names(kind) else {}
    return construct(kind, device="cpu", seed=3, **{**kind.traits.quick, **memory, **settings})


def learn_range(learner, stream, first=0, past=None):
    for tick in learn_and_score(learner, stream, start=Tick(first, 0, 0.0)):
        if tick.step == past:
            return
