"""The space of a search: read from TOML, checked against the method's constructor."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

import onepass
from onepass.base.errors import InputError, OnepassError
from onepass.base.settings import parse_settings
from onepass.tuning.space import Choice, Range, Space


def read(text: str) -> Space:
    return Space.read(tomllib.loads(text), onepass.GSA, "space.toml")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("lr = {low=1e-4, high=1e-2, log=true}", Range(1e-4, 1e-2, log=True)),
        ("lr = {low=1, high=2}", Range(1, 2)),  # lr takes fractions even if both ends are whole
        ("lr = {low=0.1, high=0.7, step=0.2}", Range(0.1, 0.7, step=0.2)),
        ("mix = {low=32, high=128, step=32}", Range(32, 128, step=32, whole=True)),
        ("mix = [32, 64]", Choice(["32", "64"])),
        ("mirror = [true, false]", Choice(["true", "false"])),
        ('head = ["trained", "frozen"]', Choice(["trained", "frozen"])),
        ('fill = ["none", 8]', Choice(["none", "8"])),
    ],
)
def test_ranges_and_choices_are_read(text: str, wanted: Range | Choice) -> None:
    assert list(read(text).settings.values()) == [wanted]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "[space]"),
        ("learning_rate = [1e-3]", "setting of 'gsa' 'learning_rate'"),
        ("hed = ['frozen']", "Did you mean 'head'"),
        ("memory = [100, 200]", "memory cannot be searched"),
        ("lr = ['fast']", "lr must be a number"),
        ("head = ['loose']", "head must be"),
        ("mix = [0.5]", "mix must be a whole number"),
        ("mix = {low=1.5, high=3}", "mix.low must be a whole number"),
        ("mix = {low=1, high=3, step=0.5}", "mix.step must be a whole number"),
        ("head = {low=1, high=2}", "head must be"),
        ("lr = 1e-3", "{low, high} or a list"),
        ("lr = {low=1}", "low and high"),
        ("lr = {low=1, hihg=2}", "'high'"),
        ("lr = {low='1', high=2}", "low must be a number"),
        ("lr = {low=2, high=1}", "low must be below high"),
        ("lr = {low=nan, high=1}", "low must be a number"),
        ("lr = {low=0, high=1, log=true}", "log needs"),
        ("lr = {low=1, high=2, log=true, step=1}", "log needs"),
        ("mix = {low=1, high=4, step=2}", "whole number of steps"),
        ("mix = {low=1, high=4, step=-1}", "whole number of steps"),
        ("lr = []", "choices"),
        ("lr = [1e-3, 0.001]", "different choices"),
        ("lr = [{a=1}]", "lr must be a number, a text"),
    ],
)
def test_an_invalid_space_is_an_error_in_one_line(text: str, message: str) -> None:
    with pytest.raises(OnepassError) as caught:
        read(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("mix = {low=32, high=128, step=32}", lambda mix: mix in {"32", "64", "96", "128"}),
        ("mix = {low=2, high=9}", lambda mix: 2 <= int(mix) <= 9),
        ("lr = {low=1, high=2}", lambda lr: 1 <= float(lr) <= 2 and "." in lr),
        ("lr = {low=1e-4, high=1e-2, log=true}", lambda lr: 1e-4 <= float(lr) <= 1e-2),
        ("head = ['trained', 'frozen']", lambda head: head in {"trained", "frozen"}),
    ],
)
def test_chosen_values_lie_in_the_space_and_are_valid_settings(text: str, inside: Any) -> None:
    import optuna

    space = read(text)
    (name,) = space.settings
    for seed in range(20):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        chosen = space.texts(study.ask(space.distributions()).params)
        assert inside(chosen[name])
        onepass.GSA(**parse_settings(onepass.GSA, chosen))


def test_a_space_that_is_not_a_table_is_refused() -> None:
    with pytest.raises(InputError, match=r"\[space\]"):
        Space.read(3, onepass.GSA, "space.toml")
