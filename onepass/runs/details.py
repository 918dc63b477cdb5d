"""All that is known of one run, and what differs between two."""

from __future__ import annotations

from typing import Any

from onepass.runs.find import FoundRun

Sections = dict[str, dict[str, Any]]
NAMES = {
    "run": "identity method revision variant dataset dataset_identity data_sha256 samples "
    "validation memory seed normalise every prequential preset probes",
    "machine": "device gpu threads deterministic started commit dirty onepass torch numpy python "
    "system other_versions",
    "accuracy": "accuracy anytime_accuracy mean_task_accuracy prequential_accuracy forgetting "
    "forgetting_all_tasks class_accuracy",
    "time": "steps steps_done seconds steps_per_second scoring_seconds capture_seconds",
    "cost": "trained_per_sample scored_per_sample images_beside_steps memory_bytes copy_bytes",
    "bits": "params_sha256 state_sha256 points dropped",
}
STREAM = "stream tasks batch boundaries"
# Which of them say what was asked and where, and not what came out.
COMPARED_SECTIONS = ("run", "stream", "settings", "machine")
# What is another one in any two runs, or follows from the rest.
NOT_COMPARED = frozenset(["identity", "started", "dirty", "samples", "classes"])
PASSED_BY_THE_JOB = frozenset(["seed", "device", "memory"])  # which passes them on
OUTCOMES = ("accuracy", "anytime_accuracy", "forgetting", "seconds", "steps_per_second")


def details(entry: FoundRun) -> Sections:
    """Everything, by subject; a section of which nothing is known is left out."""
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
    """As its table says; the record of a run also has what the stream made of it."""
    table = entry.values.get("stream_settings")
    recorded = entry.description.get("stream")
    for one in (table, recorded):
        if isinstance(one, dict):
            known = {**known, **one}
    return known


def differences(a: FoundRun, b: FoundRun) -> dict[str, tuple[Any, Any]]:
    """What was asked otherwise, by section and name. What only one of two folders, or of two lines,
    tells is a difference; a line beside a folder just knows less of its machine."""
    one, other = details(a), details(b)
    alike = bool(a.description) == bool(b.description)
    found = {}
    for section in COMPARED_SECTIONS:
        left, right = one.get(section, {}), other.get(section, {})
        if left and right:
            whole = alike or section == "settings"
            names = left.keys() | right.keys() if whole else left.keys() & right.keys()
            told = PASSED_BY_THE_JOB if section in ("settings", "stream") else frozenset()
            for name in sorted(names - NOT_COMPARED - told):
                if left.get(name) != right.get(name):
                    found[f"{section}.{name}"] = (left.get(name), right.get(name))
    return found


def outcomes(a: FoundRun, b: FoundRun) -> dict[str, tuple[Any, Any]]:
    """What came of each, whether it differs or not."""
    return {name: (a.get(name), b.get(name)) for name in OUTCOMES}
