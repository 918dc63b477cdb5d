"""`onepass runs` lists, shows, compares and exports runs in folders and .jsonl files."""

from __future__ import annotations

import builtins
import csv
import io
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import onepass, untouched
from pyarrow import parquet

from onepass import cli
from onepass.cli.runs import COLUMNS
from onepass.runs import lines, query
from onepass.runs.find import find_runs
from onepass.runs.result import Result
from onepass.runs.variant import Variant

QUICK = ("--dataset", "synthetic", "--batch", 60, "--device", "cpu", "--json")
MANY = 2000
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202e"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes runs of er and gsa with two seeds each, one with another rate, and a stopped one."""
    out = tmp_path_factory.mktemp("runs")
    assert onepass("run", "er", "gsa", "--seeds", 2, *QUICK, "--out", out).status == 0
    other = onepass("run", "er", "--preset", "common", "--set", "lr=5e-4", *QUICK, "--out", out)
    stopped = out / "stopped"
    shutil.copytree(other.record["out"], stopped)
    for name in ("result.json", "checkpoint.pt"):
        (stopped / name).unlink()
    events = (stopped / "events.jsonl").read_text().splitlines(keepends=True)
    (stopped / "events.jsonl").write_text("".join(events[:3]) + events[3][:20])
    return out


@pytest.fixture(scope="module")
def results(runs: Path) -> list[Result]:
    return query.find_results(runs)


@pytest.fixture
def file(results: list[Result], tmp_path: Path) -> Path:
    path = tmp_path / "all.jsonl"
    for result in results:
        lines.append_result(path, result)
    return path


def listed(*arguments: object) -> list[dict[str, Any]]:
    done = onepass("runs", "list", *arguments, "--json")
    assert done.status == 0, done.err
    return done.records


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# ---- list


def test_every_run_is_listed_with_its_numbers_and_its_place(
    runs: Path, results: list[Result]
) -> None:
    finished = [item for item in listed(runs) if item["state"] == "finished"]
    assert [item["where"] for item in finished] == [result.out for result in results]
    for item, result in zip(finished, results, strict=True):
        names = ("method", "variant", "dataset", "memory", "seed", "accuracy", "seconds")
        assert [item[name] for name in names] == [result.as_json()[name] for name in names]
        assert item["any-time"] == result.anytime_accuracy
    text = onepass("runs", "list", runs)
    header, *rows = text.out.splitlines()
    assert header.split() == COLUMNS.split(",")
    assert len(rows) == len(results) + 1
    assert all(f"{result.accuracy:.1f}" in text.out for result in results)
    assert "6 of 6 runs: 5 finished, 1 broken" in text.err


def test_lines_and_folders_are_listed_together(runs: Path, file: Path) -> None:
    both = listed(file, runs)
    assert [item["where"] for item in both[:5]] == [f"{file}:{number}" for number in range(1, 6)]
    assert len(both) == 11


def test_a_run_below_several_paths_is_listed_once(runs: Path, results: list[Result]) -> None:
    once = listed(runs)
    for more in (runs, Path(results[0].out)):
        assert listed(runs, more) == once
    first = Path(results[-1].out)
    assert next(item["where"] for item in listed(first, runs)) == str(first)


def test_lines_in_a_folder_are_listed_but_for_those_of_no_run(file: Path) -> None:
    search = file.with_name("search.jsonl")
    search.write_text('{"lr": 0.1, "points": []}\n')
    places = [f"{file}:{number}" for number in range(1, 6)]
    for asked in ((file.parent,), (file.parent, file)):
        assert [item["where"] for item in listed(*asked)] == places
    assert listed(search)[0]["problem"].startswith("it has no ")


