"""The cost of a step in images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onepass.base.parts import ImageCount

if TYPE_CHECKING:
    from onepass.learning.learner import Learner


def images_per_batch(learner: Learner, batch: int) -> ImageCount:
    """Returns the number of images processed for a stream batch of this size, when the memory is
    full and an old task exists. It includes distillation and all `repeats`. Copies of the network
    count like the network."""
    # `storing` is done once per batch, everything else once per repeat
    own, storing = learner.cost(batch), learner.cost_of_storing(batch)
    taught = learner.teacher_images(batch) if learner.distil else 0
    trained = own.trained - storing.trained + taught * learner.distil_raw
    scored = own.scored - storing.scored + taught
    return storing + ImageCount(learner.repeats * trained, learner.repeats * scored)
