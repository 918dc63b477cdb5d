"""The setting in which methods are compared, and what a method's own defaults are."""

from typing import Any

from onepass.base.settings import construct

COMPARABLE = {"optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-4, "augment": "crop-grey"}
PLAIN_SGD = {"optimizer": "sgd", "weight_decay": 0.0, "lr": 0.1, "replay": 10, "augment": "none"}


def defaults(kind: type, expected: dict[str, Any]) -> dict[str, Any]:
    """A method's default for each of these settings."""
    learner = kind()
    return {name: getattr(learner, name) for name in expected}


def official(kind: type) -> dict[str, Any]:
    """The settings of its authors' code, of which it must be possible to make a learner."""
    construct(kind, **kind.presets["official"].settings)
    return kind.presets["official"].settings
