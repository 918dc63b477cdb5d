"""A learner that averages itself, learns from its average, and repeats its steps: limits that are
known, a second implementation of the lesson, and what is refused. What holds for every method is in
the contract; that a step which fails in a repeat leaves no trace, in `test_failing.py`."""

import copy
import json
import math
from dataclasses import dataclass

import pytest
import torch
from command import onepass as command
from command import refused
from replaying import BOUNDARY, Trained, batches, corners, flat, learned, random_batches, small
from teaching import register
from torch import nn

import onepass
from onepass import ER, GSA, GSS, BiC, Finetune, InputError, registry
from onepass.checks import CHECKS, check_method
from onepass.memory import Reservoir
from onepass.parts import Samples
from onepass.passes import watched

TAUGHT = {"average": "growing", "distil": 1.0, "distil_raw": True, "repeats": 2}
TASKS = [[0, 1, 0, 1], [1, 1, 0], [0, 0, 1, 1], BOUNDARY, [2, 3, 2], [3, 2, 2, 0], [2, 3, 3]]


class Normed(nn.Module):
    """Of any shape; with BatchNorm, so that a network that trains says other things than one that
    evaluates."""

    def __init__(self, values=6):
        super().__init__()
        self.layer, self.norm = nn.Linear(values, 8), nn.BatchNorm1d(8)
        source = torch.Generator().manual_seed(7)
        for parameter in self.layer.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=source)

    def forward(self, x):
        return torch.relu(self.norm(self.layer(x.flatten(1))))


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def following(rule):
    """An average, and a network of one number that a test moves by hand."""
    learner = small(Finetune, average=rule)
    learner.prepare((6,), torch.float32)
    for model in (learner.model, learner.averaged.model):
        for parameter in model.parameters():
            parameter.data.zero_()
    return learner.averaged, learner.model.head.weight.data, learner.averaged.model.head.weight


# ---- the average


@pytest.mark.parametrize("key", ["er", "gsa", "scr", "bic", "lucir"])
def test_an_average_of_decay_nothing_predicts_as_the_method_itself(key):
    """Exactly where no number more than doubles or halves in a step: then now - mean is exact."""
    kind, x = registry.get(key).learner, corners([0, 1, 2, 3], torch.Generator().manual_seed(1))[0]
    plain, averaged = (
        learned(small(kind, net=Normed(), lr=0.05, average=rule), batches(TASKS))
        for rule in (None, 0.0)
    )
    assert averaged.averaged is not None
    torch.testing.assert_close(averaged.scores(x), plain.scores(x), atol=1e-5, rtol=1e-5)


def test_the_average_follows_a_head_that_has_grown():
    labels = [[0, 1, 1], BOUNDARY, list(range(20)), [3, 19, 18]]
    learner = learned(small(ER, net=Normed(), lr=0.05, average=0.0), batches(labels))
    head, averaged = learner.model.head, learner.averaged.model.head
    assert averaged.capacity == 32
    torch.testing.assert_close(averaged.weight, head.weight)
    torch.testing.assert_close(averaged.bias, head.bias)


@pytest.mark.parametrize("rule", [0, 0.5, 0.99, "growing"])
def test_the_average_of_a_network_that_stays_is_that_network_to_the_bit(rule):
    learner = small(Finetune, net=Normed(), average=rule)
    learner.prepare((6,), torch.float32)
    for _ in range(50):
        learner.averaged.follow()
        assert same(weights(learner.averaged.model), weights(learner.model))


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_the_average_of_a_network_that_drifts_lags_by_so_many_steps(decay):
    """theta_t = t v: theta_t - mean_t goes to v (1 - a) / a, where a = 1 - decay."""
    averaged, now, mean = following(decay)
    v = torch.linspace(-1, 2, now.numel()).view_as(now)
    for step in range(1, 200):
        now.copy_(step * v)
        averaged.follow()
    torch.testing.assert_close(now - mean, v * decay / (1 - decay), rtol=1e-4, atol=1e-4)


