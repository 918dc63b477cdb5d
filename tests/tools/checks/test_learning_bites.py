"""Each check of `learning` rejects a learner that breaks it."""

import inspect
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from broken_learners import BrokenLearners, expect_failure
from torch import nn

from onepass import ER, Finetune
from onepass.base.parts import Step
from onepass.evaluation.loop import learn_and_score
from onepass.learning.traits import Traits
from onepass.tools.checks import CHECKS, learning

BROKEN = BrokenLearners()
breaks = BROKEN.breaks


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    BROKEN.register(monkeypatch)


@breaks("learn_leaves_its_inputs_alone")
class WritesIntoTheBatch(ER):
    def step(self, x, y):
        done = super().step(x, y)
        x.zero_()
        return done


@breaks("odd_batches_are_learned")
class DividesByOneLess(ER):
    def step(self, x, y):
        done = super().step(x, y)
        return Step(done.loss * 0 / (len(y) - 1) if len(y) == 1 else done.loss, {}, done.outputs)


@breaks("extreme_inputs_stay_finite")
class StandardisesEachBatch(ER):
    def step(self, x, y):
        done = super().step(x, y)
        return Step(done.loss / x.float().std(), {}, done.outputs)


@breaks("large_logits_do_no_harm", "the loss at logits of 1e4 to be finite")
class ExponentiatesFirst(ER):
    def step(self, x, y):
        done = super().step(x, y)
        p = done.outputs[0].logits.exp()
        return Step(-(p / p.sum(dim=1, keepdim=True)).amax(dim=1).log().mean(), {}, done.outputs)


@breaks("large_logits_do_no_harm", "head.bias, after a step at logits of 1e4, to be finite")
class LeavesInfinityBehind(ER):
    """Leaves infinity in a row of the head without a class, where no score shows it."""

    def step(self, x, y):
        done = super().step(x, y)
        with torch.no_grad():
            large = done.outputs[0].logits.max() > 1000
            self.model.head.bias[-1] += large / ~large
        return done


class PlainSoftmax(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        p = self.net(x).exp()
        return p / p.sum(dim=1, keepdim=True)


@breaks("large_logits_do_no_harm", "scores after a step at logits of 1e4 to be finite")
class ScoresByPlainSoftmax(ER):
    def scorer(self):
        return PlainSoftmax(super().scorer())


@breaks("precisions_agree")
class ReportsWhatItDoesNotTrain(ER):
    def step(self, x, y):
        done = super().step(x, y)
        return Step(done.loss * (1.1 if self.precision == "bf16" else 1), {}, done.outputs)


@breaks("vectors_are_learned_like_images", "only images")
class NeedsImages(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        assert len(shape) == 3, "only images"


@breaks("every_parameter_gets_a_gradient")
class ForgetsALayer(ER):
    def descend(self, loss):
        super().descend(loss)
        self.model.body.second.bias.grad = None


@breaks("memory_reaches_the_gradient")
class IgnoresTheMemory(ER):
    def step(self, x, y):
        self.store.size.zero_()
        return super().step(x, y)


@breaks("bad_batches_change_nothing")
class CountsBeforeItChecks(ER):
    def learn(self, x, y):
        self.class_index.quiet += 1
        return super().learn(x, y)


@breaks("labels_are_only_names")
class OrdersByLabel(ER):
    def _assign_rows(self, batch):
        return (
            super()._assign_rows(batch).flip(0)
            if batch[0] == "class 0"
            else super()._assign_rows(batch)
        )


@breaks("nobody_tells_the_future", "the same state in an evaluation as in a plain loop")
class LooksAtItsCaller(ER):
    def learn(self, x, y):
        # the function itself, not its name in a string, so that a renaming cannot miss it
        if any(frame.function == learn_and_score.__name__ for frame in inspect.stack()):
            torch.rand(1, generator=self.trainer.rngs["draws"]) if self.steps else None
        return super().learn(x, y)


@breaks("boundaries_are_inferred")
class NeverInfers(ER):
    def learn(self, x, y):
        self.class_index.told = True
        return super().learn(x, y)


class Counting(ER):
    """Counts batches without unseen classes by its own rule."""

    more: ClassVar[int]

    def learn(self, x, y):
        self.class_index.gap = self.gap + self.more
        return super().learn(x, y)


@breaks("boundaries_are_inferred", "expected 2 inferred boundaries; found 0")
class WaitsForOneBatchMore(Counting):
    more = 1


@breaks("boundaries_are_inferred", "no boundary after 7 batches")
class WaitsForOneBatchLess(Counting):
    more = -1


@breaks("the_head_grows")
class KnowsSixteenClasses(ER):
    @property
    def classes(self):
        return self.class_index.labels[:16]


@breaks("spare_rows_stay_at_birth")
class LetsDecayAtSpareRows(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.model.head.restore = lambda: None


@breaks("a_frozen_head_stays")
class NeverFreezes(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.model.head.hold = lambda: None


@breaks("probing_changes_nothing")
class DrawsWhenItsOutputsAreRead(ER):
    def step(self, x, y):
        done, rng = super().step(x, y), self.trainer.rngs["draws"]

        class Late(tuple):
            def __iter__(self):
                torch.rand(1, generator=rng)
                return super().__iter__()

        return replace(done, outputs=Late(done.outputs))


@breaks("training_does_not_notice_an_average")
class DrawsForItsAverage(ER):
    def descend(self, loss):
        if self.trainer.distillation.averaged is not None:
            torch.rand(1, generator=self.trainer.rngs["draws"])
        super().descend(loss)


@breaks("beats_finetuning")
class OnlyFinetunes(Finetune):
    traits: ClassVar[Traits] = replace(Finetune.traits, exempt={})


@BROKEN.each
def test_the_check_fails_when_its_subject_is_broken(case):
    expect_failure(case)


def test_every_check_is_shown_something_that_breaks_it():
    own = {name for name, check in CHECKS.items() if check.__module__ == learning.__name__}
    assert BROKEN.checks == own
