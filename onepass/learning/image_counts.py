"""How many images a step costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onepass.base.parts import ImageCount

if TYPE_CHECKING:
    from onepass.learning.learner import Learner


def images_per_batch(learner: Learner, batch: int) -> ImageCount:
    """Returns all images that a stream batch of this size costs, once tasks and memory are under
    way; copies of the network count like the network itself."""
    own, once = learner.cost(batch), learner.cost_of_storing(batch)
    shown = learner.teacher_images(batch) if learner.distil else 0
    trained = own.trained - once.trained + shown * learner.distil_raw
    scored = own.scored - once.scored + shown
    return once + ImageCount(learner.repeats * trained, learner.repeats * scored)
