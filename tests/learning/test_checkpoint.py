"""Tests that a saved and opened learner continues bit for bit, and that invalid files are refused.
A file holds data, never code."""

import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from resumed import coloured_stream, learn_range, small
from sklearn.base import clone
from torch import nn

import onepass
from onepass import CheckpointError
from onepass.base.checksum import sha256
from onepass.learning import registry
from onepass.learning.checkpoint import file

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)
METHODS = [info.key for info in registry.methods()]


@pytest.fixture(scope="module")
def stream():
    return coloured_stream()


def reopened(learner, folder, **options):
    learner.save(folder / "learner.pt")
    return onepass.open(folder / "learner.pt", device="cpu", **options)


def same(first, second, x):
    assert first.state_sha256() == second.state_sha256()
    assert first.classes == second.classes
    assert first.get_params().keys() == second.get_params().keys()
    return torch.equal(first.scores(x), second.scores(x))


def check_going_on(make, stream, stops, folder, **options):
    """Compares a learner that is saved and opened after these steps with one that is not."""
    uninterrupted, resumed, first = make(), make(), 0
    learn_range(uninterrupted, stream)
    for stop in stops:
        if stop:
            learn_range(resumed, stream, first, stop)
        resumed, first = reopened(resumed, folder, **options), stop
    learn_range(resumed, stream, first)
    assert len(uninterrupted.classes) > 16, "the head does not grow"
    assert type(resumed) is type(uninterrupted)
    assert same(uninterrupted, resumed, stream.dataset.test_x)


class Own(nn.Module):
    """A user's network, with statistics that must be saved."""

    def __init__(self, channels=4):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        source = torch.Generator().manual_seed(5)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=source)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))


# ---- resuming


def every_method():
    """Returns all methods, most of them marked as slow. The contract also interrupts every
    method."""
    for key in METHODS:
        slow = [pytest.mark.slow] * (
            key not in ("er", "gsa", "gsa-released", "bic", "gdumb", "scr")
        )
        yield pytest.param(key, marks=slow)


@pytest.mark.parametrize("method", list(every_method()))
def test_resuming_equals_never_stopping(method, stream, tmp_path):
    """It stops before the first step, within a task, at a boundary, and where the head grows."""
    check_going_on(lambda: small(method), stream, (0, 3, 8, 32, 34), tmp_path)


@pytest.mark.parametrize("stop", [1, 8, 21, 33])
def test_resuming_after_one_stop_equals_never_stopping(stop, stream, tmp_path):
    check_going_on(lambda: small("gsa"), stream, [stop], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"head": "frozen"},
        {"optimizer": "sgd"},
        {"optimizer": "adamw"},
        {"mirror": True},
        {"augment": "none"},
        {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)},
        {"memory": 0},
    ],
    ids=str,
)
def test_resuming_equals_never_stopping_with_other_settings(settings, stream, tmp_path):
    check_going_on(lambda: small("gsa", **settings), stream, (3, 18), tmp_path)


def test_stopping_at_every_step_equals_never_stopping(stream, tmp_path):
    check_going_on(lambda: small("gsa"), stream, range(len(stream)), tmp_path)


@pytest.mark.parametrize("stop", range(1, 8))
def test_the_count_of_quiet_batches_is_saved(stop, tmp_path):
    """Boundaries are inferred here; the third class comes after three quiet batches."""
    source = torch.Generator().manual_seed(1)
    labels = (0, 0, 0, 0, 1, 1, 1, 1, 2)
    batches = [(torch.randn(3, 4, generator=source), [label] * 3) for label in labels]
    settings = {"memory": 5, "mix": 4, "current": 4, "gap": 3, "device": "cpu"}
    uninterrupted, parted = (onepass.GSA(**settings) for _ in range(2))
    for step, batch in enumerate(batches):
        parted = reopened(parted, tmp_path) if step == stop else parted
        uninterrupted.learn(*batch)
        parted.learn(*batch)
    assert uninterrupted.task == parted.task == 2
    assert uninterrupted.state_sha256() == parted.state_sha256()


def test_a_learner_that_has_learned_nothing_can_be_saved(tmp_path, stream):
    notified, fresh = small("er"), small("er")
    notified.new_task()
    opened = reopened(notified, tmp_path)
    assert opened.class_index.told
    assert not reopened(fresh, tmp_path).class_index.told
    for learner in (notified, opened):
        learner.learn(*stream.batch(0))
    assert same(notified, opened, stream.dataset.test_x)


