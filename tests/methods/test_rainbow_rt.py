"""Rainbow-rt: the candidates that are kept, and replay of exactly these."""

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_learners import on_every_forward
from torch import Tensor, nn

from onepass.base.errors import InputError
from onepass.learning.checkpoint.file import open_learner
from onepass.learning.memory_contents import memory_bytes
from onepass.methods.rainbow_rt import RainbowRT, diverse

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)


class Recorder(nn.Module):
    """A net whose features are the inputs. It records the first feature of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.flatten(1)[:, 0].long().tolist())
        return 1e-4 * x.flatten(1)


def rainbow(**settings: object) -> RainbowRT:
    """Makes a learner; by default 12 samples are replayed and 12 are candidates."""
    small = {"memory": 24, "replay": 8, "device": "cpu", "net": Recorder(), "lr": 1e-6}
    half = settings.get("memory", 24) // 2 or None
    return RainbowRT(**{**small, "candidates": half, **settings})


class Numbered:
    """A learner on samples whose value is their position in the stream."""

    def __init__(self, **settings: object) -> None:
        self.learner = rainbow(**settings)
        self.label_of: list[int] = []

    def learn(self, labels: list[int]) -> list[int]:
        """Learns a batch and returns the samples that were replayed, without padding."""
        numbers = torch.arange(len(labels)) + len(self.label_of)
        self.label_of += labels
        step = self.learner.learn(numbers.float().unsqueeze(1), labels)
        output = step.together
        seen = self.learner.model.body.batches[-1]
        genuine = [number for number, weight in zip(seen, output.weight, strict=True) if weight]
        assert genuine[: len(labels)] == numbers.tolist()
        return genuine[len(labels) :]

    def task(self, labels: list[int], batches: int = 6) -> list[list[int]]:
        replayed = [self.learn(labels) for _ in range(batches)]
        self.learner.end_task()
        return replayed

    def held(self) -> list[int]:
        store = self.learner.store
        numbers = store.x[: int(store.size), 0].long().tolist()
        rows = store.y[: int(store.size)].tolist()
        names = [self.learner.classes[row] for row in rows]
        assert names == [self.label_of[number] for number in numbers]
        return numbers

    def counts(self) -> Counter:
        return Counter(self.label_of[number] for number in self.held())


# ---- the candidates of a class that are kept


def by_plain_lists(labels: list[int], uncertainty: list[float], quota: int) -> set[int]:
    kept = set()
    for label in set(labels):
        members = [place for place, other in enumerate(labels) if other == label]
        members.sort(key=lambda place: uncertainty[place])
        if len(members) > quota:
            members = members[:: len(members) // quota][:quota] if quota else []
        kept |= set(members)
    return kept


@PROPERTY
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 11)), max_size=60), st.integers(0, 15))
def test_candidates_of_a_class_are_kept_at_a_stride_by_uncertainty(candidates, quota):
    labels, votes = [label for label, _ in candidates], [vote / 12 for _, vote in candidates]
    chosen = diverse(torch.tensor(labels, dtype=torch.int64), torch.tensor(votes), quota)
    assert set(chosen.nonzero().flatten().tolist()) == by_plain_lists(labels, votes, quota)


@pytest.mark.parametrize(
    ("count", "quota", "expected"),
    [(6, 2, [0, 3]), (7, 2, [0, 3]), (5, 2, [0, 2]), (5, 3, [0, 1, 2]), (2, 3, [0, 1])],
)
def test_sorted_candidates_are_kept_at_a_stride(count, quota, expected):
    sure_first = torch.arange(count) / 12
    chosen = diverse(torch.zeros(count).long(), sure_first, quota)
    assert chosen.nonzero().flatten().tolist() == expected
    unsure_first = diverse(torch.zeros(count).long(), sure_first.flip(0), quota)
    assert unsure_first.flip(0).nonzero().flatten().tolist() == expected


def test_with_equal_uncertainty_it_is_a_stride_over_the_order_of_each_class():
    y = torch.tensor([0, 1] * 6)
    assert diverse(y, torch.full((12,), 0.25), 3).nonzero().flatten().tolist() == [0, 1, 4, 5, 8, 9]


# ---- uncertainty


class Votes(nn.Module):
    """A net that assigns each sample to the classes it lists, one class for each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.calls += 1
        wanted = x[:, (self.calls - 1) % 12].long()
        return 20 * F.one_hot(wanted, 12).float()


def test_uncertainty_is_the_share_of_copies_outside_the_most_frequent_class():
    learner = rainbow(net=Votes(), lr=1e-12)
    every = torch.tensor([[2.0] * 12, list(range(12)), [0, 1] * 6, [3] * 9 + [1] * 3])
    learner.learn(every[[0] * 12], list(range(12)))
    with torch.no_grad():  # feature i means class i
        learner.model.head.weight[:12] = torch.eye(12)
        learner.model.head.bias.zero_()
    found = learner.uncertainty(every)
    assert found.tolist() == pytest.approx([0, 11 / 12, 6 / 12, 3 / 12])
    assert learner.trainer.image_counts == {"task ends": (0, 48)}


