"""Finished runs as a table: one row per method, dataset, memory and variant, over its seeds."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import count
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from onepass import lines, registry
from onepass.data.catalogue import CATALOGUE
from onepass.data.load import is_path
from onepass.errors import InputError, RunError, UnknownNameError
from onepass.record import finished_runs, warn_of_missing_points
from onepass.result import Result
from onepass.words import plain, rate

NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?", re.ASCII)
PAPER_STREAM, PAPER_BATCH = "class-incremental", 10
COLUMNS = (
    *("method", "variant", "dataset", "memory", "accuracy", "forgetting", "any-time", "n"),
    *("steps/s", "passes/sample", "kept"),
)


@dataclass(frozen=True)
class Spread:
    """A mean over n runs, and the sample standard deviation (none for one run)."""

    mean: float
    deviation: float | None

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Nothing where a value is missing.

        >>> print(Spread.over([90.0, 92.0, 94.0]))
        92.0 ± 2.0
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(mean(known), stdev(known) if len(known) > 1 else None)

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
    runs: int
    steps_per_second: float
    trained: float
    scored: float
    kept: int  # bytes: samples with all that is stored beside them, and copies of the network
    paper_dataset: str | None  # of the paper's data and stream: the name of the dataset


def read(*paths: Path) -> list[Result]:
    """The results of every finished run at or below folders, and those of files of lines. Those in
    folders come first: of a run that lies in both, the one with its events is shown."""
    folders = [path for path in paths if not lines.is_lines(path)]
    runs = [run for folder in folders for run in finished_runs(folder)]
    found = [result for run in runs if (result := run.result()) is not None]
    warn_of_missing_points(found)
    for path in paths:
        if lines.is_lines(path):
            found += lines.read(path)
    if not found:
        raise RunError(f"there is no finished run in {', '.join(map(str, paths))}")
    return found


def summarise(results: Sequence[Result]) -> list[Row]:
    return [_row(group) for group in grouped(results)]


def grouped(results: Sequence[Result]) -> list[list[Result]]:
    """The results of each row: those of one method, revision, variant, dataset and memory, in the
    order in which they first come. A run that lies in two folders, or that was made for two
    memories and uses none, counts once. Of two datasets with the same name each is shown by more of
    its path; a revision that is not the method's present one is part of the variant."""
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], Result]] = {}
    revisions: dict[tuple[Any, ...], set[int]] = {}
    names = _names_of_data(results)
    for result in results:
        named = replace(result, dataset=names[result.dataset, _data_of(result)])
        key = (named.dataset, named.memory, named.method, named.variant)
        same = (named.seed, named.state_sha256, named.accuracy)
        groups.setdefault((*key, named.revision), {}).setdefault(same, named)
        revisions.setdefault(key, set()).add(named.revision)
    return [
        row
        for key, group in groups.items()
        for row in _one_of_each_seed(
            [_with_revision(result, revisions[key[:-1]]) for result in group.values()]
        )
    ]


def _with_revision(result: Result, shown: set[int]) -> Result:
    """A result of another revision than the present one says so. One that was run before revisions
    were counted is of an unknown one, and says so where another one stands beside it."""
    method, revision = registry.METHODS.entries.get(result.method), result.revision
    if revision == (method.revision if method else max(shown)) or shown == {0}:
        return result
    word = f"revision={revision or 'unknown'}"
    return replace(result, variant=f"{word} {result.variant}".rstrip())


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
        [replace(run, variant=f"{run.variant} in {ends[folder]}".lstrip()) for run in row]
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
    """As much of the end of each path as makes them differ.

    >>> sorted(_told_apart({"/data/a/pets", "/data/b/pets"}).values())
    ['a/pets', 'b/pets']
    """
    for length in count(1):
        ends = {path: "/".join(Path(path).parts[-length:]) for path in paths}
        if len(set(ends.values())) == len(paths):
            break
    return ends


def _row(group: list[Result]) -> Row:
    def over(name: str) -> Spread | None:
        return Spread.over(getattr(result, name) for result in group)

    first = group[0]
    accuracy = over("accuracy")
    assert accuracy is not None
    return Row(
        method=first.method,
        variant=first.variant,
        dataset=first.dataset,
        memory=first.memory,
        accuracy=accuracy,
        forgetting=over("forgetting"),
        anytime=over("anytime_accuracy"),
        runs=len(group),
        steps_per_second=mean(result.steps_per_second for result in group),
        trained=first.trained_per_sample,
        scored=first.scored_per_sample,
        kept=max(result.memory_bytes + result.copy_bytes for result in group),
        paper_dataset=first.dataset_identity if all(map(as_in_the_paper, group)) else None,
    )


def as_in_the_paper(result: Result) -> bool:
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


