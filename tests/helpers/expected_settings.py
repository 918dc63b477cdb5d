"""The settings under which methods are compared, and readers of a method's defaults and presets."""

from typing import Any

from onepass.base.settings import construct

COMPARABLE = {"optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-4, "augment": "crop-grey"}
PLAIN_SGD = {"optimizer": "sgd", "weight_decay": 0.0, "lr": 0.1, "replay": 10, "augment": "none"}


def defaults(kind: type, expected: dict[str, Any]) -> dict[str, Any]:
    """Returns a method's default for each of these settings."""
    learner = kind()
    return {name: getattr(learner, name) for name in expected}


def official(kind: type) -> dict[str, Any]:
    """Returns the settings of the preset `official`, once a learner could be made with them."""
    construct(kind, **kind.presets["official"].settings)
    return kind.presets["official"].settings
