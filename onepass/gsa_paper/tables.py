"""The paper's tables, in its order of rows and columns, with our figures beside the printed ones.

    table1  accuracy of the methods, by dataset and size of the memory
    table2  forgetting, likewise, beside what was learned
    table3  accuracy of gsa without some of its pieces

A run counts if it learned the paper's stream (`follows_paper`), wherever it ran and however often
it was scored. Tables 1 and 2 show runs with a method's common settings, then those with a preset.
If a seed has several runs, the first counts.
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
# What stands beside forgetting: the heading, and the field of a result
LEARNED = {"learning": "learning_accuracy", "newest": "newest_accuracy"}
MISSING = "-"
# The columns of Table 3, as settings of gsa
ABLATIONS = {
    "gsa:no-new-loss": "without=new",
    "gsa:no-previous-loss": "without=previous",
    "gsa:no-cross-loss": "without=cross",
    "gsa:no-balanced-sampling": "sampling=random",
    "gsa:no-cl-imbalance": "weights=none",
}
# The paper's words for the last ablation may also mean simple cross-entropy, by these settings.
OTHER_READING = "rivals=all weights=none"
Key = tuple[str, str]  # a method and the text of its variant


@dataclass(frozen=True)
class Cells:
    """Our rows for one of the paper's tables, by method, variant, dataset and memory. `metric` is
    the value that the table shows."""

    metric: str
    rows: Mapping[tuple[str, str, str, int], Row]

    @classmethod
    def of(cls, results: Sequence[Result], metric: str) -> Cells:
        """Returns the rows of the results that follow the paper; `metric` is accuracy or
        forgetting."""
        first: dict[tuple[object, ...], Result] = {}
        for run in filter(follows_paper, results):
            settings = {**run.settings, "precision": run.precision}
            result = replace(run, variant=learning_variant(run), settings=settings)
            learner = (result.method, result.revision, str(result.variant))
            key = (*learner, result.dataset_identity, result.memory, result.seed)
            first.setdefault(key, result)
        rows = {
            (row.method, str(row.variant), row.first.dataset_identity, row.memory): row
            for row in (summarise(list(first.values())) if first else [])
        }
        return cls(metric, rows)

    def get(self, key: Key, dataset: str, memory: int) -> Row | None:
        """Returns the row of a cell; None without a run. A method without a memory has one row,
        which stands for every size."""
        return self.rows.get((*key, dataset, memory)) or self.rows.get((*key, dataset, 0))

    def spread(self, key: Key, dataset: str, memory: int) -> Spread | None:
        row = self.get(key, dataset, memory)
        if row is None:
            return None
        return row.over(self.metric)

    def shown(self, key: Key, dataset: str, memory: int) -> str:
        """Returns mean, deviation and number of seeds as one text; "-" without a run."""
        spread = self.spread(key, dataset, memory)
        return f"{spread} ({spread.n})" if spread else MISSING

    def numbers(self, key: Key, dataset: str, memory: int) -> list[str]:
        """Returns mean, deviation, number of seeds and numerical precision (fp32, bf16) as four
        texts for programs; empty ones without a run."""
        row, spread = self.get(key, dataset, memory), self.spread(key, dataset, memory)
        if row is None or spread is None:
            return [""] * 4
        deviation = "" if spread.deviation is None else f"{spread.deviation:.4f}"
        return [f"{spread.mean:.4f}", deviation, str(spread.n), row.precision]

    def learned(self, key: Key, dataset: str, memory: int) -> dict[str, Spread | None]:
        """Returns what stands beside forgetting in a cell, by its heading. Returns nothing for
        another metric."""
        if self.metric != "forgetting":
            return {}
        row = self.get(key, dataset, memory)
        return {name: row.over(field) if row else None for name, field in LEARNED.items()}

    def p_value(self, key: Key, other: Key, dataset: str, memory: int) -> str:
        """Returns the p-value of a paired t-test of the metric, over the seeds that both have; "-"
        without a test."""
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
    """Returns one of the paper's tables: table1 and table2 as a table for each of `datasets`,
    table3 as a single table. Without `datasets`, all of the paper's are shown.

    With `against`, every method is tested against that one over the seeds they share. Raises an
    InputError for table3 with `against`, and an UnknownNameError for an unknown name.
    """
    cells = Cells.of(results, METRICS[name])
    printed = printed_values(name, datasets)
    if name == "table3":
        if against:
            raise InputError("table3 is always tested against all of gsa: leave --against out")
        return [_ablations(cells, printed)]
    ran = {method for method, *_ in cells.rows}
    if against and against not in ran:
        raise UnknownNameError("method to compare with", against, ran)
    names = list(dict.fromkeys(value.dataset for value in printed))
    return [
        _methods(cells, [value for value in printed if value.dataset == dataset], against)
        for dataset in names
    ]


def printed_values(name: str, datasets: Sequence[str]) -> list[PublishedValue]:
    """Returns the values of one of the paper's tables in its order, on `datasets` or (empty) on all
    of them. Raises an UnknownNameError for a dataset that the table lacks."""
    source = f"gsa-paper-{name}"
    printed = [value for value in published.published_values() if value.source == source]
    known = dict.fromkeys(value.dataset for value in printed)
    for dataset in datasets:
        if dataset not in known:
            raise UnknownNameError(f"dataset of {name}", dataset, known)
    return [value for value in printed if not datasets or value.dataset in datasets]


# ---- tables 1 and 2


def _methods(cells: Cells, printed: Sequence[PublishedValue], against: str | None) -> Table:
    """Returns the table of one dataset: the paper's methods, then further ones and presets."""
    dataset = printed[0].dataset
    memories = list(dict.fromkeys(value.memory for value in printed))
    own: list[Key] = [(method, "") for method in dict.fromkeys(value.method for value in printed)]
    more = _further_keys(cells, dataset, memories, own)
    keys, letters = [*own, *more], NoteLetters()
    learned = list(LEARNED) if cells.metric == "forgetting" else []
    names = ["ours", *learned, "published", *(["p (t-test)"] if against else [])]
    columns: list[list[str]] = []
    for memory in memories:
        ours = [cells.shown(key, dataset, memory) for key in keys]
        columns.append(mark_best(ours) if cells.metric in RANKED else ours)
        for name in learned:
            beside = [cells.learned(key, dataset, memory)[name] for key in keys]
            columns.append([str(spread or MISSING) for spread in beside])
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
        rules=[len(own)] if more else [],
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
    """Returns the methods and presets outside of `own` that have a run or a published value on this
    dataset."""
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
    """Returns the GSA paper's value of a cell; without one, that of the first other source. Returns
    None for our presets, and if no source has a value."""
    method, preset = key
    values = published.values_for_cell(method, dataset, memory, metric)
    return values[0] if values and not preset else None


