"""Datasets: images or feature vectors with labels, loaded by name or by path. `streams` decides
their order. From the rest of onepass, modules here import only `base`."""

from typing import TYPE_CHECKING

from onepass.base.lazy import attach

if TYPE_CHECKING:
    from onepass.data.base import Dataset as Dataset
    from onepass.data.base import statistics as statistics
    from onepass.data.digits import digits as make_digits  # noqa: F401 - registers it
    from onepass.data.known import dataset_names as dataset_names
    from onepass.data.known import is_known as is_known
    from onepass.data.known import mirror_is_same_class as mirror_is_same_class
    from onepass.data.known import usual_tasks as usual_tasks
    from onepass.data.loading import load as load
    from onepass.data.registry import DATASETS as DATASETS
    from onepass.data.registry import dataset as dataset
    from onepass.data.synthetic import synthetic as make_synthetic  # noqa: F401

__getattr__, __all__ = attach(__name__)
