"""The paper's own tables, in its order of rows and columns: ours beside what it prints.

    table1  accuracy, and table2  forgetting: methods by datasets and sizes of memory
    table3  accuracy of gsa with parts of it taken away

A run belongs there if it learned the paper's stream (`follows_paper`) with a method's common
settings; where it ran and how often it was scored makes no difference. Of several runs of one seed
the first counts. What was not run is shown as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onepass.base.errors import InputError, UnknownNameError
from onepass.base.text import printable
from onepass.data.catalogue import CATALOGUE
from onepass.gsa_paper import published
from onepass.gsa_paper.protocol import follows_paper, learning_variant
from onepass.gsa_paper.published import PublishedValue
from onepass.learning import registry
from onepass.report.layout import RANKED, NoteLetters, format_p_value, mark_best
from onepass.report.rows import Row, Spread, summarise
from onepass.report.significance import FEWEST, compare_paired
from onepass.report.table import Cell, Table
from onepass.runs.result import Result
from onepass.runs.spec import PRESETS

LAYOUTS = ("table1", "table2", "table3")
METRICS = {"table1": "accuracy", "table2": "forgetting", "table3": "accuracy"}
MISSING = "-"
# The rows of Table 3, as `--set` has them.
ABLATIONS = {
    "gsa:no-new-loss": "without=new",
    "gsa:no-previous-loss": "without=previous",
    "gsa:no-cross-loss": "without=cross",
    "gsa:no-balanced-sampling": "sampling=random",
    "gsa:no-cl-imbalance": "weights=none",
}
# The paper's words for the last one can be read in another way too: simple cross-entropy.
OTHER_READING = "rivals=all weights=none"
Key = tuple[str, str]  # a method and the words of its variant


@dataclass(frozen=True)
class Cells:
    """Our rows for one of the paper's tables, by method, variant, dataset and memory."""

    metric: str
    rows: Mapping[tuple[str, str, str, int], Row]

    @classmethod
    def of(cls, results: Sequence[Result], metric: str) -> Cells:
        first: dict[tuple[object, ...], Result] = {}
        for one in filter(follows_paper, results):
            settings = {**one.settings, "precision": one.precision}
            result = replace(one, variant=learning_variant(one), settings=settings)
            what = (result.method, result.revision, str(result.variant))
            key = (*what, result.dataset_identity, result.memory, result.seed)
            first.setdefault(key, result)
        rows = {
            (row.method, str(row.variant), row.first.dataset_identity, row.memory): row
            for row in (summarise(list(first.values())) if first else [])
        }
        return cls(metric, rows)

    def get(self, key: Key, dataset: str, memory: int) -> Row | None:
        """A method that keeps nothing has one row for every memory."""
        return self.rows.get((*key, dataset, memory)) or self.rows.get((*key, dataset, 0))

    def spread(self, key: Key, dataset: str, memory: int) -> Spread | None:
        row = self.get(key, dataset, memory)
        if row is None:
            return None
        return row.over(self.metric)

    def shown(self, key: Key, dataset: str, memory: int) -> str:
        """Mean, deviation, and over how many seeds."""
        spread = self.spread(key, dataset, memory)
        return f"{spread} ({spread.n})" if spread else MISSING

    def numbers(self, key: Key, dataset: str, memory: int) -> list[str]:
        """The same, for programs."""
        row, spread = self.get(key, dataset, memory), self.spread(key, dataset, memory)
        if row is None or spread is None:
            return [""] * 4
        deviation = "" if spread.deviation is None else f"{spread.deviation:.4f}"
        return [f"{spread.mean:.4f}", deviation, str(spread.n), row.precision]

    def p_value(self, key: Key, other: Key, dataset: str, memory: int) -> str:
        """Of what the table shows, over the seeds that both have."""
        ours, theirs = self.get(key, dataset, memory), self.get(other, dataset, memory)
        if key == other or ours is None or theirs is None:
            return MISSING
        return format_p_value(compare_paired(self.by_seed(ours), self.by_seed(theirs)).t_test)

    def by_seed(self, row: Row) -> Mapping[int, float]:
        return row.accuracies if self.metric == "accuracy" else row.forgettings


