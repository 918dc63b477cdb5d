"""Datasets: arrays of images or vectors with labels, by name or by path."""

from onepass.data.base import Dataset, statistics
from onepass.data.load import load, mirror_is_same_class, names, usual_tasks

__all__ = ["Dataset", "load", "mirror_is_same_class", "names", "statistics", "usual_tasks"]
