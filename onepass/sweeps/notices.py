"""What the user should know of finished runs that a sweep skips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from onepass.base.errors import RunError
from onepass.runs import environment
from onepass.runs.folder import RunFolder
from onepass.sweeps.runner import SurveyedRun


def notices(surveyed: Sequence[SurveyedRun], *, kept: bool) -> Iterator[str]:
    """Yields a line for each thing to know. `kept`: run folders stay when the sweep has ended."""
    watched = [run for run in surveyed if run.job.probes]
    if watched and not kept:
        yield "what probes say is not kept: it lies in run folders, which need --out"
    elif unwatched := [run for run in watched if _lacks_probes(run)]:
        yield (
            f"finished runs that not all of their probes watched are skipped: {len(unwatched)}, "
            f"such as {unwatched[0].job.folder_name}; another --out, and another --append file, "
            "run them again"
        )
    if changed := [run for run in surveyed if _method_has_changed(run)]:
        yield (
            f"finished runs of another state of their method's file are skipped: {len(changed)}, "
            f"such as {changed[0].job.folder_name}; another --out, or a higher revision of the "
            "method, runs them again"
        )


def _lacks_probes(run: SurveyedRun) -> bool:
    """Returns whether a run has finished without some of its probes. What they say lies in run
    folders and nowhere else, and a finished run is not watched again."""
    if run.result is None:
        return False
    return bool(set(run.job.probes) - set(_described(run.folder).get("probes", [])))


def _method_has_changed(run: SurveyedRun) -> bool:
    """Returns whether a run has finished and its method, one of the user's own, is another now."""
    if run.result is None or not (now := environment.method_source_digest(run.job.method)):
        return False
    last = environment.last_versions(_described(run.folder), run.result.other_versions)
    return bool(last.get("source", now) != now)


def _described(folder: RunFolder) -> dict[str, Any]:
    """Returns nothing if there is no such folder: the run is known by its line."""
    with suppress(RunError):
        return folder.description() or {}
    return {}