def _published_cell(key: Key, dataset: str, memory: int, metric: str, letters: NoteLetters) -> str:
    value = _published_value(key, dataset, memory, metric)
    if value is None:
        return MISSING
    return Cell(str(value), note=letters[value.doubt] if value.doubt else "")


def _notes(cells: Cells, printed: Sequence[PublishedValue]) -> list[tuple[str, str]]:
    done = [
        cells.shown(_key_of(value), value.dataset, value.memory) != MISSING for value in printed
    ]
    runs = ", ".join(dict.fromkeys(value.runs for value in printed))
    how = (
        "Ours: mean ± standard deviation (number of seeds), with the settings that all methods "
        f"share, or with a preset. Published: {runs} runs, from the GSA paper, whose text does not "
        "say what its ± is; OCM's from its own paper."
    )
    if cells.metric == "forgetting":
        how += (
            " Learning is the mean accuracy on the tasks just after each was learned, newest the "
            "final accuracy on the last task: a method that learns little has little to forget."
        )
    return [
        ("", how),
        ("", f"We ran {sum(done)} of the paper's {len(done)} cells; {MISSING} marks the others."),
    ]


def _notes_on_precisions(
    cells: Cells, keys: Sequence[Key], where: Iterable[tuple[str, int]]
) -> list[tuple[str, str]]:
    """Returns a note if the seeds of a mean were computed in different precisions, else nothing."""
    rows = [(key, cells.get(key, *cell)) for cell in where for key in keys]
    mixed = {
        printable(f"{' '.join(key).rstrip()} (M={row.memory}, {row.precision})"): None
        for key, row in rows
        if row is not None and " " in row.precision  # "bf16 and fp32"
    }
    return [("", f"Seeds of two precisions in one mean: {', '.join(mixed)}.")] if mixed else []


