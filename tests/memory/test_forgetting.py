"""Tests the removal of samples from memories: what remains, and what fills the free slots."""

import torch
from stores import generator, held, numbers, reservoir

from onepass.memory import BalancedMemory, HeldOutSet, Reservoir


def full_reservoir(offered=100, capacity=10):
    store = reservoir(capacity)
    store.add(*numbers(0, offered))
    return store


def slots_of(store, labels):
    return torch.isin(store.y[: int(store.size)], torch.tensor(labels))


def test_remaining_samples_keep_their_fields_and_the_rest_is_zeroed():
    store = Reservoir(4, (2,), torch.float32, generator(), {"logits": torch.zeros(3)})
    y = torch.arange(1, 7)
    store.add(y.float().repeat(2, 1).T, y, logits=y.float().repeat(3, 1).T)
    gone = held(store)[1]
    stays = [label for label in held(store) if label != gone]
    store.forget(slots_of(store, [gone]))
    assert held(store) == stays
    assert store.x[:3, 0].tolist() == store.fields["logits"][:3, 2].tolist() == stays
    assert not any(bool(column[3:].any()) for column in (store.x, store.y, store.fields["logits"]))


def test_a_reservoir_fills_its_free_slots_and_then_replaces_at_random():
    """Remaining samples stand for their fraction of the stream. So a sample of a later batch is
    stored with its usual probability beside them."""
    store = full_reservoir()
    stays = held(store)[3:]
    store.forget(slots_of(store, held(store)[:3]))
    assert (int(store.size), int(store.offered)) == (7, 70)
    store.add(*numbers(200, 203))
    assert held(store) == [*stays, 200, 201, 202]
    entered = 0
    for seed in range(300):
        store = full_reservoir()
        store.forget(slots_of(store, held(store)[:3]))
        store.add(*numbers(200, 203))
        store.rng.manual_seed(seed)
        store.add(*numbers(300, 301))
        entered += 300 in held(store)
    assert 20 < entered < 65  # 300 trials at 10 / 74: mean 40.5, standard deviation 5.9


def test_a_reservoir_with_room_is_as_if_the_removed_samples_had_never_come():
    with_some, without = reservoir(20), reservoir(20)
    with_some.add(*numbers(0, 8))
    with_some.forget(slots_of(with_some, [2, 3, 4]))
    for first, past in ((0, 2), (5, 8)):
        without.add(*numbers(first, past))
    for store in (with_some, without):
        store.rng.manual_seed(1)
        store.add(*numbers(10, 60))
    assert held(with_some) == held(without)


def test_the_share_of_a_removed_class_goes_to_the_others():
    store = BalancedMemory(12, (), torch.float32, generator(), rows=16)
    for label in (0, 1, 2):
        store.add(torch.zeros(12), torch.full((12,), label))
    assert sorted(held(store)) == [0] * 4 + [1] * 4 + [2] * 4
    store.forget(slots_of(store, [1]))
    for label in (0, 2):
        store.add(torch.zeros(12), torch.full((12,), label))
    assert sorted(held(store)) == [0] * 6 + [2] * 6


def test_a_held_out_set_fills_up_again_after_a_removal():
    store, seen = HeldOutSet(4, (), torch.float32, generator()), torch.tensor([True, True])
    store.classes_are(seen, seen)
    y = torch.tensor([0, 0, 1, 1])
    store.add(y.float(), y, accept=torch.ones(4, dtype=torch.bool))
    store.forget(slots_of(store, [0]))
    assert store.fitting(y, torch.ones(4, dtype=torch.bool)).tolist() == [True, True, False, False]