def test_a_growing_average_is_its_closed_form():
    """On theta_t = t v the recursion with rates 17 / (t + 16) gives mean_t = v (17 t + 1) / 18: it
    begins as the network itself and lags by an eighteenth of all steps."""
    averaged, now, mean = following("growing")
    mean += 5  # where it began does not matter
    v = torch.linspace(-1, 2, now.numel()).view_as(now)
    for step in range(1, 300):
        now.copy_(step * v)
        averaged.follow()
        torch.testing.assert_close(mean, v * (17 * step + 1) / 18, rtol=1e-4, atol=2e-5)


def test_a_growing_average_is_the_weighted_mean_by_a_plain_loop():
    averaged, now, mean = following("growing")
    source, expected = torch.Generator().manual_seed(3), 0.0
    for step in range(1, 60):
        now.copy_(torch.randn(now.shape, generator=source))
        averaged.follow()
        rate = max(17 / (step + 16), 1 / 1000)
        expected = (1 - rate) * expected + rate * now.double()
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_growing_average_never_spans_more_than_1000_steps():
    averaged, now, mean = following("growing")
    spans = []
    for updates in (1, 2, 100, 16983, 16984, 16985, 10**5, 10**7):
        averaged.updates.fill_(updates)
        spans.append(1 / float(averaged.rate()))
    assert spans[0] == 1
    assert spans == sorted(spans)
    assert max(spans) == pytest.approx(1000)
    for step in range(3000):  # from here on it lags by 999 v at most
        now.fill_(step + 1)
        averaged.follow()
    lag = 999 * (1 - (999 / 1000) ** 3000)
    assert float((now - mean).mean()) == pytest.approx(lag, rel=1e-3)


def test_an_average_by_arrivals_spans_a_quarter_of_the_steps_since_a_class_arrived():
    """The rate is 4 / (4 + s), and s begins anew with every class, but not with a task."""
    learner = small(ER, average="arrivals")
    rates = []
    for labels in ([0, 1], [1, 0], [0, 0], [2, 0], [1, 2], BOUNDARY, [0, 1], [3, 1], [3, 0]):
        if labels == BOUNDARY:
            learner.new_task()
        else:
            learner.learn(*corners(labels, torch.Generator().manual_seed(1)))
            rates.append(4 / float(learner.averaged.rate()) - 4)
    assert rates == pytest.approx([1, 2, 3, 1, 2, 3, 1, 2])
    learner.averaged.updates.fill_(10**6)
    assert float(learner.averaged.rate()) == pytest.approx(1 / 1000)


def test_an_average_by_arrivals_goes_on_counting_where_it_was_saved(tmp_path):
    learner = learned(small(ER, average="arrivals"), batches([[0, 1], [1, 0], [0, 0]]))
    learner.save(tmp_path / "learner.pt")
    opened = onepass.open(tmp_path / "learner.pt", device="cpu", net=learner.net)
    opened.learn(*corners([0, 1], torch.Generator().manual_seed(1)))
    assert int(opened.averaged.updates) == 4


def test_the_average_counts_the_steps_of_the_optimiser():
    learner = learned(small(ER, average="growing", repeats=3), batches(TASKS))
    assert int(learner.averaged.updates) == 3 * learner.steps == 18


# ---- settings that change nothing


def test_no_lesson_and_no_repeat_change_no_bit():
    explicit = {"distil": 0.0, "distil_raw": True, "distil_temperature": 1.0, "repeats": 1}
    plain, other = (
        learned(small(GSA, net=Normed(), average=0.9, **settings), batches(TASKS))
        for settings in ({}, explicit)
    )
    assert plain.state_sha256() == other.state_sha256()


def test_without_lessons_a_step_reports_none_and_the_average_is_asked_nothing():
    learner = learned(small(ER, net=Normed(), average=0.9), batches(TASKS))
    with watched(Normed) as passes:
        step = learner.learn(*corners([2, 3], torch.Generator()))
    assert "distil" not in step.terms
    assert [one.graded for one in passes] == [True]