def test_rows_without_a_class_get_no_votes():
    learner = rainbow(net=Votes(), lr=1e-12)
    learner.learn(torch.zeros(2, 12), [0, 1])
    with torch.no_grad():
        learner.model.head.bias[2:] = 100.0
    assert not learner.votes(torch.zeros(3, 12))[:, 2:].any()


def test_candidates_are_scored_in_pieces_in_evaluation_mode_and_in_twelve_views(monkeypatch):
    monkeypatch.setattr("onepass.methods.rainbow_rt.SCORED_AT_ONCE", 5)
    learner = rainbow()
    learner.learn(torch.zeros(3, 1), [0, 1, 0])
    forwards = []
    on_every_forward(
        learner,
        lambda module, given, _: forwards.append((given[0][:, 0].long().tolist(), module.training)),
    )
    learner.uncertainty(torch.arange(12.0).unsqueeze(1))
    pieces = [list(range(5))] * 12 + [list(range(5, 10))] * 12 + [[10, 11]] * 12
    assert forwards == [(piece, False) for piece in pieces]
    assert learner.model.body.training


@pytest.mark.parametrize("mirror", [False, True])
def test_each_copy_is_augmented_anew_and_not_mirrored(mirror):
    learner = rainbow(mirror=mirror)
    x = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    learner.learn(x, [0, 1, 0, 1])
    forwards = []
    on_every_forward(learner, lambda module, given, result: forwards.append(result))
    learner.uncertainty(x)
    assert [len(votes) for votes in forwards] == [4] * 12
    assert all(not torch.equal(forwards[0], other) for other in forwards[1:])


def test_scoring_does_not_move_statistics_and_parameters():
    learner = rainbow(net="resnet18")
    x = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)
    learner.learn(x, [0, 1] * 3)
    before = learner.params_sha256()
    learner.uncertainty(x)
    learner.end_task()
    assert learner.params_sha256() == before


# ---- the memory


def test_in_the_first_task_nothing_is_replayed_and_nothing_scored():
    numbered = Numbered(memory=48, candidates=36)
    assert numbered.task([0, 1] * 3) == [[]] * 6
    assert numbered.learner.trainer.image_counts == {}
    assert numbered.counts() == {0: 6, 1: 6}


def test_the_first_memory_is_a_random_part_of_the_task():
    first = [Numbered(seed=seed, memory=48, candidates=36) for seed in range(60)]
    for memory in first:
        memory.task([0, 1] * 3)
    often = Counter(number for memory in first for number in memory.held())
    assert len(often) == 36 and max(often.values()) < 2.2 * 60 * 12 / 36


def test_later_tasks_replay_the_memory_and_nothing_else():
    numbered = Numbered()
    numbered.task([0, 1] * 3)
    for task in range(1, 4):
        memory = set(numbered.held())
        numbered.learner.new_task()
        for replayed in numbered.task([2 * task, 2 * task + 1] * 3):
            assert len(set(replayed)) == len(replayed) == 8
            assert set(replayed) <= memory


def test_a_new_memory_comes_from_the_old_one_and_the_task_alone():
    numbered = Numbered(memory=49, candidates=36)
    old: set[int] = set()
    for task in range(5):
        begin = len(numbered.label_of)
        numbered.task([2 * task, 2 * task + 1] * 3)
        new = set(numbered.held())
        assert new <= old | set(range(begin, len(numbered.label_of)))
        assert len(new) == len(numbered.held()) == 13
        quota = 13 // (2 * task + 2)
        assert all(numbered.counts()[label] >= quota for label in range(2 * task + 2))
        old = new
        numbered.learner.new_task()


def test_remaining_slots_go_to_other_candidates_at_random():
    left_over = Counter()
    for seed in range(40):
        numbered = Numbered(seed=seed, memory=27, candidates=20, augment="none")
        numbered.task([0], batches=7)
        numbered.learner.new_task()
        numbered.task([1], batches=7)  # three of each class, and one more
        assert len(numbered.held()) == 7 and {7, 9, 11} <= set(numbered.held())
        left_over += Counter(set(numbered.held()) - {7, 9, 11} - set(range(7)))
        assert min(numbered.counts().values()) == 3
    assert set(left_over) == {8, 10, 12, 13}


def test_fewer_candidates_than_slots_are_all_kept():
    numbered = Numbered(memory=100)
    numbered.task([0, 1, 1], batches=2)
    assert sorted(numbered.held()) == list(range(6))
    numbered.learner.new_task()
    assert all(len(replayed) == 6 for replayed in numbered.task([2, 2], batches=2))
    assert sorted(numbered.held()) == list(range(10))