def _notes_on_tests(against: str) -> list[tuple[str, str]]:
    return [
        ("", f"p: two-sided paired t-test against {against}, over {FEWEST} shared seeds or more.")
    ]


# ---- table 3


def _ablations(cells: Cells, printed: Sequence[PublishedValue]) -> Table:
    """Returns Table 3: a column for each ablation, three rows for each dataset and memory."""
    names = list(dict.fromkeys(value.method for value in printed))
    keys: list[Key] = [
        ("gsa", variant)
        for variant in ("", *(ABLATIONS.get(name, name) for name in names), OTHER_READING)
    ]
    theirs: list[Key] = [(name, "") for name in ("gsa", *names, "gsa:no-cl-imbalance")]
    body, letters = [], NoteLetters()
    settings = list(dict.fromkeys((value.dataset, value.memory) for value in printed))
    for dataset, memory in settings:
        rows = {
            "ours": [cells.shown(key, dataset, memory) for key in keys],
            "p (t-test)": [cells.p_value(key, keys[0], dataset, memory) for key in keys],
            "published": [
                _published_cell(key, dataset, memory, "accuracy", letters) for key in theirs
            ],
        }
        body += [[dataset, str(memory), name, *row] for name, row in rows.items()]
    removed = [name.partition(":")[2].replace("-", " ") for name in names]
    return Table(
        ["dataset", "memory", "", "gsa", *removed, "the same, simple cross-entropy"],
        body,
        title="ablations of gsa: accuracy",
        notes=[
            *letters.notes,
            *_notes_on_tests("all of gsa"),
            *_notes(cells, printed),
            *_notes_on_precisions(cells, keys, settings),
        ],
    )


# ---- for programs


def long_table(name: str, results: Sequence[Result], *, datasets: Sequence[str] = ()) -> Table:
    """Returns a paper's table in long form: a row for each cell, a column for each number."""
    cells = Cells.of(results, METRICS[name])
    printed = printed_values(name, datasets)
    rows: list[tuple[Key, str, int, PublishedValue | None]] = [
        (_key_of(value), value.dataset, value.memory, value) for value in printed
    ]
    own = list(dict.fromkeys(key for key, *_ in rows))
    for dataset, memory in dict.fromkeys((value.dataset, value.memory) for value in printed):
        # Table 3 also needs all of gsa, which is the reference, and the other reading of an
        # ablation.
        references: list[Key] = [("gsa", ""), ("gsa", OTHER_READING)]
        for key in references if name == "table3" else _further_keys(cells, dataset, [memory], own):
            rows.append(
                (key, dataset, memory, _published_value(key, dataset, memory, cells.metric))
            )
    body = [
        [
            *map(printable, key),
            dataset,
            str(memory),
            *cells.numbers(key, dataset, memory),
            *(f"{s.mean:.4f}" if s else "" for s in cells.learned(key, dataset, memory).values()),
            *_published_fields(value),
        ]
        for key, dataset, memory, value in rows
    ]
    measured = [cells.metric, f"{cells.metric} sd", "n", "precision"]
    measured += LEARNED if cells.metric == "forgetting" else []
    theirs = ["published", "published sd", "published n", "source", "doubt"]
    return Table(["method", "variant", "dataset", "memory", *measured, *theirs], body)


def _key_of(value: PublishedValue) -> Key:
    """Returns our method and variant for a published value."""
    if value.method in ABLATIONS:
        return "gsa", ABLATIONS[value.method]
    return value.method, ""


def _published_fields(value: PublishedValue | None) -> list[str]:
    if value is None:
        return [""] * 5
    return [value.value, value.deviation, value.runs, value.source, value.doubt]
