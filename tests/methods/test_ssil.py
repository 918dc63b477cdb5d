"""SS-IL: the two terms against plain loops, the separation of its softmaxes, and the limits."""

import math

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from naive_linear import record_calls
from tiny_learners import (
    BOUNDARY,
    as_images,
    as_tuples,
    batches,
    kept_logits,
    learned,
    on_every_forward,
    parameters,
    small,
    with_batchnorm,
)
from torch import Tensor, nn

from onepass import ER, Finetune
from onepass.base.errors import CheckpointError, InputError
from onepass.base.parts import ImageCount, Output
from onepass.functional.losses import distillation
from onepass.learning.memory_contents import copy_bytes
from onepass.methods.ssil import SSIL, group_log_softmax, task_distillation

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], BOUNDARY, [3, 4, 3], [3], [4, 3], BOUNDARY, [5, 6], [6, 5, 5]]
STREAMS = {
    "tasks": TASKS,
    "one class at a time": [[0] * 4, [0], BOUNDARY, [1] * 4, [1] * 3, BOUNDARY, [2] * 4, [2]],
    "old classes come back": [[0, 1], [1, 2, 0], BOUNDARY, [3, 0, 1], [0, 0, 2], [4], [3, 4]],
    "many classes": [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 35]],
}


LETTER = {"replayed": "old", "rivals": "side"}  # the paper and its code


def ssil(kind: type = SSIL, **settings: object):
    return small(kind, **settings)


def log_softmax(logits: list[float], rows: list[int]) -> dict[int, float]:
    top = max(logits[c] for c in rows)
    total = top + math.log(sum(math.exp(logits[c] - top) for c in rows))
    return {c: logits[c] - total for c in rows}


# ---- the two parts of the distillation


def test_a_softmax_within_groups_is_one_for_each_group():
    logits = 5 * torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    got = group_log_softmax(logits, torch.tensor([0, 1, 0, 1, 1, 5]))
    for rows in ([0, 2], [1, 3, 4], [5]):
        torch.testing.assert_close(got[:, rows], logits[:, rows].log_softmax(dim=1))


def test_a_group_with_logits_far_below_the_others_stays_finite():
    """Its exponentials vanish beside those of the other group."""
    logits = torch.tensor([[1e4, 1e4, -1e4, -1e4]], requires_grad=True)
    got = group_log_softmax(logits, torch.tensor([0, 0, 2, 2]))
    torch.testing.assert_close(got.detach(), torch.full((1, 4), -math.log(2)))
    got.sum().backward()
    assert bool(torch.isfinite(logits.grad).all())


def test_the_gradient_within_groups_agrees_with_finite_differences():
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    group = torch.tensor([0, 1, 0, 1, 4])
    assert torch.autograd.gradcheck(lambda o: group_log_softmax(o, group), logits.requires_grad_())


def test_with_one_group_it_is_plain_distillation():
    source = torch.Generator().manual_seed(3)
    logits, taught = torch.randn(2, 5, 4, generator=source)
    out = Output(logits, torch.zeros(5, dtype=int), torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]))
    among = torch.tensor([True, True, True, False])
    got = task_distillation(out, taught, torch.tensor([0, 0, 0, 3]), 2.0)
    torch.testing.assert_close(got, distillation(out, taught, among, 2.0))


# ---- whole steps


def naive_terms(learner: SSIL, out: Output, taught: Tensor, tasks: list[set[int]]):
    """Computes both terms by plain loops. `tasks` are the rows of each task so far, the running one
    last."""
    new, old = tasks[-1], set().union(*tasks[:-1])
    of_others = old if learner.rivals == "side" else old | new
    # views of the stream come first, then those of replayed samples
    streamed = len(out.y) - learner.replay * learner.views_per_sample
    apart, others, divergence = [], [], []
    t = learner.temperature
    entries = zip(as_tuples(out), taught.tolist(), strict=True)
    for place, ((logits, y, weight), theirs) in enumerate(entries):
        if not weight:
            continue
        if y in new and place < streamed:
            apart.append(-log_softmax(logits, sorted(new))[y])
        else:
            rivals = new if y in new and learner.rivals == "side" else of_others
            others.append(-log_softmax(logits, sorted(rivals))[y])
        divergence.append(0.0)
        for rows in filter(None, tasks[:-1]):
            p = log_softmax([o / t for o in theirs], sorted(rows))
            q = log_softmax([o / t for o in logits], sorted(rows))
            divergence[-1] += t**2 * sum(math.exp(p[c]) * (p[c] - q[c]) for c in rows)
    if learner.loss == "mean":
        label_loss = sum(apart + others) / len(apart + others)
    else:
        label_loss = sum(sum(losses) / len(losses) for losses in (apart, others) if losses)
    return {"apart": label_loss, "tasks": sum(divergence) / len(divergence)}


