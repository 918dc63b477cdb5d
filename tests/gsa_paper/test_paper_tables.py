"""The paper's tables from lines: the paper's order, our figures beside the published ones."""

from __future__ import annotations

import contextlib
import csv
import io
import runpy
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
from command import onepass
from latex_tabulars import expect_tabular
from result_lines import paper_line, run_line, write_lines

from onepass import GSA
from onepass.gsa_paper import protocol, tables
from onepass.gsa_paper.published import published_values
from onepass.sweeps import sweep_file

ROOT = Path(__file__).parents[2]


def cells(text: str) -> dict[str, list[str]]:
    """Returns the rows of a markdown table by their first cell."""
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines}


def made(folder: Path, *lines: dict, like: str = "table1", dataset: str = "cifar100") -> dict:
    write_lines(folder / "a.jsonl", *lines)
    done = onepass("table", folder, "--like", like, "--dataset", dataset, "--format", "markdown")
    assert done.status == 0, done.err
    return cells(done.out)


def test_rows_and_columns_come_as_in_the_paper(tmp_path: Path) -> None:
    table = made(tmp_path, paper_line("gsa", 0, 30.0))
    printed = [value for value in published_values() if value.source == "gsa-paper-table1"]
    own = list(dict.fromkeys(value.method for value in printed))
    assert list(table)[1:18] == own
    assert list(table)[18:] == ["ocm", "ocm-gsa"]  # which have figures of their own
    sides = [f"M={memory} {of}" for memory in (1000, 2000, 5000) for of in ("ours", "published")]
    assert table["method"] == sides
    assert table["gsa"] == ["30.0 (1)", "31.4 ± 0.2", "-", "39.7 ± 0.6", "-", "49.7 ± 0.2"]
    assert table["er"][0] == "-"


def test_a_cell_is_the_mean_over_seeds_however_they_were_run(tmp_path: Path) -> None:
    """Precision and scoring interval make no variant, and a seed in two files counts once."""
    write_lines(tmp_path / "b.jsonl", paper_line("gsa", 0, 99.0, variant="precision=bf16"))
    table = made(
        tmp_path,
        paper_line("gsa", 0, 20.0, variant="precision=bf16 every=500"),
        paper_line("gsa", 1, 22.0),
        paper_line("gsa", 2, 24.0, variant="threads=4"),
    )
    assert table["gsa"][0] == "22.0 ± 2.0 (3)"


def in_precision(precision: str, seed: int, accuracy: float, **more: object) -> dict:
    """Returns a line with a precision, in its variant if not the default, and in its settings."""
    variant = "engine=eager precision=bf16" if precision == "bf16" else ""
    settings = {"precision": precision, "engine": "eager" if variant else "auto"}
    return paper_line("er", seed, accuracy, variant=variant, settings=settings, **more)


def test_a_mean_over_two_precisions_is_one_mean_and_is_named(tmp_path: Path) -> None:
    apart = [in_precision("fp32", 0, 20.0, memory=2000), in_precision("fp32", 1, 22.0, memory=2000)]
    both = [in_precision("bf16", 0, 20.0), in_precision("fp32", 1, 22.0)]
    file = write_lines(tmp_path / "a.jsonl", *both, *apart)
    asked = ("table", file, "--like", "table1", "--dataset", "cifar100", "--format")
    text = onepass(*asked, "markdown").out
    assert cells(text)["er"][0] == "21.0 ± 1.4 (2)"
    assert "Seeds of two precisions in one mean: er (M=1000, bf16 and fp32).\n" in text
    by_memory = {
        row["memory"]: row["precision"]
        for row in csv.DictReader(io.StringIO(onepass(*asked, "csv").out))
        if row["method"] == "er"
    }
    assert by_memory == {"1000": "bf16 and fp32", "2000": "fp32", "5000": ""}


def test_a_line_that_tells_no_settings_has_the_precision_of_its_variant(tmp_path: Path) -> None:
    old = paper_line("er", 0, 20.0, variant="precision=bf16")
    file = write_lines(tmp_path / "a.jsonl", old, in_precision("fp32", 1, 22.0))
    asked = ("table", file, "--like", "table1", "--dataset", "cifar100")
    assert "er (M=1000, bf16 and fp32)" in onepass(*asked).out
    write_lines(file, old, in_precision("bf16", 1, 22.0))
    assert "two precisions" not in onepass(*asked).out


