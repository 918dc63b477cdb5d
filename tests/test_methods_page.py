"""The table in docs/methods.md is made from runs: one row for each method, and the rest of the page
stays as it is."""

import runpy
from pathlib import Path

import pytest

from onepass.learning import registry
from onepass.runs.execute import run_job
from onepass.runs.spec import Job

ROOT = Path(__file__).parents[1]
script = runpy.run_path(str(ROOT / "scripts" / "update_methods_page.py"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("joint", "gsa-released", "er", "finetune"):
        run_job(Job(method, "synthetic", memory=20, device="cpu"), folder)
    return folder


def test_rows_are_ordered_by_year_and_references_for_all_classes_come_last(runs):
    header, _, *rows = script["table"](runs).splitlines()
    columns = [
        "method",
        "memory",
        "accuracy",
        "forgetting",
        "learning",
        "newest",
        "any-time",
        "n",
        "passes/sample",
        "kept",
    ]
    assert header == f"| {' | '.join(columns)} |"
    names = [row.split(" | ")[0] for row in rows]
    variant = "| gsa-released (mirror=false)"
    joint = "| joint (all classes at once, not online)"
    assert names == ["| finetune", "| er", variant, joint]


def test_the_rest_of_the_page_stays_as_it_is(runs, tmp_path):
    text = (ROOT / "docs" / "methods.md").read_text()
    page = tmp_path / "methods.md"
    page.write_text(text)
    script["main"](str(runs), str(page))
    begin, end = script["BEGIN"], script["END"]
    changed = page.read_text()
    assert changed.count("| er | 20 |") == 1
    assert changed.partition(begin)[0] == text.partition(begin)[0]
    assert changed.partition(end)[2] == text.partition(end)[2]
    script["main"](str(runs), str(page))
    assert page.read_text() == changed


def test_a_page_without_marks_is_refused():
    with pytest.raises(SystemExit, match="no table to replace"):
        script["updated"]("no marks here", "")


def test_a_method_has_a_remark_if_the_registry_says_that_it_cannot_be_compared():
    remarks = {info.key: script["remark"](info) for info in registry.methods()}
    for info in registry.methods():
        assert bool(remarks[info.key]) == (info.one_task or info.learner.traits.trains_to_score)