def check_terms(learner: SSIL, items) -> list[dict[str, float]]:
    tasks, inputs, found = [set()], [], []
    for item in items:
        if item == BOUNDARY:
            learner.new_task()
            tasks.append(set())
            continue
        if not inputs:
            learner.prepare(tuple(item[0].shape[1:]), item[0].dtype)
            hook = lambda module, given, out: inputs.append(given[0].detach())  # noqa: E731
            learner.model.body.register_forward_hook(hook)
        step = learner.learn(*item)
        known = set().union(*tasks)
        tasks[-1] |= {learner.class_index.row_of[label] for label in item[1].tolist()} - known
        # mirror images lie behind all samples; a step reports them with their own batch
        sizes = [len(item[1]), learner.replay]
        views = torch.cat(learner.views.cut(inputs[-1], sizes))
        expected = naive_terms(learner, step.together, learner.previous(views), tasks)
        found.append({name: term.item() for name, term in step.terms.items()})
        assert found[-1] == pytest.approx(expected, rel=1e-4, abs=1e-5)
        loss = expected["apart"] + learner.strength * expected["tasks"]
        assert step.loss.item() == pytest.approx(loss, rel=1e-4, abs=1e-5)
    return found


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        LETTER,
        {"replayed": "old"},
        {"rivals": "side", "loss": "sum"},
        {"memory": 0},
        {"loss": "sum"},
        {**LETTER, "loss": "sum"},
        {"temperature": 5.0, "strength": 3.0},
        {"head": "frozen"},
    ],
    ids=str,
)
def test_terms_and_loss_agree_with_plain_loops(name, settings):
    found = check_terms(ssil(**settings), batches(STREAMS[name]))
    if name == "tasks" and not settings:
        assert found[-1]["tasks"] > 1e-3


@pytest.mark.parametrize("settings", [{}, LETTER], ids=str)
def test_mirror_images_count_as_samples(settings):
    check_terms(ssil(net=nn.Flatten(), mirror=True, **settings), as_images(batches(TASKS)))


def test_the_whole_memory_is_replayed_from_the_second_batch_on():
    learner, of_new = ssil(memory=100, replay=100), []
    learner.prepare((6,), torch.float32)
    for item in batches(TASKS):
        if item == BOUNDARY:
            learner.new_task()
            continue
        held = int(learner.store.size)
        out = learner.learn(*item).together
        drawn = slice(len(item[1]), None)
        rows = out.y[drawn][out.weight[drawn] > 0]
        assert len(rows) == held  # every stored sample, whatever its class
        of_new.append(int(learner.new[rows].sum()))
    assert of_new == [0, 4, 0, 3, 4, 0, 2]


def test_by_the_letter_only_samples_of_old_tasks_are_replayed():
    learner, replayed = ssil(**LETTER), []
    for item in batches(TASKS):
        if item == BOUNDARY:
            learner.new_task()
            continue
        out = learner.learn(*item).together
        drawn = slice(len(item[1]), None)
        rows = out.y[drawn][out.weight[drawn] > 0]
        assert not bool(learner.new[rows].any())
        replayed.append(len(rows))
    assert replayed == [0, 0, 8, 8, 8, 12, 12]


def test_by_the_letter_shifts_of_all_new_and_of_all_old_logits_change_nothing():
    """A shift of the logits of one task changes no distillation."""
    terms = []
    for rows in ([], [5, 6], [0, 1, 2, 3, 4], [3, 4]):
        learner = learned(ssil(memory=100, **LETTER), batches(TASKS))
        with torch.no_grad():
            learner.model.head.bias[rows] += 7
        (item,) = batches([[5, 6, 6]], seed=8)
        step = learner.learn(*item)
        terms.append([step.terms["apart"].item(), step.terms["tasks"].item()])
    apart, tasks = zip(*terms, strict=True)
    assert apart[:3] == pytest.approx(apart[:1] * 3, rel=1e-4)
    assert tasks == pytest.approx(tasks[:1] * 4, rel=1e-4)
    assert apart[3] > apart[0] + 1


