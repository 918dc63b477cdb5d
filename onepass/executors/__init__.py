"""Where runs run: one after another here, or several at a time in processes."""

from onepass.executors.base import Executor, RunOptions, Watch, execute_all
from onepass.executors.queue import Fits, InOrder, Queue
from onepass.executors.select import AtOnce, choose

__all__ = [
    "AtOnce",
    "Executor",
    "Fits",
    "InOrder",
    "Queue",
    "RunOptions",
    "Watch",
    "choose",
    "execute_all",
]