def paper_tables(
    name: str,
    results: Sequence[Result],
    *,
    datasets: Sequence[str] = (),
    against: str | None = None,
) -> list[Table]:
    """One of the paper's tables: a part for each of its datasets, or for those that are asked for.
    `against`: a method that every other one is tested against, over shared seeds."""
    cells = Cells.of(results, METRICS[name])
    printed = printed_values(name, datasets)
    if name == "table3":
        if against:
            raise InputError("table3 is tested against all of gsa, and against nothing else")
        return [_ablations(cells, printed)]
    ran = {method for method, *_ in cells.rows}
    if against and against not in ran:
        raise UnknownNameError("method to compare with", against, ran)
    parts = list(dict.fromkeys(one.dataset for one in printed))
    return [
        _methods(cells, [one for one in printed if one.dataset == part], against) for part in parts
    ]


def printed_values(name: str, datasets: Sequence[str]) -> list[PublishedValue]:
    """What the paper prints there, in its order."""
    printed = [one for one in published.published_values() if one.source == f"gsa-paper-{name}"]
    known = dict.fromkeys(one.dataset for one in printed)
    for dataset in datasets:
        if dataset not in known:
            raise UnknownNameError(f"dataset of {name}", dataset, known)
    return [one for one in printed if not datasets or one.dataset in datasets]


# ---- tables 1 and 2


def _methods(cells: Cells, printed: Sequence[PublishedValue], against: str | None) -> Table:
    """Of one dataset: the paper's methods, then those of ours that it does not have."""
    dataset = printed[0].dataset
    memories = list(dict.fromkeys(one.memory for one in printed))
    own: list[Key] = [(method, "") for method in dict.fromkeys(one.method for one in printed)]
    more = _further_keys(cells, dataset, memories, own)
    keys, letters = [*own, *more], NoteLetters()
    names = ["ours", "published", *(["p (t-test)"] if against else [])]
    columns: list[list[str]] = []
    for memory in memories:
        ours = [cells.shown(key, dataset, memory) for key in keys]
        columns.append(mark_best(ours) if cells.metric in RANKED else ours)
        columns.append(
            [_published_cell(key, dataset, memory, cells.metric, letters) for key in keys]
        )
        if against:
            columns.append([cells.p_value(key, (against, ""), dataset, memory) for key in keys])
    shown = [printable(f"{method} {variant}".rstrip()) for method, variant in keys]
    return Table(
        ["method", *names * len(memories)],
        [list(row) for row in zip(shown, *columns, strict=True)],
        groups=["", *(f"M={memory}" for memory in memories for _ in names)],
        title=f"{dataset}, {CATALOGUE[dataset].tasks} tasks: {cells.metric}",
        parts=[len(own)] if more else [],
        notes=[
            *letters.notes,
            *_notes(cells, printed),
            *_notes_on_precisions(cells, keys, [(dataset, memory) for memory in memories]),
            *(_notes_on_tests(against) if against else []),
        ],
    )


def _further_keys(
    cells: Cells, dataset: str, memories: Sequence[int], own: Sequence[Key]
) -> list[Key]:
    """Other methods, and presets, that were run on this dataset or have a figure for it."""
    ran = [method for method, *_ in cells.rows]
    known = dict.fromkeys([*registry.METHODS.names(), *ran])
    keys: list[Key] = [(method, preset) for method in known for preset in ("", *PRESETS)]

    def has_any(key: Key) -> bool:
        return any(
            cells.shown(key, dataset, memory) != MISSING
            or _published_value(key, dataset, memory, cells.metric)
            for memory in memories
        )

    return [key for key in keys if key not in own and has_any(key)]


def _published_value(key: Key, dataset: str, memory: int, metric: str) -> PublishedValue | None:
    """The paper's figure; of a method that it does not have, that of its own paper. Nothing was
    published for our presets."""
    method, preset = key
    found = published.values_for_cell(method, dataset, memory, metric)
    return found[0] if found and not preset else None


def _published_cell(key: Key, dataset: str, memory: int, metric: str, letters: NoteLetters) -> str:
    figure = _published_value(key, dataset, memory, metric)
    if figure is None:
        return MISSING
    return Cell(str(figure), note=letters[figure.doubt] if figure.doubt else "")