def test_a_broken_run_is_listed_with_the_steps_it_has_done(runs: Path) -> None:
    (item,) = listed(runs, "--where", "state=broken", "--columns", "where,method,steps_done,steps")
    assert item == {"where": str(runs / "stopped"), "method": "er", "steps_done": 3, "steps": 10}
    assert "broken at 3 of 10" in onepass("runs", "list", runs).out


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('{"method": "er"}', "no dataset"),
        ('{"method": 1}', "method is of the wrong type"),
        (None, "not a finite number"),
    ],
)
def test_a_damaged_run_is_named_and_the_others_are_listed(
    damage: str | None, said: str, runs: Path, file: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    result = next((tmp_path / "runs").glob("gsa*s0*")) / "result.json"
    if damage is None:
        content = json.dumps(json.loads(result.read_text()))
        damage = content.replace('"steps_per_second": ', '"steps_per_second": 1e999, "x": ')
    result.write_text(damage)
    file.write_text(f"{damage}\n{file.read_text()}")
    found = listed(tmp_path / "runs", file)
    bad = [item for item in found if item["state"] == "damaged"]
    assert [item["where"] for item in bad] == [str(result.parent), f"{file}:1"]
    assert all(said in item["problem"] for item in bad)
    assert len(found) == 6 + 6
    text = onepass("runs", "list", tmp_path / "runs", file)
    assert text.status == 0
    assert text.out.count("damaged: ") == 2


@pytest.mark.parametrize(
    ("where", "count"),
    [
        (["method=gsa"], 2),
        (["method!=gsa"], 4),
        (["method=er", "seed=1"], 1),
        (["seed>0"], 2),
        (["seed>=0"], 6),
        (["accuracy<0"], 0),
        (["lr=0.0005"], 2),
        (["lr = 5e-4", "state=finished"], 1),
        (["settings.lr<1e-3"], 2),
        (["mirror=false"], 6),
        (["fill=none", "method=gsa"], 2),
        (["prequential_accuracy=none", "state!=broken"], 5),
        (["prequential_accuracy=null", "state!=broken"], 5),
        (["accuracy!=null"], 5),
        (["any-time>0"], 5),
    ],
)
def test_only_those_that_meet_every_condition_are_listed(
    where: list[str], count: int, runs: Path
) -> None:
    asked = [word for item in where for word in ("--where", item)]
    assert len(listed(runs, *asked)) == count


def test_settings_of_a_line_are_found_where_it_has_them(file: Path) -> None:
    texts = file.read_text().splitlines()
    content = {**json.loads(texts[0]), "settings": {"lr": 0.25}}
    file.write_text("\n".join([json.dumps(content), *texts[1:]]))
    (item,) = listed(file, "--where", "lr=0.25", "--columns", "where,settings.lr,lr")
    assert item == {"where": f"{file}:1", "settings.lr": 0.25, "lr": 0.25}


def test_a_list_is_sorted_by_any_key_and_what_lacks_it_comes_last(runs: Path) -> None:
    up = [item["accuracy"] for item in listed(runs, "--sort", "accuracy")]
    assert up == [*sorted(up[:-1]), None]
    down = [item["accuracy"] for item in listed(runs, "--sort", "-accuracy")]
    assert down == [*reversed(up[:-1]), None]
    assert [item["method"] for item in listed(runs, "--sort", "method")] == ["er"] * 4 + ["gsa"] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "acuracy>3"], "Did you mean 'accuracy'"),
        (["--sort", "-sed"], "'seed'"),
        (["--columns", "method,learning"], "'learning'"),
        (["--where", "method"], "KEY=VALUE"),
        (["--where", "seed>many"], "not a number"),
    ],
)
def test_a_key_that_no_run_has_is_one_line(arguments: list[str], said: str, runs: Path) -> None:
    done = onepass("runs", "list", runs, *arguments)
    assert done.status == 2
    assert said in done.error


@pytest.mark.parametrize("name", ["none", "none.jsonl", "empty"])
def test_nothing_to_list_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = onepass("runs", "list", tmp_path / name)
    assert done.status == 2
    assert name in done.error


def test_what_others_wrote_does_nothing_in_the_terminal(
    results: list[Result], file: Path, tmp_path: Path
) -> None:
    hostile = tmp_path / "hostile.jsonl"
    lines.append_result(
        hostile, replace(results[0], dataset=HOSTILE, variant=Variant(preset=HOSTILE))
    )
    for command in (("list", hostile), ("show", f"{hostile}:1")):
        done = onepass("runs", *command)
        assert done.status == 0, done.err
        assert r"\x1b[2J" in done.out
    done = onepass("runs", "diff", f"{hostile}:1", f"{file}:1")
    assert "\x1b" not in done.out and "\u202e" not in done.out


def seconds(act: Any) -> float:
    def once() -> float:
        began = time.process_time()
        act()
        return time.process_time() - began

    return min(once() for _ in range(3))


def copies(results: list[Result], tmp_path: Path) -> tuple[list[str], Path, Path]:
    """Writes the same results many times: as texts, as folders, and as lines."""
    entry = {**results[0].as_json(), "class_accuracy": [50.5] * 100}
    texts = [json.dumps({**entry, "seed": seed}) for seed in range(MANY)]
    for seed, text in enumerate(texts):
        folder = tmp_path / "many" / f"er-{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(text)
    (tmp_path / "many.jsonl").write_text("\n".join(texts))
    return texts, tmp_path / "many", tmp_path / "many.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1], ids=["folders", "lines"])
