"""Samples that are taken out of a memory: what is left of them, and what comes in their place."""

import torch
from stores import generator, held, numbers, reservoir

from onepass.memory import BalancedMemory, HeldOutSet, Reservoir


def full_reservoir(offered=100, capacity=10):
    store = reservoir(capacity)
    store.add(*numbers(0, offered))
    return store


def slots_of(store, labels):
    return torch.isin(store.y[: int(store.size)], torch.tensor(labels))


def test_what_stays_keeps_its_fields_and_of_the_rest_nothing_is_left():
    store = Reservoir(4, (2,), torch.float32, generator(), {"logits": torch.zeros(3)})
    y = torch.arange(1, 7)
    store.add(y.float().repeat(2, 1).T, y, logits=y.float().repeat(3, 1).T)
    gone = held(store)[1]
    stays = [label for label in held(store) if label != gone]
    store.forget(slots_of(store, [gone]))
    assert held(store) == stays
    assert store.x[:3, 0].tolist() == store.fields["logits"][:3, 2].tolist() == stays
    assert not any(bool(one[3:].any()) for one in (store.x, store.y, store.fields["logits"]))


def test_free_slots_of_a_reservoir_fill_first_and_then_all_goes_on_by_lot():
    """What stays stands for its share of the stream, so that a newcomer of a later batch is let in
    with the probability that it has beside those."""
    store = full_reservoir()
    stays = held(store)[3:]
    store.forget(slots_of(store, held(store)[:3]))
    assert (int(store.size), int(store.offered)) == (7, 70)
    store.add(*numbers(200, 203))
    assert held(store) == [*stays, 200, 201, 202]
    entered = 0
    for seed in range(300):
        one = full_reservoir()
        one.forget(slots_of(one, held(one)[:3]))
        one.add(*numbers(200, 203))
        one.rng.manual_seed(seed)
        one.add(*numbers(300, 301))
        entered += 300 in held(one)
    assert 20 < entered < 65  # of 300 at 10 / 74: 40.5 on average, 5.9 the deviation


def test_a_reservoir_with_room_is_as_if_the_forgotten_had_never_come():
    with_some, without = reservoir(20), reservoir(20)
    with_some.add(*numbers(0, 8))
    with_some.forget(slots_of(with_some, [2, 3, 4]))
    for first, past in ((0, 2), (5, 8)):
        without.add(*numbers(first, past))
    for store in (with_some, without):
        store.rng.manual_seed(1)
        store.add(*numbers(10, 60))
    assert held(with_some) == held(without)


def test_the_share_of_a_class_that_is_forgotten_goes_to_the_others():
    store = BalancedMemory(12, (), torch.float32, generator(), rows=16)
    for label in (0, 1, 2):
        store.add(torch.zeros(12), torch.full((12,), label))
    assert sorted(held(store)) == [0] * 4 + [1] * 4 + [2] * 4
    store.forget(slots_of(store, [1]))
    for label in (0, 2):
        store.add(torch.zeros(12), torch.full((12,), label))
    assert sorted(held(store)) == [0] * 6 + [2] * 6


def test_a_held_out_set_asks_for_the_forgotten_again():
    store, seen = HeldOutSet(4, (), torch.float32, generator()), torch.tensor([True, True])
    store.classes_are(seen, seen)
    y = torch.tensor([0, 0, 1, 1])
    store.add(y.float(), y, accept=torch.ones(4, dtype=torch.bool))
    store.forget(slots_of(store, [0]))
    assert store.fitting(y, torch.ones(4, dtype=torch.bool)).tolist() == [True, True, False, False]
