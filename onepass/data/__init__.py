"""Datasets: arrays of images or vectors with labels, by name or by path."""

from onepass.data import digits, synthetic  # two datasets that need no files
from onepass.data.base import Dataset, statistics
from onepass.data.load import is_known, load, mirror_is_same_class, names, usual_tasks
from onepass.data.registry import DATASETS, dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "dataset",
    "digits",
    "is_known",
    "load",
    "mirror_is_same_class",
    "names",
    "statistics",
    "synthetic",
    "usual_tasks",
]