def test_a_list_costs_a_few_times_what_its_json_costs(
    kind: int, results: list[Result], tmp_path: Path
) -> None:
    texts, *places = copies(results, tmp_path)
    json_alone = seconds(lambda: [json.loads(text) for text in texts])
    whole = seconds(lambda: onepass("runs", "list", places[kind]))
    assert len(find_runs(places[kind])) == MANY
    assert whole < 8 * json_alone  # 3, alone on a machine


def test_the_ordinary_list_reads_results_only(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = builtins.open
    monkeypatch.setattr(
        builtins, "open", lambda name, *a, **k: (opened.append(str(name)), real(name, *a, **k))[1]
    )
    listed(runs, "--where", "state=finished")
    mine = {Path(name).name for name in opened if name.startswith(str(runs))}
    assert mine == {"result.json", "run.json"}  # that of the broken run
    assert sum(name.endswith("run.json") for name in opened) == 1


# ---- show


def test_a_run_is_shown_with_all_that_is_known_of_it(runs: Path, results: list[Result]) -> None:
    (result,) = [item for item in results if item.variant.get("lr") == "5e-4"]
    known = onepass("runs", "show", result.out, "--json").record
    assert (known["where"], known["state"]) == (result.out, "finished")
    assert known["settings"]["lr"] == 5e-4
    assert known["stream"]["classes"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert known["accuracy"]["accuracy_matrix"] == result.accuracy_matrix
    assert known["time"]["seconds"] == result.seconds
    assert known["cost"]["memory_bytes"] == result.memory_bytes
    assert {"torch", "python", "device", "threads"} <= known["machine"].keys()
    assert known["bits"]["state_sha256"] == result.state_sha256
    text = onepass("runs", "show", result.out).out
    assert f"{result.accuracy_matrix[4][1]:.1f}" in text
    sections = [section for section in known.values() if isinstance(section, dict)]
    names = {name for section in sections for name in section} - {"accuracy_matrix"}
    assert all(f"  {name}  " in text for name in names)
    assert "0.0005" in text and result.state_sha256 in text


def test_a_line_is_shown_by_its_number(file: Path, results: list[Result]) -> None:
    known = onepass("runs", "show", f"{file}:2", "--json").record
    assert known["bits"]["params_sha256"] == results[1].params_sha256


def test_a_broken_run_is_shown_too(runs: Path) -> None:
    known = onepass("runs", "show", runs / "stopped", "--json").record
    assert (known["state"], known["time"]) == ("broken", {"steps": 10, "steps_done": 3})
    assert known["settings"]["lr"] == 5e-4


def test_a_run_is_found_by_the_first_letters_of_its_identity(
    runs: Path, file: Path, results: list[Result]
) -> None:
    wanted = results[3]
    letters = (getattr(wanted, "identity", "") or wanted.state_sha256)[:16]
    known = onepass("runs", "show", letters, file, runs, "--json").record
    assert known["where"] == f"{file}:4"
    assert known["bits"]["state_sha256"] == wanted.state_sha256


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (["zzzz"], "neither a run's folder"),
        (["zzzz", "RUNS"], "no run has"),
        (["RUNS"], "not a run's folder"),
        (["FILE:99"], "no line"),
        (["FILE:6"], "6 is damaged"),
        (["FILE:7"], "accuracy_matrix is of the wrong type"),
    ],
)
def test_a_run_that_cannot_be_shown_is_one_line(
    what: list[str], said: str, runs: Path, file: Path, results: list[Result]
) -> None:
    wrong = {**results[0].as_json(), "accuracy_matrix": [["x"]]}
    with file.open("a") as more:
        more.write(f"{{\n{json.dumps(wrong)}\n")
    given = [item.replace("RUNS", str(runs)).replace("FILE", str(file)) for item in what]
    done = onepass("runs", "show", *given)
    assert done.status == 2
    assert said in done.error


# ---- diff


def test_two_runs_differ_in_what_was_asked_otherwise_and_in_nothing_else(
    runs: Path, results: list[Result]
) -> None:
    plain, other = (
        next(item for item in results if item.method == "er" and item.seed == 0 and wanted(item))
        for wanted in (lambda item: "lr" not in item.variant, lambda item: "lr" in item.variant)
    )
    found = onepass("runs", "diff", plain.out, other.out, "--json").record
    assert found["differences"].pop("settings.lr") == [1e-3, 5e-4]
    assert found["differences"].keys() <= {"run.variant"}
    assert found["results"]["accuracy"] == [plain.accuracy, other.accuracy]
    text = onepass("runs", "diff", plain.out, other.out)
    assert text.status == 0
    assert "settings.lr" in text.out and "settings.head" not in text.out
    assert plain.out in text.out and f"{other.accuracy:g}" in text.out