@pytest.mark.parametrize("forwards", ["joint", "separate"])
def test_an_average_that_says_the_same_teaches_nothing(forwards):
    """At the first step it is the network itself; BatchNorm has the batch's statistics in both."""
    chosen = {"net": Normed(), "forwards": forwards, "average": 0.9, "lr": 0.5}
    plain, taught = (small(ER, distil=distil, **chosen) for distil in (0.0, 5.0))
    x, y = corners([0, 1, 2], torch.Generator().manual_seed(1))
    for learner in (plain, taught):
        step = learner.learn(x, y)
    assert float(step.terms["distil"]) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(flat(taught), flat(plain), atol=1e-6, rtol=0)
    for learner in (plain, taught):
        learner.learn(x, y)
    assert not torch.allclose(flat(taught), flat(plain), atol=1e-3)


# ---- the lesson


def in_the_midst(**settings):
    chosen = {"net": Normed(), "average": 0.8, "distil": 2.0, **settings}
    return learned(small(ER, **chosen), batches(TASKS))


def after_a_step(change):
    """The parameters after one more step, when `change` was done to the average before it."""
    learner = in_the_midst()
    with torch.no_grad():
        change(learner.averaged.model.head)
    learner.learn(*corners([2, 3, 2], torch.Generator().manual_seed(9)))
    return flat(learner)


def test_a_lesson_is_the_same_if_all_logits_of_the_average_are_raised():
    usual = after_a_step(lambda head: None)
    torch.testing.assert_close(after_a_step(lambda head: head.bias.add_(3)), usual)
    one = after_a_step(lambda head: head.bias[:1].add_(3))
    assert not torch.allclose(one, usual, atol=1e-3)


def test_only_classes_that_were_seen_take_part_in_a_lesson():
    usual = after_a_step(lambda head: None)
    assert torch.equal(after_a_step(lambda head: head.bias[4:].add_(50)), usual)


def test_rows_without_a_class_get_no_gradient_of_a_lesson():
    learner = in_the_midst()
    learner.learn(*corners([2, 3, 2], torch.Generator().manual_seed(9)))
    gradient = learner.model.head.weight.grad
    assert gradient[:4].abs().sum(dim=1).all()
    assert not gradient[4:].any()


def test_a_hot_lesson_is_half_the_mean_square_of_centred_gaps():
    """T -> infinity: T^2 KL goes to sum_c (gap_c - mean gap)^2 / (2 C)."""
    learner = in_the_midst(distil_temperature=50.0)
    noted = noting(learner)
    step = learner.learn(*corners([2, 3, 2], torch.Generator().manual_seed(9)))
    (shown,) = noted
    gap = (shown.own - shown.theirs)[shown.weight > 0][:, :4]
    centred = gap - gap.mean(dim=1, keepdim=True)
    limit = centred.square().sum(dim=1).mean() / (2 * 4)
    assert float(step.terms["distil"]) == pytest.approx(float(limit), rel=0.05)


class Noted:
    """What the second implementation was told before a descent: a list of forwards, each a list of
    what the network said and of which batch."""

    def __init__(self, learner):
        outputs = [out for forward in learner.noted for out, _ in forward]
        self.weight = torch.cat([out.weight for out in outputs])
        self.own = torch.cat([out.logits for out in outputs]).detach().double()
        views = [torch.cat([out.views for out, _ in forward]) for forward in learner.noted]
        self.theirs = said(learner.teaching.model, views)
        raw = [[learner.views.normalise(x.x) for _, x in forward] for forward in learner.noted]
        if learner.views_per_sample == 2:
            raw = [[torch.cat([x, x.flip(3)]) for x in forward] for forward in raw]
        self.of_raw = said(learner.model, [torch.cat(forward) for forward in raw])
        lessons = [naive_lesson(self.own, self, learner)]
        if learner.distil_raw:
            lessons.append(naive_lesson(self.of_raw, self, learner))
        self.lesson = sum(lessons) / len(lessons)


