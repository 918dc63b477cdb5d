"""Jobs: presets, mirrored images, normalisation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import onepass
from onepass import Dataset, GSAReleased, InputError
from onepass.base.settings import Preset
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job
from onepass.streams import Stream

PHOTOS = replace(onepass.load("synthetic"), mirror_is_same_class=True)
SIGNS = replace(PHOTOS, mirror_is_same_class=False)
VECTORS = replace(
    onepass.load("synthetic", shape=(4,)), mirror_is_same_class=False, mean=None, std=None
)


def learner(dataset: Dataset, **options: object) -> onepass.Learner:
    _, made = Job(dataset="./mine", device="cpu", **options).make(dataset)
    return made


# ---- mirrored images


def test_a_preset_that_mirrors_is_refused_if_mirrored_images_change_class():
    method, preset = "gdumb", "official"
    options = {"method": method, "preset": preset}
    assert learner(PHOTOS, **options).mirror
    assert learner(VECTORS, **options).mirror  # without effect: vectors are not mirrored
    with pytest.raises(InputError, match=rf"{preset}.*'{method}'.*--set mirror=false"):
        learner(SIGNS, **options)
    others = {**vars(learner(PHOTOS, **options)), "mirror": False}
    kept = learner(SIGNS, **options, settings={"mirror": "false"})
    assert kept.get_params() == {name: others[name] for name in kept.get_params()}
    assert learner(SIGNS, **options, settings={"mirror": "true"}).mirror


@pytest.mark.parametrize(
    ("method", "preset", "instead"),
    [
        ("gsa", "best", "mirror=false mirror_scores=false repeats=4"),
        ("gsa", "fast", "mirror=false mirror_scores=false repeats=2"),
        ("er", "best", "mirror=false mirror_scores=false"),
        ("gsa", "tuned", "mirror=false"),
        ("er", "tuned", "mirror=false"),
    ],
)
def test_a_preset_for_all_data_mirrors_if_mirrored_images_keep_their_class(method, preset, instead):
    """The run records it."""
    job = Job(method, "cifar100", preset=preset, device="cpu")
    assert (job.make(PHOTOS)[1].mirror, str(job.variant)) == (True, preset)
    job = replace(job, dataset="mnist")
    assert (job.make(SIGNS)[1].mirror, str(job.variant)) == (False, f"{preset} {instead}")
    by_hand = replace(job, settings={"mirror": "true", "repeats": "3"}).make(SIGNS)[1]
    assert (by_hand.mirror, by_hand.repeats) == (True, 3)
    assert replace(job, settings={"repeats": "3"}).make(SIGNS)[1].repeats == 3
    assert replace(job, settings={"mirror": "false"}).variant == job.variant


def test_a_preset_that_does_not_mirror_is_for_all_data():
    assert not learner(SIGNS, method="scr", preset="official").mirror


@pytest.mark.parametrize(
    ("dataset", "given", "mirrors"),
    [
        ("digits", None, False),
        ("synthetic", None, False),
        ("mnist", None, False),
        ("cifar100", None, True),
        ("./mine", None, True),
        ("./mine", False, False),
    ],
)
def test_a_method_that_mirrors_by_default_does_so_if_the_class_stays(dataset, given, mirrors):
    """The run records it as if the user had set it: both are the same job."""
    job = Job("gsa-released", dataset, mirror_is_same_class=given)
    _, made = replace(job, device="cpu").make(PHOTOS if mirrors else SIGNS)
    assert made.mirror is mirrors
    assert (job.variant.get("mirror") == "false") is not mirrors
    if not mirrors:
        job, by_hand = (
            job.with_data(SIGNS),
            replace(job, settings={"mirror": "false"}).with_data(SIGNS),
        )
        assert (by_hand.identity, by_hand.folder_name) == (job.identity, job.folder_name)
    chosen = replace(job, settings={"mirror": "true"}).with_data(PHOTOS).non_defaults
    assert "settings" not in chosen  # the default


def test_a_preset_overrides_whether_a_method_mirrors_by_default(monkeypatch):
    plain, both = Preset({"mirror": False}, "a test"), Preset({"mirror": True}, "a test")
    monkeypatch.setattr(GSAReleased, "presets", {"official": plain, "tuned": both})
    job = Job("gsa-released", "digits", preset="official")
    assert str(job.variant) == "official"
    with pytest.raises(InputError, match="mirrored images"):
        replace(job, preset="tuned").make(onepass.load("digits"))


def test_mirror_is_same_class_of_one_job_does_not_reach_other_jobs(tmp_path):
    parts = {name: getattr(PHOTOS, name) for name in ("train_x", "train_y", "test_x", "test_y")}
    np.savez(tmp_path / "mine.npz", **parts)
    job, resources = Job("er", str(tmp_path / "mine.npz")), RunResources()
    datasets = [
        resources.dataset(replace(job, mirror_is_same_class=same)) for same in (None, False)
    ]
    assert [dataset.mirror_is_same_class for dataset in datasets] == [True, False]


# ---- normalisation


class Brighter(Stream):
    """A stream that changes the pixels of the dataset."""

    def change(self, x, step):
        return x // 2 + 100


def moments(samples):
    return [float(of(samples)) for of in (torch.mean, lambda s: s.std(correction=0))]


@pytest.mark.parametrize("spec", ["class-incremental", "blurry:m=40", "long-tail:rho=50"])
def test_first_task_statistics_are_of_the_samples_that_the_stream_delivers(spec):
    digits = onepass.load("digits")
    job = Job("er", stream=spec, class_order="shuffled", device="cpu")
    stream, by_all = job.make(digits)
    _, by_first = replace(job, normalise="first-task").make(digits)
    steps = [step for step in range(len(stream)) if stream.task_of(step) == 0]
    index = torch.cat([stream.indices(step) for step in steps])
    wanted = moments(digits.train_x[index].double() / 255)
    assert [*by_first.mean, *by_first.std] == pytest.approx(wanted)
    assert (by_all.mean, by_all.std) == (digits.mean, digits.std)
    assert by_all.mean != pytest.approx(by_first.mean)


def test_inputs_that_a_stream_changes_count_as_changed():
    digits = onepass.load("digits")
    stream = Brighter(digits, [torch.arange(40), torch.arange(40, 90)])
    found = Job("er", normalise="first-task").normalisation(stream)
    wanted = moments((digits.train_x[:40] // 2 + 100).double() / 255)
    assert [*found["mean"], *found["std"]] == pytest.approx(wanted)


def test_vectors_are_normalised_by_the_first_task_only_on_demand():
    flat = replace(VECTORS, train_x=VECTORS.train_x.clone())
    flat.train_x[flat.train_y < 2, 3] = 0.1  # a feature that is constant in the first task
    assert learner(flat, method="er").mean is None
    made = learner(flat, method="er", normalise="first-task")
    first = flat.train_x[flat.train_y < 2].double()
    assert made.mean == pytest.approx(first.mean(0).tolist())
    assert made.std == pytest.approx([*first[:, :3].std(0, correction=0).tolist(), 1.0])


def test_another_value_of_normalise_is_refused():
    with pytest.raises(InputError, match="normalise must be dataset or first-task"):
        learner(PHOTOS, method="er", normalise="test set")


def test_a_path_that_no_file_can_have_is_refused():
    with pytest.raises(InputError, match=r"'./a\\x00b' cannot be a path here: embedded null"):
        Job("er", "./a\0b").dataset_identity  # noqa: B018 - the path is looked at here
