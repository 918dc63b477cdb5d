"""An order over a dataset: every training sample once, task after task, in small batches."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onepass
from onepass import ClassIncremental, Dataset, InputError
from onepass.base import devices

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def dataset(counts, seed=0):
    """Returns images of one pixel in random order of classes."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
    x = torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8)
    return Dataset("tiny", x, y, x, y, tuple(map(str, range(len(counts)))))


def steps(stream):
    return [stream.indices(step).tolist() for step in range(len(stream))]


def indices(stream):
    return [index for batch in steps(stream) for index in batch]


def last_batches(stream):
    return [len(stream.indices(step)) for step in range(len(stream)) if stream.ends_task(step)]


counts_of_classes = st.lists(st.integers(1, 23), min_size=1, max_size=8)
orders = st.sampled_from(["natural", "shuffled"])


@PROPERTY
@given(counts_of_classes, st.integers(1, 12), orders, st.integers(0, 1000), st.data())
def test_every_training_sample_comes_exactly_once(counts, batch, order, seed, data):
    tasks = data.draw(st.integers(1, len(counts)))
    stream = ClassIncremental(dataset(counts), tasks, batch, order, seed)
    assert sorted(indices(stream)) == list(range(sum(counts)))


@PROPERTY
@given(counts_of_classes, st.integers(1, 12), orders, st.integers(0, 1000), st.data())
def test_short_last_batches_are_kept_and_no_batch_is_longer(counts, batch, order, seed, data):
    tasks = data.draw(st.integers(1, len(counts)))
    stream = ClassIncremental(dataset(counts), tasks, batch, order, seed)
    sizes = [sum(counts[label] for label in group) for group in stream.tasks]
    assert len(stream) == sum(math.ceil(size / batch) for size in sizes)
    assert last_batches(stream) == [size - batch * ((size - 1) // batch) for size in sizes]
    assert {len(y) for _, y in stream} <= set(range(1, batch + 1))


@PROPERTY
@given(counts_of_classes, st.integers(1, 12), orders, st.integers(0, 1000), st.data())
def test_a_task_holds_its_classes_and_no_others(counts, batch, order, seed, data):
    tasks = data.draw(st.integers(1, len(counts)))
    stream = ClassIncremental(dataset(counts), tasks, batch, order, seed)
    assert sorted(label for group in stream.tasks for label in group) == list(range(len(counts)))
    sizes = [len(group) for group in stream.tasks]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    for step, (x, y) in enumerate(stream):
        assert set(y.tolist()) <= set(stream.tasks[stream.task_of(step)])
        assert len(x) == len(y)
    found = [stream.task_of(step) for step in range(len(stream))]
    assert found == sorted(found)
    assert set(found) == set(range(tasks))


def test_batches_are_the_samples_at_their_indices():
    data = onepass.load("digits")
    stream = ClassIncremental(data, tasks=5)
    for step, (x, y) in enumerate(stream):
        assert torch.equal(x, data.train_x[stream.indices(step)])
        assert torch.equal(y, data.train_y[stream.indices(step)])


def test_tasks_start_and_end_where_the_task_changes():
    stream = ClassIncremental(dataset([5, 5, 3, 9]), tasks=2, batch=4)
    starts = [step for step in range(len(stream)) if stream.starts_task(step)]
    ends = [step for step in range(len(stream)) if stream.ends_task(step)]
    assert (starts, ends) == ([0, 3], [2, 5])


def test_the_natural_order_is_that_of_the_labels():
    natural = ClassIncremental(dataset([2] * 10), tasks=5)
    assert natural.tasks == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


def test_a_shuffled_order_depends_on_the_seed_and_not_on_the_number_of_tasks():
    def order(tasks, seed):
        stream = ClassIncremental(dataset([2] * 10), tasks, class_order="shuffled", seed=seed)
        return [label for group in stream.tasks for label in group]

    assert order(5, 1) == order(2, 1) == order(10, 1)
    assert order(5, 1) != order(5, 2)
    assert order(5, 1) != list(range(10))


def test_groups_of_classes_may_be_given():
    stream = ClassIncremental(dataset([4, 4, 4, 4, 4]), tasks=[[3], [0, 4]], batch=3)
    assert stream.tasks == [(3,), (0, 4)]
    labels = [y for _, y in stream]
    assert torch.cat(labels[:2]).tolist() == [3] * 4
    assert sorted(torch.cat(labels[2:]).tolist()) == [0] * 4 + [4] * 4


def test_the_same_seed_gives_the_same_stream_and_another_seed_another_stream():
    data = dataset([20, 20, 20])
    first = steps(ClassIncremental(data, 3, seed=4))
    assert first == steps(ClassIncremental(data, 3, seed=4))
    assert first != steps(ClassIncremental(data, 3, seed=5))


def test_samples_of_a_task_are_shuffled():
    data = dataset([50, 50])
    assert indices(ClassIncremental(data, tasks=1)) != list(range(100))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_order_inside_a_task_does_not_depend_on_how_its_classes_were_chosen(seed):
    data = dataset([7, 3, 9, 4, 6, 5])
    shuffled = ClassIncremental(data, tasks=3, class_order="shuffled", seed=seed)
    given_by_hand = ClassIncremental(data, tasks=shuffled.tasks, seed=seed)
    assert steps(shuffled) == steps(given_by_hand)


def test_the_class_order_does_not_change_the_shuffles():
    """With classes of equal size a task is shuffled the same way for any classes."""
    data = dataset([6] * 8)

    def ranks(order):
        stream = ClassIncremental(data, tasks=4, class_order=order, seed=3)
        places = torch.tensor(indices(stream)).view(4, 12)
        return places.argsort(dim=1).argsort(dim=1).tolist()

    assert ranks("natural") == ranks("shuffled")


def test_the_batch_size_does_not_change_the_order():
    data = dataset([11, 12, 13])
    wanted = indices(ClassIncremental(data, 3, batch=1, seed=1))
    assert indices(ClassIncremental(data, 3, batch=10, seed=1)) == wanted


def test_streams_do_not_use_the_global_generator():
    before = torch.get_rng_state()
    ClassIncremental(dataset([9, 9]), 2, class_order="shuffled", seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_mnist_takes_6002_steps_with_short_batches_at_the_ends_of_tasks():
    stream = ClassIncremental(dataset(MNIST), tasks=5, batch=10)
    assert len(stream) == 6002
    assert last_batches(stream) == [5, 9, 3, 3, 10]
    assert len(set(indices(stream))) == 60_000


@pytest.mark.parametrize(("classes", "tasks"), [(10, 5), (100, 10)])
def test_cifar_takes_5000_steps(classes, tasks):
    stream = ClassIncremental(dataset([50_000 // classes] * classes), tasks, batch=10)
    assert len(stream) == 5000
    assert last_batches(stream) == [10] * tasks


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": -3}, "batch"),
        ({"batch": 2.5}, "batch"),
        ({"batch": "10"}, "batch"),
        ({"tasks": 0}, "tasks"),
        ({"tasks": 4}, "tasks"),
        ({"tasks": 1.5}, "tasks"),
        ({"tasks": [0, 1]}, "tasks"),
        ({"tasks": []}, "tasks"),
        ({"tasks": [[0], []]}, "tasks"),
        ({"tasks": [[0, 1], [1, 2]]}, "disjoint"),
        ({"tasks": [[0, 0]]}, "disjoint"),
        ({"tasks": [[0], [7]]}, "7"),
        ({"class_order": "random"}, "natural or shuffled"),
        (
            {"tasks": [[2], [0, 1]], "class_order": "shuffled"},
            "class_order must be natural if tasks lists",
        ),
    ],
)
def test_a_bad_argument_is_named(arguments, named):
    with pytest.raises(InputError, match=named):
        ClassIncremental(dataset([4, 4, 4]), **{"tasks": 3, **arguments})


@pytest.mark.parametrize("tasks", [[[0], [1], [2]], [[0, 1]], 3, 1], ids=str)
def test_a_class_without_training_samples_is_refused_whether_dealt_or_named(tasks):
    with pytest.raises(InputError, match=r"no training samples of the classes \[1\]"):
        ClassIncremental(dataset([4, 0, 4]), tasks)


def test_the_same_classes_may_come_again_with_other_inputs():
    data = onepass.load("digits")
    once = torch.arange(200)
    stream = onepass.Stream(data, [once, once], batch=20)
    assert stream.tasks[0] == stream.tasks[1] != ()
    learner = onepass.Finetune(device="cpu")
    *_, last = onepass.evaluate(learner, stream)
    assert last.task == 1
    assert last.confusion == ((sum(last.total),),), "classes are those of their first task"
    assert learner.task == 1, "which it is told, unless the stream says otherwise"


@pytest.mark.parametrize(
    "order", [[], [[1, 2]], *([torch.tensor([0, index])] for index in (0.5, 10**6, -1))], ids=str
)
def test_an_order_of_invalid_indices_is_refused(order):
    with pytest.raises(onepass.InputError, match="order must"):
        onepass.Stream(onepass.load("digits"), order)


# ---- on a device (here torch's `meta`)


@pytest.mark.parametrize(("free", "where"), [(None, "meta"), (800, "meta"), (799, "cpu")])
def test_samples_stay_on_the_host_if_a_device_lacks_memory(free, where, monkeypatch, caplog):
    monkeypatch.setattr(devices, "free_gpu_bytes", lambda device: free)
    stream = ClassIncremental(dataset([100, 100]), tasks=2)  # 400 bytes with the test samples
    moved = stream.on(torch.device("meta"))
    x, y = moved.batch(3)
    assert (x.device.type, y.device.type) == (where, "cpu")
    assert torch.equal(y, stream.batch(3)[1])
    assert moved.dataset.test_x.device.type == where
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (where == "cpu")
    assert all("'tiny' stays in RAM" in line for line in told)
