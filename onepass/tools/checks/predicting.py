"""Checks of predictions: they work at any time after the first batch and change nothing."""

from __future__ import annotations

import math

import torch

from onepass.base.errors import NotFittedError
from onepass.learning.learner import Learner
from onepass.learning.network_learner import NetworkLearner
from onepass.tools.checks.helpers import (
    SCORE_METHODS,
    AnyMethod,
    Method,
    expect_same_state,
    expect_that,
    make_learner,
    small_stream,
    state_fingerprints,
    teach,
    unseen_samples,
)


def predict_before_learning_is_refused(method: AnyMethod) -> None:
    """Predicting before the first batch raises NotFittedError, as users of scikit-learn expect."""
    wanted = "NotFittedError before anything is learned"
    try:
        make_learner(method).predict(unseen_samples(small_stream()))
    except NotFittedError as problem:
        for kind in (ValueError, AttributeError):
            found = f"one that is not a {kind.__name__}"
            expect_that(isinstance(problem, kind), wanted, found, "predict")
    else:
        expect_that(False, wanted, "an answer", "predict")


def predict_leaves_no_trace(method: AnyMethod) -> None:
    """Predicting leaves parameters, buffers, memory, generators and mode as they were."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    before, training = state_fingerprints(learner), _is_training(learner)
    learner.predict(unseen_samples(stream))
    learner.scores(unseen_samples(stream))
    at = f"predict {SCORE_METHODS}"
    expect_same_state(before, state_fingerprints(learner), "predicting to change nothing", at)
    mode = f"training = {_is_training(learner)}"
    expect_that(
        _is_training(learner) == training, f"predicting to leave training = {training}", mode, at
    )


def _is_training(learner: Learner) -> bool:
    """Returns whether the network is in training mode; false without a network."""
    return isinstance(learner, NetworkLearner) and learner.model.training


def predict_in_parts_agrees(method: AnyMethod) -> None:
    """A sample's scores are the same in a batch of any size."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    x = unseen_samples(stream)
    together = learner.scores(x)
    pieces = torch.cat([learner.scores(x[:7]), learner.scores(x[7:8]), learner.scores(x[8:])])
    away = float((together - pieces).abs().max()) if together.shape == pieces.shape else math.inf
    wanted = "a sample's scores to depend on no other sample"
    found = f"scores that change by {away:.2g} when the batch is split"
    expect_that(torch.allclose(together, pieces, atol=1e-5), wanted, found, SCORE_METHODS)


def scores_have_a_column_for_each_class(method: AnyMethod) -> None:
    """Scores have a column for each class so far, and predict returns the label of the highest."""
    stream = small_stream()
    learner = make_learner(method)
    for last in (1, 9, 24):
        teach(learner, stream, first=learner.steps, last=last)
        scores = learner.scores(unseen_samples(stream)).cpu()
        wanted = f"one column for each of {len(learner.classes)} classes"
        found = f"{scores.shape[1]} columns"
        expect_that(scores.shape[1] == len(learner.classes), wanted, found, SCORE_METHODS)
        best = [learner.classes[row] for row in scores.argmax(dim=1).tolist()]
        same = best == learner.predict(unseen_samples(stream)).tolist()
        expect_that(same, "predict to give the label of the highest score", "another", "predict")
        given = stream.dataset.train_y[torch.cat([stream.indices(i) for i in range(last)])]
        known = sorted(set(given.tolist()))
        learned = sorted(int(label) for label in learner.classes)
        expect_that(learned == known, f"the classes of the batches, {known}", learned, "classes")


def a_snapshot_stays(method: AnyMethod) -> None:
    """A snapshot predicts as the learner did when it was taken, whatever is learned afterwards.

    Taking it changes nothing in the learner.
    """
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    x, before, at = unseen_samples(stream), state_fingerprints(learner), f"snapshot {SCORE_METHODS}"
    scores = learner.scores(x)
    snapshot = learner.snapshot()
    expect_same_state(
        before, state_fingerprints(learner), "a snapshot to change nothing when it is taken", at
    )
    teach(learner, stream, first=12)
    same = torch.equal(snapshot.scores(x), scores)
    expect_that(same, "a snapshot to score as it did when it was taken", "other scores", at)
    classes = learner.classes[: scores.shape[1]]
    found = list(snapshot.classes)
    expect_that(found == classes, f"a snapshot to keep its classes, {classes}", found, at)
    learned = not torch.equal(learner.scores(x)[:, : scores.shape[1]], scores)
    expect_that(
        learned, "the learner's own scores to move on", "the same scores: nothing was learned"
    )


def the_average_predicts(method: Method) -> None:
    """With a moving average of the weights, scores come from it, not from the trained network."""
    if "average" in method.traits.unsupported:
        return
    stream = small_stream(shape=(16,))
    learner = teach(make_learner(method, average=0.9), stream, last=9)
    x = unseen_samples(stream)
    alone = learner.scores(x)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.zero_()
    learner._scorer = None  # it was cached before the weights became zero
    same = torch.equal(learner.scores(x), alone)
    wanted = "scores that come from the average alone"
    expect_that(same, wanted, "scores that come from the network that trains", SCORE_METHODS)
