"""The report's page: what it holds, and that texts from runs stay data."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from command import events, onepass, refused, untouched

import onepass as package
from onepass.data import load
from onepass.evaluation.points import Point
from onepass.report.html import data as collecting
from onepass.report.html.page import ESCAPED, embed_json, render_page, source_hash
from onepass.runs.folder import DAMAGED_NAME

PAGE = Path(collecting.__file__).parent / "assets"
ON_SYNTHETIC = ("--dataset", "synthetic", "--device", "cpu", "--json")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    arguments = (*ON_SYNTHETIC, "--seeds", 2, "--probe", "balance", "--out", out)
    assert onepass("run", "er", "finetune", *arguments).status == 0
    return out


def report(*paths: Path, to: Path) -> dict[str, Any]:
    """Returns the data in the page that the command writes."""
    done = onepass("report", *paths, "-o", to)
    assert done.status == 0, done.err
    return shown(to)


def shown(write_lines: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', write_lines.read_text()
    )
    assert found
    return json.loads(found[1])


def row_of(data: dict[str, Any], method: str) -> dict[str, Any]:
    (row,) = [row for row in data["rows"] if row["method"] == method]
    return row


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        self.open = tag

    def handle_data(self, text: str) -> None:
        if self.open in self.inside:
            self.inside[self.open].append(text)

    def handle_endtag(self, tag: str) -> None:
        self.open = ""


# ---- the page


def test_a_page_is_about_the_runs_that_meet_every_condition(runs: Path, tmp_path: Path) -> None:
    asked = ("report", runs, "-o", tmp_path / "a.html", "--where")
    assert onepass(*asked, "method=er", "--where", "seed=1").status == 0
    data = shown(tmp_path / "a.html")
    assert [(row["method"], row["seeds"]) for row in data["rows"]] == [("er", [1])]
    assert len(data["runs"]) == 1
    assert "there is no run that matches --where in" in refused(*asked, "seed=9")


def test_no_text_can_end_the_element_that_holds_it() -> None:
    text = "</script><!--<script>]]>&lt;\u2028\u2029'\"\ud800"
    write_lines = embed_json({text: [text]})
    assert not set(write_lines) & set("<>&\u2028\u2029")
    assert write_lines.isascii()
    assert json.loads(write_lines) == {text: [text]}
    assert set(map(chr, ESCAPED)) == set("<>&\u2028\u2029")


def test_the_policy_names_the_only_script_and_the_only_style() -> None:
    elements = Elements(render_page({"rows": [], "runs": []}))
    (policy,) = [
        attributes["content"]
        for tag, attributes in elements.found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    _, script = elements.inside["script"]
    (style,) = elements.inside["style"]
    assert rules == {
        "default-src": "'none'",
        "script-src": source_hash(script),
        "style-src": source_hash(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_the_page_asks_for_nothing() -> None:
    elements = Elements(render_page({"rows": [], "runs": []}))
    addresses = [
        value
        for _, attributes in elements.found
        for name, value in attributes.items()
        if name in ("src", "href", "action", "data", "poster", "srcset")
    ]
    assert set(addresses) == {"data:,", "#results"}
    (style,) = elements.inside["style"]
    assert "url(" not in style
    assert "@import" not in style


@pytest.mark.parametrize("source", sorted(PAGE.glob("*.js")), ids=lambda path: path.name)
def test_no_script_reads_html_or_code_from_a_text(source: Path) -> None:
    ways = "innerHTML|outerHTML|insertAdjacentHTML|document.write|DOMParser|eval|Function\\(|fetch|"
    ways += "XMLHttpRequest|import\\(|srcdoc|createContextualFragment|setHTML|WebSocket|sendBeacon"
    assert not re.findall(rf"\b({ways})", source.read_text())


# ---- what it shows


def test_a_row_shows_the_means_over_its_seeds(runs: Path, tmp_path: Path) -> None:
    row = row_of(report(runs, to=tmp_path / "report.html"), "er")
    folders = sorted(runs.glob("er-*"))
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert row["seeds"] == [0, 1]
    assert row["accuracy"][0] == pytest.approx(mean(result["accuracy"] for result in results))
    points = [events(folder) for folder in folders]
    assert row["curve"]["steps"] == [point["step"] for point in points[0]]
    for place, pair in enumerate(zip(*points, strict=True)):
        accuracy = mean(100 * sum(p["correct"]) / sum(p["total"]) for p in pair)
        assert row["curve"]["means"][place] == pytest.approx(accuracy, abs=0.05)
    ends = [[point for point in of_run if point["boundary"]] for of_run in points]
    for label, values in enumerate(row["class_map"]["values"]):
        for task, value in enumerate(values):
            pair = [of_run[task] for of_run in ends]
            if not pair[0]["total"][label]:
                assert value is None
            else:
                shares = [100 * p["correct"][label] / p["total"][label] for p in pair]
                assert value == pytest.approx(mean(shares), abs=0.05)
    probed = [(folder / "balance.jsonl").read_text().splitlines() for folder in folders]
    last = [json.loads(lines[-1])["a_pn"]["0"] for lines in probed]
    assert row["balance"]["a_pn"][0] == pytest.approx(mean(last), rel=1e-3)


def test_rates_of_classes_stand_in_the_order_in_which_classes_came(tmp_path: Path) -> None:
    """Rates have the same order as accuracies, so that new classes can be seen."""
    asked = (*ON_SYNTHETIC, "--class-order", "shuffled", "--probe", "balance", "--out", tmp_path)
    record = onepass("run", "er", "--preset", "common", *asked).record
    row = row_of(report(tmp_path, to=tmp_path / "page.html"), "er")
    tasks = json.loads((Path(record["out"]) / "run.json").read_text())["stream"]["classes"]
    came = [f"class{label}" for group in tasks for label in sorted(group)]
    assert came != sorted(came)
    assert row["balance"]["labels"] == row["class_map"]["names"] == came


def test_the_confusion_of_tasks_is_that_of_the_learner_at_the_end(runs: Path) -> None:
    folder = runs / "er-synthetic-m100-s0"
    learner, data = package.open(folder / "checkpoint.pt"), load("synthetic")
    tasks = json.loads((folder / "run.json").read_text())["stream"]["classes"]
    of_class = {label: task for task, group in enumerate(tasks) for label in group}
    counts = [[0] * len(tasks) for _ in tasks]
    predicted = learner.predict(data.test_x).tolist()
    for truth, found in zip(data.test_y.tolist(), predicted, strict=True):
        counts[of_class[truth]][of_class[found]] += 1
    result = json.loads((folder / "result.json").read_text())
    assert result["task_confusion"] == counts
    at_ends = [point["confusion"] for point in events(folder) if point["boundary"]]
    assert [len(rates) for rates in at_ends] == list(range(1, len(tasks) + 1))
    assert all(not point["confusion"] for point in events(folder) if not point["boundary"])


def test_old_taken_for_new_is_counted_among_the_old() -> None:
    counts = ((6, 2, 2), (1, 9, 0), (3, 1, 16))
    point = Point(step=9, task=2, seconds=1.0, confusion=counts)
    assert collecting._mistaken(point) == [100 * 2 / 20, 100 * 4 / 20]


def test_events_of_a_version_that_did_not_count_confusions_are_read(
    runs: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(runs / "er-synthetic-m100-s0", tmp_path / "old"))
    lines = [{k: v for k, v in event.items() if k != "confusion"} for event in events(old)]
    (old / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = json.loads((old / "result.json").read_text())
    del result["task_confusion"]
    (old / "result.json").write_text(json.dumps(result))
    row = row_of(report(old, to=tmp_path / "report.html"), "er")
    assert row["curve"] is not None
    assert row["confusion"] is None


def test_lines_are_shown_with_what_they_have(runs: Path, tmp_path: Path) -> None:
    line = json.loads((runs / "er-synthetic-m100-s0/result.json").read_text())
    del line["out"]  # as `onepass sweep --append` writes them
    file = tmp_path / "kept.jsonl"
    search, wrong = {"method": "er", "lr": 0.1}, {**line, "memory": "much"}
    file.write_text("".join(json.dumps(record) + "\n" for record in (line, search, wrong)))
    data = report(file, to=tmp_path / "report.html")
    row = row_of(data, "er")
    assert (row["curve"], row["class_map"]["only_end"]) == (None, True)
    assert row["confusion"]["end"]
    run_line = [(run["where"], run["state"], run["problem"]) for run in data["runs"]]
    damaged = "its memory is of the wrong type"
    assert run_line == [(f"{file}:1", "finished", ""), (f"{file}:3", "damaged", damaged)]
    assert data["passed_over"] == {str(file): 1}
    shutil.copy(file, tmp_path / "kept too.jsonl")  # whose runs count once
    of_folder = report(tmp_path, to=tmp_path / "of_folder.html")
    assert len(of_folder["rows"]) == 1 and row_of(of_folder, "er")["seeds"] == row["seeds"]
    assert [run["state"] for run in of_folder["runs"]].count("finished") == 1


def test_no_run_is_lost_silently(runs: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(runs, tmp_path / "runs"))
    (out / "er-synthetic-m100-s0/result.json").unlink()
    (out / "er-synthetic-m100-s1/result.json").write_text('{"method":')
    result = out / "finetune-synthetic-s0/result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "accuracy_matrix": "none"}))
    (out / "finetune-synthetic-s1/events.jsonl").write_text("{}\n")
    shutil.copytree(runs / "er-synthetic-m100-s0", out / f"er{DAMAGED_NAME}1")
    done = onepass("report", out, "-o", tmp_path / "report.html")
    assert done.out == f"{tmp_path / 'report.html'}: 1 finished, 1 broken, 3 damaged runs\n"
    run_line = {
        Path(run["where"]).name: (run["state"], run["problem"] or run["notes"])
        for run in shown(tmp_path / "report.html")["runs"]
    }
    assert run_line == {
        "er-synthetic-m100-s0": ("broken", []),
        "er-synthetic-m100-s1": ("damaged", "result.json: it is not JSON"),
        "finetune-synthetic-s0": ("damaged", "its accuracy_matrix is of the wrong type"),
        "finetune-synthetic-s1": ("finished", ["events.jsonl is damaged"]),
        f"er{DAMAGED_NAME}1": ("damaged", "it was set aside as damaged"),
    }
    onepass("report", out / "er-synthetic-m100-s0", "-o", tmp_path / "broken.html")
    assert shown(tmp_path / "broken.html")["rows"] == []


SHUFFLED = ("--class-order", "shuffled", "--tasks", 2, "--batch", 50)
CHOSEN = ("--set", "lr=5e-4", "--every", 50, "--prequential", "--stream", "blurry:n=50,m=10")


@pytest.mark.parametrize(
    "asked",
    [
        ("er", "--memory", 30, "--seed", 3, "--batch", 20, *CHOSEN),
        ("gsa", "--preset", "tuned", "--set", "mirror=false", *SHUFFLED),
    ],
    ids=lambda asked: asked[0],
)
def test_the_command_of_a_run_asks_for_that_run(asked: tuple[object, ...], tmp_path: Path) -> None:
    first = onepass("run", *asked, *ON_SYNTHETIC, "--out", tmp_path / "a")
    assert first.status == 0, first.err
    (run,) = report(tmp_path / "a", to=tmp_path / "report.html")["runs"]
    name, *words = shlex.split(run["command"])
    again = onepass(*words, "--json", "--out", tmp_path / "b")
    assert (name, again.status) == ("onepass", 0), again.err
    assert again.record["state_sha256"] == first.record["state_sha256"]
    folders = [Path(done.record["out"]) for done in (first, again)]
    said = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert said[0]["identity"] == said[1]["identity"]


# ---- its size


def test_many_rows_make_a_page_of_bounded_size(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads((runs / "er-synthetic-m100-s0/result.json").read_text())
    tasks, classes, many = 20, 200, 60
    monkeypatch.setattr(collecting, "NUMBERS", many * tasks * tasks)
    large = {
        **result,
        "accuracy_matrix": [[12.3456789] * tasks] * tasks,
        "task_confusion": [[7] * tasks] * tasks,
        "class_accuracy": [98.7654321] * classes,
    }
    rows = [json.dumps({**large, "variant": f"lr={n} {'x' * 300}"}) for n in range(many)]
    (tmp_path / "many.jsonl").write_text("\n".join(rows) + "\n")
    data = report(tmp_path / "many.jsonl", to=tmp_path / "report.html")
    assert len(data["rows"]) == len(data["runs"]) == many
    assert all(len(row["variant"]) < 250 for row in data["rows"])
    kinds_of_maps, bytes_of_a_number, bytes_of_a_run = 4, 6, 4000
    bound = kinds_of_maps * collecting.NUMBERS * bytes_of_a_number + many * bytes_of_a_run
    assert (tmp_path / "report.html").stat().st_size < bound


def test_a_map_for_which_there_is_no_room_is_left_out(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "NUMBERS", 2 * 30)  # two rows: tasks 5 x 5, classes 10 x 5
    row = row_of(report(runs, to=tmp_path / "report.html"), "er")
    assert (row["task_map"] is None, row["class_map"]) == (False, None)
    assert len(row["curve"]["steps"]) == collecting.FEWEST_POINTS


# ---- what is refused


def test_a_report_without_runs_is_an_error_of_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "report.html").write_text("of yesterday")
    output = ("-o", tmp_path / "report.html")
    with untouched(tmp_path):
        assert "there is no run in" in refused("report", tmp_path / "empty", *output)
        assert "is neither a folder nor" in refused("report", tmp_path / "gone", *output)
        wrong = refused("report", runs, "-o", tmp_path / "report.pdf")
        assert "must end in .html or .htm, not 'report.pdf'" in wrong
    assert onepass("report", runs, "-o", tmp_path / "new/report.html").status == 0
    assert onepass("report", runs, *output).status == 0
    assert "of yesterday" not in (tmp_path / "report.html").read_text()


def test_help_has_examples() -> None:
    assert "onepass report runs/ -o report.html" in onepass("report", "--help").out
