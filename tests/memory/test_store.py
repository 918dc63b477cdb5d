"""Tests stores with a method's own fields: each value stays with its sample."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from stores import PROPERTY, as_on_gpu, filled_with, generator, p_even

from onepass import InputError
from onepass.base.parts import Samples
from onepass.memory import Reservoir, Store

FIELDS = {"logits": torch.zeros(3), "task": torch.tensor(0), "twin": torch.zeros(2, 2).byte()}


class Ring(Store):
    """A store of the last samples of the stream."""

    tensors = ("size", "offered")

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.offered = torch.zeros((), dtype=torch.int64)

    def add(self, x, y, **fields):
        self.write((self.offered + torch.arange(len(y))) % self.capacity, x, y, **fields)
        self.offered += len(y)
        self.size.copy_(self.offered.clamp(max=self.capacity))


def made(kind, capacity, seed=0, fields=FIELDS):
    return kind(capacity, (2,), torch.float32, generator(seed), fields=fields)


def stream(first, past):
    """Returns samples that equal their position in the stream, with fields derived from it."""
    place = torch.arange(first, past)
    x = torch.stack([place, -place], dim=1).float()
    fields = {
        "logits": torch.stack([place, 2 * place, 3 * place], dim=1).float(),
        "task": place + 100,
        "twin": (place % 256).byte().view(-1, 1, 1).expand(-1, 2, 2),
    }
    return (x, place % 5), fields


def fill(store, sizes, first=0):
    for size in sizes:
        samples, fields = stream(first, first + size)
        store.add(*samples, **fields)
        first += size
    return store


def belong(store, slots):
    """Returns whether all values in these slots belong to the same samples."""
    place = store.x[slots][:, 0].long()
    (x, y), fields = stream(0, int(place.max()) + 1 if len(place) else 0)
    expected = {"x": x, "y": y, **fields}
    found = {"x": store.x, "y": store.y, **store.fields}
    return all(torch.equal(found[name][slots], expected[name][place]) for name in expected)


capacities, batches = st.integers(1, 12), st.lists(st.integers(1, 9), max_size=8)
kinds = st.sampled_from([Reservoir, Ring])


@PROPERTY
@given(kinds, capacities, batches, st.integers(0, 10**6))
def test_fields_follow_their_samples_through_writes(kind, capacity, sizes, seed):
    sizes = [min(size, capacity) for size in sizes]
    store = fill(made(kind, capacity, seed), sizes)
    assert int(store.size) == min(capacity, sum(sizes))
    assert belong(store, torch.arange(int(store.size)))


@PROPERTY
@given(capacities, batches, st.integers(1, 10), st.integers(0, 10**6), st.data())
def test_fields_follow_their_samples_through_draws(capacity, sizes, count, seed, data):
    store = fill(made(Reservoir, capacity, seed), sizes)
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=5, max_size=5)))
    for groups in (None, [mask, ~mask]):
        slots, genuine = store.draw_slots(count, groups)
        for row, sure in zip(slots.view(-1, count), genuine.view(-1, count), strict=True):
            drawn = row[sure]
            assert len(set(drawn.tolist())) == len(drawn)
            assert bool((drawn < store.size).all())
            assert belong(store, drawn)
            fallback = Samples(torch.full((2, 2), 7.0), torch.tensor([1, 2]), torch.ones(2))
            samples = store.samples_at(row, sure, fallback)
            assert torch.equal(samples.x[sure], store.x[drawn])
            assert torch.equal(samples.y[sure], store.fields["task"][drawn] % 5)


@PROPERTY
@given(kinds, capacities, batches, st.integers(0, 10**6))
def test_fields_follow_their_samples_through_a_state(kind, capacity, sizes, seed):
    sizes = [min(size, capacity) for size in sizes]
    store, other = fill(made(kind, capacity, seed), sizes), made(kind, capacity, seed)
    state = store.state_dict()
    held = int(store.size)
    assert {name: len(state[name]) for name in FIELDS} == dict.fromkeys(FIELDS, held)
    other.load_state_dict(state)
    other.rng.set_state(store.rng.get_state())
    for memory in (store, other):
        fill(memory, [1, 1, 1], first=sum(sizes))
    assert belong(other, torch.arange(int(other.size)))
    after, expected = other.state_dict(), store.state_dict()
    assert list(after) == list(expected)
    assert all(torch.equal(after[name], expected[name]) for name in expected)


def test_a_state_holds_copies_of_the_fields():
    store = fill(made(Ring, 3), [3])
    state = store.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    fill(store, [3], first=50)
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_the_store_holds_copies_of_the_fields():
    (x, y), fields = stream(0, 3)
    fields = {name: value.clone() for name, value in fields.items()}
    store = made(Reservoir, 3)
    store.add(x, y, **fields)
    for values in (x, *fields.values()):
        values.zero_()
    assert store.x[2].tolist() == [2, -2]
    assert [store.fields[name][2].flatten().tolist() for name in FIELDS] == [
        [2, 4, 6],
        [102],
        [2, 2, 2, 2],
    ]


@pytest.mark.parametrize("kind", [Reservoir, Ring])
@pytest.mark.parametrize("capacity", [0, 1, 10])
def test_the_bytes_count_the_fields(kind, capacity):
    plain, more = made(kind, capacity, fields=None), made(kind, capacity)
    assert plain.bytes == capacity * (2 * 4 + 8)
    assert more.bytes == plain.bytes + capacity * (3 * 4 + 8 + 4)


def test_fields_have_the_dtype_and_shape_of_their_examples():
    store = fill(made(Reservoir, 4), [2])
    for name, value in FIELDS.items():
        assert store.fields[name].dtype == value.dtype
        assert store.fields[name].shape[1:] == value.shape


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_draw_without_genuine_samples_repeats_the_stream_at_weight_0(count):
    store = fill(made(Reservoir, 4), [4])
    (x, y), _ = stream(90, 93)
    none = torch.zeros(count, dtype=torch.bool)
    samples = store.samples_at(torch.arange(count) % 4, none, Samples(x, y, torch.ones(3)))
    cycle = [k % 3 for k in range(count)]
    assert torch.equal(samples.x, x[cycle])
    assert torch.equal(samples.y, y[cycle])
    assert samples.weight.tolist() == [0] * count


def test_a_draw_with_genuine_samples_is_padded_with_slots_at_weight_0():
    store = fill(made(Reservoir, 4), [4])
    slots, genuine = torch.tensor([2, 0, 2]), torch.tensor([True, True, False])
    (x, y), _ = stream(90, 93)
    samples = store.samples_at(slots, genuine, Samples(x, y, torch.ones(3)))
    assert samples.x[:, 0].tolist() == [2, 0, 2]
    assert samples.y.tolist() == [2, 0, 2]
    assert samples.weight.tolist() == [1, 1, 0]


def test_an_unknown_field_is_an_error():
    store = made(Reservoir, 2)
    (x, y), fields = stream(0, 1)
    with pytest.raises(KeyError):
        store.add(x, y, **fields, other=y)


def test_column_names_lists_the_stored_values():
    assert made(Reservoir, 2, fields=None).column_names == ("x", "y")
    assert made(Reservoir, 2).column_names == ("x", "y", *FIELDS)


@pytest.mark.parametrize("problem", [RuntimeError("no memory"), MemoryError()], ids=repr)
def test_a_memory_larger_than_the_ram_is_refused(monkeypatch, problem):
    def full(*arguments, **named):
        raise problem

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(InputError, match="no room here for a memory of 7 samples"):
        Reservoir(7, (2,), torch.float32, generator())


# ---- fields with a value per class


@PROPERTY
@given(kinds, capacities, batches, st.integers(3, 9), st.integers(0, 10**6))
def test_fields_per_class_widen_with_the_head_and_keep_their_values(
    kind, capacity, sizes, wide, seed
):
    sizes = [min(size, capacity) for size in sizes]
    options = {"fields": FIELDS, "per_class": ["logits"]}
    store = fill(kind(capacity, (2,), torch.float32, generator(seed), **options), sizes)
    before, held = store.state_dict(), int(store.size)
    plain = store.bytes
    store.grow(wide)
    after = store.state_dict()
    assert after["logits"].shape == (held, wide)
    assert torch.equal(after["logits"][:, :3], before["logits"])
    assert not after["logits"][:, 3:].any()
    assert all(torch.equal(after[name], before[name]) for name in before if name != "logits")
    assert store.bytes == plain + capacity * 4 * (wide - 3)

    other = kind(capacity, (2,), torch.float32, generator(seed), **options)
    other.grow(wide)
    other.load_state_dict(after)
    assert torch.equal(other.fields["logits"][:held], store.fields["logits"][:held])
    (x, y), fields = stream(60, 61)
    store.add(x, y, **{**fields, "logits": torch.arange(1.0, wide + 1).view(1, -1)})
    assert store.fields["logits"].shape == (capacity + 1, wide)


def test_other_fields_do_not_widen():
    store = fill(made(Reservoir, 4), [3])
    before = store.state_dict()
    store.grow(9)
    after = store.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


# ---- independent draws


@PROPERTY
@given(st.integers(0, 12), st.integers(1, 9), st.integers(1, 4), st.integers(0, 10**6))
def test_each_of_several_draws_is_without_replacement(size, count, draws, seed):
    store = filled_with([0] * size, capacity=12, seed=seed)
    slots, genuine = store.draw_independent_slots(draws, count)
    assert slots.shape == genuine.shape == (draws, count)
    for row, real in zip(slots, genuine, strict=True):
        kept = row[real].tolist()
        assert len(kept) == len(set(kept)) == min(count, size)
        assert real.tolist() == [place < size for place in range(count)]
        assert all(0 <= slot < max(size, 1) for slot in row.tolist())


def test_draws_are_independent():
    store, joint = filled_with([0] * 5, seed=4), np.zeros((5, 5))
    for _ in range(5000):
        (first, second), _ = store.draw_independent_slots(2, 1)
        joint[int(first), int(second)] += 1
    assert p_even(joint.flatten()) > 1e-3


# ---- the group of all other classes


@PROPERTY
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 10**6))
def test_all_other_classes_are_drawn_like_a_mask_of_them(labels, seed):
    """The slots are equal, from the same random numbers, in a full or partial memory, beside two
    groups."""
    first, second = (torch.tensor([row in group for row in range(5)]) for group in ({1, 3}, {4}))
    drawn = []
    for rest in (None, ~(first | second)):
        store = Reservoir(40, (), torch.float32, torch.Generator().manual_seed(seed))
        store.add(torch.arange(len(labels)).float(), torch.tensor(labels))
        drawn.append(store.draw_slots(8, (first, rest, second)))
    for found, expected in zip(*drawn, strict=True):
        assert torch.equal(found, expected)


# ---- on a device, without reading values on the host


def everything(store):
    return [*store.state_dict().values(), store.rng.get_state()]


def alike(first, second):
    return all(map(torch.equal, first, second))


@PROPERTY
@given(st.integers(0, 12), batches, st.integers(0, 10**6))
def test_a_device_stores_the_same_samples_as_the_host(capacity, sizes, seed):
    ours, theirs = (made(Reservoir, capacity, seed) for _ in range(2))
    fill(ours, sizes)
    with as_on_gpu(), mock.patch.object(theirs, "write", wraps=theirs.write) as write:
        fill(theirs, sizes)
    assert alike(everything(ours), everything(theirs))
    for call in write.call_args_list:  # a device may order two writes to one slot either way
        slots = [slot for slot in call.args[0].tolist() if slot < capacity]
        assert len(slots) == len(set(slots))


@PROPERTY
@given(st.integers(0, 90), st.integers(0, 12), st.integers(0, 10**6))
@example(size=20, count=5, seed=0)
def test_a_device_draws_the_same_slots_as_the_host(size, count, seed):
    """This holds for an empty, a too small, a small and a large population."""
    ours, theirs = (fill(made(Reservoir, 100, seed), [size] if size else []) for _ in range(2))
    fallback = Samples(torch.full((3, 2), 7.0), torch.tensor([1, 2, 3]), torch.ones(3))
    found = ours.draw(count, fallback)
    with as_on_gpu():
        assert alike(found, theirs.draw(count, fallback))
    assert alike(everything(ours), everything(theirs))
