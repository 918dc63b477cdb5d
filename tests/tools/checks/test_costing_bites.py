"""Each check of `costing` rejects a learner that breaks it."""

import copy
from dataclasses import dataclass

import pytest
import torch
from broken_learners import BrokenLearners, expect_failure
from torch import nn

from onepass import ER
from onepass.base.parts import ImageCount, Samples, StatefulPart, Step
from onepass.functional.losses import cross_entropy, distillation
from onepass.learning.network_copies import NetworkCopy, PreviousNetwork
from onepass.memory import Reservoir
from onepass.tools.checks import CHECKS, NEEDS_GPU, check_method, costing

BROKEN = BrokenLearners()
breaks = BROKEN.breaks


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    BROKEN.register(monkeypatch)


@breaks("declared_images_are_counted", "counted")
class CountsTooLittle(ER):
    def cost(self, batch):
        return ImageCount(trained=batch)


@breaks("a_learner_is_freed_at_once", "a cycle of references")
class KnowsItself(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.trainer.learner = self


@breaks("declared_images_are_counted", "counted")
class CountsTooMuch(ER):
    def cost(self, batch):
        return super().cost(batch) + ImageCount(0, batch)


@breaks("an_average_may_teach", "counted")
class HidesWhatTheAverageIsShown(ER):
    def teacher_images(self, batch):
        return batch


@breaks("an_average_may_teach", "counted")
class AsksTheAverageForNothing(ER):
    """Runs the average on the batch without declaring it, and ignores the answer."""

    def step(self, x, y):
        done = super().step(x, y)
        self.trainer.distillation.averaged(
            self.views.normalise(x)
        ) if self.trainer.distillation.averaged else None
        return done


@breaks("an_average_may_teach", "samples more than once")
class TakesTheBatchInEveryRepeat(ER):
    def keep(self, x, y):
        if not self.trainer.last_repeat:
            self.store.add(x, y)
        super().keep(x, y)


@breaks("an_average_may_teach", "scores with an average that teaches to be finite")
class TakesRootsOfTheAverage(ER):
    def scorer(self):
        made = super().scorer()
        return made if self.trainer.distillation.averaged is None else nn.Sequential(made, Root())


class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()


@breaks("an_average_may_teach", "a head that grows beyond 16 classes; found 16")
class LosesClasses(ER):
    @property
    def classes(self):
        return self.class_index.labels[:16]


class Distilling(ER):
    """Replay with a teacher that sees the inputs of the network."""

    def make_teacher(self):
        return PreviousNetwork(self.trainer)

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.teacher = self.make_teacher()

    def ask(self, views):
        return self.teacher(views)

    def step(self, x, y):
        stream = Samples.of(x, y)
        replay = self.store.draw(self.replay, fallback=stream)
        stream_out, replay_out = self.forward(stream, replay)
        taught = self.ask(replay_out.views)
        loss = cross_entropy(stream_out, self.seen) + cross_entropy(replay_out, self.seen)
        loss = loss + distillation(replay_out, taught, self.old, 2.0)
        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, stream_out, replay_out)


@breaks("declared_images_are_counted", "scored=64) counted")
class HidesItsTeachersImages(Distilling):
    """Declares its own images only."""


@breaks("declared_images_are_counted", "scored=64) counted")
class HidesATeacherOfItsOwnMaking(Distilling):
    """Hides the images of a teacher that is not a part of the learner."""

    def make_teacher(self):
        return [copy.deepcopy(self.model).requires_grad_(False).eval()]

    @torch.no_grad()
    def ask(self, views):
        return self.teacher[0](views)


@breaks("declared_images_are_counted", "trained=138, scored=0) counted")
class CallsWhatItTrainsScored(Distilling):
    """Declares as scored an image whose gradient passes through the teacher."""

    def ask(self, views):
        return self.teacher.model(views)

    def cost(self, batch):
        return super().cost(batch) + ImageCount(0, self.replay)


