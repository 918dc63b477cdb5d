"""Tables from lines of finished runs: old lines, lines in folders, and lines beside run folders."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command import onepass
from report_runs import change_result, read_csv
from result_lines import run_line, write_lines

from onepass.runs import lines, query


@pytest.fixture(scope="module")
def file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the same runs as lines."""
    path = tmp_path_factory.mktemp("lines") / "all.jsonl"
    for result in query.find_results(runs):
        lines.append_result(path, result)
    return path


@pytest.mark.parametrize("form", ["text", "csv", "markdown", "latex"])
def test_lines_are_rendered_as_folders_are(form: str, runs: Path, file: Path) -> None:
    for against in ((), ("--against", "published")):
        asked = ("--format", form, *against)
        assert onepass("table", file, *asked) == onepass("table", runs, *asked)


def test_folders_and_lines_are_one_table_in_which_a_run_counts_once(
    runs: Path, file: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    for seed in (0, 1):
        shutil.copytree(runs / f"er-synthetic-m100-s{seed}", few / str(seed))
    others = tmp_path / "others.jsonl"
    for name in ("er-synthetic-m100-s2", "er-synthetic-m100-s1"):
        lines.append_result(others, query.find_results(runs / name)[0])
    (row,) = read_csv(onepass("table", others, few, "--format", "csv").out)
    assert row["n"] == "3"
    assert onepass("table", file, runs, others, few).out == onepass("table", runs).out


def test_two_results_of_a_seed_in_two_files_are_two_rows(runs: Path, tmp_path: Path) -> None:
    (result,) = query.find_results(runs / "er-synthetic-m100-s0")
    for number, name in enumerate(("before", "after")):
        lines.append_result(tmp_path / f"{name}.jsonl", replace(result, state_sha256=str(number)))
    done = onepass("table", *sorted(tmp_path.glob("*.jsonl")), "--format", "csv")
    assert [row["variant"] for row in read_csv(done.out)] == ["in after.jsonl", "in before.jsonl"]


TWINS = [run_line("gsa", 0, 80.0), run_line("gsa", 0, 90.0, variant="lr=5e-4")]
ALIKE = "Rows that look alike differ in variant: add that to --columns."


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_a_table_whose_rows_look_alike_says_below_what_tells_them_apart(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = ("table", write_lines(tmp_path / "a.jsonl", *TWINS), "--format", form, "--columns")
    alike = onepass(*asked, "method,accuracy")
    assert ALIKE in alike.out.splitlines()[-2 if form == "latex" else -1]
    for columns in ("method,variant,accuracy", "accuracy"):
        assert "look alike" not in onepass(*asked, columns).out
    write_lines(tmp_path / "a.jsonl", TWINS[0], run_line("er", 0, 90.0, variant="lr=5e-4"))
    assert "look alike" not in onepass(*asked, "method,accuracy").out
    assert not caplog.messages


def test_csv_puts_the_note_into_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_lines(tmp_path / "a.jsonl", *TWINS)
    alike = onepass("table", file, "--format", "csv", "--columns", "method,accuracy")
    assert alike.out == "method,accuracy\ngsa,80.0000\ngsa,90.0000\n"
    assert caplog.messages == [ALIKE]


@pytest.mark.parametrize("name", ["empty.jsonl", "none.jsonl", "none"])
def test_an_empty_table_is_an_error_of_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    done = onepass("table", tmp_path / name)
    assert done.status == 2
    assert name in done.error


def test_bars_are_drawn_of_lines_and_curves_need_points(
    runs: Path, file: Path, tmp_path: Path
) -> None:
    drawn = [tmp_path / f"{name}.svg" for name in "ab"]
    for source, picture in zip((file, runs), drawn, strict=True):
        assert onepass("figure", "accuracy", source, "--kind", "bars", "-o", picture).status == 0
    texts = [re.findall("<!-- (.*) -->", picture.read_text()) for picture in drawn]
    assert texts[0] == texts[1]
    assert onepass("figure", "accuracy", file, runs, "-o", tmp_path / "c.svg").status == 0
    done = onepass("figure", "accuracy", file, "-o", tmp_path / "d.svg")
    assert done.status == 2
    assert str(file) in done.error and "--kind bars" in done.error


# ---- folders of lines, and old ones


def test_a_folder_stands_for_its_files_of_lines_and_its_runs(
    runs: Path, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(file, tmp_path / "all.jsonl")
    assert onepass("table", tmp_path).out == onepass("table", file).out
    shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "runs/er")
    assert onepass("table", tmp_path).out == onepass("table", tmp_path / "runs", file).out
    alone = onepass("table", runs / "er-synthetic-m100-s0")  # whose events.jsonl are no results
    assert alone.status == 0
    assert not caplog.messages


def test_lines_of_other_things_are_passed_over_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_lines(
        tmp_path / "a.jsonl", run_line("er", 0, 50.0), {"what": "a benchmark", "seconds": 3}
    )
    write_lines(tmp_path / "b.jsonl", {"method": "er", "memory": 3}, {"method": "er", "trial": 1})
    (row,) = read_csv(onepass("table", tmp_path, "--format", "csv").out)
    assert row["n"] == "1"
    (said,) = caplog.messages
    assert "3 lines" in said and "a.jsonl" in said and "b.jsonl" in said
    damaged = write_lines(tmp_path / "c.jsonl", run_line("er", 0, "fifty"))
    assert f"{damaged}:1 is damaged" in onepass("table", tmp_path).error
    nothing = onepass("table", tmp_path / "b.jsonl")
    assert nothing.status == 2 and "no finished run" in nothing.error


def test_a_field_that_an_old_line_lacks_stays_empty(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", run_line("er", 0, 50.0))
    (row,) = read_csv(onepass("table", file, "--format", "csv").out)
    untold = (
        "forgetting",
        "learning",
        "newest",
        "any-time",
        "steps/s",
        "trained/sample",
        "scored/sample",
        "kept bytes",
    )
    assert {row[name] for name in untold} == {""}
    assert (row["accuracy"], row["n"], row["seconds"]) == ("50.0000", "1", "1.0000")
    assert onepass("table", file).out.split()[-9:] == ["50.0", *"----1---"]
    assert onepass("runs", "show", f"{file}:1").status == 0
    assert onepass("runs", "export", file, "-o", tmp_path / "a.csv").status == 0
    (exported,) = read_csv((tmp_path / "a.csv").read_text())
    assert exported["steps_per_second"] == exported["memory_bytes"] == ""


def test_an_old_line_has_in_its_matrix_what_was_learned(tmp_path: Path) -> None:
    line = run_line("er", 0, 50.0)
    line["accuracy_matrix"] = [[90.0, None], [60.0, 40.0]]
    (row,) = read_csv(
        onepass("table", write_lines(tmp_path / "a.jsonl", line), "--format", "csv").out
    )
    assert (row["learning"], row["newest"]) == ("65.0000", "40.0000")
    shown = json.loads(onepass("runs", "show", f"{tmp_path / 'a.jsonl'}:1", "--json").out)
    assert shown["accuracy"]["learning_accuracy"] == 65.0


def test_a_mean_over_some_of_the_seeds_says_so(tmp_path: Path) -> None:
    lines = [run_line("er", seed, 80.0) for seed in range(3)]
    lines[1]["forgetting"] = 5.0
    done = onepass("table", write_lines(tmp_path / "a.jsonl", *lines), "--format", "markdown")
    assert "| 80.0 ± 0.0 | 5.0 (1 of 3) | - | - | - | 3 |" in done.out


def test_seeds_of_a_preset_before_and_after_it_changed_are_two_rows(tmp_path: Path) -> None:
    lines = [
        run_line(
            "gsa", seed, 70.0 + seed, variant="best", settings={"lr": lr, "mix": 64, "seed": seed}
        )
        for seed, lr in enumerate((3e-4, 3e-4, 7e-4))
    ]
    lines.append(run_line("er", 0, 60.0, variant="best"))
    file = write_lines(tmp_path / "a.jsonl", *lines)
    made = read_csv(onepass("table", file, "--format", "csv").out)
    found = {(row["variant"], row["accuracy"], row["n"]) for row in made if row["method"] == "gsa"}
    assert found == {("best lr=0.0003", "70.5000", "2"), ("best lr=0.0007", "72.0000", "1")}


def test_a_line_without_settings_has_the_row_of_the_defaults_of_its_time(tmp_path: Path) -> None:
    settings = ({}, {"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}, {"lr": 0.001})
    lines = [run_line("er", n, 60.0 + 10 * n, settings=own) for n, own in enumerate(settings)]
    made = read_csv(
        onepass("table", write_lines(tmp_path / "a.jsonl", *lines), "--format", "csv").out
    )
    found = [(row["variant"], row["accuracy"], row["n"]) for row in made]
    assert found == [
        ("lr=0.001", "80.0000", "2"),
        ("lr=0.1", "80.0000", "2"),
        ("lr=0.2", "80.0000", "1"),
    ]
    alike = write_lines(tmp_path / "b.jsonl", lines[0], lines[4])
    (row,) = read_csv(onepass("table", alike, "--format", "csv").out)
    assert row["n"] == "2"


def test_two_spellings_of_a_data_path_are_two_rows(tmp_path: Path) -> None:
    places = ("/data/pets", "/data/pets/")
    lines = [
        run_line("er", 0, 50.0, dataset="pets", dataset_identity=place, data_sha256=str(number))
        for number, place in enumerate(places)
    ]
    made = read_csv(
        onepass("table", write_lines(tmp_path / "a.jsonl", *lines), "--format", "csv").out
    )
    assert [row["dataset"] for row in made] == list(places)


def test_the_committed_lines_are_rendered() -> None:
    results = Path(__file__).parents[2] / "results" / "lines"
    found = read_csv(onepass("table", results, "--format", "csv").out)
    known = {row["dataset"].split()[0] for row in found}  # "mnist bf68fe15" has a checksum
    assert known >= {"cifar100", "cifar10", "mnist", "digits"}
    assert any("20 channels" in row["variant"] and not row["forgetting"] for row in found)


def test_a_table_of_one_dataset(tmp_path: Path) -> None:
    lines = [run_line("er", 0, 50.0, dataset=name) for name in ("toys", "pets")]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    (row,) = read_csv(onepass("table", file, "--dataset", "pets", "--format", "csv").out)
    assert row["dataset"] == "pets"
    assert "'pets'" in onepass("table", file, "--dataset", "pet").error


def test_a_table_of_the_runs_that_meet_every_condition(tmp_path: Path) -> None:
    lines = [
        run_line("er", seed, 50.0 + seed, memory=memory, settings={"lr": 10.0**-memory})
        for seed in (0, 1)
        for memory in (5, 20)
    ]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    for asked in (["memory=5"], ["lr>1e-9", "seed<7"]):
        where = [word for condition in asked for word in ("--where", condition)]
        (row,) = read_csv(onepass("table", file, *where, "--format", "csv").out)
        assert (row["memory"], row["n"], row["accuracy"]) == ("5", "2", "50.5000")


def test_settings_recorded_only_in_a_folder_can_be_conditions(runs: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("er-synthetic-m100-s0", "er-synthetic-m100-s1")):
        shutil.copytree(runs / name, tmp_path / name)
        change_result(tmp_path / name, settings={})
        content = json.loads((tmp_path / name / "run.json").read_text())
        content["learner"]["lr"] = float(number)
        (tmp_path / name / "run.json").write_text(json.dumps(content))
    (row,) = read_csv(
        onepass("table", tmp_path, "--where", "lr=1", "--per-run", "--format", "csv").out
    )
    assert row["seed"] == "1"


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("acuracy>3", "Did you mean 'accuracy'"),
        ("method", "KEY=VALUE"),
        ("memory=7", "no finished run matches --where 'memory=7'"),
    ],
)
def test_a_condition_that_chooses_nothing_is_one_line(
    condition: str, said: str, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "a.jsonl", run_line("er", 0, 50.0))
    for more in ((), ("--like", "table1")):
        refused = onepass("table", file, "--where", condition, *more)
        assert refused.status == 2 and said in refused.error


def test_a_row_for_each_run(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "a.jsonl", *(run_line("er", seed, 50.0 + seed) for seed in (3, 1))
    )
    found = read_csv(onepass("table", file, "--per-run", "--format", "csv").out)
    assert [(row["seed"], row["accuracy"]) for row in found] == [("3", "53.0000"), ("1", "51.0000")]
    assert [row["where"] for row in found] == [f"{file}:1", f"{file}:2"]
    assert not {"n", "accuracy sd"} & found[0].keys()
    assert onepass("table", file, "--per-run", "--pivot", "memory").status == 2


def test_memories_stand_side_by_side(tmp_path: Path) -> None:
    lines = [
        run_line("er", seed, 40.0 + memory / 10 + seed, memory=memory)
        for memory in (200, 1000)
        for seed in (0, 1)
    ]
    lines += [run_line("gsa", 0, 70.0, memory=200), run_line("finetune", 0, 20.0, memory=0)]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    found = {row["method"]: row for row in read_csv(pivoted(file, "csv"))}
    assert list(found["er"]) == [
        *("method", "dataset", "M=200 accuracy", "M=200 accuracy sd", "M=200 n"),
        *("M=1000 accuracy", "M=1000 accuracy sd", "M=1000 n"),
    ]
    er = found["er"]
    assert (er["M=200 accuracy"], er["M=1000 accuracy"]) == ("60.5000", "140.5000")
    assert found["gsa"]["M=1000 accuracy"] == ""
    assert found["finetune"]["M=200 accuracy"] == found["finetune"]["M=1000 accuracy"] == "20.0000"
    latex = pivoted(file, "latex")
    assert r"&  & \multicolumn{2}{c}{M=200} & \multicolumn{2}{c}{M=1000} \\" in latex
    assert r"\textbf{70.0} & 1 & -- & -- \\" in latex
    assert "| gsa | toys | **70.0** | 1 | - | - |" in pivoted(file, "markdown")
    assert "M=1000 accuracy" in pivoted(file, "text")


def test_a_deviation_is_explained_where_there_is_one(tmp_path: Path) -> None:
    for seeds in (1, 2):
        lines = [run_line("er", seed, 50.0 + seed) for seed in range(seeds)]
        file = write_lines(tmp_path / f"{seeds}.jsonl", *lines)
        assert ("standard deviation" in pivoted(file, "text")) == (seeds > 1)


def pivoted(file: Path, form: str) -> str:
    done = onepass("table", file, "--pivot", "memory", "--format", form)
    assert done.status == 0, done.err
    return done.out


def test_streams_stand_side_by_side(tmp_path: Path) -> None:
    streams = ("", "stream=blurry:n=50,m=10")
    lines = [
        run_line("er", 0, 9.0 + n, variant=f"lr=1 {stream}".strip())
        for n, stream in enumerate(streams)
    ]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    done = onepass("table", file, "--pivot", "stream", "--columns", "accuracy", "--format", "csv")
    (row,) = read_csv(done.out)
    assert row["variant"] == "lr=1"
    assert row["class-incremental accuracy"] == "9.0000"
    assert row["blurry:n=50,m=10 accuracy"] == "10.0000"


def test_a_note_says_what_training_for_scores_costs(tmp_path: Path) -> None:
    lines = [
        run_line(
            "gdumb", seed, 50.0, memory=memory, scoring_seconds=seconds, images_beside_steps=spent
        )
        for memory, seconds, trained in ((100, 4.25, 28672), (1000, 60.0, 258048))
        for seed in (0, 1)
        for spent in [{"scores": {"trained": trained, "scored": 0}}]
    ]
    looked_at = {"scores": {"trained": 0, "scored": 9}, "task ends": {"trained": 9, "scored": 0}}
    file = write_lines(
        tmp_path / "a.jsonl", *lines, run_line("scr", 0, 9.0, images_beside_steps=looked_at)
    )
    said = (
        "gdumb also trains each time it is scored. The columns above leave that out. "
        "In a run it is 28 672 to 258 048 images, and 4.2 to 60.0 s with the scoring.\n"
    )
    for columns in ("method,memory,seconds", "method,memory,passes/sample"):
        for pivot in ((), ("--pivot", "memory")):
            assert said in onepass("table", file, "--columns", columns, *pivot).out
    single = onepass("table", file, "--where", "memory=100").out
    assert "In a run it is 28 672 images, and 4.2 s with the scoring.\n" in single
    for asked in (("--columns", "method,memory,accuracy"), ("--where", "method=scr")):
        assert "also trains" not in onepass("table", file, *asked).out


def test_the_best_and_the_second_stand_out_among_those_that_learned_the_same(
    tmp_path: Path,
) -> None:
    lines = [run_line("er", 0, 50.0), run_line("gsa", 0, 70.0), run_line("scr", 0, 60.0)]
    lines += [run_line("joint", 0, 99.0), run_line("er", 0, 90.0, dataset="other")]
    text = onepass("table", write_lines(tmp_path / "a.jsonl", *lines), "--format", "latex").out
    for shown in (
        "& 50.0 &",
        r"& \textbf{70.0} &",
        r"& \underline{60.0} &",
        "& 99.0 &",
        "& 90.0 &",
    ):
        assert shown in text


def test_words_that_all_rows_share_stand_above_the_table(tmp_path: Path) -> None:
    variants = ("precision=bf16", "lr=1 precision=bf16")
    file = write_lines(
        tmp_path / "a.jsonl", *(run_line("er", 0, 9.0, variant=text) for text in variants)
    )
    above = "Preset: common, where a row names no other\nAll rows: precision=bf16\n"
    assert onepass("table", file).out.startswith(above)
    markdown = onepass("table", file, "--columns", "method,variant", "--format", "markdown").out
    assert markdown.startswith("All rows: precision=bf16\n\n| method | variant |\n")
    assert "| er |  |\n| er | lr=1 |\n" in markdown
    latex = onepass("table", file, "--format", "latex").out
    assert latex.startswith("{\\footnotesize All rows: precision=bf16\\par\\smallskip}\n\\begin")
    in_csv = [row["variant"] for row in read_csv(onepass("table", file, "--format", "csv").out)]
    assert in_csv == list(variants)


def test_a_table_of_one_row_or_without_variants_has_nothing_above_it(tmp_path: Path) -> None:
    lines = [run_line(name, 0, 9.0, variant="precision=bf16") for name in ("er", "gsa")]
    assert "All rows" not in onepass("table", write_lines(tmp_path / "a.jsonl", lines[0])).out
    both = write_lines(tmp_path / "b.jsonl", *lines)
    assert "All rows" not in onepass("table", both, "--columns", "method,accuracy").out
    assert "variant" not in onepass("table", both).out.replace("All rows", "")


def test_the_pivot_does_not_stand_above_the_table(tmp_path: Path) -> None:
    streams = ("lr=1 stream=long-tail", "lr=1 stream=long-tail tasks=2")
    file = write_lines(
        tmp_path / "a.jsonl", *(run_line("er", 0, 9.0, variant=text) for text in streams)
    )
    found = onepass("table", file, "--pivot", "stream", "--format", "markdown").out
    assert found.startswith("All rows: lr=1\n")
    assert "long-tail accuracy" in found and "| tasks=2 |" in found
