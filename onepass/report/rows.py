"""Finished runs as rows: one per method, dataset, memory and variant, with means over its seeds."""

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

ROW_KEYS = ("method", "variant", "dataset", "memory")  # two rows differ in at least one of these
# Settings that follow from others, or that the variant names because they only say how to compute.
IMPLIED = {"seed", "device", "memory", "mean", "std", "precision", "engine"}


@dataclass(frozen=True)
class Spread:
    """The mean over n runs, and their sample standard deviation (None for a single run)."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Returns the spread of the values that are known, or None if none is.

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
    """A row of a table: the results of runs that differ in nothing but the seed."""

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
        assert spread is not None  # every result has an accuracy
        return spread

    @cached_property
    def precision(self) -> str:
        """The precision of the network's arithmetic, or "bf16 and fp32" if the runs differ."""
        return " and ".join(sorted({result.precision for result in self.results}))

    @cached_property
    def device(self) -> str:
        return ", ".join(sorted({result.gpu or result.device for result in self.results}))

    @cached_property
    def stream(self) -> str:
        """Everything known about the stream, as JSON. Only rows with equal streams are compared."""
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
        """Bytes kept between batches: stored samples with their extra fields, and copies of the
        network. The largest value over the runs."""
        results = self.results
        known = [
            run.memory_bytes + run.copy_bytes for run in results if run.memory_bytes is not None
        ]
        return max(known, default=None)

    @cached_property
    def trained_at_scores(self) -> int:
        """Images that a run trains on whenever it is scored; its steps do not count them."""
        beside = [result.images_beside_steps.get("scores", {}) for result in self.results]
        return max(images.get("trained", 0) for images in beside)

    @property
    def accuracies(self) -> dict[int, float]:
        """Final accuracy by seed."""
        return {result.seed: result.accuracy for result in self.results}

    @property
    def forgettings(self) -> dict[int, float]:
        """Forgetting by seed, for the seeds where it is known."""
        known = ((result.seed, result.forgetting) for result in self.results)
        return {seed: value for seed, value in known if value is not None}

    def over(self, name: str) -> Spread | None:
        """Returns the spread of a field of the results, over the runs that have it."""
        return Spread.over(getattr(result, name) for result in self.results)


def summarise(results: Sequence[Result], *, per_run: bool = False) -> list[Row]:
    """Returns a row for each group of runs, or for each run."""
    groups = group_by_row(results)
    if per_run:
        groups = [[run] for group in groups for run in group]
    return [Row(group) for group in groups]


def group_by_row(results: Sequence[Result]) -> list[list[Result]]:
    """Returns the results of each row, in the order in which rows first appear.

    Runs share a row if they share method, revision, variant, dataset and memory. Copies of a run
    count once: one that lies in two folders, or that was made for two sizes of a memory it does
    not use. The variant gets a word more where it would hide a difference: a revision other than
    the method's present one, or settings of a preset that has changed. Datasets that share a name
    are shown by more of their paths.
    """
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], Result]] = {}
    revisions: dict[tuple[Any, ...], set[int]] = {}
    for result in with_distinct_datasets(results):
        key = (result.dataset, result.memory, result.method, str(result.variant))
        copy = (result.seed, result.state_sha256, result.accuracy)
        groups.setdefault((*key, result.revision), {}).setdefault(copy, result)
        revisions.setdefault(key, set()).add(result.revision)
    return [
        row
        for key, group in groups.items()
        for alike in _split_by_settings(
            [_with_revision(result, revisions[key[:-1]]) for result in group.values()]
        )
        for row in _split_repeated_seeds(alike)
    ]


def with_distinct_datasets(results: Sequence[Result]) -> list[Result]:
    """Returns the results, renamed so that no two datasets share a name."""
    names = _dataset_names(results)
    return [
        replace(result, dataset=names[result.dataset, _data_identity(result)]) for result in results
    ]