@pytest.mark.parametrize(
    "other",
    [
        {"variant": "lr=5e-4"},
        {"variant": "tuned lr=6e-4"},
        {"samples": []},
        {"samples": [[450] * 100, [50] * 100]},
        {"stream": "long-tail"},
        {"tasks": 20},
        {"revision": 99},
    ],
    ids=str,
)
def test_runs_of_another_protocol_are_not_in_the_table(other: dict, tmp_path: Path) -> None:
    table = made(tmp_path, paper_line("gsa", 0, 20.0), paper_line("er", 0, 20.0, **other))
    assert table["er"][0] == "-"
    assert not any(name.startswith("er ") for name in table)


def test_presets_and_other_methods_stand_below(tmp_path: Path) -> None:
    table = made(
        tmp_path,
        paper_line("gsa", 0, 20.0),
        paper_line("gsa", 0, 33.0, variant="tuned precision=bf16"),
        paper_line("er-ace", 0, 25.0),
        paper_line("finetune", 0, 5.0, memory=0),
    )
    names = list(table)
    assert names.index("gsa") < names.index("gsa tuned")
    assert table["gsa tuned"][:2] == ["**33.0 (1)**", "-"]
    assert table["er-ace"][0] == "*25.0 (1)*"
    assert table["finetune"][::2] == ["5.0 (1)"] * 3  # keeps nothing: the same for every memory


def test_doubtful_figures_are_marked_and_the_reason_stands_below(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", paper_line("gsa", 0, 30.0))
    asked = ("--like", "table1", "--dataset", "cifar100")
    text = onepass("table", file, *asked).out
    (row,) = [line for line in text.splitlines() if line.startswith("aser ")]
    (letter,) = [word for word in row.split() if word.startswith("[")]
    (note,) = [line for line in text.splitlines() if line.startswith(letter)]
    assert "copied" in note
    assert "12.2 ± 1.9 [" in row and "16.4 ± 0.3 [" not in row
    assert "<sup>" in onepass("table", file, *asked, "--format", "markdown").out


def test_table_2_is_of_forgetting_and_nothing_is_best_there(tmp_path: Path) -> None:
    lines = [paper_line(m, 0, 30.0, forgetting=f) for m, f in (("gsa", 9.0), ("er", 50.0))]
    table = made(tmp_path, *lines, paper_line("gdumb", 0, 17.0), like="table2")
    assert (table["gsa"][0], table["er"][0]) == ("9.0 (1)", "50.0 (1)")
    assert table["gdumb"][:4] == ["-", "-", "-", "16.7 ± 0.5"]  # ran, and has no forgetting
    assert table["er"][3] == "65.1 ± 1.3 <sup>a</sup>"


def test_what_was_learned_stands_beside_what_was_forgotten(tmp_path: Path) -> None:
    learned = {"learning_accuracy": 17.4, "newest_accuracy": 6.5}
    line = {**paper_line("gsa", 0, 35.0, forgetting=8.9), **learned}
    asked = ("--like", "table2", "--dataset", "cifar100", "--format")
    file = write_lines(tmp_path / "a.jsonl", line)
    shown = onepass("table", file, *asked, "markdown").out
    assert cells(shown)["gsa"][:3] == ["8.9 (1)", "17.4", "6.5"]
    assert "learns little has little to forget" in shown
    rows = csv.DictReader(io.StringIO(onepass("table", file, *asked, "csv").out))
    (found,) = [(row["learning"], row["newest"]) for row in rows if row["forgetting"]]
    assert found == ("17.4000", "6.5000")


def test_table_3_tests_ablations_against_the_full_method(tmp_path: Path) -> None:
    whole = [paper_line("gsa", seed, 30.0 + seed) for seed in range(3)]
    parts = [
        paper_line("gsa", seed, accuracy + 0.5 * seed, variant=variant)
        for variant, accuracy in (("weights=none", 29.0), ("rivals=all weights=none", 28.0))
        for seed in range(3)
    ]
    file = write_lines(tmp_path / "a.jsonl", *whole, *parts)
    done = onepass("table", file, "--like", "table3", "--dataset", "cifar100")
    header, ours, p, theirs, *_ = done.out.splitlines()[1:]
    assert "no cl imbalance  the same, simple cross-entropy" in header  # it can be read in two ways
    assert "31.0 ± 1.0 (3)" in ours and "29.5 ± 0.5 (3)" in ours
    assert ours.endswith("28.5 ± 0.5 (3)")
    assert p.split()[-2] == "0.035"  # differences 1, 1.5 and 2: t = 5.196, two degrees of freedom
    assert "12.7 ± 0.2" in theirs
    assert "We ran 1 of the paper's 5 cells" in done.out


def test_paired_tests_stand_in_the_papers_table_if_they_are_asked_for(tmp_path: Path) -> None:
    lines = [paper_line("gsa", seed, 30.0 + seed) for seed in range(3)]
    lines += [paper_line("er", seed, 29.0 + 0.5 * seed) for seed in range(3)]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    asked = ("--like", "table1", "--dataset", "cifar100", "--format", "markdown")
    table = cells(onepass("table", file, *asked, "--against", "gsa").out)
    assert table["er"][2] == "0.035" and table["gsa"][2] == "-"


def test_tests_in_table_2_are_of_forgetting(tmp_path: Path) -> None:
    lines = [paper_line("gsa", s, 30.0 + s, forgetting=9.0 + s * s) for s in range(3)]
    lines += [paper_line("er", s, 29.0 + 0.5 * s, forgetting=5.0) for s in range(3)]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    asked = ("--like", "table2", "--dataset", "cifar100", "--format", "markdown")
    table = cells(onepass("table", file, *asked, "--against", "gsa").out)
    # -4, -5 and -8: t = 4.714, two degrees of freedom; of the accuracies it would be 0.035
    assert table["er"][4] == "0.042"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("table1", "--against", "err"), "Valid: gsa"),
        (("table1", "--against", "gsa", "--format", "csv"), "csv"),
        (("table3", "--against", "gsa"), "all of gsa"),
    ],
    ids=str,
)
def test_an_impossible_test_in_the_papers_table_is_refused(
    asked: tuple, said: str, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "a.jsonl", paper_line("gsa", 0, 30.0))
    done = onepass("table", file, "--like", *asked)
    assert done.status == 2 and said in done.error and not done.out


