"""Online class-incremental learning: a stream seen once, bounded memory, predictions at any time.

>>> import onepass
>>> data = onepass.load("digits")
>>> stream = onepass.ClassIncremental(data, tasks=5, batch=10, seed=0)
>>> learner = onepass.GSA(memory=100, seed=0)
>>> accuracies = [point.accuracy for point in onepass.evaluate(learner, stream)]
>>> len(accuracies)
5
"""

from typing import TYPE_CHECKING

from onepass.completion import answer
from onepass.interrupts import told_in_a_line

answer()  # a shell that asks for words is not kept waiting for torch
with told_in_a_line():
    from onepass import methods
    from onepass.base.errors import (
        CheckpointError,
        DataError,
        InputError,
        NotFittedError,
        OnepassError,
        TrainingError,
        UnknownNameError,
    )
    from onepass.data import Dataset, load
    from onepass.evaluation.callbacks import Listener
    from onepass.evaluation.loop import evaluate
    from onepass.evaluation.probes import BalanceProbe
    from onepass.learning.checkpoint.file import open_learner as open
    from onepass.learning.learner import Learner
    from onepass.methods import *  # noqa: F403 - a method is added by one line, and that is there
    from onepass.streams import Blurry, ClassIncremental, LongTail, Stream
    from onepass.version import __version__

__all__ = [
    "BalanceProbe",
    "Blurry",
    "CheckpointError",
    "ClassIncremental",
    "DataError",
    "Dataset",
    "InputError",
    "Learner",
    "Listener",
    "LongTail",
    "NotFittedError",
    "OnepassError",
    "Stream",
    "TrainingError",
    "UnknownNameError",
    "__version__",
    "evaluate",
    "load",
    "open",
]
if not TYPE_CHECKING:
    __all__ += methods.__all__
