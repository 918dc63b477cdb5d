"""What predicting must be: possible at any time after the first batch, and without a trace."""

from __future__ import annotations

import torch

from onepass.base.errors import NotFittedError
from onepass.tools.checks.tools import Method, expect, make, samples, small_stream, teach


def predict_before_learning_is_refused(method: Method) -> None:
    """Predicting before the first batch raises NotFittedError, as scikit-learn's users expect."""
    try:
        make(method).predict(samples(small_stream()))
    except NotFittedError as problem:
        expect(isinstance(problem, ValueError), "NotFittedError must be a ValueError")
        expect(isinstance(problem, AttributeError), "NotFittedError must be an AttributeError")
    else:
        expect(False, "predict answered before anything was learned")


def predict_leaves_no_trace(method: Method) -> None:
    """Parameters, buffers, memory, generators and mode are the same after predicting."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    before, training = learner.state_sha256(), learner.model.training
    learner.predict(samples(stream))
    learner.scores(samples(stream))
    expect(learner.state_sha256() == before, "predicting changed the state")
    expect(learner.model.training == training, "predicting changed the mode")


def predict_in_parts_agrees(method: Method) -> None:
    """The scores of a batch are the scores of its parts."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    x = samples(stream)
    whole = learner.scores(x)
    parts = torch.cat([learner.scores(x[:7]), learner.scores(x[7:8]), learner.scores(x[8:])])
    expect(torch.allclose(whole, parts, atol=1e-5), "the scores depend on the batch around them")


def scores_have_a_column_for_each_class(method: Method) -> None:
    """Columns are the classes seen so far, and predict names the label of the highest."""
    stream = small_stream()
    learner = make(method)
    for last in (1, 9, 24):
        teach(learner, stream, first=learner.steps, last=last)
        scores = learner.scores(samples(stream)).cpu()
        expect(scores.shape[1] == len(learner.classes), "there must be one column for each class")
        best = [learner.classes[row] for row in scores.argmax(dim=1).tolist()]
        expect(best == learner.predict(samples(stream)).tolist(), "predict is not the argmax")
        known = set(stream.dataset.train_y[torch.cat([stream.indices(i) for i in range(last)])])
        expect(set(learner.classes) == {int(label) for label in known}, "a class is missing")


def a_snapshot_stays(method: Method) -> None:
    """It predicts as the learner did when it was taken, whatever the learner learns afterwards, and
    taking it leaves no trace."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    x, before = samples(stream), learner.state_sha256()
    scores = learner.scores(x)
    snapshot = learner.snapshot()
    expect(learner.state_sha256() == before, "taking a snapshot changed the state")
    teach(learner, stream, first=12)
    expect(torch.equal(snapshot.scores(x), scores), "the snapshot's scores are others now")
    expect(list(snapshot.classes) == learner.classes[: scores.shape[1]], "its classes changed")
    expect(not torch.equal(learner.scores(x)[:, : scores.shape[1]], scores), "nothing was learned")


def the_average_predicts(method: Method) -> None:
    """Where there is an average, scores are made with it alone, and not with the network that
    trains."""
    if "average" in method.cannot:
        return
    stream = small_stream(shape=(16,))
    learner = teach(make(method, average=0.9), stream, last=9)
    x = samples(stream)
    alone = learner.scores(x)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.zero_()
    learner._scorer = None  # made for this state, with whatever it asks
    expect(torch.equal(learner.scores(x), alone), "scores are made with the network that trains")
