"""The identity of a run: it depends on content, not on spelling or paths."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from command import onepass, untouched, values_of
from isolated_registries import isolate_registries
from recording_listeners import RecordingListener, Stopped, stop_after

from onepass import load
from onepass.base.errors import DataError, RunError
from onepass.evaluation import schedule
from onepass.learning import registry
from onepass.learning.registry import METHODS
from onepass.report import rows
from onepass.runs import query, status
from onepass.runs.execute import run_job
from onepass.runs.folder import RunFolder
from onepass.runs.resources import RunResources
from onepass.runs.spec import Fingerprint, Job

PLAIN = Job("er", "digits", device="cpu")
SHORT = Job("er", "synthetic", batch=60, device="cpu")
SAME = ("state_sha256", "accuracy_matrix", "identity")


def known(job: Job) -> Job:
    return RunResources().with_fingerprint(job)


def raised(monkeypatch: pytest.MonkeyPatch, method: str, revision: int) -> None:
    """Raises the method's revision, as if its numbers had changed."""
    isolate_registries(monkeypatch, METHODS)
    METHODS.entries[method] = replace(registry.get(method), revision=revision)


# ---- equal jobs


def by_hand(method: str, preset: str) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in registry.get(method).learner.presets[preset].settings.items()
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (PLAIN, replace(PLAIN, settings={"lr": "0.001"})),
        (PLAIN, replace(PLAIN, settings={"lr": "1e-3", "head": "trained"}, tasks=5)),
        (PLAIN, replace(PLAIN, stream="class-incremental:tasks=5,batch=10")),
        (PLAIN, replace(PLAIN, data_root="/elsewhere", probes=("balance",))),
        (
            replace(PLAIN, method="scr", preset="official"),
            replace(PLAIN, method="scr", settings=by_hand("scr", "official")),
        ),
        (replace(PLAIN, settings={"lr": "1"}), replace(PLAIN, settings={"lr": "1.0"})),
        (replace(PLAIN, method="finetune"), replace(PLAIN, method="finetune", memory=7)),
        (replace(PLAIN, method="joint"), replace(PLAIN, method="joint", tasks=2, memory=7)),
        (replace(PLAIN, tasks=2), replace(PLAIN, stream="class-incremental:tasks=2")),
    ],
)
def test_jobs_that_are_spelled_differently_are_the_same_run(first: Job, second: Job) -> None:
    assert known(first).identity == known(second).identity
    assert first.folder_name == second.folder_name


@pytest.mark.parametrize(
    "other",
    [
        {"method": "gsa"},
        {"dataset": "synthetic"},
        {"memory": 99},
        {"seed": 1},
        {"settings": {"lr": "0.002"}},
        {"tasks": 2},
        {"batch": 20},
        {"class_order": "shuffled"},
        {"stream": "class-incremental:boundaries=false"},
        {"normalise": "first-task"},
        {"validation": 0.1},
        {"every": 7},
        {"prequential": True},
        {"threads": 2},
        {"deterministic": True},
    ],
    ids=" ".join,
)
def test_every_option_that_may_change_numbers_or_record_makes_another_run(
    other: dict[str, object],
) -> None:
    assert known(replace(PLAIN, **other)).identity != known(PLAIN).identity
    assert replace(PLAIN, **other).folder_name != PLAIN.folder_name


def test_folder_names_stay_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PLAIN.folder_name == "er-digits-m100-s0"
    assert Job("finetune", seed=3).folder_name == "finetune-digits-s3"
    raised(monkeypatch, "er", 2)
    assert PLAIN.folder_name == "er-digits-m100-s0-r2"


def test_the_identity_of_a_run_does_not_change_between_versions() -> None:
    """Otherwise results and folders of earlier versions would not be found again. New options
    therefore appear here only if they differ from their defaults."""
    digits = load("digits").sha256()
    plain = {"revision": 1, "dataset": "digits", "data_sha256": digits, "device": "cpu"}
    job = known(replace(PLAIN, settings={"lr": "0.01"}, tasks=2, validation=0.1, every=50))
    assert known(PLAIN).identity_fields == {"method": "er", "memory": 100, "seed": 0, **plain}
    assert job.identity_fields == {
        **known(PLAIN).identity_fields,
        "settings": {"lr": 0.01},
        "stream": {"tasks": 2},
        "validation": 0.1,
        "every": 50,
    }


