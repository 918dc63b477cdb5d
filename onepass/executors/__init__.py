"""Executors run jobs: one after another in this process, or several at a time in worker processes.
Modules here import `runs` and layers below it."""

from typing import TYPE_CHECKING

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.executors.base import Executor as Executor
    from onepass.executors.base import RunOptions as RunOptions
    from onepass.executors.base import Watch as Watch
    from onepass.executors.base import execute_all as execute_all
    from onepass.executors.queue import Fits as Fits
    from onepass.executors.queue import InOrder as InOrder
    from onepass.executors.queue import Queue as Queue
    from onepass.executors.select import AtOnce as AtOnce
    from onepass.executors.select import choose_executor as choose_executor

__getattr__, __all__ = attach(__name__)
