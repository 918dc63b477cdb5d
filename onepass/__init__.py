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

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.base.errors import CheckpointError as CheckpointError
    from onepass.base.errors import DataError as DataError
    from onepass.base.errors import InputError as InputError
    from onepass.base.errors import NotFittedError as NotFittedError
    from onepass.base.errors import OnepassError as OnepassError
    from onepass.base.errors import TrainingError as TrainingError
    from onepass.base.errors import UnknownNameError as UnknownNameError
    from onepass.data import Dataset as Dataset
    from onepass.data import load as load
    from onepass.encoders import Encoder as Encoder
    from onepass.evaluation.callbacks import Listener as Listener
    from onepass.evaluation.loop import evaluate as evaluate
    from onepass.evaluation.probes import BalanceProbe as BalanceProbe
    from onepass.gsa_paper.paper import paper as paper
    from onepass.learning.checkpoint.file import open_learner as open  # noqa: F401
    from onepass.learning.closed_form import ClosedForm as ClosedForm
    from onepass.learning.learner import Learner as Learner
    from onepass.learning.network_learner import NetworkLearner as NetworkLearner
    from onepass.methods import *  # noqa: F403 - so that a new method needs no line here
    from onepass.streams import Blurry as Blurry
    from onepass.streams import ClassIncremental as ClassIncremental
    from onepass.streams import LongTail as LongTail
    from onepass.streams import Stream as Stream
    from onepass.sweeps.run import sweep as sweep
    from onepass.tuning.tune import tune as tune
    from onepass.version import __version__ as __version__

__getattr__, __all__ = attach(__name__)