def _with_revision(result: Result, revisions: set[int]) -> Result:
    """Adds the revision to the variant unless it is the present one.

    `revisions` are those of all results that otherwise look the same. Revision 0 means that the run
    is older than the counting of revisions. It is named "unknown", but only beside another one.
    """
    method, revision = registry.facts(result.method), result.revision
    if revision == (method.revision if method else max(revisions)) or revisions == {0}:
        return result
    named = Variant({REVISION: str(revision or "unknown")})
    return replace(result, variant=Variant(named | result.variant))


def _split_by_settings(runs: list[Result]) -> list[list[Result]]:
    """Splits runs with equal variants whose settings differ, since a preset changed between them.

    The differing settings join the variant. Old runs that do not record their settings become a row
    of their own.
    """
    recorded = [run.settings for run in runs if run.settings] or [{}]
    common = set.intersection(*map(set, recorded)) - IMPLIED
    differing = sorted(
        name for name in common if any(settings[name] != recorded[0][name] for settings in recorded)
    )
    rows: dict[str, list[Result]] = {}
    for run in runs:
        values = {name: str(run.settings[name]) for name in differing if run.settings}
        row = rows.setdefault(str(values), [])
        row.append(replace(run, variant=Variant(run.variant | values)))
    return list(rows.values())


def _data_identity(result: Result) -> str:
    """Returns the name of one of our datasets, or the checksum of the user's own data (their path,
    in an older result)."""
    own = is_path(result.dataset_identity)
    return (result.data_sha256 if own else "") or result.dataset_identity


def _dataset_names(results: Sequence[Result]) -> dict[tuple[str, str], str]:
    """Returns the displayed name of each dataset, by its name and its identity.

    Datasets that share a name are shown by the ends of their paths. If their paths are equal too,
    because the data there changed, the beginning of the checksum follows.
    """
    paths: dict[str, dict[str, str]] = {}
    for result in results:
        same_name = paths.setdefault(result.dataset, {})
        same_name.setdefault(_data_identity(result), result.dataset_identity)
    names = {}
    for name, by_identity in paths.items():
        count = Counter(by_identity.values())
        ends = _distinct_endings(set(count)) if len(by_identity) > 1 else dict.fromkeys(count, name)
        for identity, path in by_identity.items():
            names[name, identity] = ends[path] + (f" {identity[:8]}" if count[path] > 1 else "")
    return names


def _split_repeated_seeds(runs: list[Result]) -> list[list[Result]]:
    """Splits runs in which a seed has several results, for example of two versions of onepass.

    Each folder of runs, or file of lines, then becomes a row, and its name joins the variant.
    """
    if len({run.seed for run in runs}) == len(runs):
        return [runs]
    folders: dict[str, list[Result]] = {}
    for run in runs:
        folder = lines.file_of_line(run.out) or str(Path(run.out).parent)
        folders.setdefault(folder, []).append(run)
    rows = {folder: _first_of_each_seed(inside) for folder, inside in folders.items()}
    if len(rows) == 1:
        return list(rows.values())
    ends = _distinct_endings(set(rows))
    return [
        [replace(run, variant=Variant(run.variant | {FOLDER: ends[folder]})) for run in row]
        for folder, row in rows.items()
    ]


def _first_of_each_seed(runs: list[Result]) -> list[Result]:
    """Returns the first run of each seed in a folder.

    A method without a memory may be there once per size of the memory, with other bits on a GPU.
    Any other repeated seed is an error.
    """
    first: dict[int, Result] = {}
    for run in runs:
        known = first.setdefault(run.seed, run)
        if known is not run and run.memory:
            raise InputError(f"{known.out} and {run.out} are two results of one seed")
    return list(first.values())


def _distinct_endings(paths: set[str]) -> dict[str, str]:
    """Returns the shortest endings that tell the paths apart, or the paths themselves if two are
    spellings of the same path.

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
