"""Tests of the network's inputs: float images, and augmentation by a function of the user's own."""

import pytest
import torch
from resumed import coloured_stream

import onepass
from onepass import CheckpointError, InputError


@pytest.fixture(scope="module")
def stream():
    return coloured_stream()


def noisy(images, generator):
    return images.add_(torch.randn(images.shape, generator=generator))  # in place


def trained(stream, change=lambda x: x, steps=12, method=onepass.SCR, **settings):
    learner = method(**{"memory": 12, "device": "cpu", "seed": 1, **settings})
    for step in range(steps):
        x, y = stream.batch(step)
        learner.learn(change(x), y)
    return learner


@pytest.mark.parametrize("augment", ["crop-grey", "crop-grey-reflected", "contrastive"])
def test_float_images_are_learned_as_the_same_images_in_uint8(augment, stream):
    """Covers mean and std, mirror images, and SCR, which uses views in every way."""
    settings = {"augment": augment, "mirror": True, "mean": (0.4,) * 3, "std": (0.2,) * 3}
    whole = trained(stream, **settings)
    floats = trained(stream, lambda x: x.double() / 255, **settings)
    assert floats.params_sha256() == whole.params_sha256()
    assert floats.kept.x.dtype == torch.float32
    assert torch.equal((floats.kept.x * 255).round().to(torch.uint8), whole.kept.x)


def test_float_images_are_saved_and_opened(stream, tmp_path):
    learner = trained(stream, lambda x: x.float() / 50 - 2)
    learner.save(tmp_path / "model.pt")
    opened = onepass.open(tmp_path / "model.pt", device="cpu")
    assert opened.state_sha256() == learner.state_sha256()


def test_colours_of_standardised_images_are_not_changed(stream):
    learner = onepass.ER(memory=12, device="cpu", augment="contrastive")
    x, y = stream.batch(0)
    with pytest.raises(InputError, match=r"pixels between 0 and 1, and x has values from -0\.\d+"):
        learner.learn(x.float() / 255 - 0.5, y)
    assert not learner._prepared  # its settings can still be changed


def test_a_dataset_of_float_images_has_a_mean_and_deviation_per_channel():
    x = (
        torch.rand(6, 2, 3, 4, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 9])[:, None, None]
    )
    y = torch.arange(6) % 2
    data = onepass.Dataset("mine", x, y, x, y, ("a", "b"))
    assert data.is_images
    assert data.mean == pytest.approx(x.mean(dim=(0, 2, 3)).tolist())
    assert data.std == pytest.approx(x.std(dim=(0, 2, 3), correction=0).tolist())


# ---- a function of the user's own


def test_a_function_is_given_pixels_and_the_generator_so_that_runs_repeat(stream):
    seen = []

    def watched(images, generator):
        seen.append(images.aminmax())
        return noisy(images, generator)

    settings = {"augment": watched, "mean": (0.4,) * 3, "std": (0.2,) * 3}
    before = torch.random.get_rng_state()
    first, second = (trained(stream, **settings).state_sha256() for _ in range(2))
    assert first == second != trained(stream, **{**settings, "augment": "none"}).state_sha256()
    assert torch.equal(torch.random.get_rng_state(), before)
    low, high = (torch.stack(ends) for ends in zip(*seen, strict=True))
    assert -1e-6 < low.min() < 0.05
    assert 0.95 < high.max() < 1 + 1e-6


@pytest.mark.parametrize("whole", [True, False], ids=["vectors", "float images"])
def test_a_function_that_works_in_place_changes_neither_batch_nor_memory(whole, stream):
    x = torch.rand(4, 5) if whole else torch.rand(4, 3, 6, 6)
    given = x.clone()
    learner = onepass.MIR(memory=12, replay=4, candidates=8, device="cpu", augment=noisy)
    learner.learn(given, [0, 1, 2, 3])
    assert torch.equal(given, x)
    assert torch.equal(learner.kept.x, x)


def test_opening_a_learner_with_a_function_asks_for_the_function(stream, tmp_path):
    learner = trained(stream, augment=noisy)
    learner.save(tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="no file holds: open it with augment=that function"):
        onepass.open(tmp_path / "model.pt", device="cpu")
    opened = onepass.open(tmp_path / "model.pt", device="cpu", augment=noisy)
    for either in (learner, opened):
        either.learn(*stream.batch(12))
    assert opened.state_sha256() == learner.state_sha256()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x, _: x[:1], r"but it returned torch.float32 \(1, 3, 6, 6\)"),
        (lambda x, _: x.double(), "it returned torch.float64"),
        (lambda x, _: None, "it returned <class 'NoneType'>"),
    ],
)
def test_a_function_that_returns_another_shape_or_type_is_refused(made, said, stream):
    with pytest.raises(InputError, match=said):
        trained(stream, method=onepass.ER, augment=made)


def test_a_function_is_captured_only_if_it_is_marked_capturable():
    with pytest.raises(InputError, match="engine must be auto or eager for an augment that is not"):
        onepass.ER(augment=noisy, engine="graph")
    noisy.capturable = True
    try:
        assert onepass.ER(augment=noisy, engine="graph").engine == "graph"
    finally:
        del noisy.capturable
