"""Each check of `repeating` rejects a learner that breaks it."""

import copy
import os
from typing import ClassVar

import pytest
import torch
from broken_learners import BrokenLearners, expect_failure

from onepass import ER
from onepass.base.seeds import generator
from onepass.tools.checks import CHECKS, repeating

BROKEN = BrokenLearners()
breaks = BROKEN.breaks


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    BROKEN.register(monkeypatch)


@breaks("same_seed_same_bits")
class AsksTheSystem(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.trainer.rngs["draws"].manual_seed(int.from_bytes(os.urandom(4), "big"))


@breaks("other_seed_other_bits")
class IgnoresItsSeed(ER):
    def build(self, shape, dtype):
        self.trainer.rngs = {name: generator(0, name) for name in self.trainer.rngs}
        self.views.rng = self.trainer.rngs["augmentation"]
        super().build(shape, dtype)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(0.01)
        self.model.head.remember()


@breaks("the_memory_may_take_the_batch_at_once", "after `descend` has begun")
class WeighsByItsMemory(ER):
    def descend(self, loss):
        def by_memory(gradient):
            return gradient * (1 + self.store.y.float().mean())  # the batch may be in it, or not

        loss.register_hook(by_memory)
        super().descend(loss)


@breaks("global_generators_are_left_alone")
class UsesTheGlobalGenerator(ER):
    def step(self, x, y):
        return super().step(x[torch.randperm(len(x))], y)


@breaks("a_saved_learner_goes_on_exactly")
class ForgetsItsGenerators(ER):
    def state_dict(self):
        state = super().state_dict()
        fresh = generator(self.seed, "draws").get_state()
        state["generators"]["draws"]["state"] = fresh
        return state


@breaks("a_saved_learner_goes_on_exactly", "saved at step 13")
class KeepsATeacherOutsideOfItsState(ER):
    """Keeps a copy of the network that is no part, so that an opened learner lacks it."""

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.teacher = [copy.deepcopy(self.model)]

    def on_task_end(self):
        self.teacher = [copy.deepcopy(self.model)]

    def descend(self, loss):
        away = sum(
            (own - theirs.detach()).square().sum()
            for own, theirs in zip(
                self.model.body.parameters(), self.teacher[0].body.parameters(), strict=True
            )
        )
        super().descend(loss + away)


@breaks("a_state_is_a_snapshot")
class HandsOutItsOptimiser(ER):
    def state_dict(self):
        known = self.trainer.optimizer.state
        kept = {place: known[entry] for place, entry in enumerate(self.trainer.trainable)}
        return {**super().state_dict(), "optimizer": kept}


@breaks("the_constructor_is_the_configuration")
class ChangesItsSettings(ER):
    def step(self, x, y):
        object.__setattr__(self, "lr", self.lr / 2)
        return super().step(x, y)


@breaks("a_clone_is_independent")
class SharesItsCount(ER):
    steps_of_all: ClassVar[list[int]] = []

    def step(self, x, y):
        self.steps_of_all.append(1)
        if len(self.steps_of_all) == 4:
            torch.rand(1, generator=self.trainer.rngs["draws"])
        return super().step(x, y)


@BROKEN.each
def test_the_check_fails_when_its_subject_is_broken(case):
    expect_failure(case)


def test_every_check_is_shown_something_that_breaks_it():
    own = {name for name, check in CHECKS.items() if check.__module__ == repeating.__name__}
    assert BROKEN.checks == own
