"""Warns before a sweep starts: about records of probes that will be lost, and about finished runs
that are skipped although they lack records or their method has changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from onepass.base.errors import RunError
from onepass.runs import environment
from onepass.runs.folder import RunFolder
from onepass.sweeps.runner import SurveyedRun


def notices(surveyed: Sequence[SurveyedRun], *, kept: bool) -> Iterator[str]:
    """Yields a text for each warning. `kept` says whether run folders stay after the sweep."""
    watched = [run for run in surveyed if run.job.probes]
    if watched and not kept:
        yield (
            "the records of probes are lost when the sweep ends: they are in run folders, which "
            "only --out keeps"
        )
    elif unwatched := [run for run in watched if _lacks_probes(run)]:
        yield (
            f"finished runs without records of all their probes are skipped: {len(unwatched)}, "
            f"such as {unwatched[0].job.folder_name}; another --out, and another --append file, "
            "run them again"
        )
    if changed := [run for run in surveyed if _method_has_changed(run)]:
        yield (
            f"finished runs whose method's file has changed since are skipped: {len(changed)}, "
            f"such as {changed[0].job.folder_name}; another --out, or a higher revision of the "
            "method, runs them again"
        )


def _lacks_probes(run: SurveyedRun) -> bool:
    """Returns whether a run has finished without some of its probes. A run known only by a line
    lacks them all, because their records are in its folder."""
    if run.result is None:
        return False
    return bool(set(run.job.probes) - set(_described(run.folder).get("probes", [])))


def _method_has_changed(run: SurveyedRun) -> bool:
    """Returns whether a run has finished and the source file of its method has changed since. Only
    files of the user's own methods are compared."""
    if run.result is None or not (now := environment.method_source_digest(run.job.method)):
        return False
    last = environment.last_versions(_described(run.folder), run.result.other_versions)
    return bool(last.get("source", now) != now)


def _described(folder: RunFolder) -> dict[str, Any]:
    """Returns the content of run.json; an empty dictionary if the folder has no readable one."""
    with suppress(RunError):
        return folder.description() or {}
    return {}
