"""DER++: the three terms against plain loops, the stored logits, and the limits ER and
fine-tuning.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from expected_settings import COMPARABLE, defaults, official
from naive_linear import record_calls
from tiny_learners import (
    BOUNDARY,
    as_images,
    batches,
    naive_cross_entropy,
    on_every_forward,
    parameters,
    small,
    with_batchnorm,
)
from torch import Tensor, nn

from onepass import ER, Finetune
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount
from onepass.base.settings import construct
from onepass.learning.memory_contents import memory_bytes
from onepass.methods.derpp import DERPP, stored_logit_error

TASKS = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1], BOUNDARY, [3, 4, 3, 4], [3], [4, 3], BOUNDARY, [5, 6]]
MANY = [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 35], [0, 16, 35]]
STREAMS = {
    "tasks": TASKS,
    "one class at a time": [[0] * 4, [0], BOUNDARY, [1] * 4, [1] * 3, BOUNDARY, [2] * 4, [2]],
    "old classes come back": [[0, 1], [1, 2, 0], BOUNDARY, [3, 0, 1], [0, 0, 2], [3]],
    "many classes": MANY,
}

# ---- the error over known outputs


def naive_error(logits: list, stored: list, known: list, weight: list, outputs: int) -> float:
    """Computes the mean error over views, samples and outputs by plain loops; unknown outputs have
    no error."""
    counted = [i for i in range(len(stored)) if weight[i]]
    squares = [
        (view[i][c] - stored[i][c]) ** 2
        for view in logits
        for i in counted
        for c in range(known[i])
    ]
    pairs = len(logits) * len(counted) * outputs
    return sum(squares) / pairs if pairs else 0.0


SEVEN, FOUR = torch.tensor(7), torch.tensor(4)


@pytest.mark.parametrize("views", [1, 2])
def test_the_error_agrees_with_plain_loops(views):
    source = torch.Generator().manual_seed(views)
    logits = torch.randn(views, 5, 7, generator=source)
    stored = torch.randn(5, 7, generator=source)
    known, weight = torch.tensor([7, 0, 3, 1, 5]), torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
    expected = naive_error(*(part.tolist() for part in (logits, stored, known, weight)), 7)
    got = stored_logit_error(logits, stored, known, weight, SEVEN).item()
    assert got == pytest.approx(expected, rel=1e-5)


def test_with_all_outputs_known_the_error_is_the_mean_over_samples_and_outputs():
    source = torch.Generator().manual_seed(0)
    logits, stored = torch.randn(2, 6, 4, generator=source)
    got = stored_logit_error(logits, stored, torch.full((6,), 4), torch.ones(6), FOUR)
    torch.testing.assert_close(got, F.mse_loss(logits, stored))


def test_without_stored_samples_the_error_and_its_gradient_are_zero():
    logits = torch.ones(3, 4, requires_grad=True)
    nothing = torch.zeros(3, dtype=int)
    error = stored_logit_error(logits, torch.zeros(3, 4), nothing, torch.zeros(3), FOUR)
    error.backward()
    assert error.item() == 0
    assert not bool(logits.grad.any())


def test_the_gradient_reaches_known_outputs_only_and_agrees_with_finite_differences():
    logits = torch.arange(8, dtype=torch.float64).view(2, 4).add(0.5).requires_grad_()
    stored, known = torch.zeros(2, 4, dtype=torch.float64), torch.tensor([1, 3])
    weight = torch.ones(2, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda o: stored_logit_error(o, stored, known, weight, FOUR), logits
    )
    stored_logit_error(logits, stored, known, weight, FOUR).backward()
    assert logits.grad.ne(0).int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]


# ---- whole steps


def learner_of(kind: type = DERPP, **settings: object):
    return small(kind, **settings)


@dataclass
class Followed:
    """A step, the samples drawn for it, and the contents of the memory before it."""

    step: object
    x: Tensor
    slots: Tensor
    genuine: Tensor
    stored: Tensor
    logits: Tensor
    known: Tensor
    seen: int


def followed(learner: DERPP, items: Iterator) -> Iterator[Followed]:
    """Yields each step of a learner on a stream."""
    drawn = None
    for item in items:
        if item == BOUNDARY:
            learner.new_task()
            continue
        if drawn is None:
            learner.prepare(tuple(item[0].shape[1:]), item[0].dtype)
            drawn = record_calls(learner.store, "draw_independent_slots")
        store = learner.store
        kept = (store.x, store.fields["logits"], store.fields["known"])
        before = [tensor.clone() for tensor in kept]
        step = learner.learn(*item)
        slots = drawn[-1][1]
        yield Followed(step, item[0], *slots, *before, len(learner.classes))


def check_terms(learner: DERPP, now: Followed) -> None:
    stream, dark, again = now.step.outputs
    seen, copies = set(range(now.seen)), len(stream.y) // len(now.x)
    views = dark.logits.view(copies, learner.replay, -1)
    wider = views.shape[2] - now.logits.shape[1]  # where the head has grown in this step
    stored, known = F.pad(now.logits[now.slots[0]], (0, wider)), now.known[now.slots[0]]
    if learner.unknown == "zero":  # unknown outputs are held to zero
        stored = stored * (torch.arange(stored.shape[1]) < known.unsqueeze(1))
        known = torch.full_like(known, now.seen)
    drawn = (views, stored, known, now.genuine[0])
    error = naive_error(*(part.tolist() for part in drawn), now.seen)
    expected = {
        "stream": naive_cross_entropy(stream, seen),
        "logits": error,
        "replay": naive_cross_entropy(again, seen),
    }
    got = {name: term.item() for name, term in now.step.terms.items()}
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
    loss = expected["stream"] + learner.alpha * error + learner.beta * expected["replay"]
    assert now.step.loss.item() == pytest.approx(loss, rel=1e-4, abs=1e-6)


SETTINGS = [
    {},
    {"memory": 0},
    {"memory": 3},
    {"alpha": 2.0, "beta": 0.0},
    {"head": "frozen"},
    {"unknown": "mask"},
]


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_terms_and_loss_agree_with_plain_loops(name, settings):
    learner = learner_of(**settings)
    for now in followed(learner, batches(STREAMS[name])):
        check_terms(learner, now)


def test_mirror_images_are_held_to_the_mean_of_both_views():
    learner = learner_of(net=nn.Flatten(), mirror=True)
    for now in followed(learner, as_images(batches(TASKS[:4]))):
        check_terms(learner, now)
        plain, mirrored = now.step.outputs[0].logits.chunk(2)
        held = int(learner.store.size)
        newest = learner.store.fields["logits"][held - len(now.x) : held]
        known = now.seen
        torch.testing.assert_close(newest[:, :known], (plain + mirrored)[:, :known] / 2)


def test_the_first_batch_is_plain_cross_entropy():
    (item,) = batches([[0, 1, 2]])
    step = learner_of().learn(*item)
    assert step.terms["logits"].item() == step.terms["replay"].item() == 0
    assert step.loss.item() == step.terms["stream"].item() > 0


def test_logits_are_stored_as_they_were_before_the_update_and_never_refreshed():
    learner, first, stored_logits = learner_of(memory=100), 0, []
    for item in batches(TASKS):
        if item == BOUNDARY:
            learner.new_task()
            continue
        step = learner.learn(*item)
        stored_logits.append((first, step.outputs[0].logits, len(learner.classes)))
        first += len(item[1])
        for start, logits, known in stored_logits:
            kept = slice(start, start + len(logits))
            stored = learner.store.fields["logits"][kept]
            assert torch.equal(stored[:, :known], logits[:, :known])
            assert not bool(stored[:, known:].any())  # spare rows are stored as 0
            assert learner.store.fields["known"][kept].tolist() == [known] * len(logits)


def test_the_stored_logits_are_those_of_the_trained_view():
    learner = learner_of(net=nn.Flatten(), augment="crop-grey")
    (item,) = as_images(batches([[0, 1, 2]]))
    step = learner.learn(*item)
    assert torch.equal(learner.store.fields["logits"][:3, :3], step.outputs[0].logits[:, :3])
    assert torch.equal(learner.store.x[:3], item[0])
    plain = learner_of(net=nn.Flatten()).learn(*item)
    assert not torch.equal(plain.outputs[0].logits, step.outputs[0].logits)


def test_a_model_that_does_not_move_has_no_error_on_stored_logits():
    still, moving = learner_of(lr=1e-30, unknown="mask"), learner_of(unknown="mask")
    for item in batches(TASKS):
        if item == BOUNDARY:
            still.new_task()
            moving.new_task()
            continue
        assert still.learn(*item).terms["logits"].item() < 1e-10
        last = moving.learn(*item)
    assert last.terms["logits"].item() > 1e-3


def test_old_samples_hold_new_classes_down_unless_masked():
    """Two classes come, then two others. On samples of the first two the logits of the later ones
    are pulled to zero, and stay free under the mask."""

    def said_of_new(unknown: str) -> float:
        learner = learner_of(alpha=5.0, beta=0.0, lr=0.02, memory=40, unknown=unknown)
        for item in batches([[0, 1] * 2] * 10 + [BOUNDARY] + [[2, 3] * 2] * 30):
            learner.new_task() if item == BOUNDARY else learner.learn(*item)
        held = slice(0, int(learner.store.size))
        old = learner.store.y[held] < 2
        return float(learner.scores(learner.store.x[held][old])[:, 2:].abs().mean())

    assert said_of_new("zero") < 0.5 * said_of_new("mask")


def test_stored_logits_widen_with_the_head_and_keep_their_values():
    learner, items = learner_of(memory=100), list(batches(MANY))
    for item in items[:2]:
        learner.learn(*item)
    before = learner.store.fields["logits"][:15].clone()
    learner.new_task()
    for item in items[3:5]:
        learner.learn(*item)
    after = learner.store.fields["logits"][:15]
    assert (before.shape[1], after.shape[1]) == (16, 32)
    assert torch.equal(after[:, :16], before)
    assert not bool(after[:, 16:].any())
    assert learner.store.fields["known"][:21].tolist() == [8] * 8 + [15] * 7 + [18] * 3 + [20] * 3


def test_the_two_draws_are_independent_and_each_has_no_repetition():
    learner = learner_of(memory=40, replay=10)
    common = []
    for now in followed(learner, batches([[0, 1, 2, 1, 0]] * 200)):
        if now.genuine.all() and int(learner.store.size) == 40:
            first, second = (set(row.tolist()) for row in now.slots)
            assert len(first) == len(second) == 10
            common.append(len(first & second))
    assert sum(common) / len(common) == pytest.approx(2.5, abs=0.4)  # 10 * 10 / 40


def test_each_draw_has_its_own_forward():
    forwarded = []

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            forwarded.append(x)
            return x

    compared = 0
    for now in followed(learner_of(net=Watched(), memory=40, replay=10), batches([[0, 1, 2]] * 9)):
        stream, *drawn = forwarded[-3:]
        assert torch.equal(stream, now.x)
        if now.genuine.all():
            compared += 1
            for images, slots in zip(drawn, now.slots, strict=True):
                assert torch.equal(images, now.stored[slots])
    assert compared > 3


# ---- limits


ALL = {"memory": 100, "replay": 100, "net": "mlp", "lr": 0.1}  # every stored sample is replayed


def test_without_logits_and_with_whole_labels_it_is_er_with_the_sum_of_means():
    ours = parameters(learner_of(**ALL, alpha=0.0, beta=1.0), TASKS)
    er = parameters(learner_of(ER, **ALL, forwards="separate", loss="sum"), TASKS)
    torch.testing.assert_close(ours, er, atol=1e-5, rtol=0)
    dark = parameters(learner_of(**ALL, alpha=1.0, beta=1.0), TASKS)
    assert float((dark - er).abs().max()) > 1e-3


def test_with_alpha_and_beta_zero_it_is_finetuning():
    ours = parameters(learner_of(**ALL, alpha=0.0, beta=0.0), TASKS)
    finetuned = parameters(learner_of(Finetune, net="mlp", lr=0.1), TASKS)
    torch.testing.assert_close(ours, finetuned, atol=1e-6, rtol=0)


def test_without_memory_it_is_finetuning():
    ours = parameters(learner_of(memory=0, net="mlp", lr=0.1), TASKS)
    finetuned = parameters(learner_of(Finetune, net="mlp", lr=0.1), TASKS)
    torch.testing.assert_close(ours, finetuned, atol=1e-6, rtol=0)


def test_the_three_batches_have_separate_forwards():
    learner, sizes = learner_of(), []
    learner.prepare((6,), torch.float32)
    on_every_forward(learner, lambda module, given, out: sizes.append(len(out)))
    for item in batches([[0, 1, 2], [2, 0]]):
        learner.learn(*item)
    assert sizes == [3, 12, 12, 2, 12, 12]


def test_batchnorm_sees_the_stream_alone():
    """No replayed sample has weight, so with the stream's own statistics this is fine-tuning."""
    labels = [[0, 1, 2, 1], [2, 0, 0, 1], [1, 1, 0, 2]]
    net = with_batchnorm()
    ours = parameters(learner_of(net=net, lr=0.1, alpha=0.0, beta=0.0), labels)
    finetuned = parameters(learner_of(Finetune, net=net, lr=0.1), labels)
    torch.testing.assert_close(ours, finetuned, atol=1e-6, rtol=0)


# ---- settings


@pytest.mark.parametrize(
    "wrong",
    [{"memory": -1}, {"replay": 0}, {"alpha": -0.1}, {"beta": -1.0}, {"alpha": "much"}],
    ids=str,
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        DERPP(**wrong)


def test_the_cost_the_bytes_and_the_official_preset():
    assert DERPP().cost(10) == ImageCount(trained=138)
    assert DERPP(mirror=True).cost(10) == ImageCount(trained=276)
    learner = learner_of(memory=30)
    learner.prepare((6,), torch.float32)
    assert memory_bytes(learner) == 30 * (6 * 4 + 8 + 16 * 4 + 8)
    official = construct(DERPP, **DERPP.presets["official"].settings)
    assert (official.optimizer, official.alpha, official.beta) == ("sgd", 0.1, 0.5)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "alpha": 0.2, "beta": 1.0}
    assert defaults(DERPP, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(DERPP) == {
        "optimizer": "sgd",
        "lr": 0.03,
        "weight_decay": 0.0,
        "replay": 32,
        "alpha": 0.1,
        "beta": 0.5,
    }
