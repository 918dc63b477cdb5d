"""The runs that `onepass paper` makes, and its page if some are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command import onepass

from onepass.gsa_paper import experiments, page
from onepass.learning import registry
from onepass.learning.network_learner import NetworkLearner
from onepass.runs import query
from onepass.sweeps import sweep_file

ROOT = Path(__file__).parents[2]


def jobs(experiment, dataset, **options):
    return [planned.job for planned in experiments.plan_runs(dataset, **options)[experiment]]


def test_every_section_has_its_runs():
    assert {section.experiment for section in page.SECTIONS} == set(experiments.EXPERIMENTS)
    for dataset in experiments.MEMORY_SIZES:
        assert all(experiments.plan_runs(dataset).values()), dataset


@pytest.mark.parametrize("experiment", ["fig1", "fig7", "ablations"])
def test_on_the_dataset_of_a_sweep_file_the_runs_are_those_of_the_file(experiment):
    planned = sweep_file.read_sweep_file(ROOT / "experiments" / f"{experiment}.toml")
    for seeds in (1, 3):
        theirs = {
            entry.job.folder_name
            for entry in planned
            if entry.job.dataset == "cifar100" and entry.job.seed < seeds
        }
        ours = jobs(experiment, "cifar100", seeds=seeds)
        assert {job.folder_name for job in ours} == theirs


@pytest.mark.parametrize("experiment", ["fig3", "ablations"])
def test_on_another_dataset_the_runs_are_the_same(experiment):
    """The settings stay, except for the precision, which suits GPUs."""
    moved = jobs(experiment, "mnist")
    here = {"dataset": "mnist", "memory": 500}
    original = [
        replace(job, **here, settings={k: v for k, v in job.settings.items() if k != "precision"})
        for job in jobs(experiment, "cifar100")
    ]
    assert moved == original
    assert all(job.settings.get("precision") is None for job in moved)


def test_every_method_is_there_and_the_costly_ones_if_asked_for():
    infos = registry.methods()
    every = {info.key for info in infos if issubclass(info.learner, NetworkLearner)}
    assert {job.method for job in jobs("table1", "digits", costly=True)} == every
    assert {job.method for job in jobs("table1", "digits")} == every - {"ocm", "ocm-gsa"}
    assert {job.memory for job in jobs("table1", "mnist")} == {500}


@pytest.mark.parametrize("given", [(), ("--quick", "--dataset", "mnist"), ("--dataset", "svhn")])
def test_invalid_options_are_refused_before_anything_is_written(given, tmp_path):
    done = onepass("paper", *given, "--out", tmp_path / "new")
    assert done.status == 2
    assert "--dataset" in done.error
    assert not (tmp_path / "new").exists()


def test_a_section_that_cannot_be_made_says_so_and_the_rest_is_there(tmp_path):
    """All sections but one lack their runs."""
    assert onepass("run", "er", "--dataset", "synthetic", "--out", tmp_path / "r").status == 0
    (result,) = query.find_results(tmp_path / "r")
    nothing = {name: [] for name in experiments.EXPERIMENTS}
    write_lines = page.write_page(
        {**nothing, "streams": [result]}, tmp_path / "paper", "# Heading\n"
    )
    text = write_lines.read_text()
    assert text.startswith("# Heading")
    assert text.count("Not made: ") == len(page.SECTIONS) - 1
    assert "class-incremental" in (tmp_path / "paper/streams.md").read_text()
