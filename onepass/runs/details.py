"""The values of one run by section, and the differences between two runs."""

from __future__ import annotations

from typing import Any

from onepass.runs.find import FoundRun

Sections = dict[str, dict[str, Any]]
NAMES = {  # the values of each section, in display order
    "run": "identity method revision variant dataset dataset_identity data_sha256 samples "
    "validation memory seed normalise every prequential preset probes",
    "machine": "device gpu threads deterministic started commit dirty onepass torch numpy python "
    "system other_versions",
    "accuracy": "accuracy anytime_accuracy mean_task_accuracy prequential_accuracy forgetting "
    "forgetting_all_tasks learning_accuracy newest_accuracy class_accuracy",
    "time": "steps steps_done seconds steps_per_second scoring_seconds capture_seconds",
    "cost": "trained_per_sample scored_per_sample images_beside_steps memory_bytes copy_bytes",
    "bits": "params_sha256 state_sha256 points dropped",
}
STREAM = "stream tasks batch boundaries"
# The sections that describe the job and the machine, not the outcome
COMPARED_SECTIONS = ("run", "stream", "settings", "machine")
# Values that differ between any two runs, or that follow from others
NOT_COMPARED = frozenset(["identity", "started", "dirty", "samples", "classes"])
# Settings of the learner that the job passes on; they are compared in the section "run".
PASSED_BY_THE_JOB = frozenset(["seed", "device", "memory"])
OUTCOMES = (
    "accuracy",
    "anytime_accuracy",
    "forgetting",
    "learning_accuracy",
    "newest_accuracy",
    "seconds",
    "steps_per_second",
)


def details(entry: FoundRun) -> Sections:
    """Returns the values that are known of a run, by section. Values that are None and empty
    sections are left out."""
    job = entry.description.get("job")
    sources = (entry.values, job if isinstance(job, dict) else {}, entry.description)

    def known(names: str) -> dict[str, Any]:
        first = {
            name: next((s[name] for s in sources if name in s), None) for name in names.split()
        }
        return {name: value for name, value in first.items() if value is not None}

    sections = {
        "run": known(NAMES["run"]),
        "settings": entry.settings,
        "stream": _stream(entry, known(STREAM)),
        **{name: known(names) for name, names in NAMES.items() if name != "run"},
    }
    matrix = entry.get("accuracy_matrix")
    if matrix:
        sections["accuracy"]["accuracy_matrix"] = matrix
    return {name: section for name, section in sections.items() if section}


def _stream(entry: FoundRun, known: dict[str, Any]) -> dict[str, Any]:
    """Returns the stream's settings, and the values that the stream derived from them, which only
    run.json holds."""
    settings = entry.values.get("stream_settings")
    recorded = entry.description.get("stream")
    for source in (settings, recorded):
        if isinstance(source, dict):
            known = {**known, **source}
    return known


def differences(a: FoundRun, b: FoundRun) -> dict[str, tuple[Any, Any]]:
    """Returns the values of COMPARED_SECTIONS in which two runs differ, as pairs by `section.name`.
    A section that one run lacks is not compared.

    A setting that only one run has is a difference. So is any value that only one of two folders,
    or of two lines, holds. Between a folder and a line it is not, because a line records less.
    """
    details_a, details_b = details(a), details(b)
    same_kind = bool(a.description) == bool(b.description)
    found = {}
    for section in COMPARED_SECTIONS:
        left, right = details_a.get(section, {}), details_b.get(section, {})
        if left and right:
            all_names = same_kind or section == "settings"
            names = left.keys() | right.keys() if all_names else left.keys() & right.keys()
            elsewhere = PASSED_BY_THE_JOB if section in ("settings", "stream") else frozenset()
            for name in sorted(names - NOT_COMPARED - elsewhere):
                if left.get(name) != right.get(name):
                    found[f"{section}.{name}"] = (left.get(name), right.get(name))
    return found


def outcomes(a: FoundRun, b: FoundRun) -> dict[str, tuple[Any, Any]]:
    """Returns OUTCOMES of two runs as pairs by name, equal ones too."""
    return {name: (a.get(name), b.get(name)) for name in OUTCOMES}