def test_a_setting_equal_to_the_default_or_preset_makes_no_variant(tmp_path: Path) -> None:
    table = made(
        tmp_path,
        paper_line("gsa", 0, 20.0, variant="weights=adaptive precision=bf16"),
        paper_line("gsa", 1, 22.0, variant="weights=gone"),
        paper_line("gsa", 0, 30.0, variant="tuned lr=3e-4"),
        paper_line("gsa", 1, 40.0, variant="tuned lr=1e-3"),  # the default, but not the preset's
    )
    assert (table["gsa"][0], table["gsa tuned"][0]) == ("20.0 (1)", "**30.0 (1)**")


def test_runs_of_a_preset_before_it_changed_are_another_row(tmp_path: Path) -> None:
    now = GSA.presets["tuned"].settings
    before_it_had_current = {name: value for name, value in now.items() if name != "current"}
    chosen = (now, now, {**now, "lr": 7e-4}, before_it_had_current, {})  # old lines do not tell
    lines = [
        paper_line("gsa", seed, 30.0 + seed, variant="tuned", settings=settings)
        for seed, settings in enumerate(chosen)
    ]
    assert made(tmp_path, *lines)["gsa tuned"][0] == "31.7 ± 2.1 (3)"


def test_the_sweep_of_ablations_has_every_column_of_table_3() -> None:
    """The full method is there too, with an empty variant and all seeds of the ablations."""
    planned = sweep_file.read_sweep_file(ROOT / "experiments/ablations.toml", device="cpu")
    seeds: dict[str, set[int]] = {}
    for job in (entry.job for entry in planned):
        seeds.setdefault(str(job.variant.without(*protocol.EXECUTION)), set()).add(job.seed)
    for variant in ("", *tables.ABLATIONS.values(), tables.OTHER_READING):
        assert seeds[variant] <= seeds[""] and len(seeds[variant]) >= 3


