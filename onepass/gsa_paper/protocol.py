"""Which runs published figures stand beside: what was learned there, and with which settings."""

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
EARLIER = "earlier"  # of a variant by a preset that is another one now
# How a run is carried out and watched, and not what it learns.
EXECUTION = ("precision", "engine", "threads", "deterministic", "every", "prequential")


def follows_paper(result: Result) -> bool:
    """Whether a run learned what published figures are of: all of a dataset, in the paper's number
    of tasks, batch by batch of ten. Data are known by their place in the catalogue and by how many
    samples of each class there are, never by the name of a file; a result that does not record all
    that is of an older version, and is not known to be."""
    entry = CATALOGUE.get(result.dataset_identity)
    return (
        entry is not None
        and result.samples == [list(entry.train), list(entry.test)]
        and (result.stream, result.batch) == (PAPER_STREAM, PAPER_BATCH)
        and result.tasks == entry.tasks
        and result.boundaries
    )


def learning_variant(result: Result) -> Variant:
    """Returns the variant without how and where the run was carried out, and without settings that
    change nothing: those that are so by default, by the preset, or by what it makes of such data
    (MNIST has no mirror images). Empty for a method's common settings in the usual class order."""
    variant = result.variant.without(FOLDER, *EXECUTION)
    if result.method not in registry.METHODS.names():
        return variant
    learner = registry.get(result.method).learner
    preset = variant.get(PRESET, COMMON)
    if preset not in preset_names(learner):
        preset = COMMON
    settings = variant.only(setting_names(learner))
    alone = Job(result.method, result.dataset_identity, preset=preset)
    # a variant leaves out what is as in the preset: there the data decided nothing
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
    """Whether the preset by which a run was made was another one then; old lines do not tell. A
    setting that a line does not have came later, and leaves things as they were by default."""
    if not result.settings:
        return False
    fields = registry.get(preset.method).learner.__dataclass_fields__
    now = json.loads(json.dumps(preset.chosen_settings()))
    return any(result.settings.get(name, fields[name].default) != now[name] for name in now)
