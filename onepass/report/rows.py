"""Finished runs as a table: one row per method, dataset, memory and variant, over its seeds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from onepass.base.errors import InputError
from onepass.data.known import is_path
from onepass.learning import registry
from onepass.runs import lines
from onepass.runs.result import Result
from onepass.runs.variant import FOLDER, REVISION, Variant

ROW_KEYS = ("method", "variant", "dataset", "memory")  # which tell rows apart
# Settings that follow from the rest, or say how a run is carried out, which the variant names.
IMPLIED = {"seed", "device", "memory", "mean", "std", "precision", "engine"}


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
    """One line of the table: runs that differ in nothing but the seed."""

    results: Sequence[Result]

    @property
    def first(self) -> Result:
        return self.results[0]

    @property
    def method(self) -> str:
        return self.first.method

    @property
    def variant(self) -> Variant:
        return self.first.variant

    @property
    def dataset(self) -> str:
        return self.first.dataset

    @property
    def memory(self) -> int:
        return self.first.memory

    @cached_property
    def accuracy(self) -> Spread:
        spread = self.over("accuracy")
        assert spread is not None  # every result has one
        return spread

    @cached_property
    def precision(self) -> str:
        """Of the network's arithmetic; both, if there are two in one mean."""
        return " and ".join(sorted({result.precision for result in self.results}))

    @cached_property
    def device(self) -> str:
        return ", ".join(sorted({result.gpu or result.device for result in self.results}))

    @cached_property
    def stream(self) -> str:
        """All that is known of what was learned from: rows are comparable if they share it."""
        first = self.first
        return json.dumps(
            [
                *(_data_identity(first), first.stream, first.stream_settings, first.tasks),
                *(first.batch, first.boundaries, first.validation, first.samples),
            ],
            sort_keys=True,
        )

    @cached_property
    def kept(self) -> int | None:
        """Bytes: samples, all that is stored beside them, and copies of the network."""
        results = self.results
        known = [
            run.memory_bytes + run.copy_bytes for run in results if run.memory_bytes is not None
        ]
        return max(known, default=None)

    @cached_property
    def trained_at_scores(self) -> int:
        """Images in a run, which are not among those of its steps."""
        beside = [result.images_beside_steps.get("scores", {}) for result in self.results]
        return max(images.get("trained", 0) for images in beside)

    @property
    def accuracies(self) -> dict[int, float]:
        return {result.seed: result.accuracy for result in self.results}

    @property
    def forgettings(self) -> dict[int, float]:
        known = ((result.seed, result.forgetting) for result in self.results)
        return {seed: value for seed, value in known if value is not None}

    def over(self, name: str) -> Spread | None:
        """Returns the spread of a value of the results over the runs that have it."""
        return Spread.over(getattr(result, name) for result in self.results)


def summarise(results: Sequence[Result], *, per_run: bool = False) -> list[Row]:
    """A row for each group of runs, or for each run."""
    groups = group_by_row(results)
    if per_run:
        groups = [[run] for group in groups for run in group]
    return [Row(group) for group in groups]


def group_by_row(results: Sequence[Result]) -> list[list[Result]]:
    """The results of each row: those of one method, revision, variant, dataset and memory, in the
    order in which they first come. A run that lies in two folders, or that was made for two
    memories and uses none, counts once. Of two datasets with the same name each is shown by more of
    its path; a revision that is not the method's present one is part of the variant, and so are
    settings that differ in spite of it."""
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], Result]] = {}
    revisions: dict[tuple[Any, ...], set[int]] = {}
    for named in with_distinct_datasets(results):
        key = (named.dataset, named.memory, named.method, str(named.variant))
        same = (named.seed, named.state_sha256, named.accuracy)
        groups.setdefault((*key, named.revision), {}).setdefault(same, named)
        revisions.setdefault(key, set()).add(named.revision)
    return [
        row
        for key, group in groups.items()
        for alike in _split_by_settings(
            [_with_revision(result, revisions[key[:-1]]) for result in group.values()]
        )
        for row in _split_repeated_seeds(alike)
    ]


