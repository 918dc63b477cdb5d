"""A method may derive from `Learner` itself and train no network: everything that takes a learner
takes it, and what needs a network says so in a line."""

import json

import pytest
import torch
from label_vectors import register
from nearest_mean import NearestMean
from typer.testing import CliRunner

import onepass
from onepass.base.errors import CheckpointError, InputError
from onepass.cli.app import app
from onepass.evaluation.probes import PROBES
from onepass.executors.processes.ram import RamBudget
from onepass.learning import registry
from onepass.learning.memory_contents import copy_bytes, memory_bytes
from onepass.runs.execute import run_job
from onepass.runs.spec import Job
from onepass.sklearn import OnePassClassifier
from onepass.tools.bench import BenchCase
from onepass.tools.checks import CHECKS, check_method, checks_for

KEY = "test-nearestmean"


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    register(monkeypatch, NearestMean)


@pytest.fixture
def stream():
    return onepass.ClassIncremental(onepass.load("digits"), tasks=5)


def test_it_keeps_the_checks_that_need_no_network():
    outcome = check_method(NearestMean)
    assert outcome.failed == {}
    assert set(outcome.passed) == set(checks_for(NearestMean)) < set(CHECKS)
    assert checks_for(onepass.ER).keys() | checks_for(onepass.NCM).keys() == CHECKS.keys()
    assert set(outcome.passed) == checks_for(onepass.ER).keys() & checks_for(onepass.NCM).keys()


def test_a_stream_is_evaluated_and_the_learner_reopened(stream, tmp_path):
    learner = NearestMean()
    *_, last = onepass.evaluate(learner, stream, prequential=True)
    x, y = stream.dataset.train_x.flatten(1).double(), stream.dataset.train_y
    means = torch.stack([x[y == label].mean(dim=0) for label in learner.classes])
    test = stream.dataset.test_x.flatten(1).double()
    expected = torch.tensor(learner.classes)[torch.cdist(test, means).argmin(dim=1)]
    assert torch.equal(learner.predict(stream.dataset.test_x), expected)
    assert last.accuracy > 80 and last.capture == 0
    learner.class_names = [f"digit {label}" for label in range(10)]
    for memory in (True, False):
        learner.save(tmp_path / "learner.pt", memory=memory)
        opened = onepass.open(tmp_path / "learner.pt")
        assert opened.state_sha256() == learner.state_sha256()
        assert opened.class_names == learner.class_names
        opened.learn(*stream.batch(0))  # no memory is missing


def test_a_file_of_another_state_or_with_a_net_is_refused(stream, tmp_path):
    learner = NearestMean()
    learner.learn(*stream.batch(0))
    learner.save(tmp_path / "learner.pt")
    with pytest.raises(CheckpointError, match="net"):
        onepass.open(tmp_path / "learner.pt", net=torch.nn.Flatten())
    state = learner.state_dict()
    for wrong in ({**state, "counts": state["counts"][:1]}, {**state, "more": 1}):
        new = NearestMean()
        with pytest.raises(CheckpointError):
            new.load_state_dict(wrong)
        assert not new._prepared and not new.steps
    with pytest.raises(CheckpointError):
        onepass.ER().load_state_dict(state)


def test_its_settings_are_those_of_every_method_and_fixed_once_it_is_prepared():
    learner = NearestMean(seed=3)
    assert list(learner.get_params()) == ["mean", "std", "seed", "device", "encoder", "gap"]
    learner.seed = 4
    learner.prepare((6,), torch.float32)
    with pytest.raises(InputError, match="seed cannot be changed"):
        learner.seed = 5


def test_it_keeps_no_samples(stream):
    learner = NearestMean()
    learner.learn(*stream.batch(0))
    assert len(learner.kept) == memory_bytes(learner) == copy_bytes(learner) == 0
    with pytest.raises(InputError, match="keeps no samples"):
        learner.forget(learner.classes[0])


def test_a_run_records_it(tmp_path):
    job = Job(KEY, "digits", device="cpu")
    learner = job.make(onepass.load("digits"))[1]
    learner.prepare((64,), torch.float32)
    RamBudget().guess(job, onepass.load("digits"), learner)
    result = run_job(job, tmp_path)
    assert result.memory == result.memory_bytes == result.trained_per_sample == 0
    assert result.images_beside_steps == {} and "net" not in result.settings
    assert result.accuracy > 80


@pytest.mark.parametrize("name", list(PROBES.all()))
def test_a_probe_of_networks_refuses_it_in_a_line(name, stream):
    wanted = f"the (probe|listener) '{name}' needs a method that trains a network"
    with pytest.raises(InputError, match=wanted):
        Job(KEY, "digits", probes=(name,)).make(stream.dataset)
    with pytest.raises(InputError, match=wanted):
        next(onepass.evaluate(NearestMean(), stream, listeners=[PROBES[name]()]))


def test_a_bench_times_networks_only():
    with pytest.raises(InputError, match="needs a method that trains a network"):
        BenchCase(KEY).learner()


def test_a_table_of_methods_lists_it():
    done = CliRunner().invoke(app, ["list", "methods", "--json"])
    rows = {row["method"]: row for row in map(json.loads, done.output.splitlines())}
    assert rows[KEY]["kept per sample"] == "nothing"
    assert rows[KEY]["trained images a step"] == rows[KEY]["bytes (3x32x32)"] == 0


def test_scikit_learn_fits_it(stream):
    x, y = stream.dataset.train_x.flatten(1).numpy(), stream.dataset.train_y.numpy()
    model = OnePassClassifier(KEY).fit(x, y)
    assert model.score(x, y) > 0.8
    assert registry.get(KEY).learner is type(model.learner_)
