"""The setting `current`: samples of current classes from the memory join X^new."""

import math

import command
import pytest
import torch
import torch.nn.functional as F
from gsa_against_naive import first_task, gsa, naive_steps, stream
from numbered_gsa import NumberedGSA, genuine

from onepass.base.errors import InputError


def even(numbers: list[int], members: list[int]) -> bool:
    """Returns whether these are the members, each equally often or once more."""
    often = [numbers.count(member) for member in members]
    return set(numbers) <= set(members) and max(often) - min(often) <= 1


def test_without_current_samples_the_new_batch_is_the_stream_and_nothing_else():
    watched = NumberedGSA(memory=100)
    for task in range(3):
        for _ in range(3):
            begin, labels = len(watched.label_of), [2 * task, 2 * task + 1] * 3
            watched.learn(labels)
            assert watched.first == [(begin + k, label, True) for k, label in enumerate(labels)]
        watched.learner.new_task()


@pytest.mark.parametrize("current", [1, 5, 12])
def test_the_new_batch_has_the_stream_and_current_samples_of_the_memory(current):
    watched = NumberedGSA(memory=500, current=current)
    for task in range(3):
        labels, begin = [2 * task, 2 * task + 1] * 2, len(watched.label_of)
        for _ in range(4):
            now = len(watched.label_of)
            mixed = watched.learn(labels)
            assert len(watched.first) == 4 + current
            assert [number for number, _, _ in watched.first[:4]] == list(range(now, now + 4))
            assert all(label == watched.label_of[number] for number, label, _ in watched.first)
            replayed = genuine(watched.first[4:], set(labels))
            assert len(replayed) == len(set(replayed)) == min(current, now - begin)
            assert set(replayed) <= set(range(begin, now))
            # X^mix takes the same samples from the memory
            of_memory = genuine(mixed, set(labels))[4:]
            shared = min(len(replayed), len(of_memory))
            assert of_memory[:shared] == replayed[:shared]
        watched.learner.new_task()


@pytest.mark.parametrize("memory", [0, 3, 500])
def test_current_samples_that_the_memory_lacks_repeat_the_new_batch_evenly_at_weight_0(memory):
    watched = NumberedGSA(memory=memory, current=9)
    for task in range(3):
        labels = [2 * task, 2 * task + 1]
        for _ in range(6):
            held = watched.memory_of(set(labels)) if watched.label_of else 0
            watched.learn(labels)
            real = [weight for _, _, weight in watched.first]
            assert real == [True] * (2 + min(held, 9)) + [False] * (9 - min(held, 9))
            numbers = [number for number, _, _ in watched.first]
            assert even(numbers, genuine(watched.first, set(labels)))
        watched.learner.new_task()


def test_current_samples_of_a_task_are_not_there_before_its_second_batch():
    watched, found = NumberedGSA(memory=500, current=6), []
    for task in range(2):
        for _ in range(4):
            watched.learn([2 * task, 2 * task + 1] * 2)
            found.append(sum(real for _, _, real in watched.first[4:]))
        watched.learner.new_task()
    assert found == [0, 4, 6, 6] * 2


def test_a_stream_of_old_classes_comes_with_current_samples_of_the_new_ones():
    watched = NumberedGSA(memory=500, current=4)
    watched.learn([0, 1, 0, 1])
    watched.learner.new_task()
    watched.learn([0, 1, 0])  # no class is new yet: padding has weight 0
    assert [real for _, _, real in watched.first] == [True] * 3 + [False] * 4
    assert watched.step.terms["T1"].item() == 0
    watched.learn([2, 2, 0, 3])
    watched.learn([0, 0, 1])
    assert sorted(watched.first[3:6]) == [(7, 2, True), (8, 2, True), (10, 3, True)]
    assert watched.first[6] == (*watched.first[3][:2], False)
    assert watched.step.terms["T1"].item() > 0


def test_the_within_task_term_is_the_mean_over_stream_and_current_samples():
    items = list(stream("tasks"))[:7]
    *_, now = naive_steps(gsa(current=5), items)
    first = now.step.outputs[0]
    new = torch.tensor([row in now.case[3] for row in range(first.logits.shape[1])])
    assert first.weight.tolist() == [1] * 15 and bool(new[first.y].all())
    logits, t1 = first.logits.masked_fill(~new, -math.inf), now.step.terms["T1"]
    torch.testing.assert_close(t1, F.cross_entropy(logits, first.y))
    assert not torch.allclose(t1, F.cross_entropy(logits[:10], first.y[:10]))
    assert bool((now.gradient[:15] != 0).any(dim=1).all())


def test_in_the_first_task_current_samples_are_replayed_beside_the_stream():
    found = []
    for now in naive_steps(gsa(current=5, new_classes="task"), first_task(4)):
        assert now.step.terms["T2"].item() == now.step.terms["T3"].item() == 0
        counted = [weight > 0 for _, _, weight in now.case[0]]
        moved = (now.gradient != 0).any(dim=1).tolist()
        assert moved == counted + [False] * 12
        found.append(sum(counted))
    assert found == [10, 10 + 5, 10 + 5, 3 + 5]


def test_current_samples_do_not_change_which_samples_are_mixed_or_kept():
    without, with_some = NumberedGSA(memory=20), NumberedGSA(memory=20, current=5)
    for task in range(3):
        for _ in range(5):
            labels = [2 * task, 2 * task + 1] * 4
            assert without.learn(labels) == with_some.learn(labels)
        without.learner.new_task()
        with_some.learner.new_task()
    assert torch.equal(without.learner.store.x, with_some.learner.store.x)


@pytest.mark.parametrize("name", ["tasks", "old classes come back"])
def test_current_samples_change_nothing_while_the_memory_has_none(name):
    with_some = naive_steps(gsa(memory=0, current=7), stream(name))
    for without, other in zip(naive_steps(gsa(memory=0), stream(name)), with_some, strict=True):
        for term in ("T1", "T2", "T3"):
            torch.testing.assert_close(without.step.terms[term], other.step.terms[term])
        size = len(without.case[0])
        assert not bool(other.gradient[size : size + 7].any())


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"current": -1}, "at least 0"),
        ({"current": 2.5}, "a whole number"),
        ({"current": None}, "a whole number"),
        ({"current": "many"}, "a whole number"),
        ({"current": True}, "a whole number"),
    ],
    ids=str,
)
def test_an_invalid_number_of_current_samples_is_refused(settings, wanted):
    with pytest.raises(InputError) as refusal:
        gsa(**settings)
    said = str(refusal.value)
    assert said.startswith(f"gsa: current must be {wanted}")
    assert said.endswith(f", not {settings['current']!r}")


@pytest.mark.parametrize(
    ("settings", "drawn"),
    [
        ({"current": 12}, 12),
        ({"current": 13}, 12),
        ({"current": 3, "fill": 3}, 3),
        ({"current": 4, "fill": 3}, 3),
        ({"current": 20, "fill": 20}, 20),
    ],
    ids=str,
)
def test_at_most_as_many_current_samples_join_as_are_drawn_for_the_mix(settings, drawn):
    learner = gsa(memory=200, **settings)
    *_, now = naive_steps(learner, list(stream("tasks"))[:3])
    assert sum(weight for _, _, weight in now.case[0]) == 10 + drawn
    assert learner.cost(10).trained == (10 + drawn + learner.mix) * learner.views_per_sample


def test_the_command_line_refuses_a_negative_number_of_current_samples_in_one_line():
    done = command.onepass("run", "gsa", "--set", "current=-1")
    assert (done.status, done.out) == (2, "")
    assert "current must be at least 0" in done.error