@dataclass(kw_only=True, eq=False)
class DeclaresItsTeacher(Distilling):
    def cost(self, batch):
        return super().cost(batch) + ImageCount(0, self.replay * self.views_per_sample)


@breaks("the_memory_holds_raw_samples")
class StoresMirrorImages(ER):
    def step(self, x, y):
        done = super().step(x, y)
        self.store.x.copy_(self.store.x.flip(-1))
        return done


class Diary(StatefulPart):
    def __init__(self):
        self.pages = []

    def state_dict(self):
        return {"pages": torch.zeros(len(self.pages))}


@breaks("memory_is_bounded")
class KeepsADiary(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.diary = Diary()

    def step(self, x, y):
        self.diary.pages.append(1)
        return super().step(x, y)


class Attic(StatefulPart):
    """A part that holds samples or other tensors and declares nothing."""

    tensors = ("kept",)

    def __init__(self, kept):
        self.kept = kept


@breaks("kept_bytes_are_declared", "bytes kept")
class KeepsTwoMemories(ER):
    """Keeps a second memory in a part that is no store."""

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.attic = Attic(torch.zeros(80, *shape, dtype=dtype))


@breaks("kept_bytes_are_declared", "bytes kept")
class KeepsACopyInAnAttic(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        weights = [entry.flatten() for entry in self.model.body.state_dict().values()]
        self.attic = Attic(torch.cat(weights))


class Weightless(NetworkCopy):
    """A copy of the network that does not declare its bytes."""

    bytes = 0


@breaks("kept_bytes_are_declared", "bytes kept")
class KeepsACopyThatWeighsNothing(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.copy = Weightless(self.trainer)


class Modest(Reservoir):
    bytes = 0


@breaks("kept_bytes_are_declared", "bytes kept")
class SaysNothingOfItsMemory(ER):
    def make_store(self, shape, dtype, rng):
        return Modest(self.memory, shape, dtype, rng)


@breaks("kept_bytes_are_declared", "room for `memory` samples, 80; found room for 160")
class HoldsTwiceAsMuch(ER):
    def make_store(self, shape, dtype, rng):
        return Reservoir(2 * self.memory, shape, dtype, rng)


@breaks("kept_bytes_are_declared", "bytes kept")
class DeclaresWhatItDoesNotKeep(ER):
    def make_store(self, shape, dtype, rng):
        class Boasting(Reservoir):
            bytes = 10**6

        return Boasting(self.memory, shape, dtype, rng)


@breaks("modes_are_restored")
class StaysInEvaluation(ER):
    def step(self, x, y):
        done = super().step(x, y)
        self.model.body.first.train(self.steps % 2 == 0)
        return done


@breaks("the_step_stays_on_the_device", "found aten._local_scalar_dense")
class ReadsALoss(ER):
    def step(self, x, y):
        done = super().step(x, y)
        self.last_loss = done.loss.item()
        return done


@breaks("the_file_explains_itself")
class SaysNothing(ER):
    pass


@BROKEN.each
def test_the_check_fails_when_its_subject_is_broken(case):
    expect_failure(case)


def test_every_check_is_shown_something_that_breaks_it():
    own = {name for name, check in CHECKS.items() if check.__module__ == costing.__name__}
    assert BROKEN.checks == own - set(NEEDS_GPU)


def test_a_method_that_declares_its_teacher_passes():
    """It differs from the learners above by its declaration alone."""
    for check in ("declared_images_are_counted", "kept_bytes_are_declared", "memory_is_bounded"):
        CHECKS[check](DeclaresItsTeacher)


@pytest.mark.slow
def test_a_foreign_method_gets_a_report():
    outcome = check_method(CountsTooLittle)
    assert "declared_images_are_counted" in outcome.failed
    assert "same_seed_same_bits" in outcome.passed
    assert "a_saved_learner_goes_on_exactly" in outcome.passed