def test_a_run_does_not_differ_from_itself_wherever_it_lies(
    file: Path, results: list[Result]
) -> None:
    done = onepass("runs", "diff", f"{file}:1", results[0].out)
    assert done.status == 0
    assert "the two runs have the same settings" in done.err
    assert (
        onepass("runs", "diff", f"{file}:1", results[0].out, "--json").record["differences"] == {}
    )


def test_a_setting_that_only_one_method_has_is_a_difference(
    results: list[Result], tmp_path: Path
) -> None:
    er, gsa = (next(item for item in results if item.method == name) for name in ("er", "gsa"))
    settings = json.loads(Path(gsa.out, "run.json").read_text())["learner"]
    line = tmp_path / "gsa.jsonl"
    line.write_text(json.dumps({**gsa.as_json(), "settings": settings}))
    for other in (gsa.out, f"{line}:1"):
        found = onepass("runs", "diff", er.out, other, "--json").record["differences"]
        assert found["run.method"] == ["er", "gsa"]
        assert found["settings.statistics"] == [None, "all"]


# ---- export


def exported(output: Path, *paths: Path) -> list[dict[str, Any]]:
    done = onepass("runs", "export", *paths, "-o", output)
    assert done.status == 0, done.err
    if output.suffix == ".parquet":
        rows: list[dict[str, Any]] = parquet.read_table(output).to_pylist()
        return rows
    return list(csv.DictReader(io.StringIO(output.read_text())))


def test_every_run_is_one_row_in_both_formats(
    runs: Path, file: Path, results: list[Result], tmp_path: Path
) -> None:
    table = exported(tmp_path / "new" / "all.parquet", runs, file)
    text = exported(tmp_path / "all.csv", file, runs)
    assert len(table) == len(text) == len(results)
    for row, cells, result in zip(table, text, results, strict=True):
        assert row["accuracy"] == float(cells["accuracy"]) == result.accuracy
        assert row["accuracy_matrix"] == json.loads(cells["accuracy_matrix"])
        assert row["accuracy_matrix"] == result.accuracy_matrix
        assert (row["prequential_accuracy"], cells["prequential_accuracy"]) == (None, "")
        assert row["boundaries"] is True and cells["boundaries"] == "true"
        assert row["settings.lr"] == float(cells["settings.lr"])
        assert row["settings.lr"] == (5e-4 if "lr" in result.variant else 1e-3)
        assert (row["settings.statistics"] is None) == (result.method == "er")
        assert json.loads(row["images_beside_steps"]) == json.loads(cells["images_beside_steps"])
    kinds = {
        field.name: str(field.type) for field in parquet.read_schema(tmp_path / "new/all.parquet")
    }
    assert kinds["prequential_accuracy"] == "double"


def test_settings_of_several_kinds_are_json_in_parquet(
    results: list[Result], tmp_path: Path
) -> None:
    file = tmp_path / "kinds.jsonl"
    values = ["auto", 3, [1, "a"], None, 10**30]
    folders = []
    for number, value in enumerate(values):
        folder = tmp_path / "runs" / str(number)
        shutil.copytree(results[0].out, folder)
        changed(folder / "result.json", seed=number, settings={})
        recorded = json.loads((folder / "run.json").read_text())
        changed(folder / "run.json", learner={**recorded["learner"], "odd": value})
        folders.append(folder)
    rows = exported(file.with_suffix(".parquet"), tmp_path / "runs")
    assert [item and json.loads(item) for item in (row["settings.odd"] for row in rows)] == values


def test_a_cell_of_an_export_is_no_formula(results: list[Result], tmp_path: Path) -> None:
    hostile = replace(results[0], dataset="=1+1", variant=Variant(lr=HOSTILE))
    lines.append_result(tmp_path / "a.jsonl", hostile)
    (row,) = exported(tmp_path / "a.csv", tmp_path / "a.jsonl")
    assert row["dataset"] == "'=1+1"
    assert "\x1b" not in (tmp_path / "a.csv").read_text()


def test_an_export_is_whole_or_not_there(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for name in ("all.csv", "all.parquet"):
        (tmp_path / name).write_text("old")
        with untouched(tmp_path):
            done = onepass("runs", "export", runs, "-o", tmp_path / name)
        assert done.status == 2
        assert "No space" in done.error and name in done.error


def test_what_cannot_be_exported_is_one_line(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = onepass("runs", "export", runs, "-o", tmp_path / "all.xlsx")
    assert (done.status, ".parquet" in done.error) == (2, True)
    monkeypatch.setitem(cli.sys.modules, "pyarrow", None)
    done = onepass("runs", "export", runs, "-o", tmp_path / "all.parquet")
    assert done.status == 2
    assert "pip install pyarrow" in done.error