@pytest.mark.parametrize(
    ("job", "folder", "identity"),
    [
        (Job("gsa"), "gsa-digits-m100-s0", "f92e6c07aac8"),
        (Job("gsa", settings={"lr": "1e-3"}), "gsa-digits-m100-s0", "f92e6c07aac8"),
        (
            Job("gsa", "cifar100", settings={"lr": "5e-4"}),
            "gsa-cifar100-m100-s0-74058057",
            "510274019d94",
        ),
        (
            Job("gsa", "cifar100", preset="tuned"),
            "gsa-cifar100-m100-s0-6f0f4bb2",
            "0fdb7ed2543b",
        ),
        (Job("gsa", "cifar100", preset="best"), "gsa-cifar100-m100-s0-77a41124", "ad5067a3c9f2"),
        (Job("ocm-gsa", "cifar100"), "ocm-gsa-cifar100-m100-s0", "06544d0c0e58"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_runs_of_gsa_are_the_same_as_before_its_defaults_were_tuned(
    job: Job, folder: str, identity: str
) -> None:
    job = replace(job, device="cpu", fingerprint=Fingerprint("ab", 5))
    assert (job.folder_name, job.identity[:12]) == (folder, identity)


# ---- how often a run is scored


CADENCES = [None, 5, 6]
FINGERPRINTS = [Fingerprint("a" * 64, 5, every) for every in CADENCES]
ALL = [replace(PLAIN, every=e, fingerprint=f) for e, f in product(CADENCES, FINGERPRINTS)]
FEWER = replace(PLAIN, batch=50)  # 30 steps; 355 samples are tested


@pytest.fixture
def all_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "LONG", 0)


def test_runs_are_the_same_only_if_they_are_scored_at_the_same_steps() -> None:
    """A number that is chosen is the same as one by default. Without either it is a twentieth, as
    in all runs from before the default could be another."""
    for first, second in product(ALL, ALL):
        scored = [job.every or job.fingerprint.every for job in (first, second)]
        assert (first.identity == second.identity) == (scored[0] == scored[1])
        assert (first.variant == second.variant) == (scored[0] == scored[1])


def test_all_seeds_and_methods_are_scored_at_the_same_steps(all_are_long: None) -> None:
    uneven = replace(PLAIN, stream="long-tail:rho=5", class_order="shuffled")
    seeds = {known(replace(uneven, seed=seed)).known_every for seed in range(5)}
    methods = {known(replace(PLAIN, batch=20, method=key)).known_every for key in ("er", "joint")}
    assert len(seeds) == len(methods) == 1
    assert None not in seeds | methods
    gdumb = known(replace(FEWER, method="gdumb"))
    assert gdumb.known_every is None, "it is scored at the end only"
    assert "every" not in gdumb.identity_fields


def test_a_run_records_how_often_it_is_scored_by_default(
    all_are_long: None, tmp_path: Path
) -> None:
    job = known(FEWER)
    result = run_job(FEWER, tmp_path / "runs")
    folder = RunFolder(Path(result.out))
    assert str(result.variant) == "batch=50 every=6"
    assert folder.description()["job"]["every"] == 6
    ends = {point.step for point in folder.points() if point.boundary}
    assert {point.step for point in folder.points()} - ends <= {6, 12, 18, 24, 30}
    chosen = run_job(replace(FEWER, every=6), tmp_path / "runs")
    assert (chosen.identity, chosen.anytime_accuracy) == (result.identity, result.anytime_accuracy)
    assert result.identity == job.identity != known(replace(FEWER, every=7)).identity
    status.expect_same_run(folder, folder.description(), FEWER)  # its data are not loaded


def test_a_run_from_before_was_scored_at_each_twentieth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_job(FEWER, tmp_path / "before")
    monkeypatch.setattr(schedule, "LONG", 0)
    with untouched(tmp_path), pytest.raises(RunError, match="every None, not 6"):
        run_job(FEWER, tmp_path / "before", resume=True)
    now = run_job(replace(FEWER, seed=1), tmp_path / "now")
    summarised = rows.summarise([before, now])
    assert [str(row.variant) for row in summarised] == ["batch=50", "batch=50 every=6"]


# ---- what is recorded


def test_a_run_records_its_identity_fields(tmp_path: Path) -> None:
    job = replace(SHORT, settings={"mean": "(0.5,)", "std": "(0.2,)"}, validation=0.2)
    result = run_job(job, tmp_path)
    described = json.loads((Path(result.out) / "run.json").read_text())
    assert result.identity == described["identity"] == known(job).identity
    assert described["job"] == known(job).identity_fields
    assert (result.revision, result.validation, result.threads) == (1, 0.2, 1)
    assert (
        result.data_sha256 == load("synthetic").sha256()
    )  # of the full data, before samples are held out
    assert (result.settings["mean"], result.settings["lr"]) == ([0.5], 1e-3)
    assert result.stream_settings["batch"] == 60
    assert (result.gpu, result.commit is None) == (None, described["commit"] is None)


# ---- data and runs that have moved


def vectors(path: Path, shift: float = 0.0) -> Path:
    x = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32) + np.float32(shift)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=x, y=np.arange(400) % 4)
    return path


def own(path: Path) -> Job:
    return Job("er", str(path), test_fraction=0.5, device="cpu")  # 20 steps