def said(model, forwards):
    """By a network in training mode, batch by batch; no statistic of the learner's moves."""
    training = copy.deepcopy(model).train()
    return torch.cat([training(x) for x in forwards]).detach().double()


def naive_lesson(own, noted, learner):
    """T^2 mean_i sum_c p_ic log(p_ic / q_ic) by loops, over classes seen and genuine views."""
    t, seen = learner.distil_temperature, len(learner.classes)
    found = []
    for q_logits, p_logits, weight in zip(own, noted.theirs, noted.weight, strict=True):
        if not weight:
            continue
        p, q = ([math.exp(one / t) for one in row[:seen].tolist()] for row in (p_logits, q_logits))
        p, q = [one / sum(p) for one in p], [one / sum(q) for one in q]
        found.append(t * t * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return sum(found) / len(found) if found else 0.0


def noting(learner):
    """What the lesson of each descent must be, from what the step shows the network."""
    return noted_by(learner, Noted)


def noted_by(learner, note):
    """What `note` makes of the learner before each descent, when `learner.noted` holds the forwards
    since the last one: what the network said, and of which samples."""
    learner.noted, expected = [], []
    note_forward, descend, gradients = learner.note, learner.descend, learner.gradients

    def noting_forward(outputs, batches):
        learner.noted.append(list(zip(outputs, batches, strict=True)))
        note_forward(outputs, batches)

    def noting_first(call):
        def go_on(loss):
            expected.append(note(learner))
            learner.noted.clear()
            return call(loss)

        return go_on

    learner.note = noting_forward
    learner.descend, learner.gradients = noting_first(descend), noting_first(gradients)
    return expected


CASES = [
    ("er", {"forwards": "joint"}),
    ("er", {"forwards": "separate"}),
    ("gsa", {"forwards": "joint"}),
    ("gsa", {"forwards": "separate"}),
    ("gsa-released", {}),
    ("agem", {}),
    ("mir", {}),
    ("lucir", {}),
    ("er-aml", {}),
    ("bic", {}),
]


@pytest.mark.parametrize(("raw", "mirror"), [(False, False), (True, True)])
@pytest.mark.parametrize(("key", "settings"), CASES)
def test_the_lesson_is_that_of_a_second_implementation(key, settings, raw, mirror):
    """On augmented images, from the first step, when the memory is empty, into the second task."""
    learner = small(
        registry.get(key).learner,
        net=Normed(16),
        lr=0.5,
        augment="crop-grey",
        mirror=mirror,
        average=0.8,
        distil=2.0,
        distil_temperature=3.0,
        distil_raw=raw,
        **settings,
    )
    source, some = torch.Generator().manual_seed(1), 0
    for labels in TASKS:
        if labels == BOUNDARY:
            learner.new_task()
            continue
        x = torch.randint(256, (len(labels), 1, 4, 4), generator=source, dtype=torch.uint8)
        if not learner.prepared:
            learner.prepare((1, 4, 4), torch.uint8)
            expected = noting(learner)
        step = learner.learn(x, labels)
        right = sum(one.lesson for one in expected)
        assert float(step.terms["distil"]) == pytest.approx(right, rel=1e-3, abs=1e-5)
        some += len(expected) > 0 and right > 1e-4
        padded = any(not one.weight.all() for one in expected)
        assert padded or learner.steps > 1 or key == "agem", "the memory was empty"
        expected.clear()
    assert some >= 5, "every step but the first has a lesson worth comparing"


def said_of_views(learner):
    """What the network says of the views that are kept, and what it has said in the step."""
    return [
        (learner.model(out.views), out.logits) for forward in learner.noted for out, _ in forward
    ]


SHOWING = [info.key for info in registry.methods() if "distil" not in info.learner.cannot]


@pytest.mark.parametrize("key", SHOWING)
def test_the_average_is_shown_the_views_that_the_network_has_seen(key):
    """Without BatchNorm a network says the same of them again."""
    kind = registry.get(key).learner
    settings = {"augment": "crop-grey", "mirror": True, "average": 0.8, "distil": 1.0}
    learner = small(kind, net=Trained(), lr=0.05, **kind.quick, **settings)
    learner.prepare((1, 4, 4), torch.uint8)
    pairs = noted_by(learner, said_of_views)
    source = torch.Generator().manual_seed(1)
    for labels in TASKS:
        if labels == BOUNDARY:
            learner.new_task()
        else:
            shape = (len(labels), 1, 4, 4)
            x = torch.randint(256, shape, generator=source, dtype=torch.uint8)
            learner.learn(x, labels)
    assert len(pairs) >= 6
    for again, said in (pair for one in pairs for pair in one):
        torch.testing.assert_close(again, said)


@pytest.mark.parametrize("raw", [False, True])
def test_the_optimiser_descends_the_loss_and_the_lesson(raw):
    """One step of SGD on a linear network, by autograd on the formula."""
    learner = learned(
        small(Finetune, average=0.8, distil=2.0, distil_raw=raw, mean=(1.0,), std=(2.0,)),
        batches([[0, 1, 2], [2, 1, 0, 0], [1, 2, 1]]),
    )
    x, y = corners([0, 2, 1, 1], torch.Generator().manual_seed(4))
    head, seen = learner.model.head, slice(3)
    own = [one.detach().clone()[seen].requires_grad_() for one in (head.weight, head.bias)]
    inputs = (x - 1) / 2
    logits = inputs @ own[0].T + own[1]
    taught = learner.averaged(inputs)[:, seen]
    rows = torch.tensor([learner.book.row_of[label] for label in y.tolist()])
    t = learner.distil_temperature
    lesson = nn.functional.kl_div(
        (logits / t).log_softmax(1), (taught / t).softmax(1), reduction="batchmean"
    )
    loss = nn.functional.cross_entropy(logits, rows) + 2.0 * t**2 * lesson
    expected = [one - 0.5 * g for one, g in zip(own, torch.autograd.grad(loss, own), strict=True)]
    learner.learn(x, y)
    torch.testing.assert_close(head.weight[seen], expected[0])
    torch.testing.assert_close(head.bias[seen], expected[1])


def test_one_average_may_teach_and_another_predict():
    """What is taught depends on the teacher alone; what is predicted, on the average alone."""
    settings = {"net": Normed(), "lr": 0.05, "distil": 2.0}
    both = learned(small(ER, average=0.5, distil_from=0.9, **settings), batches(TASKS))
    alone = learned(small(ER, distil_from=0.9, **settings), batches(TASKS))
    one = learned(small(ER, average=0.9, **settings), batches(TASKS))
    assert same(weights(both.model), weights(alone.model))
    assert same(weights(both.model), weights(one.model))
    assert same(weights(both.teaching.model), weights(one.averaged.model))
    x = corners([0, 1, 2, 3], torch.Generator().manual_seed(1))[0]
    assert torch.equal(both.scores(x), both.averaged(x)[:, :4])
    assert torch.equal(alone.scores(x), alone.evaluator(x)[:, :4])
    assert both.copy_bytes == 2 * one.copy_bytes
    assert "teaching" not in one.state_dict()["parts"], "it is saved once"


class TrainsAtTheEnd(Finetune):
    """A descent that no step reports."""

    def on_task_end(self):
        x, rows = torch.ones(4, 6), torch.arange(4) % len(self.classes)
        (out,) = self.forward(Samples(x, rows, torch.ones(4)))
        self.descend(out.logits.square().mean())


def test_a_step_reports_its_own_lesson_and_not_that_of_the_end_of_a_task():
    ended = small(TrainsAtTheEnd, average=0.8, distil=2.0)
    learned(ended, batches([[0, 1, 1], [1, 0, 0]]))
    ended.end_task()
    other = copy.deepcopy(ended)
    other._lesson = None
    x, y = corners([0, 1], torch.Generator().manual_seed(4))
    assert torch.equal(ended.learn(x, y).terms["distil"], other.learn(x, y).terms["distil"])


def test_a_step_reports_its_own_lesson_and_not_that_of_one_that_failed():
    learner, calm = in_the_midst(), in_the_midst()
    x, y = corners([2, 3, 2], torch.Generator().manual_seed(9))

    def fail(*_):
        raise KeyError("amid the gradient")

    trap = learner.model.head.register_full_backward_hook(fail)
    with pytest.raises(KeyError):
        learner.learn(x, y)
    trap.remove()
    assert torch.equal(learner.learn(x, y).terms["distil"], calm.learn(x, y).terms["distil"])


# ---- repeats


def learn_by_hand(learner, x, y, times):
    """So many steps on a batch, each begun by itself; the memory is held until the last."""
    if not learner.prepared:
        learner.prepare(tuple(x.shape[1:]), x.dtype)
    labels, trainer = y.tolist(), learner.trainer
    known = not learner.book.has_unseen(labels)
    rows = learner._admit(labels)
    for turn in range(times):

        def step(x, y, turn=turn):
            trainer.begins, trainer.lets_in = turn == 0, turn == times - 1
            return learner.taught_step(x, y)

        done = trainer.run(step, x, rows)
    if known:
        learner.book.enter(labels)
    learner.steps += 1
    return done


@pytest.mark.parametrize("taught", [{}, {"average": 0.9, "distil": 1.0, "distil_raw": True}])
@pytest.mark.parametrize("key", ["er", "gsa", "gss", "aser", "derpp", "bic", "rainbow-rt"])
def test_repeats_are_so_many_steps_with_the_memory_held(key, taught):
    kind = registry.get(key).learner
    settings = {"net": Normed(), "lr": 0.05, **taught}
    repeated, by_hand = small(kind, repeats=3, **settings), small(kind, **settings)
    for item in batches(TASKS):
        if item == BOUNDARY:
            repeated.new_task()
            by_hand.new_task()
        else:
            steps = repeated.learn(*item), learn_by_hand(by_hand, *item, times=3)
            assert torch.equal(steps[0].loss, steps[1].loss)
        assert repeated.state_sha256() == by_hand.state_sha256()


def test_repeats_train_more_often():
    once, twice = (learned(small(ER, repeats=n), batches(TASKS)) for n in (1, 2))
    assert once.steps == twice.steps == 6
    assert not torch.allclose(flat(once), flat(twice), atol=1e-2)


@pytest.mark.parametrize("key", ["er", "gsa", "derpp", "rainbow-rt", "ocm"])
def test_the_memory_is_offered_each_sample_once(key, monkeypatch):
    offered = []
    have_offered = Reservoir._have_offered
    monkeypatch.setattr(
        Reservoir,
        "_have_offered",
        lambda store, more: (offered.append(int(more)), have_offered(store, more)),
    )
    learned(small(registry.get(key).learner, net=Normed(), lr=0.05, repeats=3), batches(TASKS))
    assert offered == [len(labels) for labels in TASKS if labels != BOUNDARY]


def test_gss_keeps_to_the_contract_too():
    """The whole contract takes long with it, and is run with what is slow."""
    CHECKS["an_average_may_teach"](GSS)


def test_what_bic_holds_out_is_trained_on_in_no_repeat(monkeypatch):
    learner = small(BiC, net=Normed(), lr=0.05, memory=40, validation=0.5, repeats=3)
    trained, held = [], []
    forward = learner.forward

    def noting_forward(batch):
        trained.extend(row.tolist() for row in batch.x[batch.weight > 0])
        return forward(batch)

    monkeypatch.setattr(learner, "forward", noting_forward)
    for x, y in random_batches(6, size=6):
        learner.learn(x, y)
        held.extend(row.tolist() for row in learner.held_out.x[: int(learner.held_out.size)])
    assert len(held) > 10
    assert not [row for row in held if row in trained]


# ---- the contract, of methods that have all of it without being asked


@dataclass(kw_only=True, eq=False)
class TaughtER(ER):
    average: float | str | None = "growing"
    distil: float = 1.0
    distil_raw: bool = True
    repeats: int = 2


@dataclass(kw_only=True, eq=False)
class TaughtGSA(GSA):
    average: float | str | None = 0.9
    distil: float = 1.0
    repeats: int = 3


def test_a_step_with_a_lesson_stays_on_the_device():
    CHECKS["the_step_stays_on_the_device"](TaughtER)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TaughtER, TaughtGSA])
