"""A check that cannot fail guards nothing: each is shown a learner that breaks what it is for."""

import inspect
import os
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from onepass import ER, Finetune
from onepass.checks import CHECKS, NEEDS_GPU, check_method
from onepass.parts import Images, Part, Step
from onepass.seeds import generator

BROKEN = []


def breaks(check):
    def register(cls):
        BROKEN.append((check, dataclass(kw_only=True, eq=False)(cls)))
        return cls

    return register


@breaks("predict_before_learning_is_refused")
class AnswersTooEarly(ER):
    def predict(self, x):
        return super().predict(x) if self.steps else torch.zeros(len(x))


@breaks("predict_leaves_no_trace")
class DrawsWhilePredicting(ER):
    def scores(self, x):
        torch.rand(1, generator=self.generators["draws"])
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


@breaks("large_logits_do_no_harm")
class ExponentiatesFirst(ER):
    def step(self, x, y):
        done = super().step(x, y)
        p = done.outputs[0].logits.exp()
        return Step(-(p / p.sum(dim=1, keepdim=True)).amax(dim=1).log().mean(), {}, done.outputs)


@breaks("large_logits_do_no_harm")
class LeavesInfinityBehind(ER):
    """In a row of the head that no class has yet: no score shows it."""

    def step(self, x, y):
        done = super().step(x, y)
        with torch.no_grad():
            large = done.outputs[0].logits.max() > 1000
            self.model.head.bias[-1] += large / ~large
        return done


@breaks("large_logits_do_no_harm")
class ScoresByPlainSoftmax(ER):
    def logits(self, inputs):
        p = super().logits(inputs).exp()
        return p / p.sum(dim=1, keepdim=True)


@breaks("precisions_agree")
class ReportsWhatItDoesNotTrain(ER):
    def step(self, x, y):
        done = super().step(x, y)
        return Step(done.loss * (1.1 if self.precision == "bf16" else 1), {}, done.outputs)


@breaks("vectors_are_learned_like_images")
class NeedsImages(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        assert len(shape) == 3


@breaks("every_parameter_gets_a_gradient")
class ForgetsALayer(ER):
    def descend(self, loss, meanwhile):
        super().descend(loss, meanwhile)
        self.model.body.second.bias.grad = None


@breaks("memory_reaches_the_gradient")
class IgnoresTheMemory(ER):
    def step(self, x, y):
        self.store.size.zero_()
        return super().step(x, y)


@breaks("bad_batches_change_nothing")
class CountsBeforeItChecks(ER):
    def learn(self, x, y):
        self.book.quiet += 1
        return super().learn(x, y)


@breaks("labels_are_only_names")
class OrdersByLabel(ER):
    def _admit(self, labels):
        return super()._admit(labels).flip(0) if int(labels[0]) > 100 else super()._admit(labels)


@breaks("nobody_tells_the_future")
class LooksAtItsCaller(ER):
    def learn(self, x, y):
        if any(frame.function == "walk" for frame in inspect.stack()):
            torch.rand(1, generator=self.generators["draws"]) if self.steps else None
        return super().learn(x, y)


@breaks("boundaries_are_inferred")
class NeverInfers(ER):
    def learn(self, x, y):
        self.book.told = True
        return super().learn(x, y)


@breaks("the_head_grows")
class KnowsSixteenClasses(ER):
    @property
    def classes(self):
        return self.book.labels[:16]


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
        done, rng = super().step(x, y), self.generators["draws"]

        class Late(tuple):
            def __iter__(self):
                torch.rand(1, generator=rng)
                return super().__iter__()

        return replace(done, outputs=Late(done.outputs))


@breaks("beats_finetuning")
class OnlyFinetunes(Finetune):
    exempt: ClassVar[dict[str, str]] = {}


@breaks("same_seed_same_bits")
class AsksTheSystem(ER):
    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.generators["draws"].manual_seed(int.from_bytes(os.urandom(4), "big"))


@breaks("other_seed_other_bits")
class IgnoresItsSeed(ER):
    def build(self, shape, dtype):
        self.generators = {name: generator(0, name) for name in self.generators}
        self.views.rng = self.generators["augmentation"]
        super().build(shape, dtype)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(0.01)
        self.model.head.remember()


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


@breaks("a_state_is_a_snapshot")
class HandsOutItsOptimiser(ER):
    def state_dict(self):
        kept = {place: self._optimizer.state[one] for place, one in enumerate(self.trained)}
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
            torch.rand(1, generator=self.generators["draws"])
        return super().step(x, y)


@breaks("declared_passes_are_counted")
class CountsTooLittle(ER):
    def cost(self, batch):
        return Images(trained=batch)


@breaks("the_memory_holds_raw_samples")
class StoresMirrorImages(ER):
    def step(self, x, y):
        done = super().step(x, y)
        self.store.x.copy_(self.store.x.flip(-1))
        return done


class Diary(Part):
    def __init__(self):
        self.pages = []

    def state_dict(self):
        return {"pages": torch.zeros(len(self.pages))}


@breaks("memory_is_bounded")
class KeepsADiary(ER):
    parts: ClassVar[tuple[str, ...]] = ("store", "diary")

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.diary = Diary()

    def step(self, x, y):
        self.diary.pages.append(1)
        return super().step(x, y)


@breaks("kept_bytes_are_declared")
class KeepsTwoMemories(ER):
    parts: ClassVar[tuple[str, ...]] = ("store", "second")

    def build(self, shape, dtype):
        super().build(shape, dtype)
        self.second = self.store
        super().build(shape, dtype)
        self.second.add(torch.zeros(80, *shape, dtype=dtype), torch.zeros(80, dtype=torch.int64))


@breaks("modes_are_restored")
class StaysInEvaluation(ER):
    def step(self, x, y):
        done = super().step(x, y)
        self.model.body.first.train(self.steps % 2 == 0)
        return done


@breaks("the_step_stays_on_the_device")
class ReadsALoss(ER):
    def step(self, x, y):
        done = super().step(x, y)
        self.last_loss = done.loss.item()
        return done


@breaks("the_file_explains_itself")
class SaysNothing(ER):
    pass


def test_every_check_is_shown_something_that_breaks_it():
    assert {check for check, _ in BROKEN} | set(NEEDS_GPU) == set(CHECKS)


@pytest.mark.parametrize(
    ("check", "method"), BROKEN, ids=[f"{name}-{one.__name__}" for name, one in BROKEN]
)
def test_the_check_fails_when_its_subject_is_broken(check, method):
    with pytest.raises(Exception) as caught:
        CHECKS[check](method)
    assert not isinstance(caught.value, NameError | ImportError | SyntaxError)


def test_a_foreign_method_gets_a_report():
    outcome = check_method(dict(BROKEN)["declared_passes_are_counted"])
    assert "declared_passes_are_counted" in outcome.failed
    assert "same_seed_same_bits" in outcome.passed
