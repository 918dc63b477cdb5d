"""Finished runs as a table: one row per method, dataset, memory and variant, over its seeds."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from onepass.base.errors import InputError, RunError
from onepass.data.load import is_path
from onepass.gsa_paper.protocol import PLACE, as_in_the_paper, precision_of, what_was_chosen
from onepass.learning import registry
from onepass.runs import lines
from onepass.runs.folder import finished_runs, warn_of_missing_points
from onepass.runs.query import of_results
from onepass.runs.result import Result

KEYS = ("method", "variant", "dataset", "memory")  # which tell rows apart
# settings that follow from the rest, and how a run is carried out, which the variant names
NOT_CHOSEN = {"seed", "device", "memory", "mean", "std", "precision", "engine"}
log = logging.getLogger("onepass")


@dataclass(frozen=True)
class Spread:
    """A mean over n runs, and the sample standard deviation (none for one run)."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Of those that are known; nothing if none is.

        >>> print(Spread.over([90.0, 92.0, 94.0]))
        92.0 ± 2.0
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(mean(known), stdev(known) if len(known) > 1 else None, len(known))

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ± {self.deviation:.1f}"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    method: str
    variant: str
    dataset: str
    memory: int
    accuracy: Spread
    forgetting: Spread | None
    anytime: Spread | None
    seconds: Spread | None
    runs: int
    steps_per_second: float | None
    trained: float | None
    scored: float | None
    trained_at_scores: int  # images, in a run; those of steps are not among them
    scoring_seconds: float
    kept: int | None  # bytes: samples, all that is stored beside them, and copies of the network
    device: str
    precision: str  # of the network's arithmetic; both, if there are two in one mean
    paper_dataset: str | None  # of the paper's data and stream: the name of the dataset
    as_published: bool  # and of the method's common settings, in its present revision
    stream: str  # all that is known of it: rows are comparable if they share it
    accuracies: Mapping[int, float]  # by seed
    forgettings: Mapping[int, float]  # likewise, of those that have one
    where: str  # of the first run


def read(*paths: Path, where: Sequence[str] = ()) -> list[Result]:
    """The results of every finished run at or below folders, and those of files of lines, also of
    such that lie in a folder; of these the ones that meet every condition (`--where`). Those of
    runs' own folders come first: of a run that lies in both, the one with its events is shown.
    Lines of anything else are passed over, and counted aloud."""
    folders = [path for path in paths if not lines.is_lines(path)]
    runs = [run for folder in folders for run in finished_runs(folder)]
    found = [result for run in runs if (result := run.result()) is not None]
    warn_of_missing_points(found)
    others: dict[Path, int] = {}
    for path in dict.fromkeys(file for given in paths for file in lines.files_at(given)):
        results, others[path] = lines.read_among_others(path)
        found += results
    if not found:
        raise RunError(f"there is no finished run in {', '.join(map(str, paths))}")
    if passed := [path for path, number in others.items() if number]:
        number, places = sum(others.values()), ", ".join(map(str, passed))
        log.warning(
            "passed over, since they are no results of runs: %d lines of %s", number, places
        )
    return of_results(found, where)


def summarise(results: Sequence[Result], *, per_run: bool = False) -> list[Row]:
    """A row for each group of runs, or for each run."""
    groups = grouped(results)
    return [
        _row(one) for one in ([[run] for group in groups for run in group] if per_run else groups)
    ]


def grouped(results: Sequence[Result]) -> list[list[Result]]:
    """The results of each row: those of one method, revision, variant, dataset and memory, in the
    order in which they first come. A run that lies in two folders, or that was made for two
    memories and uses none, counts once. Of two datasets with the same name each is shown by more of
    its path; a revision that is not the method's present one is part of the variant, and so are
    settings that differ in spite of it."""
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], Result]] = {}
    revisions: dict[tuple[Any, ...], set[int]] = {}
    for named in told_apart(results):
        key = (named.dataset, named.memory, named.method, named.variant)
        same = (named.seed, named.state_sha256, named.accuracy)
        groups.setdefault((*key, named.revision), {}).setdefault(same, named)
        revisions.setdefault(key, set()).add(named.revision)
    return [
        row
        for key, group in groups.items()
        for alike in _of_the_same_settings(
            [_with_revision(result, revisions[key[:-1]]) for result in group.values()]
        )
        for row in _one_of_each_seed(alike)
    ]


def told_apart(results: Sequence[Result]) -> list[Result]:
    """The same, but that two datasets have two names."""
    names = _names_of_data(results)
    return [replace(one, dataset=names[one.dataset, _data_of(one)]) for one in results]


def _with_revision(result: Result, shown: set[int]) -> Result:
    """A result of another revision than the present one says so. One that was run before revisions
    were counted is of an unknown one, and says so where another one stands beside it."""
    method, revision = registry.METHODS.entries.get(result.method), result.revision
    if revision == (method.revision if method else max(shown)) or shown == {0}:
        return result
    word = f"revision={revision or 'unknown'}"
    return replace(result, variant=f"{word} {result.variant}".rstrip())