def test_with_fewer_slots_than_classes_the_memory_is_still_full():
    numbered = Numbered(memory=4)
    numbered.task([0, 1, 2, 3])
    assert len(numbered.held()) == 2


@pytest.mark.parametrize("candidates", [None, 5, 40])
def test_candidates_never_exceed_their_setting_or_the_memory(candidates):
    numbered = Numbered(memory=44, candidates=candidates)
    for begin in (0, 30):
        for _ in range(5):
            numbered.learn([begin, begin + 1] * 3)
        running = numbered.learner.running
        wanted = min(candidates or 11, 30)
        assert int(running.size) == wanted
        assert int(running.size) + int(numbered.learner.store.size) <= 44
        assert set(running.x[:wanted, 0].long().tolist()) <= set(range(begin, begin + 30))
        numbered.learner.new_task()
        assert int(running.size) == 0
    assert memory_bytes(numbered.learner) == 44 * (4 + 8)


def test_the_cost_of_a_task_end_is_twelve_views_of_each_candidate():
    numbered = Numbered(memory=32, candidates=20)
    for task, total in enumerate([0, 12 * 32, 2 * 12 * 32]):
        numbered.task([2 * task, 2 * task + 1] * 3)
        spent = numbered.learner.trainer.image_counts.get("task ends", (0, 0))
        assert spent == (0, total)
        numbered.learner.new_task()


def test_the_most_and_the_least_certain_are_kept(monkeypatch):
    def by_number(self: RainbowRT, x: Tensor) -> Tensor:
        return x[:, 0] % 6 / 12

    monkeypatch.setattr(RainbowRT, "uncertainty", by_number)
    numbered = Numbered(memory=66, candidates=60)
    numbered.task([0])
    numbered.learner.new_task()
    numbered.task([1], batches=36)  # six samples of each of six uncertainties
    of_task = [number for number in numbered.held() if numbered.label_of[number] == 1]
    assert sorted(number % 6 for number in of_task) == [0, 2, 4]


def test_without_slots_it_trains_and_replays_nothing():
    numbered = Numbered(memory=1)
    for label in range(3):
        assert numbered.task([label, label]) == [[]] * 6
        numbered.learner.new_task()
    assert numbered.held() == [] and numbered.learner.trainer.image_counts == {}


# ---- the step


def test_the_loss_is_one_mean_over_stream_and_replay():
    source = torch.Generator().manual_seed(0)
    learner = rainbow(net=nn.Linear(5, 4), lr=0.01, memory=5)
    for task in range(3):
        for _ in range(4):
            y = torch.randint(2, (3,), generator=source) + 2 * task
            step = learner.learn(torch.randn(3, 5, generator=source), y)
            output = step.together
            genuine = output.weight > 0
            assert int(genuine.sum()) == 3 + min(8, int(learner.store.size))
            logits = output.logits[genuine][:, : len(learner.classes)]
            torch.testing.assert_close(step.loss, F.cross_entropy(logits, output.y[genuine]))
            assert learner.cost(3) == (11, 0)
        learner.new_task()


def test_the_head_is_not_reset_and_trains_in_every_task():
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    learner = rainbow(net=nn.Linear(5, 4), lr=0.01)
    for task in range(3):
        learner.learn(x, [2 * task, 2 * task + 1] * 2)
        head = learner.model.head.weight.detach()
        before = head.clone()
        learner.new_task()
        assert torch.equal(head, before)
        learner.learn(x, [2 * task, 2 * task + 1] * 2)
        moved = (head - before)[: 2 * task + 2].abs().amax(dim=1)
        assert bool((moved > 0).all()) and float(moved.max()) < 0.05


def test_a_learner_saved_after_a_task_end_resumes_exactly(tmp_path):
    source = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 5, generator=source) for _ in range(12)]
    learner = rainbow(net="mlp", lr=1e-3, memory=6)
    for number, x in enumerate(batches):
        if number in (4, 8):
            learner.new_task()
        if number == 9:
            learner.save(tmp_path / "learner.pt")
        learner.learn(x, [number // 4] * 4)
    opened = open_learner(tmp_path / "learner.pt", device="cpu")
    for x in batches[9:]:
        opened.learn(x, [2] * 4)
    for each in (learner, opened):
        each.end_task()
    assert opened.state_sha256() == learner.state_sha256()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"memory": -1}, "memory must be zero or more"),
        ({"replay": 0}, "replay must be at least 1"),
        ({"candidates": 24}, "candidates must be at least 1 and less than memory"),
        ({"candidates": math.inf}, "candidates must be a whole number or none"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings, wanted):
    with pytest.raises(InputError, match=wanted):
        rainbow(**settings)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64}
    assert defaults(RainbowRT, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(RainbowRT) == {
        "optimizer": "nesterov",
        "lr": 0.05,
        "weight_decay": 1e-4,
        "replay": 10,
    }
