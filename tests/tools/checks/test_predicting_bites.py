"""Each check of `predicting` rejects a learner that breaks it."""

from dataclasses import replace

import pytest
import torch
from broken_learners import BrokenLearners, expect_failure
from torch import nn

from onepass import ER
from onepass.tools.checks import CHECKS, predicting

BROKEN = BrokenLearners()
breaks = BROKEN.breaks


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    BROKEN.register(monkeypatch)


@breaks("predict_before_learning_is_refused")
class AnswersTooEarly(ER):
    def predict(self, x):
        return super().predict(x) if self.steps else torch.zeros(len(x))


@breaks("predict_leaves_no_trace")
class DrawsWhilePredicting(ER):
    def scores(self, x):
        torch.rand(1, generator=self.trainer.rngs["draws"])
        return super().scores(x)


@breaks("predict_in_parts_agrees")
class ComparesWithinTheBatch(ER):
    def scores(self, x):
        scores = super().scores(x)
        return scores - scores.mean(dim=0)


@breaks("scores_have_a_column_for_each_class")
class ShowsSpareRows(ER):
    def scores(self, x):
        return torch.nn.functional.pad(super().scores(x), (0, 1), value=-1e9)


@breaks("a_snapshot_stays", "found other scores")
class HandsOutItself(ER):
    def snapshot(self):
        return self._predictor()


class Asking(nn.Module):
    """Scores with the network that the learner has at the time of the call."""

    def __init__(self, learner):
        super().__init__()

        def ask(x):
            return learner.trainer.eval_model(x)

        self.ask = ask

    def forward(self, x):
        return self.ask(x)


@breaks("a_snapshot_stays", "found other scores")
class ScoresThroughTheLearner(ER):
    def scorer(self):
        return Asking(self)


@breaks(
    "a_snapshot_stays",
    "a snapshot to change nothing when it is taken; found other values in generators.draws",
)
class DrawsForASnapshot(ER):
    def snapshot(self):
        torch.rand(1, generator=self.trainer.rngs["draws"])
        return super().snapshot()


@breaks("a_snapshot_stays", "a snapshot to keep its classes")
class NamesItsClassesAnew(ER):
    def snapshot(self):
        return replace(super().snapshot(), classes=tuple(reversed(self.classes)))


@breaks("a_snapshot_stays", "nothing was learned")
class StopsLearning(ER):
    def descend(self, loss):
        if self.steps < 12:
            super().descend(loss)


@breaks("the_average_predicts", "found scores that come from the network that trains")
class PredictsItself(ER):
    def scorer(self):
        return self.trainer.eval_model


@BROKEN.each
def test_the_check_fails_when_its_subject_is_broken(case):
    expect_failure(case)


def test_every_check_is_shown_something_that_breaks_it():
    own = {name for name, check in CHECKS.items() if check.__module__ == predicting.__name__}
    assert BROKEN.checks == own
