"""`onepass.paper`, the Python form of the command."""

from dataclasses import replace

import pytest

import onepass
from onepass.base.errors import OnepassError
from onepass.executors.serial import Serial
from onepass.gsa_paper import experiments
from onepass.gsa_paper.paper import _heading
from onepass.runs.spec import Job
from onepass.sweeps.sweep_file import PlannedRun

JOB = Job("er", "synthetic", batch=30, device="cpu")


@pytest.fixture
def small(monkeypatch):
    """Plans two runs for one section instead of hundreds, in this process."""
    some = [PlannedRun(replace(JOB, stream=name), 0) for name in (JOB.stream, "blurry")]
    planned = {name: [] for name in experiments.EXPERIMENTS} | {"streams": some}
    monkeypatch.setattr(experiments, "plan_runs", lambda *_, **__: planned)
    monkeypatch.setattr("onepass.executors.choose_executor", lambda *_, **__: Serial())


@pytest.mark.usefixtures("small")
def test_the_page_the_report_and_the_runs_are_made_and_runs_only_once(tmp_path):
    for state in ("finished", "skipped"):
        made = onepass.paper(tmp_path, quick=True)
        assert [run.state for run in made.runs] == [state, state]
        assert made.page == tmp_path / "README.md"
        assert "Made by `onepass paper --quick`" in made.page.read_text()
        assert "blurry" in (tmp_path / "streams.md").read_text()
        assert made.report == tmp_path / "report.html" and made.report.exists()


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (1, "samples, one seed. "),
        (3, "samples, 3 seeds. "),
        (10, "10 seeds (3 in fig1, 3 in fig3, 3 in fig7, 3 in loss-curves, 5 in ablations, 6 in"),
    ],
)
def test_the_page_has_as_many_seeds_as_its_experiments(seeds, said):
    planned = experiments.plan_runs("digits", seeds=seeds)
    assert said in _heading("digits", planned, seeds, quick=True, ocm=False)


@pytest.mark.usefixtures("small")
def test_failed_runs_are_reported_and_the_rest_is_there(tmp_path):
    (tmp_path / "runs" / JOB.folder_name).mkdir(parents=True)
    (tmp_path / "runs" / JOB.folder_name / "thesis.txt").touch()
    made = onepass.paper(tmp_path, quick=True)
    assert [run.state for run in made.runs] == ["failed", "finished"]
    assert "blurry" in (tmp_path / "streams.md").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--dataset"),
        ({"quick": True, "dataset": "mnist"}, "--dataset"),
        ({"dataset": "svhn"}, "'svhn'"),
        ({"quick": True, "seeds": 0}, "seeds must be at least 1"),
        ({"quick": True, "jobs": 0}, "must be at least 1, not 0"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_written(options, said, tmp_path):
    with pytest.raises(OnepassError, match=said):
        onepass.paper(tmp_path / "new", device="cpu", **options)
    assert not (tmp_path / "new").exists()
