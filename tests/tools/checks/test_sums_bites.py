"""Each check of `sums` rejects a closed-form method that breaks it."""

import pytest
import torch
from broken_learners import BrokenLearners, expect_failure
from torch import nn

from onepass import NCM, SLDA
from onepass.functional.closed_form import Linear
from onepass.tools.checks import CHECKS, NEEDS_GPU, check_method, sums

BROKEN = BrokenLearners()
breaks = BROKEN.breaks


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    BROKEN.register(monkeypatch)


class Features(nn.Module):
    """Features from a function of whole numbers."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, z):
        return self.function(z)


@breaks("any_order_gives_the_same_sums", "the same sums in any order")
class LosesItsFirstBatch(NCM):
    def _learn_batch(self, samples, labels):
        step = super()._learn_batch(samples, labels)
        if self.steps == 1:
            self._waiting.clear()
        return step


@breaks("any_order_gives_the_same_sums", "the same scores in any order")
class SolvesFromWhatCameLast(SLDA):
    def solve(self, moments):
        weight, bias = super().solve(moments)
        return Linear(weight, bias + self.class_index.labels[-1])


@breaks("any_cut_gives_the_same_sums", "in any batches")
class LearnsTenOfABatch(NCM):
    def _learn_batch(self, samples, labels):
        return super()._learn_batch(samples[:10], labels[:10])


@breaks("any_cut_gives_the_same_sums", "whether or not it predicts in between")
class CentresEachBlock(NCM):
    def make_features(self, inputs, width):
        return Features(lambda z: z - z.mean(dim=0).round())


@breaks("any_cut_gives_the_same_sums", "whether or not it predicts in between")
class LearnsByPredicting(NCM):
    def predict(self, x):
        found = super().predict(x)
        self._sums.decay(2.0)
        return found


@breaks("merged_halves_equal_the_whole", "the same sums in one learner or merged from two")
class AddsTwice(NCM):
    def merge(self, other):
        super().merge(other)
        self._sums.add(other._sums)
        return self


@breaks("merged_halves_equal_the_whole", "merge to return the learner")
class ReturnsTheOther(NCM):
    def merge(self, other):
        super().merge(other)
        return other


@breaks("merged_halves_equal_the_whole", "the same scores in one learner or merged from two")
class KeepsItsSolution(NCM):
    def merge(self, other):
        self._predictor()
        solved = self._scorer
        super().merge(other)
        self._scorer = solved
        return self


@breaks("merged_halves_equal_the_whole", "merge to leave the other learner as it is")
class TakesFromTheOther(NCM):
    def merge(self, other):
        super().merge(other)
        other._sums.decay(0.0)
        return self


@breaks("unlearning_undoes_learning", "once the others are unlearned")
class UnlearnsNothing(NCM):
    def unlearn(self, x, y):
        pass


@breaks("unlearning_undoes_learning", "the same classes once the others are unlearned")
class RemembersTheClass(NCM):
    def unlearn(self, x, y):
        report = super().unlearn(x, y)
        self.class_index.add(report.gone)
        return report


@breaks("refused_sums_change_nothing", "merging a learner with itself")
class MergesWithItself(NCM):
    def merge(self, other):
        return self if other is self else super().merge(other)


@breaks("refused_sums_change_nothing", "a refused merge or unlearn to change nothing")
class ChangesBeforeItRefuses(NCM):
    def unlearn(self, x, y):
        self._sums.decay(0.5)
        return super().unlearn(x, y)


@breaks("classes_are_sorted", "sorted classes")
class ListsArrivals(NCM):
    @property
    def classes(self):
        return list(self.class_index.labels)


@breaks("classes_are_sorted", "the class's own column")
class ScoresInReverse(NCM):
    def solve(self, moments):
        weight, bias = super().solve(moments)
        return Linear(weight.flip(1), bias.flip(0))


@breaks("features_are_whole_numbers", "features that are whole numbers")
class TakesHalfSteps(NCM):
    def make_features(self, inputs, width):
        return Features(lambda z: z / 2)


@breaks("features_are_whole_numbers", "features of at most largest_feature")
class PassesItsBound(NCM):
    @property
    def largest_feature(self):
        return 3


@breaks("features_are_whole_numbers", "features as float32")
class DeclaresAnotherWidth(NCM):
    def features_for(self, inputs):
        return inputs + 1


@breaks("features_are_whole_numbers", "depend on the sample alone")
class ComparesSamples(NCM):
    def make_features(self, inputs, width):
        return Features(lambda z: (z - z[:1]).clamp(-512, 512))


@breaks("degenerate_sums_are_solved", "scores after one sample")
class DividesByTheVariance(NCM):
    def solve(self, moments):
        means = moments.means
        variance = (moments.squares / moments.samples - moments.mean.square()).sum()
        return Linear(means.T / variance, -means.square().sum(dim=1) / 2 / variance)


@breaks("classes_are_told_apart", "20 points above chance")
class SolvesNothing(NCM):
    def solve(self, moments):
        weight, bias = super().solve(moments)
        return Linear(torch.zeros_like(weight), torch.zeros_like(bias))


@breaks("declared_bytes_are_held", "the declared 0 bytes")
class DeclaresNothing(NCM):
    @property
    def _parts(self):
        return {}


@breaks("declared_bytes_are_held", "held")
class KeepsSamples(NCM):
    def _own_state(self):
        return {**super()._own_state(), "kept": torch.zeros(10, 3)}


@breaks("threads_change_no_sum", "with one thread and with two")
class CountsThreads(NCM):
    def make_features(self, inputs, width):
        return Features(lambda z: z.clamp(max=100 * torch.get_num_threads()))


@BROKEN.each
def test_the_check_fails_when_its_subject_is_broken(case):
    expect_failure(case)


def test_every_check_is_shown_something_that_breaks_it():
    own = {name for name, check in CHECKS.items() if check.__module__ == sums.__name__}
    assert BROKEN.checks == own - set(NEEDS_GPU)


def test_a_method_without_a_network_is_asked_for_nothing_of_one():
    """The rows of sums and those of any method apply, none of a network's; none is exempt."""
    names = {"any_order_gives_the_same_sums", "odd_batches_are_learned"}
    assert set(check_method(NCM, only=names).passed) == names
    assert NCM.traits.exempt == {}