def test_saving_changes_no_bit_of_the_learner(stream, tmp_path):
    learner = small("gsa")
    learn_range(learner, stream, 0, 6)
    before = learner.state_sha256()
    opened = reopened(learner, tmp_path)
    learn_range(opened, stream, 6, 12)
    assert learner.state_sha256() == before
    assert opened.state_sha256() != before


def test_a_state_does_not_change_later(stream):
    learner = small("gsa")
    learn_range(learner, stream, 0, 6)
    state, before = learner.state_dict(), learner.state_sha256()
    learn_range(learner, stream, 6)
    copy = small("gsa")
    copy.load_state_dict(state)
    assert copy.state_sha256() == before


def test_a_state_is_refused_by_a_learner_that_has_learned(stream):
    learner = small("er")
    learn_range(learner, stream, 0, 2)
    before = learner.state_sha256()
    with pytest.raises(CheckpointError, match="new"):
        learner.load_state_dict(learner.state_dict())
    assert learner.state_sha256() == before


def test_settings_are_opened_as_they_were_given(tmp_path):
    learner = small("gsa", lr=0.01, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0), fill=30, mix=32)
    assert reopened(learner, tmp_path).get_params() == learner.get_params()


def test_opening_and_learning_leave_the_global_generators_alone(stream, tmp_path):
    learner = small("gsa")
    np.random.seed(0)
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
    learn_range(learner, stream, 0, 6)
    learn_range(reopened(learner, tmp_path), stream, 6, 12)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpys, np.random.get_state()[1])


# ---- a user's network


def test_a_users_network_resumes_if_it_is_passed_again(stream, tmp_path):
    check_going_on(lambda: small("er", net=Own()), stream, (0, 7), tmp_path, net=Own())


@pytest.mark.parametrize("steps", [0, 3])
def test_a_users_network_must_be_passed_again(steps, stream, tmp_path):
    learner = small("er", net=Own())
    if steps:
        learn_range(learner, stream, 0, steps)
    with pytest.raises(CheckpointError, match="net="):
        reopened(learner, tmp_path)


@pytest.mark.parametrize("net", [Own(channels=5), nn.Flatten()], ids=["wider", "another"])
def test_another_network_does_not_fit(net, stream, tmp_path):
    learner = small("er", net=Own())
    learn_range(learner, stream, 0, 3)
    with pytest.raises(CheckpointError, match=r"learner\.pt does not fit the network that was"):
        reopened(learner, tmp_path, net=net)


# ---- scikit-learn's clone


@pytest.mark.parametrize("method", METHODS)
def test_a_clone_has_the_settings_and_has_learned_nothing(method, stream):
    learner = small(method, gap=7)
    learn_range(learner, stream, 0, 3)
    copy = clone(learner)
    assert type(copy) is type(learner)
    assert copy.get_params() == learner.get_params()
    assert copy.steps == 0
    assert copy.classes == []
    learn_range(copy, stream, 0, 3)
    assert same(learner, copy, stream.dataset.test_x)


def test_a_clone_has_its_own_network():
    learner = small("er", net=Own())
    copy = clone(learner)
    assert copy.net is not learner.net
    assert isinstance(copy.net, Own)


@pytest.mark.parametrize("key", ["er", pytest.param("gsa", marks=pytest.mark.slow)])
def test_a_named_resnet_resumes_too(key, tmp_path):
    """Its norms do not count batches, while torch expects the count in a file."""
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 9, 9), dtype=np.uint8)
    uninterrupted, stopped = (small(key, net="resnet18-slim") for _ in range(2))
    for learner in (uninterrupted, stopped):
        learner.learn(x, [0, 1, 0, 1])
    stopped.save(tmp_path / "learner.pt")
    opened = onepass.open(tmp_path / "learner.pt", device="cpu")
    for learner in (uninterrupted, opened):
        learner.learn(x, [1, 2, 1, 2])
    assert opened.state_sha256() == uninterrupted.state_sha256()


def test_a_class_without_a_name_is_not_saved_under_anothers(tmp_path):
    class Mine(onepass.ER):
        pass

    with pytest.raises(onepass.InputError, match="Mine cannot be saved"):
        Mine(memory=5).save(tmp_path / "mine.pt")
    assert not list(tmp_path.iterdir())


def test_a_name_belongs_to_one_method():
    with pytest.raises(onepass.InputError, match=r"a method 'er' already, in onepass\.methods\.er"):

        @onepass.learning.registry.method("er", paper="none", year=2026)
        class Other(onepass.ER):
            pass

    assert onepass.learning.registry.get("er").learner is onepass.ER
    assert onepass.ER.key == "er"