@pytest.mark.parametrize(
    ("settings", "reached"), [({}, [0, 1, 2, 3, 4, 5, 6]), (LETTER, [0, 1, 2, 3, 4])], ids=str
)
def test_replayed_samples_alone_compare_new_classes_with_old_ones(settings, reached):
    """Without distillation no stream sample of a new class reaches an old row. By the letter no
    replayed one reaches a new row either."""
    learner = learned(ssil(strength=0.0, **settings), batches(TASKS))
    with kept_logits() as kept:
        (item,) = batches([[5, 6, 6]], seed=8)
        learner.learn(*item)
    (logits,) = kept
    touched = logits.grad[:3].abs().sum(dim=0).nonzero().flatten().tolist()
    assert touched == [5, 6]
    replayed = logits.grad[3:].abs().sum(dim=0).nonzero().flatten().tolist()
    assert replayed == reached


def test_stream_and_replay_have_one_forward_and_the_previous_network_sees_the_same():
    learner, sizes = ssil(net=with_batchnorm()), []
    learner.prepare((6,), torch.float32)
    on_every_forward(learner, lambda module, given, out: sizes.append(len(out)))
    calls = record_calls(learner.previous.model, "features")
    learned(learner, batches([[0, 1, 2], BOUNDARY, [3, 4]]))
    assert sizes == [len(views) for views, _ in calls] == [15, 14]


# ---- limits


def test_in_the_first_task_it_is_er_with_one_mean_and_by_the_letter_finetuning():
    first = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1]]

    def after(kind: type, **settings: object) -> Tensor:
        return parameters(ssil(kind, net="mlp", lr=0.1, **settings), first)

    er, finetuned = after(ER, loss="mean"), after(Finetune)
    torch.testing.assert_close(after(SSIL), er, atol=1e-6, rtol=0)
    torch.testing.assert_close(after(SSIL, **LETTER), finetuned, atol=1e-6, rtol=0)
    assert float((er - finetuned).abs().max()) > 1e-3


def test_a_network_that_does_not_move_has_no_distillation_loss():
    still, moving = ssil(lr=1e-30), ssil()
    for learner in (still, moving):
        learned(learner, batches(TASKS))
    (item,) = batches([[5, 6, 6]], seed=8)
    assert still.learn(*item).terms["tasks"].item() < 1e-6
    assert moving.learn(*item).terms["tasks"].item() > 1e-3


def test_distillation_preserves_the_previous_networks_logits_within_a_task():
    """It holds logits of old classes on samples of new ones, up to a constant for each task."""

    def moved(strength: float) -> float:
        items = list(batches([[0, 1] * 2] * 10 + [BOUNDARY] + [[2, 3] * 2] * 30))
        learner = learned(ssil(memory=0, net="mlp", lr=0.1, strength=strength), items)
        views = torch.cat([x for x, _ in items[11:]])
        now, then = (
            net(views)[:, :2].softmax(dim=1)
            for net in (learner.trainer.eval_model, learner.previous)
        )
        return float(F.mse_loss(now, then).detach())

    assert moved(1.0) < 0.3 * moved(0.0)


# ---- tasks


def test_late_classes_join_the_running_task_and_empty_tasks_do_not_count():
    learner = learned(ssil(), batches([[0, 1], [2], BOUNDARY, [0], BOUNDARY, [4], [5, 3, 4]]))
    assert learner.tasks.first[:6].tolist() == [0, 0, 0, 3, 3, 3]


def test_a_saved_state_with_an_invalid_task_row_is_refused():
    learner = learned(ssil(), batches([[0, 1], [2]]))
    state = learner.state_dict()
    state["parts"]["tasks"]["first"][0] = 3
    with pytest.raises(CheckpointError, match=r"tasks.first holds row 3"):
        ssil().load_state_dict(state)


# ---- settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"strength": -0.1},
        {"temperature": 0.0},
        {"loss": "median"},
        {"replayed": "new"},
        {"rivals": "old"},
    ],
    ids=str,
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SSIL(**wrong)


def test_the_previous_network_is_in_cost_and_bytes():
    assert SSIL(mirror=True).cost(10) == ImageCount(trained=148, scored=148)
    learner = learned(ssil(net="mlp"), batches([[0, 1]]))
    assert copy_bytes(learner) == 4 * sum(
        parameter.numel() for parameter in learner.model.parameters()
    )


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "loss": "mean", "strength": 1.0, "temperature": 2.0}
    expected |= {"replayed": "all", "rivals": "all"}
    assert defaults(SSIL, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(SSIL) == {
        "optimizer": "nesterov",
        "lr": 0.1,
        "weight_decay": 1e-4,
        "replay": 3,
        "replayed": "old",
        "rivals": "side",
        "loss": "mean",
        "strength": 1.0,
        "temperature": 2.0,
    }