def with_distinct_datasets(results: Sequence[Result]) -> list[Result]:
    """The same, but that two datasets have two names."""
    names = _dataset_names(results)
    return [replace(one, dataset=names[one.dataset, _data_identity(one)]) for one in results]


def _with_revision(result: Result, shown: set[int]) -> Result:
    """A result of another revision than the present one says so. One that was run before revisions
    were counted is of an unknown one, and says so where another one stands beside it."""
    method, revision = registry.facts(result.method), result.revision
    if revision == (method.revision if method else max(shown)) or shown == {0}:
        return result
    told = Variant({REVISION: str(revision or "unknown")})
    return replace(result, variant=Variant(told | result.variant))


def _split_by_settings(runs: list[Result]) -> list[list[Result]]:
    """One row, unless settings differ that the variant does not name: a preset has changed between
    two runs. Then they are part of it, and old lines, which do not tell their settings, are a
    row of their own."""
    told = [run.settings for run in runs if run.settings] or [{}]
    shared = set.intersection(*map(set, told)) - IMPLIED
    differing = sorted(name for name in shared if any(one[name] != told[0][name] for one in told))
    rows: dict[str, list[Result]] = {}
    for run in runs:
        values = {name: str(run.settings[name]) for name in differing if run.settings}
        row = rows.setdefault(str(values), [])
        row.append(replace(run, variant=Variant(run.variant | values)))
    return list(rows.values())


def _data_identity(result: Result) -> str:
    """Which data: a name of ours, or what the user's own hold; of an older run, where they lay."""
    own = is_path(result.dataset_identity)
    return (result.data_sha256 if own else "") or result.dataset_identity


def _dataset_names(results: Sequence[Result]) -> dict[tuple[str, str], str]:
    """How each dataset is shown, by its name and by which data it is: those that share a name, by
    the ends of their paths, and if they also lay at one place, one after another, by what they
    hold."""
    places: dict[str, dict[str, str]] = {}
    for result in results:
        same_name = places.setdefault(result.dataset, {})
        same_name.setdefault(_data_identity(result), result.dataset_identity)
    shown = {}
    for name, found in places.items():
        taken = Counter(found.values())
        ends = _distinct_endings(set(taken)) if len(found) > 1 else dict.fromkeys(taken, name)
        for which, place in found.items():
            shown[name, which] = ends[place] + (f" {which[:8]}" if taken[place] > 1 else "")
    return shown


def _split_repeated_seeds(runs: list[Result]) -> list[list[Result]]:
    """One row, unless a seed has several results, of two versions say: these are not two seeds.
    Then each folder of runs, or file of lines, is a row, and its name is part of the variant."""
    if len({run.seed for run in runs}) == len(runs):
        return [runs]
    folders: dict[str, list[Result]] = {}
    for run in runs:
        place = lines.file_of_line(run.out) or str(Path(run.out).parent)
        folders.setdefault(place, []).append(run)
    rows = {folder: _first_of_each_seed(inside) for folder, inside in folders.items()}
    if len(rows) == 1:
        return list(rows.values())
    ends = _distinct_endings(set(rows))
    return [
        [replace(run, variant=Variant(run.variant | {FOLDER: ends[folder]})) for run in row]
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


def _distinct_endings(paths: set[str]) -> dict[str, str]:
    """As much of the end of each path as makes them differ; all of it where one place is written in
    two ways.

    >>> sorted(_distinct_endings({"/data/a/pets", "/data/b/pets"}).values())
    ['a/pets', 'b/pets']
    >>> sorted(_distinct_endings({"/data/pets", "/data/pets/"}).values())
    ['/data/pets', '/data/pets/']
    """
    parts = {path: Path(path).parts for path in paths}
    for length in range(1, max(map(len, parts.values())) + 1):
        ends = {path: "/".join(parts[path][-length:]) for path in paths}
        if len(set(ends.values())) == len(paths):
            return ends
    return {path: path for path in paths}