# ---- the file itself


class Trap:
    """An object whose unpickling creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def some_content():
    return {"settings": {"lr": 0.1, "mean": (0.5,)}, "state": {"x": torch.arange(5)}}


def saved(path):
    file.write_checkpoint(path, some_content())
    return path.read_bytes()


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    saved(tmp_path / "a.pt")
    content = file.read_checkpoint(tmp_path / "a.pt")
    assert content["settings"] == {"lr": 0.1, "mean": (0.5,)}
    assert torch.equal(content["state"]["x"], torch.arange(5))


def test_a_truncated_checkpoint_is_refused_wherever_it_was_cut(tmp_path):
    content, path = saved(tmp_path / "a.pt"), tmp_path / "cut.pt"
    for length in [*range(0, 200, 7), *range(200, len(content), 53), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut\.pt"):
            file.read_checkpoint(path)


@PROPERTY
@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda b: b"\x80\x02" + b)))
def test_noise_is_refused(tmp_path_factory, noise):
    path = tmp_path_factory.getbasetemp() / "noise.pt"
    path.write_bytes(noise)
    with pytest.raises(CheckpointError, match=r"noise\.pt"):
        file.read_checkpoint(path)


@PROPERTY
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_a_damaged_byte_is_noticed_or_harmless(tmp_path_factory, place, flip):
    """Zip files have checksums. The error is a CheckpointError, or the content is unchanged."""
    folder = tmp_path_factory.getbasetemp()
    damaged = bytearray(saved(folder / "good.pt"))
    damaged[int(place * len(damaged))] ^= flip
    (folder / "bad.pt").write_bytes(damaged)
    try:
        content = file.read_checkpoint(folder / "bad.pt")
    except CheckpointError as problem:
        assert "bad.pt" in str(problem)
    else:
        assert sha256(content) == sha256(file.read_checkpoint(folder / "good.pt"))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_with_code_is_refused_and_its_code_is_not_run(tmp_path, protocol):
    path, proof = tmp_path / "evil.pt", tmp_path / "proof"
    path.write_bytes(pickle.dumps({"format": "onepass", "state": Trap(proof)}, protocol))
    with pytest.raises(CheckpointError):
        file.read_checkpoint(path)
    assert not proof.exists()


def test_a_torch_file_with_code_is_refused_and_its_code_is_not_run(tmp_path):
    path, proof = tmp_path / "evil.pt", tmp_path / "proof"
    torch.save({"format": "onepass", "version": 1, "state": Trap(proof)}, path)
    with pytest.raises(CheckpointError):
        file.read_checkpoint(path)
    assert not proof.exists()
    torch.load(path, weights_only=False)
    assert proof.exists(), "the trap works: only our reader did not step into it"


@pytest.mark.parametrize("content", [{"state": 1}, {"format": "other"}, [1, 2], torch.zeros(2)])
def test_another_programs_file_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match="not a onepass checkpoint"):
        file.read_checkpoint(tmp_path / "foreign.pt")


@pytest.mark.parametrize("version", [0, 99, None])
def test_the_error_names_another_version(tmp_path, version):
    torch.save({"format": "onepass", "version": version}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=rf"version {version}; this onepass reads 1"):
        file.read_checkpoint(tmp_path / "a.pt")


def test_the_error_names_a_missing_file_or_a_folder(tmp_path):
    with pytest.raises(CheckpointError, match="there is no file"):
        file.read_checkpoint(tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        file.read_checkpoint(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="there is no file"):
        file.read_checkpoint(tmp_path / "file" / "none.pt")


@pytest.mark.parametrize("problem", [OSError(28, "No space left"), KeyboardInterrupt()], ids=repr)
def test_a_failed_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch, problem):
    path = tmp_path / "a.pt"
    before = saved(path)

    def fail(number):
        raise problem

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(problem)):
        file.write_checkpoint(path, {"state": {"x": torch.zeros(3)}})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]


def test_a_learner_saved_with_a_graph_opens_without_a_gpu(tmp_path):
    learner = onepass.Finetune(device="cpu")
    learner.learn(torch.zeros(2, 3), [0, 1])
    content = file.checkpoint_content(learner)
    content["settings"]["engine"] = "graph"
    file.write_checkpoint(tmp_path / "learner.pt", content)
    assert onepass.open(tmp_path / "learner.pt", device="cpu").engine == "auto"
