"""Where runs run: one after another here, or several at a time in processes."""

from onepass.executors.base import Executor, How, Watch, execute_all
from onepass.executors.queue import Fits, InOrder, Queue
from onepass.executors.select import choose, fitting

__all__ = [
    "Executor",
    "Fits",
    "How",
    "InOrder",
    "Queue",
    "Watch",
    "choose",
    "execute_all",
    "fitting",
]
