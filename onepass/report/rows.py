"""Groups finished runs into rows: one for each method, dataset, memory and variant. A row has means
over its seeds."""

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
from onepass.learning import registry
from onepass.runs import lines
from onepass.runs.result import Result
from onepass.runs.variant import FOLDER, REVISION, Variant

UNCOUNTED = "uncounted"  # in a variant: results of seeds that have one already
SPLITTING = ("source", "device")  # a row has one of each; named only if alike results differ
ROW_KEYS = ("method", "variant", "dataset", "memory")  # two rows differ in at least one of these
# Settings that never split a row. They follow from other fields, or (precision and engine) the
# variant names them already.
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
    """A row of a table: the results of runs that differ only in the seed, and perhaps in the
    machine."""

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
                *(first.dataset, first.stream, first.stream_settings, first.tasks),
                *(first.batch, first.boundaries, first.validation, first.samples),
            ],
            sort_keys=True,
        )

    @cached_property
    def kept(self) -> int | None:
        """Bytes kept between batches: stored samples with their extra fields, and copies of the
        network. The largest value over the runs; None if no run recorded it."""
        results = self.results
        known = [
            run.memory_bytes + run.copy_bytes for run in results if run.memory_bytes is not None
        ]
        return max(known, default=None)

    @cached_property
    def trained_at_scores(self) -> int:
        """Images that a whole run trains on when it is scored, outside of its steps. The largest
        value over the runs."""
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
    """Returns the rows of `group_by_row`; with `per_run`, a row for each of their runs."""
    groups = group_by_row(results)
    if per_run:
        groups = [[run] for group in groups for run in group]
    return [Row(group) for group in groups]


def group_by_row(results: Sequence[Result]) -> list[list[Result]]:
    """Returns the results of each row, in the order in which rows first appear.

    Runs share a row if they share method, revision, source file, variant, dataset, memory and
    device. Copies of a run count once: one that lies in two folders, or that was made for two sizes
    of a memory it does not use. The variant gets a word more where it would hide a difference, such
    as a revision other than the method's present one, or settings of a preset that has changed.
    Datasets that share a name are shown by more of their paths, or with their checksums.

    Raises an InputError if two results of one run disagree although they promise the same bits.
    """
    _expect_equal_bits(results)
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], Result]] = {}
    alike: dict[tuple[Any, ...], list[Result]] = {}
    for result in with_distinct_datasets(results):
        key = (result.dataset, result.memory, result.method, str(result.variant))
        splitting = (result.revision, *(getattr(result, name) for name in SPLITTING))
        copy = (result.seed, result.state_sha256, result.accuracy)
        groups.setdefault((key, splitting), {}).setdefault(copy, result)
        alike.setdefault(key, []).append(result)
    return [
        row
        for (key, _), group in groups.items()
        for same in _split_by_settings(
            [_naming_differences(result, alike[key]) for result in group.values()]
        )
        for row in _split_repeated_seeds(same)
    ]


def _expect_equal_bits(results: Sequence[Result]) -> None:
    """Raises an InputError if a run has two results with different accuracies, made where its bits
    repeat: one of them was edited, or does not belong to these settings."""
    first: dict[tuple[Any, ...], Result] = {}
    for result in results:
        if not (result.identity and _repeats_bits(result)):
            continue
        key = (result.identity, result.processor, result.gpu, result.torch, result.commit)
        known = first.setdefault(key, result)
        if (known.accuracy, known.accuracy_matrix) != (result.accuracy, result.accuracy_matrix):
            raise InputError(
                f"{known.out} and {result.out} are results of one run and disagree, though its "
                "bits repeat there: one of them was changed; leave it out"
            )


def _repeats_bits(result: Result) -> bool:
    """Returns whether a run repeats bit for bit on this kind of processor (the identity has the
    number of threads). Early results do not record the processor."""
    if not (result.processor and result.torch) or result.other_versions:
        return False
    return result.device == "cpu" or "deterministic" in result.variant


def with_distinct_datasets(results: Sequence[Result]) -> list[Result]:
    """Returns the results, with names of their datasets that differ if the data do."""
    checksums: dict[str, set[str]] = {}
    for result in results:
        checksums.setdefault(result.dataset_identity, set()).add(result.data_sha256)
    identities = [
        _data_identity(result, checksums[result.dataset_identity] - {""}) for result in results
    ]
    names = _dataset_names(results, identities)
    return [
        replace(result, dataset=names[result.dataset, identity])
        for result, identity in zip(results, identities, strict=True)
    ]


def _naming_differences(result: Result, alike: Sequence[Result]) -> Result:
    """Adds to the variant in what a result differs from those that otherwise look the same.

    The revision is added whenever it is not the present one. Revision 0 means that the run is older
    than the counting of revisions. It is named "unknown", but only beside another one.
    """
    revisions = {other.revision for other in alike}
    method, revision = registry.facts(result.method), result.revision
    named = {}
    if revision != (method.revision if method else max(revisions)) and revisions != {0}:
        named[REVISION] = str(revision or "unknown")
    for name in SPLITTING:
        if len({getattr(other, name) for other in alike}) > 1:
            named[name] = getattr(result, name) or "unknown"
    return replace(result, variant=Variant(named | result.variant)) if named else result


def _split_by_settings(runs: list[Result]) -> list[list[Result]]:
    """Returns the rows of runs whose variants are equal. Runs whose settings differ, because a
    preset changed between them, get rows of their own.

    The differing settings join the variant. If some differ, old runs that do not record their
    settings are a row of their own.
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


def _data_identity(result: Result, checksums: set[str]) -> str:
    """Returns what tells a result's data apart: their checksum. An early result has none: its data
    are those of the only checksum known for that dataset, else its name or path."""
    if result.data_sha256 or len(checksums) != 1:
        return result.data_sha256 or result.dataset_identity
    return next(iter(checksums))


def _dataset_names(
    results: Sequence[Result], identities: Sequence[str]
) -> dict[tuple[str, str], str]:
    """Returns the displayed name of each dataset, by its name and its identity.

    Datasets that share a name are shown by the ends of their paths. If their paths are equal too,
    because the data there changed or another machine has other files, the beginning of the checksum
    follows.
    """
    paths: dict[str, dict[str, str]] = {}
    for result, identity in zip(results, identities, strict=True):
        same_name = paths.setdefault(result.dataset, {})
        same_name.setdefault(identity, result.dataset_identity)
    names = {}
    for name, by_identity in paths.items():
        count = Counter(by_identity.values())
        ends = _distinct_endings(set(count)) if len(by_identity) > 1 else dict.fromkeys(count, name)
        for identity, path in by_identity.items():
            names[name, identity] = ends[path] + (f" {identity[:8]}" if count[path] > 1 else "")
    return names


def _split_repeated_seeds(runs: list[Result]) -> list[list[Result]]:
    """Returns all runs as one row, or several rows if a seed has several results, for example of
    two versions of onepass.

    Each folder of runs, or results file, then becomes a row, and its name joins the variant.
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
    """Returns the first run of each seed in a folder; the variant of all says how many runs are not
    counted. A seed has two results if bits do not repeat, as on a GPU."""
    first: dict[int, Result] = {}
    for run in runs:
        first.setdefault(run.seed, run)
    uncounted = {UNCOUNTED: str(len(runs) - len(first))} if len(runs) > len(first) else {}
    return [replace(run, variant=Variant(run.variant | uncounted)) for run in first.values()]


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
