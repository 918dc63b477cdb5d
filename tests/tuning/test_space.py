"""The space of a search: read from TOML, checked against the method's constructor."""

from __future__ import annotations

import tomllib
from random import Random
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


@pytest.mark.parametrize(
    ("values", "value", "short"),
    [
        (Range(1e-4, 1e-2, log=True), 0.0023456789, 0.00235),
        (Range(0.0, 1.0), 0.123456789, 0.123),
        (Range(0.0, 1.0), 0.00012345678, 0.000123),
        (Range(-1.0, 1.0), -0.123456789, -0.123),
        (Range(1.2345e-4, 1e-2, log=True), 1.23456e-4, 1.235e-4),  # 1.23e-4 is below the range
        (Range(1e-4, 9.876e-3, log=True), 9.8759e-3, 9.876e-3),  # 9.88e-3 is above it
        (Range(100, 101), 100.123456789, 100.12),  # three digits would leave two values
        (Range(0.1, 0.7, step=0.2), 0.1 + 0.2, 0.3),
        (Range(1000, 2000, step=0.5), 1000.5, 1000.5),  # 1000 is no step from here
        (Range(1, 10**6, whole=True), 123456, 123456),
        (Range(1, 10**6, log=True, whole=True), 123456, 123000),
    ],
)
def test_a_number_is_as_short_as_its_range_allows(
    values: Range, value: float, short: float
) -> None:
    assert values.short(value) == short
    assert type(values.short(value)) is type(value)


def test_short_numbers_stay_in_any_range() -> None:
    rng = Random(0)
    for _ in range(2000):
        low = rng.choice((1, -1)) * 10 ** rng.uniform(-8, 3)
        high = low + 10 ** rng.uniform(-9, 4)
        value = rng.choice((low, high, rng.uniform(low, high)))
        short = Range(low, high).short(value)
        assert low <= short <= high
        assert abs(short - value) <= (high - low) / 100


def test_a_space_that_is_not_a_table_is_refused() -> None:
    with pytest.raises(InputError, match=r"\[space\]"):
        Space.read(3, onepass.GSA, "space.toml")