def test_a_setting_decided_by_the_data_makes_no_variant(tmp_path: Path) -> None:
    """MNIST has no mirror images, so presets and gsa-released turn them off by themselves. A choice
    of other repeats is a variant."""
    best = "best mirror=false mirror_scores=false"
    table = made(
        tmp_path,
        paper_line("gsa-released", 0, 80.0, "mnist", variant="mirror=false"),
        paper_line("gsa", 0, 90.0, "mnist", variant=f"{best} repeats=4 every=100"),
        paper_line("gsa", 1, 10.0, "mnist", variant=f"{best} repeats=3"),
        paper_line("gsa", 2, 10.0, "mnist", variant=best),  # the preset's repeats
        dataset="mnist",
    )
    assert table["gsa-released"][4] == "80.0 (1)"
    assert table["gsa best"][4] == "**90.0 (1)**"


def test_csv_has_a_row_for_each_cell(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", *(paper_line("gsa", s, 30.0 + s) for s in range(2)))
    for like, count in (("table1", 17 * 12), ("table2", 17 * 12), ("table3", 10)):
        text = onepass("table", file, "--like", like, "--format", "csv").out
        rows = list(csv.DictReader(io.StringIO(text)))
        own = [row for row in rows if row["source"] == f"gsa-paper-{like}"]
        assert len(own) == count
        if like == "table3":  # the whole beside its parts
            wholes = [row for row in rows if (row["method"], row["variant"]) == ("gsa", "")]
            assert "30.5000" in [row["accuracy"] for row in wholes]
        if like == "table1":
            (row,) = [
                r
                for r in own
                if (r["method"], r["dataset"], r["memory"]) == ("gsa", "cifar100", "1000")
            ]
            assert (row["accuracy"], row["accuracy sd"], row["n"]) == ("30.5000", "0.7071", "2")
            assert (row["published"], row["published sd"], row["doubt"]) == ("31.4", "0.2", "")


@pytest.mark.parametrize("like", tables.LAYOUTS)
def test_all_committed_lines_make_whole_tables(like: str) -> None:
    done = onepass("table", ROOT / "results", "--like", like, "--format", "latex")
    assert done.status == 0, done.err
    parts = done.out.split("\n\n")
    assert len(parts) == (1 if like == "table3" else 4)
    columns = {"table1": [7] * 4, "table2": [13] * 4, "table3": [10]}
    assert [expect_tabular(part) for part in parts] == columns[like]


@pytest.mark.parametrize("option", [("--pivot", "memory"), ("--per-run",), ("--columns", "n")])
def test_the_papers_tables_have_its_columns_and_no_others(option: tuple, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", run_line("er", 0, 1.0))
    done = onepass("table", file, "--like", "table1", *option)
    assert done.status == 2 and option[0] in done.error


# ---- the pages in results/

script = runpy.run_path(str(ROOT / "scripts/update_results.py"))
PAGES = [page for page in sorted(ROOT.glob("results/**/*.md")) if "<!-- end of" in page.read_text()]


def printed(words: list[str]) -> str:
    """Prints what the command prints, in this process, which has its imports."""
    program, *arguments = words
    if program == "python":
        return printed_by_file(arguments)
    done = onepass(*arguments)
    assert done.status == 0, done.err
    return done.out


def printed_by_file(arguments: list[str]) -> str:
    out = io.StringIO()
    with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(out):
        runpy.run_path(arguments[0], run_name="__main__")
    return out.getvalue()


def test_a_script_runs_in_its_own_process() -> None:
    assert script["printed"](["python", "-c", "print('a table')"]) == "a table\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_current(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, lines were added without `make results`."""
    monkeypatch.chdir(ROOT)
    text = page.read_text()
    assert script["updated"](text, printed) == text


def test_the_papers_tables_have_pages() -> None:
    assert {"table1.md", "table2.md", "table3.md"} <= {page.name for page in PAGES}


def test_only_the_tables_of_a_page_change() -> None:
    mark, end = "<!-- onepass table a 'b c' -->\n", "<!-- end of table -->\n"
    page = f"above\n{mark}old\n{end}between\n{mark}{end}below\n"
    after = script["updated"](page, lambda arguments: f"{shlex.join(arguments)}\n")
    fresh = f"{mark}\nonepass table a 'b c'\n\n{end}"
    assert after == f"above\n{fresh}between\n{fresh}below\n"
    assert script["updated"](after, lambda arguments: f"{shlex.join(arguments)}\n") == after
