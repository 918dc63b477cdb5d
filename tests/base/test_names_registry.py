"""Tests of registries: each name belongs to one definition."""

import pytest

from onepass import InputError, UnknownNameError
from onepass.base.registry import Registry


def function():
    """Serves as a registered definition."""


def test_a_lookup_returns_the_registered_entry():
    names = Registry("thing")
    names.add("one", 1, defined=function)
    assert names["one"] == 1
    assert names.entries == {"one": 1}


def test_another_definition_of_a_name_is_refused_and_changes_nothing():
    names = Registry("thing")
    names.add("one", 1, defined=function)
    with pytest.raises(InputError, match=rf"there is a thing 'one' already: {__name__}.function"):
        names.add("one", 2, defined=Registry)
    assert names["one"] == 1


def test_the_same_definition_may_come_again_as_in_a_notebook():
    names = Registry("thing")
    for entry in (1, 2):
        names.add("one", entry, defined=function)
    assert names["one"] == 2


def test_the_error_for_an_unknown_name_suggests_the_nearest():
    names = Registry("thing")
    names.add("resnet", 1, defined=function)
    with pytest.raises(UnknownNameError, match=r"unknown thing 'restnet'\. Did you mean 'resnet'"):
        names["restnet"]


def test_two_registries_share_nothing():
    first, second = Registry("thing"), Registry("thing")
    first.add("one", 1, defined=function)
    assert not second.entries