def _of_the_same_settings(runs: list[Result]) -> list[list[Result]]:
    """One row, unless settings differ that the variant does not name: a preset has changed between
    two runs. Then they are part of it, and old lines, which do not tell their settings, are a
    row of their own."""
    told = [run.settings for run in runs if run.settings] or [{}]
    shared = set.intersection(*map(set, told)) - NOT_CHOSEN
    differing = sorted(name for name in shared if any(one[name] != told[0][name] for one in told))
    rows: dict[str, list[Result]] = {}
    for run in runs:
        words = " ".join(f"{name}={run.settings[name]}" for name in differing if run.settings)
        rows.setdefault(words, []).append(replace(run, variant=f"{run.variant} {words}".strip()))
    return list(rows.values())


def _data_of(result: Result) -> str:
    """Which data: a name of ours, or what the user's own hold; of an older run, where they lay."""
    own = is_path(result.dataset_identity)
    return (result.data_sha256 if own else "") or result.dataset_identity


def _names_of_data(results: Sequence[Result]) -> dict[tuple[str, str], str]:
    """How each dataset is shown, by its name and by which data it is: those that share a name, by
    the ends of their paths, and if they also lay at one place, one after another, by what they
    hold."""
    places: dict[str, dict[str, str]] = {}
    for result in results:
        same_name = places.setdefault(result.dataset, {})
        same_name.setdefault(_data_of(result), result.dataset_identity)
    shown = {}
    for name, found in places.items():
        taken = Counter(found.values())
        ends = _told_apart(set(taken)) if len(found) > 1 else dict.fromkeys(taken, name)
        for which, place in found.items():
            shown[name, which] = ends[place] + (f" {which[:8]}" if taken[place] > 1 else "")
    return shown


def _one_of_each_seed(runs: list[Result]) -> list[list[Result]]:
    """One row, unless a seed has several results, of two versions say: these are not two seeds.
    Then each folder of runs, or file of lines, is a row, and its name is part of the variant."""
    if len({run.seed for run in runs}) == len(runs):
        return [runs]
    folders: dict[str, list[Result]] = {}
    for run in runs:
        place = lines.file_of(run.out) or str(Path(run.out).parent)
        folders.setdefault(place, []).append(run)
    rows = {folder: _first_of_each_seed(inside) for folder, inside in folders.items()}
    if len(rows) == 1:
        return list(rows.values())
    ends = _told_apart(set(rows))
    return [
        [replace(run, variant=f"{run.variant} {PLACE} {ends[folder]}".lstrip()) for run in row]
        for folder, row in rows.items()
    ]


def _first_of_each_seed(runs: list[Result]) -> list[Result]:
    """In one folder a seed is there twice if a method without memory was run for several, on a GPU
    whose bits differ, or if somebody put it there."""
    first: dict[int, Result] = {}
    for run in runs:
        known = first.setdefault(run.seed, run)
        if known is not run and run.memory:
            raise InputError(f"{known.out} and {run.out} are two results of one seed")
    return list(first.values())


def _told_apart(paths: set[str]) -> dict[str, str]:
    """As much of the end of each path as makes them differ; all of it where one place is written in
    two ways.

    >>> sorted(_told_apart({"/data/a/pets", "/data/b/pets"}).values())
    ['a/pets', 'b/pets']
    >>> sorted(_told_apart({"/data/pets", "/data/pets/"}).values())
    ['/data/pets', '/data/pets/']
    """
    parts = {path: Path(path).parts for path in paths}
    for length in range(1, max(map(len, parts.values())) + 1):
        ends = {path: "/".join(parts[path][-length:]) for path in paths}
        if len(set(ends.values())) == len(paths):
            return ends
    return {path: path for path in paths}


def _row(group: list[Result]) -> Row:
    def over(name: str) -> Spread | None:
        return Spread.over(getattr(result, name) for result in group)

    first = group[0]
    accuracy = over("accuracy")
    assert accuracy is not None
    kept = [one.memory_bytes + one.copy_bytes for one in group if one.memory_bytes is not None]
    speed = Spread.over(one.steps_per_second for one in group)
    devices = {one.gpu or one.device for one in group}
    in_the_paper = all(map(as_in_the_paper, group))
    return Row(
        method=first.method,
        variant=first.variant,
        dataset=first.dataset,
        memory=first.memory,
        accuracy=accuracy,
        forgetting=over("forgetting"),
        anytime=over("anytime_accuracy"),
        seconds=over("seconds"),
        runs=len(group),
        steps_per_second=speed.mean if speed else None,
        trained=first.trained_per_sample,
        scored=first.scored_per_sample,
        trained_at_scores=max(map(_trained_at_scores, group)),
        scoring_seconds=mean(one.scoring_seconds for one in group),
        kept=max(kept, default=None),
        device=", ".join(sorted(devices)),
        precision=" and ".join(sorted(set(map(precision_of, group)))),
        paper_dataset=first.dataset_identity if in_the_paper else None,
        as_published=in_the_paper and not any(map(what_was_chosen, group)),
        stream=_stream_of(first),
        accuracies={one.seed: one.accuracy for one in group},
        forgettings={one.seed: one.forgetting for one in group if one.forgetting is not None},
        where=first.out,
    )


def _trained_at_scores(result: Result) -> int:
    return result.images_beside_steps.get("scores", {}).get("trained", 0)


def _stream_of(result: Result) -> str:
    """What was learned from, as far as a result tells."""
    return json.dumps(
        [
            *(_data_of(result), result.stream, result.stream_settings, result.tasks),
            *(result.batch, result.boundaries, result.validation, result.samples),
        ],
        sort_keys=True,
    )
