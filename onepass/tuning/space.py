"""The space of a search: for each setting a range, or a list of choices.

[space]
lr = {low = 1e-4, high = 1e-2, log = true}
replay = [32, 64, 128]
mix = {low = 32, high = 128, step = 32}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.settings import expect_setting_name, expect_type, parse_settings
from onepass.base.text import quoted
from onepass.base.toml import toml_value_as_text

if TYPE_CHECKING:
    from onepass.learning.learner import Learner

KEYS = {"low": float, "high": float, "log": bool, "step": float}
FEWEST_DIGITS, EXACT_DIGITS = 3, 17  # significant digits; with 17 any float is exact
GIVEN_BY_THE_JOB = ("seed", "device", "memory")  # options of a job, not settings to search


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included. With `log`, their logarithms are evenly
    spread. With a `step`, only low, low + step, and so on up to high. `whole`: integers only."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    @property
    def ends(self) -> list[str]:
        return [repr(self.low), repr(self.high)]

    def distribution(self) -> Any:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            step = 1 if self.step is None else int(self.step)
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=step)
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def short(self, value: float) -> float:
        """Returns a number of the range with three significant digits, or as many more as keep it
        in the range and within a hundredth of the range's width. Whole numbers stay as they are
        unless their logarithms are spread. A number on a step only loses the noise of its sum.

        >>> Range(1e-4, 1e-2, log=True).short(0.0023456789), Range(10.0, 11.0).short(10.123456789)
        (0.00235, 10.12)
        >>> Range(0.1, 0.7, step=0.2).short(0.1 + 0.2), Range(1, 9999, whole=True).short(1234)
        (0.3, 1234)
        """
        if self.whole and not self.log:
            return value
        if self.step is not None:
            return min(max(float(f"{value:.12g}"), self.low), self.high)
        for digits in range(FEWEST_DIGITS, EXACT_DIGITS):
            shorter = (int if self.whole else float)(float(f"{value:.{digits}g}"))
            close = abs(shorter - value) <= (self.high - self.low) / 100
            if close and self.low <= shorter <= self.high:
                return shorter
        return value

    def text(self, value: Any) -> str:
        return repr(value)


@dataclass(frozen=True)
class Choice:
    """A list of values to choose from, as texts."""

    ends: list[str]

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.ends)

    def short(self, value: str) -> str:
        return value

    def text(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True)
class Space:
    """The settings that a trial chooses: for each name a range, or a list of choices."""

    settings: dict[str, Range | Choice]
    table: dict[str, Any]  # the file's table [space], unchanged

    @classmethod
    def read(cls, table: Any, learner: type[Learner], where: str) -> Space:
        """Returns the space of a file's table [space]. Raises an error, which names `where`, if
        the table is not valid or a setting does not fit the learner's constructor."""
        if not isinstance(table, dict) or not table:
            raise InputError(f"{where} must have a table [space] of settings to search")
        hints = get_type_hints(learner)
        settings = {}
        for name, values in table.items():
            if name in GIVEN_BY_THE_JOB:
                raise InputError(f"{where}: {name} cannot be searched; give it outside of [space]")
            expect_setting_name(learner, name)
            settings[name] = _read(f"{where}: {name}", values, hints[name])
            for text in settings[name].ends:
                parse_settings(learner, {name: text})
        return cls(settings, table)

    def distributions(self) -> dict[str, Any]:
        """Returns the settings as Optuna's distributions."""
        return {name: values.distribution() for name, values in self.settings.items()}

    def short(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """Returns the values that Optuna would choose with few digits."""
        return {name: self.settings[name].short(value) for name, value in chosen.items()}

    def texts(self, chosen: dict[str, Any]) -> dict[str, str]:
        """Returns the values that Optuna has chosen as texts, which `--set` would accept."""
        return {name: values.text(chosen[name]) for name, values in self.settings.items()}

    def ends(self) -> Iterator[dict[str, str]]:
        """Yields each end of a range and each choice as the only setting of a dictionary, so that
        all can be checked before anything runs."""
        for name, values in self.settings.items():
            for text in values.ends:
                yield {name: text}


def _read(name: str, values: Any, hint: Any) -> Range | Choice:
    """Returns the range or the choice of one setting. `name` begins the errors, and `hint` is the
    type of the constructor's argument."""
    if isinstance(values, list):
        texts = [toml_value_as_text(value, name) for value in values]
        if len(set(texts)) != len(texts) or not texts:
            raise InputError(f"{name} must be a list of different choices, not {quoted(values)}")
        return Choice(texts)
    if not isinstance(values, dict):
        raise InputError(f"{name} must be {{low, high}} or a list of choices, not {quoted(values)}")
    for key, value in values.items():
        if key not in KEYS:
            raise UnknownNameError(f"key of {name}", key, KEYS)
        expect_type(f"{name}.{key}", value, KEYS[key])
    if not {"low", "high"} <= values.keys():
        raise InputError(f"{name} must have low and high")
    return _range(name, values, hint)


def _range(name: str, table: dict[str, Any], hint: Any) -> Range:
    whole = not _accepts_fractions(hint)
    for key in ("low", "high", "step"):
        if whole and isinstance(table.get(key), float):
            raise InputError(f"{name}.{key} must be a whole number, not {table[key]!r}")
    made = Range(**table, whole=whole)
    if not made.low < made.high:
        raise InputError(f"{name}: low must be below high, not {made.low!r} and {made.high!r}")
    if made.log and (made.low <= 0 or made.step is not None):
        raise InputError(f"{name}: log needs a low above 0 and takes no step")
    if made.step is not None and (made.step <= 0 or _distance_from_a_step(made) > 1e-9):
        raise InputError(
            f"{name}: from low to high there must be a whole number of steps above 0, not steps of "
            f"{made.step!r}"
        )
    return made


def _accepts_fractions(hint: Any) -> bool:
    """Returns whether an argument of this type may be a fraction."""
    try:
        expect_type("", 0.5, hint)
    except InputError:
        return False
    return True


def _distance_from_a_step(made: Range) -> float:
    """Returns how far the high end is from the nearest step, in steps."""
    steps = (made.high - made.low) / (made.step or 1)
    return abs(steps - round(steps))