def test_the_whole_contract_is_kept_with_lessons_and_repeats(kind, monkeypatch):
    register(monkeypatch, kind)
    outcome = check_method(kind)
    # these are here and not in a method's file
    assert not outcome.failed.keys() - {"the_file_explains_itself"}, outcome.failed


# ---- files, snapshots, bytes


LIVES = [range(5), range(5), BOUNDARY, range(3, 8), range(5, 8), BOUNDARY, range(10, 20), range(20)]


def pictures(items):
    """Coloured ones, of these labels."""
    source = torch.Generator().manual_seed(2)
    for item in items:
        if item == BOUNDARY:
            yield item
        else:
            shape = (len(item), 3, 6, 6)
            x = torch.randint(256, shape, generator=source, dtype=torch.uint8)
            yield x, torch.tensor(list(item))


def on_pictures(key):
    """A small learner with all that the method can have."""
    kind = registry.get(key).learner
    can = {name: value for name, value in TAUGHT.items() if name not in kind.cannot}
    return small(kind, net="mlp", augment="crop-grey", lr=1e-3, **kind.quick, **can)


@pytest.mark.parametrize("key", ["er", "gsa", "ocm"])
def test_it_is_saved_and_goes_on_exactly(key, tmp_path):
    """The head grows when the file has been opened."""
    lives = list(pictures(LIVES))
    whole, stopped = learned(on_pictures(key), lives), learned(on_pictures(key), lives[:4])
    stopped.save(tmp_path / "learner.pt")
    opened = onepass.open(tmp_path / "learner.pt", device="cpu")
    assert opened.get_params() == stopped.get_params()
    assert opened.state_sha256() == stopped.state_sha256()
    learned(opened, lives[4:])
    assert opened.averaged.model.head.capacity == 32
    assert opened.state_sha256() == whole.state_sha256()
    x = lives[-1][0]
    assert torch.equal(opened.scores(x), whole.scores(x))


