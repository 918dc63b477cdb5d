"""Tests that diverged learning is reported, and does not overwrite earlier checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command import onepass, read_files
from label_vectors import batch, made, teach
from network_methods import NETWORK_METHODS

import onepass as library
from onepass import ER, InputError, TrainingError
from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.learning.checkpoint import file

HUGE = torch.full((4, 6), 3e38)
SAID = r"of '{}' (is (nan|inf)|are not finite) at step 4: learning has diverged"
LOOKS = {
    "predict": lambda learner, path: learner.predict(batch([0, 1])[0]),
    "scores": lambda learner, path: learner.scores(batch([0, 1])[0]),
    "snapshot": lambda learner, path: learner.snapshot(),
    "save": lambda learner, path: learner.save(path),
}


@pytest.mark.parametrize("key", [key for key in NETWORK_METHODS if key != "gdumb"])
def test_scoring_copying_and_saving_report_divergence(key, tmp_path):
    kind, path = registry.get(key).learner, tmp_path / "learner.pt"
    learner = teach(
        made(kind, **({"memory": 8} if "memory" in setting_names(kind) else {})), [0, 1]
    )
    learner.save(path)
    good, snapshot = path.read_bytes(), learner.snapshot()
    learner.learn(HUGE, [0, 1, 0, 1])
    before = learner.state_sha256()
    for look in LOOKS.values():
        with pytest.raises(TrainingError, match=SAID.format(key)):
            look(learner, path)
    assert path.read_bytes() == good
    assert learner.state_sha256() == before
    assert bool(torch.isfinite(snapshot.scores(batch([0, 1])[0])).all())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_single_value_is_enough(value, tmp_path):
    learner = teach(made(ER, memory=5), [0, 1])
    with torch.no_grad():
        learner.model.head.weight[9, 3] = value  # a spare row
    for look in LOOKS.values():
        with pytest.raises(TrainingError, match="the parameters of 'er' are not finite at step 3"):
            look(learner, tmp_path / "learner.pt")
    assert not list(tmp_path.iterdir())


def test_large_parameters_are_finite():
    """Their sum is not finite."""
    learner = teach(made(ER, memory=5), [0, 1])
    with torch.no_grad():
        learner.model.head.weight[9:11] = 3e38
    assert learner.predict(batch([0, 1])[0]).shape == (2,)


def test_samples_with_too_large_values_are_refused():
    learner = teach(made(ER, memory=5), [0, 1])
    for predictor in (learner, learner.snapshot()):
        with pytest.raises(InputError, match="x holds values that are too large"):
            predictor.predict(torch.cat([batch([0, 1])[0], HUGE]))


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tmp_path: Path) -> None:
    """Step 7 of 12 has features of 3e38. Checkpoints are due after 2, 4, 6 and 8 steps."""
    x, y = np.random.default_rng(0).normal(size=(120, 5)), np.arange(120) // 60
    given = {"train_x": x, "train_y": y, "test_x": np.zeros((2, 5)), "test_y": np.arange(2)}
    np.savez(tmp_path / "data.npz", **given)
    stream = library.ClassIncremental(library.load(str(tmp_path / "data.npz")), tasks=1)
    x[stream.indices(6).numpy()] = 3e38
    np.savez(tmp_path / "data.npz", **given)
    command = ("run", "er", "--dataset", tmp_path / "data.npz", "--tasks", 1, "--every", 100)
    command = (*command, "--checkpoint", 2, "--device", "cpu", "--out", tmp_path / "runs")
    done = onepass(*command)
    assert done.status == 1, done.err
    assert "learning has diverged" in done.error and "earlier checkpoints are intact" in done.error
    (path,) = (tmp_path / "runs").rglob("checkpoint.pt")
    assert file.read_checkpoint(path)["tick"]["step"] == 6
    assert library.open(path, device="cpu").predict(np.zeros((1, 5))).shape == (1,)
    before = read_files(path.parent)
    again = onepass(*command, "--resume")
    assert {**read_files(path.parent), "log.txt": before["log.txt"]} == before
    assert (again.status, again.error) == (1, done.error)
