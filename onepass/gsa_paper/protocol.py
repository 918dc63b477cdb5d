"""Decides which of our runs are comparable with published figures: by data, stream and settings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from onepass.base.errors import InputError
from onepass.base.settings import format_setting, setting_names
from onepass.data.catalogue import CATALOGUE
from onepass.learning import registry
from onepass.learning.registry import COMMON
from onepass.report.rows import IMPLIED
from onepass.runs.result import Result
from onepass.runs.spec import Job, preset_names
from onepass.runs.variant import FOLDER, PRESET, Variant

PAPER_STREAM, PAPER_BATCH = "class-incremental", 10
EARLIER = "earlier"  # follows the name of a preset that has changed since the run
# Options that say how to compute and how often to score, not what to learn.
EXECUTION = ("precision", "engine", "threads", "deterministic", "every", "prequential")


def follows_paper(result: Result) -> bool:
    """Returns whether a run learned the paper's stream: class-incremental, all of a dataset, in the
    paper's number of tasks, in batches of ten, with task boundaries.

    A dataset is recognised by its name in the catalogue and by its numbers of samples per class,
    never by the name of a file. Results of older versions lack these numbers and do not qualify.
    """
    entry = CATALOGUE.get(result.dataset_identity)
    return (
        entry is not None
        and result.samples == [list(entry.train), list(entry.test)]
        and (result.stream, result.batch) == (PAPER_STREAM, PAPER_BATCH)
        and result.tasks == entry.tasks
        and result.boundaries
    )


def learning_variant(result: Result) -> Variant:
    """Returns the variant without choices that do not affect learning.

    Choices of how and where the run was computed are left out. The settings are left out if all of
    them together have no effect: each is the default, the preset's value, or the value to which the
    preset changes on these data (MNIST has no mirror images). If the preset has changed since the
    run, its name becomes, for example, `tuned earlier`. The variant is empty for a method's common
    settings in the usual class order.
    """
    variant = result.variant.without(FOLDER, *EXECUTION)
    if result.method not in registry.METHODS.names():
        return variant
    learner = registry.get(result.method).learner
    preset = variant.get(PRESET, COMMON)
    if preset not in preset_names(learner):
        preset = COMMON
    settings = variant.only(setting_names(learner))
    alone = Job(result.method, result.dataset_identity, preset=preset)
    # The variant omits settings equal to the preset's. They are filled in from the preset as it is
    # before the data change it.
    as_preset = {
        name: format_setting(value) for name, value in alone.chosen_preset().settings.items()
    }
    try:
        same = replace(alone, settings=as_preset | settings).non_defaults == alone.non_defaults
    except InputError:  # the run is of a version whose settings were others
        same = False
    if same and _preset_has_changed(alone, result):
        return Variant(variant | {PRESET: f"{preset} {EARLIER}"})
    return variant.without(*settings) if same else variant


def _preset_has_changed(preset: Job, result: Result) -> bool:
    """Returns whether the settings of the preset, or the defaults below it, have changed since the
    run.

    A setting that the result lacks is newer than the run. Its default stands for it.
    """
    usual = _as_recorded(registry.get(preset.method).common_settings)
    now = usual | _as_recorded(preset.chosen_settings())
    was = usual | result.settings
    return any(was[name] != now[name] for name in now.keys() - IMPLIED)


def _as_recorded(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings as JSON values, as results hold them."""
    recorded: dict[str, Any] = json.loads(json.dumps(settings, default=repr))
    return recorded