@pytest.mark.parametrize("name", ["mine.npz", "renamed.npz"])
def test_a_run_resumes_after_its_data_and_folder_have_moved(name: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    job = own(vectors(here / "data/mine.npz"))
    whole = run_job(job, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_job(job, here / "runs", checkpoint=5, listeners=[stop_after(12)])
    shutil.move(here, there)
    (there / "data/mine.npz").rename(there / "data" / name)
    moved = own(there / "data" / name)
    following = RecordingListener()
    result = run_job(moved, there / "runs", resume=True, listeners=[following])
    assert following.calls[0] == ("started", 10)
    assert values_of(result, SAME) == values_of(whole, SAME)
    assert len(list((there / "runs").iterdir())) == 1
    again = run_job(moved, there / "runs", resume=True, listeners=[stop_after(1)])
    assert again == result


def test_runs_on_the_same_data_at_two_paths_share_a_row(tmp_path: Path) -> None:
    first = run_job(own(vectors(tmp_path / "a/mine.npz")), tmp_path / "runs")
    second = run_job(replace(own(vectors(tmp_path / "b/mine.npz")), seed=1), tmp_path / "runs")
    (row,) = rows.summarise([first, second])
    assert (len(row.results), row.dataset) == (2, "mine")


def test_missing_data_are_named(tmp_path: Path) -> None:
    """Without the data, the identity of the run is unknown."""
    job = own(vectors(tmp_path / "mine.npz"))
    run_job(job, tmp_path / "runs")
    (tmp_path / "mine.npz").unlink()
    with untouched(tmp_path), pytest.raises(DataError, match=r"mine\.npz"):
        run_job(job, tmp_path / "runs", resume=True)


def test_other_data_at_the_same_path_make_another_run(tmp_path: Path) -> None:
    first = run_job(own(vectors(tmp_path / "mine.npz")), tmp_path / "runs")
    with untouched(Path(first.out)):
        second = run_job(
            own(vectors(tmp_path / "mine.npz", shift=1)), tmp_path / "runs", resume=True
        )
    assert first.identity != second.identity
    assert Path(first.out).exists() and first.out != second.out
    summarised = rows.summarise([first, replace(second, seed=1)])
    assert [len(row.results) for row in summarised] == [1, 1]
    assert summarised[0].dataset != summarised[1].dataset


def test_methods_on_the_same_user_data_do_not_take_each_others_folders(
    tmp_path: Path,
) -> None:
    job = own(vectors(tmp_path / "mine.npz"))
    for method in ("er-ace", "er"):
        assert run_job(replace(job, method=method), tmp_path / "runs").method == method


# ---- revisions


def test_a_higher_revision_runs_again_beside_the_old_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = run_job(SHORT, tmp_path / "runs")
    raised(monkeypatch, "er", 2)
    with untouched(Path(old.out)):
        new = run_job(SHORT, tmp_path / "runs", resume=True)
    assert (old.revision, new.revision) == (1, 2)
    assert old.identity != new.identity
    run_job(replace(SHORT, seed=1), tmp_path / "runs")
    run_job(replace(SHORT, method="finetune"), tmp_path / "runs")
    summarised = rows.summarise(query.find_results(tmp_path / "runs"))
    assert [(row.method, str(row.variant), len(row.results)) for row in summarised] == [
        ("er", "revision=1 batch=60", 1),
        ("er", "batch=60", 2),
        ("finetune", "batch=60", 1),
    ]
    picture = tmp_path / "a.svg"
    assert onepass("figure", "accuracy", tmp_path / "runs", "-o", picture).status == 0
    assert picture.read_text().count("er revision=1") > 0
    shutil.rmtree(new.out)
    lone = onepass("figure", "accuracy", old.out, "-o", picture)
    assert lone.status == 0 and "er revision=1" in picture.read_text()


# ---- runs of earlier versions


def age(folder: Path) -> None:
    """Changes a run's files to those of an early version without identities."""
    later = ("identity", "revision", "settings", "data_sha256", "validation", "commit", "gpu")
    for name in ("run.json", "result.json"):
        if (folder / name).exists():
            content = json.loads((folder / name).read_text())
            old = {key: content[key] for key in content if key not in later}
            (folder / name).write_text(json.dumps(old))


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_of_an_earlier_version_is_not_resumed(finished: bool, tmp_path: Path) -> None:
    if finished:
        run_job(SHORT, tmp_path)
    else:
        with pytest.raises(Stopped):
            run_job(SHORT, tmp_path, checkpoint=2, listeners=[stop_after(5)])
    age(tmp_path / SHORT.folder_name)
    with untouched(tmp_path), pytest.raises(RunError, match=r"earlier version.*--out") as refused:
        run_job(SHORT, tmp_path, resume=True)
    assert "\n" not in str(refused.value)


def test_runs_of_earlier_versions_are_shown_and_never_averaged_with_later_ones(
    tmp_path: Path,
) -> None:
    age(Path(run_job(SHORT, tmp_path / "old").out))
    (row,) = rows.summarise(query.find_results(tmp_path))
    assert str(row.variant) == "batch=60"
    run_job(replace(SHORT, seed=1), tmp_path / "new")
    summarised = rows.summarise(query.find_results(tmp_path))
    assert sorted((str(row.variant), len(row.results)) for row in summarised) == [
        ("batch=60", 1),
        ("revision=unknown batch=60", 1),
    ]
