"""Tests the contents of a memory, the removal of samples, and files without the memory."""

import pytest
import torch
from resumed import coloured_stream, learn_range, small

import onepass
from onepass import InputError
from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.learning.memory_contents import stores_of

KEPT_BY = [info.key for info in registry.methods() if "memory" in setting_names(info.learner)]


def every(*fast):
    """Returns every method with a memory. Few of them are in the fast suite."""
    return [
        pytest.param(key, marks=() if key in fast else pytest.mark.slow, id=key) for key in KEPT_BY
    ]


STEPS = 25


@pytest.fixture(scope="module")
def stream():
    return coloured_stream()


def alive(key, stream):
    learner = small(key)
    learn_range(learner, stream, 0, STEPS)
    return learner


def found_in(path, samples):
    """Returns how many of these samples occur in a file, which is not compressed."""
    content = path.read_bytes()
    return sum(bytes(sample.flatten().tolist()) in content for sample in samples)


def test_kept_samples_come_from_the_stream_with_their_labels(stream):
    learner = alive("rainbow-rt", stream)
    kept = learner.kept
    pairs = zip(stream.dataset.train_x, stream.dataset.train_y.tolist(), strict=True)
    label_of = {bytes(x.flatten().tolist()): label for x, label in pairs}
    assert len(kept) == sum(int(store.size) for store in stores_of(learner)) > 5
    assert [label_of[bytes(x.flatten().tolist())] for x in kept.x] == kept.y.tolist()
    assert repr(kept) == f"<Kept: {len(kept)} samples of {len(set(kept.y.tolist()))} classes>"
    kept.x.zero_()
    assert bool(learner.kept.x.any())  # `kept` returns copies


@pytest.mark.parametrize("key", every("rainbow-rt", "derpp"))
def test_removed_samples_are_in_no_later_file_and_learning_resumes_exactly(key, stream, tmp_path):
    learner, data = alive(key, stream), stream.dataset
    label = int(learner.kept.y[-1])
    samples = data.train_x[data.train_y == label]
    learner.save(tmp_path / "before.pt")
    report = learner.forget(label)
    learner.save(tmp_path / "after.pt")
    assert report.samples > 0
    assert label not in learner.kept.y.tolist()
    assert found_in(tmp_path / "before.pt", samples) > 0 == found_in(tmp_path / "after.pt", samples)
    opened = onepass.open(tmp_path / "after.pt", device="cpu")
    for either in (learner, opened):
        learn_range(either, stream, STEPS, STEPS + 4)
    assert opened.state_sha256() == learner.state_sha256()


@pytest.mark.parametrize("key", every("gdumb", "scr"))
def test_a_file_without_the_memory_holds_no_sample_and_predicts(key, stream, tmp_path):
    learner, data = alive(key, stream), stream.dataset
    learner.save(tmp_path / "light.pt", memory=False)
    assert found_in(tmp_path / "light.pt", data.train_x) == 0
    opened = onepass.open(tmp_path / "light.pt", device="cpu")
    opened.save(tmp_path / "again.pt")
    for reader in (opened, onepass.open(tmp_path / "again.pt", device="cpu")):
        assert torch.equal(reader.scores(data.test_x), learner.scores(data.test_x))
        with pytest.raises(
            InputError, match="saved without its memory: it can predict, but cannot"
        ):
            reader.learn(*stream.batch(STEPS))


@pytest.mark.parametrize("key", every("gdumb"))
def test_a_learner_with_an_emptied_memory_learns_on(key, stream):
    learner = alive(key, stream)
    report = learner.forget(where=lambda x, y: y >= 0)
    assert (report.left, len(learner.kept)) == (0, 0)
    learner.predict(stream.dataset.test_x)
    learner.end_task()
    learn_range(learner, stream, STEPS)
    assert torch.isfinite(learner.scores(stream.dataset.test_x)).all()


def test_the_report_of_forget_says_what_was_removed_and_that_the_weights_stay(stream):
    learner = alive("er", stream)
    before, kept = learner.params_sha256(), learner.kept
    mask = [True] + [False] * (len(kept) - 1)
    assert str(learner.forget(where=mask)) == (
        "1 samples removed from the memory, 11 are left; the network has not unlearned them: its "
        "weights are as they were"
    )
    assert torch.equal(learner.kept.x, kept.x[1:])
    assert learner.params_sha256() == before
    assert not learner.forget(where=lambda x, y: y < 0).samples


def test_a_network_trained_from_the_memory_is_trained_again_after_a_removal(stream):
    learner, x = alive("gdumb", stream), stream.dataset.test_x
    before = learner.scores(x)
    report = learner.forget(int(learner.kept.y[0]))
    assert report.unlearned
    assert not torch.equal(learner.scores(x), before)


def test_text_labels_are_kept_and_removed_as_text(tmp_path):
    learner = onepass.ER(memory=9, device="cpu")
    learner.learn([[0.0], [1.0], [2.0]], ["cat", "dog", "cat"])
    assert learner.kept.y.tolist() == ["cat", "dog", "cat"]
    assert learner.forget("cat").samples == 2
    assert learner.kept.y.tolist() == ["dog"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "takes either a label or where="),
        ({"label": 1, "where": [True]}, "one of the two"),
        ({"label": 99}, "label 99 has not been learned"),
        ({"where": [True, False]}, r"over the 12 samples.* not bool \(2,\)"),
        ({"where": lambda x, y: y}, r"those to remove, not int64 \(12,\)"),
        ({"where": "all"}, "where must be a mask or a function that returns one, not 'all'"),
    ],
)
def test_an_invalid_removal_is_refused_and_changes_nothing(arguments, message, stream):
    learner = alive("er", stream)
    before = learner.state_sha256()
    with pytest.raises(InputError, match=message):
        learner.forget(**arguments)
    assert learner.state_sha256() == before