def grid(
    rows: Sequence[Row],
    *,
    published: bool = False,
    apart: bool = False,
    columns: Sequence[str] = (),
) -> tuple[list[str], list[list[str]]]:
    """Header and cells: of these columns, or of all, with a column of variants only if there are
    any. `apart` puts means and deviations in columns of their own, for programs to read."""
    lines = [_cells(row, apart) for row in rows]
    if published:
        figures = published_accuracies()
        for row, line in zip(rows, lines, strict=True):
            key = (row.method, row.paper_dataset or "", row.memory)
            line["published"] = figures.get(key, "-")
    check_columns(columns, lines[0])
    varied = any(row.variant for row in rows)
    header = list(columns) or [name for name in lines[0] if varied or name != "variant"]
    return header, [[line[name] for name in header] for line in lines]


def check_columns(names: Iterable[str], valid: Iterable[str]) -> None:
    known = list(valid)
    for name in names:
        if name not in known:
            raise UnknownNameError("column", name, known)


def _cells(row: Row, apart: bool) -> dict[str, str]:
    measured = {"accuracy": row.accuracy, "forgetting": row.forgetting, "any-time": row.anytime}
    shown = {name: str(spread or "-") for name, spread in measured.items()}
    passes = {"trained/sample": f"{row.trained:.1f}", "scored/sample": f"{row.scored:.1f}"}
    together = " + ".join(passes.values()) if row.scored else passes["trained/sample"]
    return {
        "method": plain(row.method),
        "variant": plain(row.variant),
        "dataset": plain(row.dataset),
        "memory": str(row.memory),
        **(_numbers(measured) if apart else shown),
        "n": str(row.runs),
        "steps/s": f"{row.steps_per_second:.4f}" if apart else rate(row.steps_per_second),
        **(passes if apart else {"passes/sample": together}),
        **({"kept bytes": str(row.kept)} if apart else {"kept": _size(row.kept)}),
    }


def _size(count: int) -> str:
    """Bytes, for people.

    >>> _size(0), _size(7200), _size(3_080_000)
    ('-', '7.2 kB', '3.1 MB')
    """
    if not count:
        return "-"
    unit, name = (1e6, "MB") if count >= 1e6 else (1e3, "kB")
    return f"{count / unit:.1f} {name}"


def _numbers(measured: dict[str, Spread | None]) -> dict[str, str]:
    numbers: dict[str, float | None] = {}
    for name, spread in measured.items():
        numbers[name] = spread.mean if spread else None
        numbers[f"{name} sd"] = spread.deviation if spread else None
    return {name: "" if value is None else f"{value:.4f}" for name, value in numbers.items()}


def published_accuracies() -> dict[tuple[str, str, int], str]:
    """Accuracies as printed by their sources, by method, dataset and memory."""
    text = resources.files("onepass.report").joinpath("published.csv").read_text()
    found: dict[tuple[str, str, int], list[str]] = {}
    for entry in csv.DictReader(io.StringIO(text)):
        if entry["metric"] == "accuracy":
            spread = f" ± {entry['std']}" if entry["std"] else ""
            key = (entry["method"], entry["dataset"], int(entry["memory"]))
            found.setdefault(key, []).append(f"{entry['value']}{spread} ({entry['source']})")
    return {key: "; ".join(values) for key, values in found.items()}


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """>>> print(markdown(["method", "n"], [["er", "5"]]), end="")
    | method | n |
    |---|---|
    | er | 5 |
    """
    first, *others = ["| " + " | ".join(map(_in_markdown, line)) + " |" for line in (header, *body)]
    return "\n".join([first, "|" + "---|" * len(header), *others]) + "\n"


def _in_markdown(cell: str) -> str:
    """Nothing in a cell ends it, sets it in another way, or is HTML. Underscores inside of words
    and lone ampersands mean nothing and stay as they are."""
    return re.sub(r"[\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)", r"\\\g<0>", cell)


def latex(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A booktabs table.

    >>> print(latex(["method", "accuracy"], [["gsa", "90.1 ± 0.5"]]), end="")
    \\begin{tabular}{ll}
    \\toprule
    method & accuracy \\\\
    \\midrule
    gsa & $90.1 \\pm 0.5$ \\\\
    \\bottomrule
    \\end{tabular}
    """
    lines = [" & ".join(map(_in_latex, line)) + r" \\" for line in (header, *body)]
    rows = [r"\begin{tabular}{" + "l" * len(header) + "}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*rows, *lines[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


LATEX = {
    **{letter: rf"\{letter}" for letter in "_%&#{}$"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: f"{{{letter}}}" for letter in "[*"},  # would belong to the end of the line before
    "±": r"$\pm$",
}


def _in_latex(cell: str) -> str:
    escaped = "".join(LATEX.get(letter, letter) for letter in cell)
    return re.sub(r"([\d.]+) \$\\pm\$ ([\d.]+)", r"$\1 \\pm \2$", escaped)


def comma_separated(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in (header, *body):
        writer.writerow(map(_in_a_spreadsheet, line))
    return text.getvalue()


def _in_a_spreadsheet(cell: str) -> str:
    """A text that would be taken for a formula is marked as one, by the sign that spreadsheets
    have for that."""
    formula = cell.startswith(("=", "+", "-", "@")) and cell != "-"
    return f"'{cell}" if formula and not NUMBER.fullmatch(cell) else cell


FORMATS: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
