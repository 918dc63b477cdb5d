"""Tests of the user's own registered datasets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from isolated_registries import isolate_registries

import onepass
from onepass import InputError, data
from onepass.data import DATASETS, dataset
from onepass.runs.spec import Job


@pytest.fixture(autouse=True)
def own_datasets(monkeypatch):
    isolate_registries(monkeypatch, DATASETS)


def made(**changes):
    return replace(onepass.data.load("synthetic", classes=4), name="mine", **changes)


def test_a_registered_dataset_is_known_by_its_name():
    dataset("mine", classes=4, tasks=2, mirror_is_same_class=False)(made)
    assert "mine" in data.dataset_names()
    assert len(Job("er", "mine", device="cpu").make(onepass.load("mine"))[0].tasks) == 2
    assert not data.mirror_is_same_class("mine")
    with pytest.raises(InputError, match="image_size is for your own files"):
        onepass.load("mine", image_size=8)


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"class_names": tuple("abcdef")}, {"mirror_is_same_class": True}]
)
def test_a_dataset_must_be_as_registered(changes):
    (fact,) = changes
    dataset("mine", classes=4, mirror_is_same_class=False)(lambda: replace(made(), **changes))
    with pytest.raises(InputError, match=f"registered with {fact.replace('_names', 'es')}"):
        onepass.load("mine")