@pytest.mark.parametrize("key", ["er", "scr", "co2l", "bic"])
def test_files_without_the_memory_and_snapshots_predict_with_the_average(key, tmp_path):
    lives = list(pictures(LIVES))
    learner, x = learned(on_pictures(key), lives[:-1]), lives[-1][0]
    by_average = learner.scores(x)
    with torch.no_grad():  # who asks the network now would say something else
        for parameter in learner.model.parameters():
            parameter.mul_(0.5)
    learner._scorer = None
    learner.save(tmp_path / "learner.pt", memory=False)
    assert torch.equal(onepass.open(tmp_path / "learner.pt", device="cpu").scores(x), by_average)
    assert torch.equal(learner.snapshot().scores(x), by_average)


def test_bic_corrects_what_the_average_says():
    """The correction is fitted to the logits of whoever predicts."""
    settings = {"net": Normed(), "lr": 0.05, "memory": 40, "validation": 0.5, "average": 0.9}
    learner = learned(small(BiC, **settings), batches(TASKS))
    other, before = copy.deepcopy(learner), learner.correction.state_dict()
    with torch.no_grad():
        other.model.head.weight.zero_()
    for one in (learner, other):
        one.end_task()
    assert same(other.correction.state_dict(), learner.correction.state_dict())
    assert not same(before, learner.correction.state_dict())


