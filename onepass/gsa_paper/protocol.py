"""Decides which of our runs are comparable with published figures: same data, stream, settings."""

from __future__ import annotations

import json
from dataclasses import replace

from onepass.base.errors import InputError
from onepass.base.settings import format_setting, setting_names
from onepass.data.catalogue import CATALOGUE
from onepass.learning import registry
from onepass.runs.result import Result
from onepass.runs.spec import COMMON, Job, preset_names
from onepass.runs.variant import FOLDER, PRESET, Variant

PAPER_STREAM, PAPER_BATCH = "class-incremental", 10
EARLIER = "earlier"  # marks a variant whose preset has changed since the run
# Options that say how to compute and how often to score, not what to learn.
EXECUTION = ("precision", "engine", "threads", "deterministic", "every", "prequential")


def follows_paper(result: Result) -> bool:
    """Returns whether a run learned the paper's stream: all of a dataset, in the paper's number of
    tasks, in batches of ten.

    A dataset is recognised by its entry in the catalogue and by its numbers of samples per class,
    never by the name of a file. Results of older versions lack these fields and do not qualify.
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
    """Returns the part of the variant that affects learning.

    It leaves out how and where the run was computed, and settings that have no effect: those equal
    to the default, to the preset, or to what the preset becomes on such data (MNIST has no mirror
    images). It is empty for a method's common settings in the usual class order.
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
    # the variant omits settings equal to the preset's, so fill in the preset as it is before the
    # data adapt it
    as_preset = {
        name: format_setting(value) for name, value in alone.chosen_preset().settings.items()
    }
    try:
        same = replace(alone, settings=as_preset | settings).non_defaults == alone.non_defaults
    except InputError:  # a setting of another version
        same = False
    if same and _preset_has_changed(alone, result):
        return Variant(variant | {PRESET: f"{preset} {EARLIER}"})
    return variant.without(*settings) if same else variant


def _preset_has_changed(preset: Job, result: Result) -> bool:
    """Returns whether the preset has changed since the run; False for old lines without settings.

    A setting that the line lacks is newer than the run, and then its default stands for it.
    """
    if not result.settings:
        return False
    fields = registry.get(preset.method).learner.__dataclass_fields__
    now = json.loads(json.dumps(preset.chosen_settings()))
    return any(result.settings.get(name, fields[name].default) != now[name] for name in now)
