"""User-defined streams: their names, their optional arguments, and inputs that they change."""

from pathlib import Path

import pytest
import torch
from isolated_registries import isolate_registries

import onepass
from onepass import ClassIncremental, Dataset, InputError, Stream, streams
from onepass.base import seeds
from onepass.data import load
from onepass.runs.execute import run_job
from onepass.runs.spec import Job
from onepass.streams import (
    STREAMS,
    make_stream,
    parse_stream,
    parse_with_options,
    stream,
    with_defaults,
)


@pytest.fixture(autouse=True)
def own_streams(monkeypatch):
    isolate_registries(monkeypatch, STREAMS)


@pytest.fixture(scope="module")
def data():
    return onepass.load("digits")


class Backwards(Stream):
    """The samples in reverse order, in one task; takes only a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset, [torch.arange(len(dataset.train_y)).flip(0)], batch=50)


class Noisy(ClassIncremental):
    """A stream that adds other noise in each step."""

    def __init__(self, dataset: Dataset, tasks: int = 5, strength: int = 20, seed: int = 0) -> None:
        super().__init__(dataset, tasks=tasks, batch=20, seed=seed)
        self.strength, self.seed = strength, seed

    def change(self, x, step):
        rng = seeds.generator(self.seed, f"noise {step}", x.device)
        noise = torch.randint(self.strength, x.shape, generator=rng, device=x.device)
        return (x.int() + noise).clamp(max=255).to(x.dtype)


@pytest.fixture
def backwards():
    @stream("backwards")
    class Registered(Backwards):
        """The samples in reverse order."""

    return Registered


@pytest.fixture
def noisy():
    @stream("noisy")
    class Registered(Noisy):
        """A noisy stream."""

    return Registered


# ---- registering


def test_the_signature_gives_a_streams_arguments(noisy, backwards):
    assert STREAMS["noisy"].arguments == {"tasks": int, "strength": int}
    assert STREAMS["noisy"].seeded
    assert STREAMS["backwards"].arguments == {}
    assert not STREAMS["backwards"].seeded


def test_every_stream_in_a_file_of_the_package_is_imported():
    files = Path(streams.__file__).parent.glob("*.py")
    written = {file.stem for file in files if "\n@stream(" in file.read_text()}
    found = {info.make.__module__ for info in STREAMS.all().values()}
    assert {f"onepass.streams.{name}" for name in written} == found


def test_every_stream_of_the_package_has_a_docstring():
    assert {"class-incremental", "long-tail", "blurry"} <= set(STREAMS.names())
    assert all(info.make.__doc__ for info in STREAMS.all().values())


def test_spec_and_seed_are_recorded_however_the_arguments_were_given(data, noisy):
    given = [noisy(data, 2, 7, 3), noisy(data, seed=3, strength=7, tasks=2)]
    for made in [*given, make_stream(data, parse_stream("noisy:tasks=2,strength=7"), seed=3)]:
        assert made.spec == {"stream": "noisy", "tasks": 2, "strength": 7}
        assert made.derived["seed"] == 3
    assert noisy(data).spec == {"stream": "noisy", "tasks": 5, "strength": 20}


def test_a_table_with_a_value_of_another_type_is_refused_before_the_stream_is_made(data, noisy):
    with pytest.raises(InputError, match="strength must be a whole number, not 'much'"):
        make_stream(data, {"stream": "noisy", "strength": "much"}, seed=0)


def test_a_stream_that_derives_from_a_registered_one_records_its_own_arguments(data):
    assert Noisy(data).spec == {"stream": "Noisy"}  # not the arguments of its base class
    assert ClassIncremental(data).spec["stream"] == "class-incremental"


def test_the_name_of_a_stream_that_exists_is_refused(data):
    with pytest.raises(InputError, match="there is a stream 'blurry' already"):
        stream("blurry")(Backwards)
    assert Backwards.key != "blurry"
    assert make_stream(data, {"stream": "blurry"}, seed=0).spec["stream"] == "blurry"


def no_dataset(self, batch: int = 1) -> None: ...
def no_type(self, dataset: Dataset, strength=3) -> None: ...
def no_default(self, dataset: Dataset, strength: int) -> None: ...
def any_names(self, dataset: Dataset, **more: int) -> None: ...


@pytest.mark.parametrize(
    ("constructor", "said"),
    [
        (no_dataset, "must take a dataset"),
        (no_type, "'strength' needs a type and a default"),
        (no_default, "'strength' needs a type and a default"),
        (any_names, "'more' needs a type and a default"),
    ],
)
def test_a_constructor_with_an_unusable_signature_is_refused(constructor, said):
    with pytest.raises(InputError, match=f"stream 'unclear': .*{said}"):
        stream("unclear")(type("Unclear", (Stream,), {"__init__": constructor}))
    assert "unclear" not in STREAMS.names()


# ---- the public constructor


def test_a_stream_needs_only_a_dataset_and_an_order(data):
    order = [torch.arange(100), torch.arange(50, 300)]
    plain = Stream(data, order)
    assert [len(y) for _, y in plain] == [10] * 10 + [10] * 25
    assert plain.tasks[0] == tuple(sorted(set(data.train_y[:100].tolist())))
    assert plain.derived == {"classes": plain.tasks}
    assert plain.spec == {"stream": "Stream"}


def test_without_tasks_a_class_belongs_to_the_task_that_first_has_it(data):
    def of(*classes):
        return torch.cat([torch.nonzero(data.train_y == label).flatten()[:5] for label in classes])

    plain = Stream(data, [of(3, 1), of(1, 4), of(0, 3)])
    assert plain.tasks == [(1, 3), (4,), (0,)]


def test_a_task_without_samples_is_refused(data):
    with pytest.raises(InputError, match="task 2 of the stream has no samples"):
        Stream(data, [torch.arange(3), torch.arange(0)])


# ---- a line of text together with options


def test_usual_options_that_a_stream_does_not_take_are_skipped_and_given_ones_refused(backwards):
    usual = {"batch": 10, "class_order": "natural", "tasks": 5}
    assert parse_with_options("backwards", {}, usual) == {"stream": "backwards"}
    for name, value in usual.items():
        with pytest.raises(InputError) as caught:
            parse_with_options("backwards", {name: value}, {})
        said = f"stream 'backwards' takes no --{name.replace('_', '-')}; it takes: nothing"
        assert str(caught.value) == said


def test_the_line_of_text_comes_first_then_options_then_usual_values():
    found = parse_with_options(
        "blurry:batch=3", {"batch": 3, "tasks": 2}, {"tasks": 5, "class_order": "x"}
    )
    assert found == {"stream": "blurry", "batch": 3, "tasks": 2, "class_order": "x"}


def test_a_line_and_an_option_that_disagree_are_refused():
    with pytest.raises(InputError, match="--stream says class_order=natural, --class-order says s"):
        parse_with_options("blurry:class_order=natural", {"class_order": "shuffled"}, {})


def test_with_defaults_keeps_given_values_and_skips_unknown_arguments(backwards):
    assert with_defaults({"tasks": 3}, {"tasks": 5, "batch": 2}) == {"tasks": 3, "batch": 2}
    assert with_defaults({"stream": "backwards"}, {"tasks": 5}) == {"stream": "backwards"}


def test_a_job_runs_on_a_stream_that_takes_neither_tasks_nor_batch(backwards, tmp_path):
    job = Job("finetune", "digits", stream="backwards", device="cpu")
    result = run_job(job, tmp_path, checkpoint=None)
    assert result.tasks == 1
    assert result.steps == 29


@pytest.mark.parametrize("given", [{"tasks": 2}, {"batch": 3}, {"class_order": "shuffled"}])
def test_a_job_with_options_that_the_stream_lacks_is_refused_before_data_are_loaded(
    backwards, given
):
    option = next(iter(given)).replace("_", "-")
    with pytest.raises(InputError, match=f"takes no --{option}"):
        Job("finetune", "no such dataset", stream="backwards", **given).load_dataset()


def test_a_method_for_one_task_refuses_a_stream_that_always_has_more():
    @stream("halves")
    class Halves(Stream):
        """A stream that always has two tasks."""

        def __init__(self, dataset: Dataset) -> None:
            super().__init__(dataset, [torch.nonzero(dataset.train_y < 5).flatten(),
                                       torch.nonzero(dataset.train_y >= 5).flatten()])  # fmt: skip

    with pytest.raises(InputError, match=r"'joint' learns all classes as one task.*always has 2"):
        Job("joint", "digits", stream="halves").make(load("digits"))
    made, _ = Job("finetune", "digits", stream="halves").make(load("digits"))
    assert len(made.tasks) == 2


# ---- changed inputs


def test_changed_inputs_reach_the_learner_and_not_the_dataset(data, noisy):
    before = data.train_x.clone()
    made, plain = noisy(data, strength=50), noisy(data, strength=1)
    for step in (0, 3):
        x, y = made.batch(step)
        shown, labels = plain.batch(step)
        assert torch.equal(shown, data.train_x[made.indices(step)])
        assert torch.equal(y, labels)
        difference = x.int() - shown.int()
        assert 0 < int(difference.max()) < 50 and int(difference.min()) >= 0
    assert torch.equal(data.train_x, before)
    assert [torch.equal(x, made.batch(step)[0]) for step, (x, _) in enumerate(made)].count(
        False
    ) == 0


def test_a_change_in_place_does_not_reach_the_dataset(data):
    class Dark(Backwards):
        def change(self, x, step):
            return x.zero_()

    before = data.train_x.clone()
    assert not Dark(data).batch(0)[0].any()
    assert torch.equal(data.train_x, before)


def test_inputs_change_on_a_device_as_on_the_host(data, noisy):
    """The meta device replaces a GPU: it has shapes, types and a device."""
    seen = []

    class Watched(Backwards):
        def change(self, x, step):
            seen.append((x.device.type, step))
            return x

    moved = Watched(data).on(torch.device("meta"))
    assert moved.batch(4)[0].device.type == "meta"
    assert seen == [("meta", 4)]


@pytest.mark.parametrize("changed", [lambda x: x.float(), lambda x: x[:, :, 1:]])
def test_a_change_of_shape_or_type_is_refused(data, changed):
    class Odd(Backwards):
        def change(self, x, step):
            return changed(x)

    with pytest.raises(InputError, match=r"Odd.change must keep torch.uint8 \(50, 1, 8, 8\)"):
        Odd(data).batch(0)


def test_a_resumed_learner_gets_the_same_inputs(data, noisy, tmp_path):
    def learned(learner, made, steps):
        for step in steps:
            learner.learn(*made.batch(step))
        return learner

    whole = learned(onepass.ER(memory=20, device="cpu"), noisy(data, strength=60), range(20))
    first = learned(onepass.ER(memory=20, device="cpu"), noisy(data, strength=60), range(9))
    first.save(tmp_path / "model.pt")
    again = onepass.open(tmp_path / "model.pt")
    learned(again, noisy(data, strength=60), range(9, 20))
    assert again.state_sha256() == whole.state_sha256()
    plain = learned(onepass.ER(memory=20, device="cpu"), noisy(data, strength=1), range(20))
    assert plain.state_sha256() != whole.state_sha256()