def test_the_average_is_declared_among_the_copies():
    plain, averaged = (learned(small(ER, average=rule), batches(TASKS)) for rule in (None, 0.5))
    own = sum(one.numel() * one.element_size() for one in averaged.averaged.model.parameters())
    assert plain.copy_bytes == 0
    assert averaged.copy_bytes == own > 0


# ---- what is refused


DECAY = "a decay in [0, 1), growing, arrivals, or none"
RULE = "a number or growing or arrivals or none"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"average": 1.0}, f"average must be {DECAY}, not 1.0"),
        ({"average": -0.1}, f"average must be {DECAY}, not -0.1"),
        ({"average": math.nan}, f"average must be {RULE}, not nan"),
        ({"average": "slow"}, f"average must be {RULE}, not 'slow'"),
        ({"average": True}, f"average must be {RULE}, not True"),
        ({"average": 0.9, "distil_from": 2, "distil": 1}, f"distil_from must be {DECAY}, not 2"),
        ({"average": 0.9, "distil_from": 0.9}, "distil_from must be none where distil is 0"),
        ({"average": 0.9, "distil": -1}, "distil must be zero or more, not -1"),
        ({"distil": 1}, "distil must be 0 where there is no average to teach"),
        ({"distil_temperature": 0}, "distil_temperature must be positive, not 0"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"repeats": 1.5}, "repeats must be a whole number, not 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, says):
    with pytest.raises(InputError) as caught:
        ER(**settings)
    assert str(caught.value).startswith(f"er: {says}")


