"""Tests memories that fill up, that are replaced at once, and that hold the current task only."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stores import PROPERTY, generator, held, numbers

from onepass.memory import FillFirst, RebuiltMemory, Reservoir, TaskReservoir

sizes = st.lists(st.integers(1, 6), max_size=5)


def made(kind, capacity, seed=0):
    return kind(capacity, (), torch.float32, generator(seed))


def fed(store, batches, first=0):
    for size in batches:
        store.add(*numbers(first, first + size))
        first += size
    return store


@PROPERTY
@given(st.integers(0, 12), sizes)
def test_samples_fill_the_free_slots_in_order_and_the_rest_is_dropped(capacity, batches):
    store = fed(made(FillFirst, capacity), batches)
    assert held(store) == list(range(sum(batches)))[:capacity]
    assert store.x[: int(store.size)].tolist() == held(store)
    fed(store, [2], first=100)
    assert held(store) == [*range(sum(batches)), 100, 101][:capacity]


@PROPERTY
@given(st.integers(0, 12), sizes, st.integers(0, 15))
def test_replace_removes_all_earlier_samples(capacity, batches, count):
    store = fed(made(RebuiltMemory, capacity), batches)
    store.replace(*numbers(50, 50 + count))
    assert held(store) == list(range(50, 50 + count))[:capacity]


def test_fields_are_replaced_with_their_samples():
    store = RebuiltMemory(4, (), torch.float32, generator(), fields={"origin": torch.zeros(2)})
    for first in (0, 10):
        x, y = numbers(first, first + 3)
        store.replace(x, y, origin=x.view(-1, 1).expand(-1, 2) * 10)
    assert store.fields["origin"][:3].tolist() == [[10 * x] * 2 for x in (10, 11, 12)]


@PROPERTY
@given(st.integers(1, 8), sizes, sizes, st.integers(0, 10**6))
def test_a_task_reservoir_is_emptied_at_a_boundary(capacity, before, after, seed):
    """It then equals a reservoir that has never been offered a sample."""
    store = fed(made(TaskReservoir, capacity, seed), before)
    store.new_task()
    assert held(store) == []
    state = store.rng.get_state()
    fresh = made(Reservoir, capacity)
    fresh.rng.set_state(state)
    assert held(fed(store, after, first=70)) == held(fed(fresh, after, first=70))


@pytest.mark.parametrize("batches", [[], [2], [3, 4], [6, 6, 6]], ids=str)
def test_its_state_has_a_constant_size_and_resumes(batches):
    store, opened = fed(made(TaskReservoir, 5), batches), made(TaskReservoir, 5)
    state = store.state_dict()
    assert {name: len(state[name]) for name in ("x", "y")} == {"x": 5, "y": 5}
    opened.load_state_dict(state)
    opened.rng.set_state(store.rng.get_state())
    assert held(opened) == held(store)
    assert held(fed(opened, [4, 4], first=30)) == held(fed(store, [4, 4], first=30))
    assert int(opened.offered) == sum(batches) + 8
    kept = {name: value.clone() for name, value in state.items()}
    fed(store, [5], first=90)
    assert all(torch.equal(state[name], kept[name]) for name in kept)