def _notes(cells: Cells, printed: Sequence[PublishedValue]) -> list[tuple[str, str]]:
    found = [cells.shown(_key_of(one), one.dataset, one.memory) != MISSING for one in printed]
    runs = ", ".join(dict.fromkeys(one.runs for one in printed))
    how = (
        "Ours: mean ± standard deviation over seeds (how many), with the settings that all methods "
        f"share, or a preset's. Published: {runs} runs, by the GSA paper; of OCM, by its own."
    )
    return [
        ("", how),
        ("", f"{sum(found)} of the paper's {len(found)} cells were run; {MISSING} is missing."),
    ]


def _notes_on_precisions(
    cells: Cells, keys: Sequence[Key], where: Iterable[tuple[str, int]]
) -> list[tuple[str, str]]:
    """Says which means are over seeds of more than one precision."""
    rows = [(key, cells.get(key, *place)) for place in where for key in keys]
    mixed = {
        printable(f"{' '.join(key).rstrip()} (M={row.memory}, {row.precision})"): None
        for key, row in rows
        if row is not None and " " in row.precision
    }
    return [("", f"Seeds of two precisions in one mean: {', '.join(mixed)}.")] if mixed else []


def _notes_on_tests(against: str) -> list[tuple[str, str]]:
    return [
        ("", f"p: two-sided paired t-test against {against}, over {FEWEST} shared seeds or more.")
    ]


# ---- table 3


def _ablations(cells: Cells, printed: Sequence[PublishedValue]) -> Table:
    names = list(dict.fromkeys(one.method for one in printed))
    keys: list[Key] = [
        ("gsa", variant)
        for variant in ("", *(ABLATIONS.get(one, one) for one in names), OTHER_READING)
    ]
    theirs: list[Key] = [(name, "") for name in ("gsa", *names, "gsa:no-cl-imbalance")]
    body, letters = [], NoteLetters()
    places = list(dict.fromkeys((one.dataset, one.memory) for one in printed))
    for dataset, memory in places:
        rows = {
            "ours": [cells.shown(key, dataset, memory) for key in keys],
            "p (t-test)": [cells.p_value(key, keys[0], dataset, memory) for key in keys],
            "published": [
                _published_cell(key, dataset, memory, "accuracy", letters) for key in theirs
            ],
        }
        body += [[dataset, str(memory), name, *row] for name, row in rows.items()]
    taken = [name.partition(":")[2].replace("-", " ") for name in names]
    return Table(
        ["dataset", "memory", "", "gsa", *taken, "the same, simple cross-entropy"],
        body,
        title="gsa without parts of it: accuracy",
        notes=[
            *letters.notes,
            *_notes_on_tests("all of gsa"),
            *_notes(cells, printed),
            *_notes_on_precisions(cells, keys, places),
        ],
    )


# ---- for programs


def long_table(name: str, results: Sequence[Result], *, datasets: Sequence[str] = ()) -> Table:
    """The same as one long table: a line for each cell, numbers in columns of their own."""
    cells = Cells.of(results, METRICS[name])
    printed = printed_values(name, datasets)
    lines: list[tuple[Key, str, int, PublishedValue | None]] = [
        (_key_of(one), one.dataset, one.memory, one) for one in printed
    ]
    own = list(dict.fromkeys(key for key, *_ in lines))
    for dataset, memory in dict.fromkeys((one.dataset, one.memory) for one in printed):
        # of parts of gsa: the whole, which they are compared with, and the other reading of one
        beside: list[Key] = [("gsa", ""), ("gsa", OTHER_READING)]
        for key in beside if name == "table3" else _further_keys(cells, dataset, [memory], own):
            lines.append(
                (key, dataset, memory, _published_value(key, dataset, memory, cells.metric))
            )
    body = [
        [
            *map(printable, key),
            dataset,
            str(memory),
            *cells.numbers(key, dataset, memory),
            *_published_fields(one),
        ]
        for key, dataset, memory, one in lines
    ]
    measured = [cells.metric, f"{cells.metric} sd", "n", "precision"]
    theirs = ["published", "published sd", "published n", "source", "doubt"]
    return Table(["method", "variant", "dataset", "memory", *measured, *theirs], body)


def _key_of(figure: PublishedValue) -> Key:
    if figure.method in ABLATIONS:
        return "gsa", ABLATIONS[figure.method]
    return figure.method, ""


def _published_fields(figure: PublishedValue | None) -> list[str]:
    if figure is None:
        return [""] * 5
    return [figure.value, figure.deviation, figure.runs, figure.source, figure.doubt]