CANNOT = {
    "gdumb": {"average": 0.9, "distil": 1.0, "repeats": 2},
    "scr": {"distil": 1.0},
    "co2l": {"distil": 1.0},
    "il2a": {"distil": 1.0},
}


def test_these_methods_cannot_have_all_of_it():
    found = {info.key: set(info.learner.cannot) for info in registry.methods()}
    assert {key: names for key, names in found.items() if names} == {
        key: set(settings) for key, settings in CANNOT.items()
    }


@pytest.mark.parametrize(
    ("key", "name"), [(key, name) for key, settings in CANNOT.items() for name in settings]
)
def test_a_method_that_cannot_says_why(key, name):
    kind = registry.get(key).learner
    average = {"average": 0.9} if "average" not in kind.cannot else {}
    with pytest.raises(InputError) as caught:
        kind(**{**average, name: CANNOT[key][name]})
    usual = {"average": "None", "distil": "0", "repeats": "1"}[name]
    assert str(caught.value).startswith(f"{key}: {name} must be {usual}: {kind.cannot[name]}, not")
    assert len(kind.cannot[name].split()) > 4


# ---- the command


def test_a_run_by_the_command_says_what_it_cost(tmp_path):
    settings = ("average=growing", "distil=1", "repeats=2")
    chosen = [one for setting in settings for one in ("--set", setting)]
    where = ("--dataset", "synthetic", "--batch", 40, "--out", tmp_path / "runs")
    done = command("run", "er", *where, *chosen, "--json")
    assert done.status == 0, done.err
    (file,) = (tmp_path / "runs").rglob("result.json")
    result = json.loads(file.read_text())
    shown = 2 * (40 + 64) / 40  # twice for each batch, the network and the average
    assert result["trained_per_sample"] == result["scored_per_sample"] == shown
    assert result["settings"]["average"] == "growing"
    assert result["settings"]["repeats"] == 2
    assert result["copy_bytes"] > 0
    assert result["accuracy"] > 50


def test_the_command_says_what_a_method_cannot():
    said = refused(
        "run", "scr", "--dataset", "synthetic", "--set", "average=0.9", "--set", "distil=1"
    )
    assert "scr: distil must be 0: features are trained, and there are no logits" in said
