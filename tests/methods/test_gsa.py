"""GSA against its equations: by hand, by a naive second implementation, by finite differences."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import command
import naive_gsa as naive
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import onepass
from onepass.errors import InputError
from onepass.losses import cross_entropy, mean, sample_cross_entropy
from onepass.methods.gsa import class_weight, cross_task, log_class_scale, share_of_new
from onepass.nets import Head
from onepass.parts import Output, Samples

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)
BALANCED = 2 / (1 + math.exp(-1))
BOUNDARY = "boundary"
OLD = torch.tensor([True, True, True, False, False])
NEW = ~OLD

# ---- the pure functions


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def an_output(logits: Tensor, y: list[int]) -> Output:
    return Output(logits, torch.tensor(y), torch.ones(len(y), dtype=logits.dtype))


def random_logits(seed: int, samples: int, classes: int = 5) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(samples, classes, generator=source, dtype=torch.float64)


five_logits = st.lists(st.floats(-30, 30), min_size=5, max_size=5)


@pytest.mark.parametrize(
    ("a_pn", "w"), [(0, 1), (-0.5, 1.24492), (-1, 1.46212), (-2, 1.76159), (-math.inf, 2)]
)
def test_w_has_the_papers_values(a_pn, w):
    negative = double([-1.0 if a_pn > -math.inf else 0.0])
    positive = double([-a_pn if a_pn > -math.inf else 1.0])
    assert class_weight(positive, negative).item() == pytest.approx(w, abs=1e-5)


def test_w_and_v_grow_where_the_paper_wants_them_to():
    positive, negative = double([0.1, 1, 5, 20]), double([-3, -3, -3, -3])
    assert bool((class_weight(positive, negative).diff() > 0).all())
    assert bool((log_class_scale(positive, negative).diff() < 0).all())


def test_v_is_the_negative_inverse_of_pn():
    positive, negative = double([0.5, 2, 3]), double([-1, -2, -0.3])
    v = log_class_scale(positive, negative).exp()
    assert v.tolist() == pytest.approx([2, 1, 0.1])


def test_classes_without_own_samples_or_without_negatives_have_defined_rates():
    never_own, never_other, neither = (3.0, 0.0), (0.0, -3.0), (0.0, 0.0)
    positive, negative = double([never_own, never_other, neither]).unbind(1)
    assert class_weight(positive, negative).tolist() == pytest.approx([2, 1, BALANCED])
    assert log_class_scale(positive, negative).exp().tolist() == [0, 1, 1]


@pytest.mark.parametrize("least", [1e-300, 1e-308, 1e-311, 5e-324])
def test_log_v_stays_finite_however_little_pushes_a_class_down(least):
    (log_v,) = log_class_scale(double([least]), double([-5.0])).tolist()
    assert log_v == pytest.approx(math.log(5) - math.log(least))


@PROPERTY
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=4),
    st.lists(st.floats(-1e3, -1e-3), min_size=4, max_size=4),
    st.floats(1e-3, 1e3),
)
def test_one_common_factor_on_all_sums_changes_no_rate(positive, negative, factor):
    down, up = double(positive), double(negative)
    torch.testing.assert_close(class_weight(factor * down, factor * up), class_weight(down, up))
    torch.testing.assert_close(
        log_class_scale(factor * down, factor * up), log_class_scale(down, up), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize(
    ("places", "classes", "expected"),
    [
        (64, 10, [64, 32, 21, 16, 13, 11, 9, 8, 7, 6]),
        (64, 2, [64, 32, 21, 16, 13, 11, 9, 8, 7, 6, 6, 5]),
        (20, 10, [20, 10, 7, 5, 4, 3, 3, 3, 2, 2]),
    ],
)
def test_the_share_of_new_has_the_papers_table(places, classes, expected):
    shares = [
        int(share_of_new(places, torch.tensor(classes), torch.tensor(classes * t)))
        for t in range(1, len(expected) + 1)
    ]
    assert shares == expected


def test_over_hundreds_of_tasks_the_share_of_new_falls_to_one_and_no_further():
    shares = [int(share_of_new(64, torch.tensor(2), torch.tensor(2 * t))) for t in range(26, 301)]
    assert shares == [2] * 17 + [1] * 258


@pytest.mark.parametrize("label", [0, 1])
def test_the_two_class_hand_case_gives_log_two(label):
    old, new = torch.tensor([True, False]), torch.tensor([False, True])
    output = an_output(torch.zeros(1, 2), [label])
    assert cross_task(output, old, new, torch.zeros(2)).item() == pytest.approx(math.log(2))
    assert sample_cross_entropy(*output[:2], among=old if label == 0 else new).item() == 0


@PROPERTY
@given(five_logits, st.integers(0, 4))
def test_the_decomposition_exceeds_cross_entropy_by_its_closed_form(logits, label):
    output = an_output(double([logits]), [label])
    own = NEW if label >= 3 else OLD
    within = sample_cross_entropy(*output[:2], among=own)
    decomposed = within + cross_task(output, OLD, NEW, torch.zeros(5))
    plain = F.cross_entropy(*output[:2])
    e = math.exp(logits[label])
    a = sum(math.exp(o) for c, o in enumerate(logits) if own[c])
    b = sum(math.exp(o) for c, o in enumerate(logits) if not own[c]) + e
    rest = a - e if a > e else 0.0
    gap = math.log1p(rest * (b - e) / (e * (a + b - e)))
    assert decomposed.item() - plain.item() == pytest.approx(gap, abs=1e-9)
    assert decomposed.item() >= plain.item() - 1e-9


@pytest.mark.parametrize("lonely", ["a single new class", "no old class"])
def test_the_decomposition_is_cross_entropy_where_it_decomposes_nothing(lonely):
    last = torch.arange(5) == 4
    new, old = (last, ~last) if lonely == "a single new class" else (last | ~last, last & ~last)
    output = an_output(random_logits(0, 1), [4])
    within = sample_cross_entropy(*output[:2], among=new)
    decomposed = within + cross_task(output, old, new, torch.zeros(5))
    torch.testing.assert_close(decomposed.sum(), F.cross_entropy(*output[:2]))


@PROPERTY
@given(five_logits, st.integers(0, 2), st.floats(0.01, 100))
def test_v_of_zero_removes_a_new_class_from_what_old_samples_face(logits, label, other):
    output = an_output(double([logits]), [label])
    log_v = double([0, 0, 0, -math.inf, math.log(other)])
    got = cross_task(output, OLD, NEW, log_v)
    without = torch.tensor([False, False, False, False, True])
    assert torch.equal(got, cross_task(output, OLD, without, log_v))


@PROPERTY
@given(five_logits, st.integers(0, 4))
def test_v_matters_to_old_samples_only(logits, label):
    output = an_output(double([logits]), [label])
    plain = cross_task(output, OLD, NEW, double([0] * 5)).item()
    doubled = cross_task(output, OLD, NEW, double([math.log(2)] * 5)).item()
    assert doubled == plain if label >= 3 else doubled >= plain


@PROPERTY
@given(five_logits, st.integers(0, 4), st.floats(0, 10))
def test_cross_task_agrees_with_the_plain_fraction(logits, label, scale):
    v = dict.fromkeys(range(5), scale)
    against = naive.rivals(logits, label, {0, 1, 2}, {3, 4}, v)
    expected = naive.log_sum_exp([*against.values(), logits[label]]) - logits[label]
    output = an_output(double([logits]), [label])
    got = cross_task(output, OLD, NEW, double([scale] * 5).log())
    assert got.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("v", [[1, 1, 1, 1, 1], [3, 1, 0.2, 0, 7], [0, 0, 0, 0, 0]])
def test_the_gradient_of_the_cross_task_term_agrees_with_finite_differences(v):
    y, log_v = torch.tensor([0, 1, 2, 3, 4, 4]), double(v).log()
    logits = random_logits(1, 6).requires_grad_()
    ones = torch.ones(6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda o: cross_task(Output(o, y, ones), OLD, NEW, log_v), logits
    )


def test_the_cross_task_term_leaves_the_other_classes_of_the_own_side_alone():
    logits = random_logits(2, 5).requires_grad_()
    cross_task(an_output(logits, [0, 1, 2, 3, 4]), OLD, NEW, double([0] * 5)).sum().backward()
    touched = (logits.grad != 0).int()
    sides = (OLD.unsqueeze(1) != OLD) | torch.eye(5, dtype=torch.bool)
    assert touched.tolist() == sides.int().tolist()


def test_within_task_terms_agree_with_finite_differences_and_stay_on_their_side():
    y, w = torch.tensor([0, 1, 2, 3, 4]), double([1.1, 1.9, 1.5, 1.2, 2.0])
    logits = random_logits(3, 5).requires_grad_()

    def t1(o: Tensor) -> Tensor:
        return cross_entropy(o, y, NEW[y].double(), among=NEW)

    def t2(o: Tensor) -> Tensor:
        return mean(w[y] * sample_cross_entropy(o, y, among=OLD), OLD[y].double())

    assert torch.autograd.gradcheck(t1, logits) and torch.autograd.gradcheck(t2, logits)
    for term, side in ((t1, NEW), (t2, OLD)):
        (gradient,) = torch.autograd.grad(term(logits), logits)
        assert torch.equal(gradient != 0, side & side.unsqueeze(1))


# ---- whole steps, followed by the naive implementation


@contextmanager
def kept_logits() -> Iterator[list[Tensor]]:
    """The logits of every training forward, with the gradients that reach them."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, _: object, logits: Tensor) -> None:
        if isinstance(module, Head) and logits.requires_grad:
            logits.retain_grad()
            kept.append(logits)

    handle = nn.modules.module.register_module_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


class Times(nn.Module):
    """Features that are the inputs, magnified."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def batch_of(labels: list[int], source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Vectors around a corner of their own for each class."""
    y = torch.tensor(labels)
    return torch.randn(len(y), 6, generator=source) + F.one_hot(y % 6, 6), y


def any_of(classes: list[int], count: int, source: torch.Generator) -> list[int]:
    picks = torch.randint(len(classes), (count,), generator=source)
    return [classes[pick] for pick in picks]


def stream(name: str, seed: int = 0) -> Iterator[str | tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(seed)
    labels: list[list[int] | str]
    if name == "tasks":
        labels = [any_of([0, 1, 2], 10, source) for _ in range(3)]
        labels += [BOUNDARY, *(any_of([3, 4], 10, source) for _ in range(3))]
        labels += [BOUNDARY, *(any_of([5, 6], 10, source) for _ in range(3))]
    elif name == "late classes":  # 3 arrives in the middle of a task and of a batch, 4 after it
        labels = [[0, 1, 0, 1], BOUNDARY, [2, 2, 2, 2], [2, 2, 3, 2], [3, 2, 2], [2, 4, 3, 2]]
    elif name == "short batches":
        labels = [[0, 1, 1, 0], [1], BOUNDARY, [2], [3, 2], [2, 3, 3], BOUNDARY, [4], [5]]
    elif name == "old classes come back":
        labels = [[0, 1, 1, 0], [2, 0, 1], BOUNDARY, [0, 2, 1, 1], [3, 0, 4, 1], [3, 3, 4], [0]]
    elif name == "one class at a time":
        labels = [[0] * 4, [0] * 4, BOUNDARY, [1] * 4, [1] * 4, BOUNDARY, [2] * 4, [2] * 4]
    else:  # more classes than the head begins with
        labels = [list(range(8)), list(range(8, 15)), BOUNDARY, [15, 16, 17], [18, 15, 35], [16]]
    for item in labels:
        yield item if isinstance(item, str) else batch_of(item, source)


def gsa(**settings: object) -> onepass.GSA:
    defaults = {
        "net": Times(),
        "memory": 30,
        "mix": 12,
        "optimizer": "sgd",
        "lr": 0.5,
        "weight_decay": 0.0,
        "augment": "none",
        "device": "cpu",
        "seed": 5,
    }
    return onepass.GSA(**{**defaults, **settings})


def as_batch(output: Output) -> naive.Batch:
    return list(zip(*(part.tolist() for part in output), strict=True))


def in_batches(gradients: list[Tensor], copies: int, first: int) -> Tensor:
    """Rows as in the outputs: X^new and its mirror images, then X^mix and its own. A joint forward
    has all plain samples before all mirror images."""
    if len(gradients) == 2:
        return torch.cat(gradients)
    (joint,) = gradients
    each = joint.chunk(copies)
    return torch.cat([part[:first] for part in each] + [part[first:] for part in each])


def followed(learner: onepass.GSA, items: Iterator) -> Iterator[SimpleNamespace]:
    """Each step of a learner, with what the naive implementation says of its logits."""
    sums, rows, new = naive.Sums(), {}, set()
    for item in items:
        if item == BOUNDARY:
            learner.new_task()
            sums.new_task()
            new = set()
            continue
        x, y = item
        for label in y.tolist():
            if label not in rows:
                rows[label] = len(rows)
                new = new | {rows[label]}
        seen = set(rows.values())
        sides = (seen - new, new)
        earlier = learner.rates() if learner.steps and learner.update == "after" else None
        with kept_logits() as kept:
            step = learner.learn(x, y)
        first, mixed = (as_batch(output) for output in step.outputs)
        copies = learner.views.copies
        size = len(first) // copies
        assert size == len(y) + learner.current
        for copy in range(copies):
            of_stream = first[copy * size : copy * size + len(y)]
            assert [row for _, row, _ in of_stream] == [rows[label] for label in y.tolist()]
            assert all(weight == 1 for _, _, weight in of_stream)
            replayed = first[copy * size + len(y) : (copy + 1) * size]
            assert {row for _, row, weight in replayed if weight} <= new

        measured = mixed if learner.statistics == "mix" else first + mixed
        if learner.update == "before":
            sums.add(measured, seen)
        w, v = {c: sums.w(c) for c in seen}, {c: sums.v(c) for c in seen}
        if learner.weights == "none":
            w = v = dict.fromkeys(seen, 1.0)
        if learner.update == "after":
            sums.add(measured, seen)
        yield SimpleNamespace(
            step=step,
            case=(first, mixed, *sides, w, v),
            terms=naive.terms(first, mixed, *sides, w, v),
            rates=(learner.rates() if learner.update == "before" else earlier),
            gradient=in_batches([logits.grad for logits in kept], copies, size),
            sums=sums,
        )


CASES = [
    ("tasks", {}),
    ("tasks", {"forwards": "separate", "memory": 200, "mix": 20}),
    ("tasks", {"statistics": "all"}),
    ("tasks", {"update": "after"}),
    ("tasks", {"weights": "none"}),
    ("tasks", {"memory": 0}),
    ("tasks", {"memory": 3}),
    ("tasks", {"fill": 1, "optimizer": "adam", "lr": 0.05}),
    ("tasks", {"head": "frozen"}),
    ("tasks", {"current": 5}),
    ("tasks", {"current": 12, "memory": 200}),
    ("tasks", {"current": 4, "forwards": "separate", "statistics": "all"}),
    ("tasks", {"current": 3, "fill": 3, "update": "after"}),
    ("tasks", {"current": 4, "memory": 0}),
    ("late classes", {}),
    ("late classes", {"update": "after", "statistics": "all"}),
    ("late classes", {"mix": 2}),
    ("late classes", {"current": 6}),
    ("short batches", {}),
    ("short batches", {"memory": 0}),
    ("old classes come back", {}),
    ("old classes come back", {"memory": 0}),
    ("old classes come back", {"current": 3}),
    ("one class at a time", {}),
    ("many classes", {}),
    ("many classes", {"update": "after"}),
]
each_case = pytest.mark.parametrize(("name", "settings"), CASES, ids=str)


@each_case
def test_terms_and_loss_agree_with_the_naive_implementation(name, settings):
    for now in followed(gsa(**settings), stream(name)):
        got = [now.step.terms[term].item() for term in ("T1", "T2", "T3")]
        assert got == pytest.approx(now.terms, rel=1e-5, abs=1e-6)
        assert now.step.loss.item() == pytest.approx(sum(now.terms), rel=1e-5, abs=1e-6)


def as_images(items: Iterator) -> Iterator:
    for item in items:
        if item == BOUNDARY:
            yield item
        else:
            yield (40 * (item[0].clamp(-3, 3) + 3)).to(torch.uint8).view(-1, 1, 2, 3), item[1]


@pytest.mark.parametrize("current", [0, 5])
@pytest.mark.parametrize("forwards", ["joint", "separate"])
def test_mirror_images_are_samples_like_any_other(forwards, current):
    learner = gsa(net=nn.Flatten(), mirror=True, forwards=forwards, current=current)
    for now in followed(learner, as_images(stream("tasks"))):
        assert [len(batch) for batch in now.case[:2]] == [2 * (10 + current), 24]
        got = [now.step.terms[term].item() for term in ("T1", "T2", "T3")]
        assert got == pytest.approx(now.terms, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(
            now.gradient.double(), double(naive.gradients(*now.case)), rtol=1e-4, atol=1e-6
        )


@each_case
def test_sums_and_rates_agree_with_the_naive_implementation(name, settings):
    learner = gsa(**settings)
    for now in followed(learner, stream(name)):
        for part in ("positive", "negative", "task_positive", "task_negative"):
            expected = [getattr(now.sums, part)[c] for c in range(len(learner.seen))]
            assert getattr(learner.balance, part).tolist() == pytest.approx(expected, abs=1e-9)
        if now.rates is None:
            continue
        w, log_v = now.rates
        for c in range(min(len(w), len(learner.classes))):
            assert w[c].item() == pytest.approx(now.case[4][c], rel=1e-6)
            assert log_v[c].exp().item() == pytest.approx(now.case[5][c], rel=1e-5)


@each_case
def test_gradients_on_the_logits_have_their_closed_form(name, settings):
    for now in followed(gsa(**settings), stream(name)):
        torch.testing.assert_close(
            now.gradient.double(), double(naive.gradients(*now.case)), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tasks", {"mix": 6}),
        ("late classes", {"mix": 6}),
        ("late classes", {"mix": 6, "update": "after"}),
        ("old classes come back", {"mix": 6}),
        ("tasks", {"mix": 6, "current": 4}),
        ("short batches", {"mix": 6, "memory": 0}),
    ],
    ids=str,
)
def test_gradients_on_the_logits_agree_with_finite_differences(name, settings):
    for now in followed(gsa(**settings), stream(name)):
        torch.testing.assert_close(
            now.gradient.double(), double(naive.finite_differences(*now.case)), rtol=1e-4, atol=1e-6
        )


def test_a_new_class_outside_the_mix_is_left_out_until_it_is_sampled():
    *_, last = followed(gsa(mix=2), stream("late classes"))
    v = last.case[5]
    assert 0.0 in v.values()
    assert bool(torch.isfinite(last.step.loss)) and bool(torch.isfinite(last.gradient).all())


@pytest.mark.parametrize(
    "name", ["tasks", "late classes", "old classes come back", "one class at a time"]
)
@pytest.mark.parametrize("memory", [0, 30])
def test_logits_of_ten_thousand_leave_everything_finite(name, memory):
    learner = gsa(net=Times(1e4), memory=memory, lr=1e-9)
    largest = 0.0
    for now in followed(learner, stream(name)):
        largest = max(largest, *(out.logits.abs().max().item() for out in now.step.outputs))
        got = [now.step.terms[term].item() for term in ("T1", "T2", "T3")]
        assert got == pytest.approx(now.terms, rel=1e-4, abs=5e-3)
        assert bool(torch.isfinite(now.gradient).all())
        expected = double(naive.gradients(*now.case))
        torch.testing.assert_close(now.gradient.double(), expected, rtol=0, atol=5e-3)
    assert largest > 1e4
    assert bool(torch.isfinite(learner.model.head.weight).all())


def test_a_class_that_nothing_but_rounding_pushes_down_leaves_everything_finite():
    learner = gsa(net=Times(0.0), lr=1e-6)
    learner.learn(torch.zeros(4, 6), [0] * 4)
    learner.new_task()
    with torch.no_grad():
        learner.model.head.bias[:2] = torch.tensor([0.0, -720.0])
    step = learner.learn(torch.zeros(4, 6), [1] * 4)
    assert bool(torch.isfinite(step.loss))
    assert bool(torch.isfinite(learner.model.head.bias).all())


# ---- what the paper's equations imply


def learned(learner: onepass.Learner, items: Iterator) -> onepass.Learner:
    for item in items:
        learner.new_task() if item == BOUNDARY else learner.learn(*item)
    return learner


def first_task(batches: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(3)
    for size in [10] * (batches - 1) + [3]:
        yield batch_of(any_of([0, 1, 2, 3], size, source), source)


PLAIN = {"net": "mlp", "augment": "none", "device": "cpu", "seed": 2}


def test_the_first_task_is_plain_cross_entropy_bit_for_bit():
    one = learned(onepass.GSA(forwards="separate", memory=50, **PLAIN), first_task())
    other = learned(onepass.Finetune(**PLAIN), first_task())
    assert one.params_sha256() == other.params_sha256()


def test_the_first_task_is_plain_cross_entropy_with_a_joint_forward_too():
    sgd = {**PLAIN, "optimizer": "sgd", "lr": 0.1}
    one = learned(onepass.GSA(memory=50, **sgd), first_task())
    other = learned(onepass.Finetune(**sgd), first_task())
    for name, value in one.model.named_parameters():
        torch.testing.assert_close(value, other.model.get_parameter(name), rtol=0, atol=1e-6)


def test_in_the_first_task_only_the_stream_is_trained():
    for now in followed(gsa(), first_task()):
        assert now.step.terms["T2"].item() == now.step.terms["T3"].item() == 0
        stream_size = len(now.case[0])
        assert bool((now.gradient[:stream_size] != 0).any())
        assert not bool((now.gradient[stream_size:] != 0).any())


def test_with_one_new_class_nothing_is_to_be_told_apart_within_the_task():
    for now in followed(gsa(), stream("one class at a time")):
        assert now.step.terms["T1"].item() == 0
        if len(now.case[2]) == 1:
            assert now.step.terms["T2"].item() == 0


def test_a_stream_of_old_classes_alone_has_no_within_task_term():
    (*_, now) = followed(gsa(), list(stream("old classes come back"))[:4])
    assert now.case[3] == set()
    assert now.step.terms["T1"].item() == 0
    assert now.step.terms["T2"].item() > 0


@pytest.mark.parametrize(("side", "moved"), [("old", {"T3"}), ("new", {"T3"}), ("all", set())])
def test_a_shift_of_one_side_moves_the_cross_task_term_and_of_both_none(side, moved):
    items = list(stream("tasks"))
    shift_of = {"old": slice(0, 5), "new": slice(5, 7), "all": slice(0, 7)}[side]
    found = []
    for shift in (0.0, 1.5):  # updated after use, w and v do not know the shift
        learner = learned(gsa(update="after"), items[:-1])
        with torch.no_grad():
            learner.model.head.bias[shift_of] += shift
        found.append(learner.learn(*items[-1]).terms)
    changed = {
        term for term in found[0] if not torch.allclose(found[0][term], found[1][term], atol=1e-5)
    }
    assert changed == moved


def test_relabelling_the_classes_of_a_task_changes_labels_only():
    renamed = {0: 2, 1: 0, 2: 1, 3: 4, 4: 3, 5: 6, 6: 5}
    plain, other = gsa(), gsa()
    learned(plain, stream("tasks"))
    for item in stream("tasks"):
        if item == BOUNDARY:
            other.new_task()
        else:
            other.learn(item[0], [renamed[label] for label in item[1].tolist()])
    assert [renamed[label] for label in plain.classes] == other.classes
    for one, two in zip(plain.rates(), other.rates(), strict=True):
        assert torch.equal(one, two)
    assert plain.params_sha256() == other.params_sha256()


@PROPERTY
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_permuting_the_classes_permutes_w_and_v(order, seed):
    source = torch.Generator().manual_seed(seed)
    positive = torch.rand(4, generator=source, dtype=torch.float64)
    negative = -torch.rand(4, generator=source, dtype=torch.float64)
    order = torch.tensor(order)
    for rate in (class_weight, log_class_scale):
        permuted = rate(positive[order], negative[order])
        torch.testing.assert_close(permuted, rate(positive, negative)[order])


def test_the_two_class_hand_case_holds_in_a_step():
    learner = gsa(net=Times(0.0), mix=4, lr=1e-12)
    learner.learn(torch.zeros(2, 6), [0, 0])
    learner.new_task()
    with torch.no_grad():
        learner.model.head.bias.zero_()
    step = learner.learn(torch.zeros(2, 6), [1, 1])
    w = 2 / (1 + math.exp(-1))
    assert [term.item() for term in step.terms.values()] == pytest.approx([0, 0, w * math.log(2)])


def test_constant_logits_and_balanced_labels_leave_every_rate_at_balance():
    learner = gsa(net=Times(0.0), mix=8, lr=1e-12)
    learner.learn(torch.zeros(4, 6), [0, 1, 0, 1])
    learner.new_task()
    learner.balance.positive.zero_()
    learner.balance.negative.zero_()
    with torch.no_grad():
        learner.model.head.bias.fill_(7)
    step = learner.learn(torch.zeros(4, 6), [2, 2, 3, 3])
    assert sorted(step.outputs[1].y.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    w, log_v = learner.rates()
    assert w[:4].tolist() == pytest.approx([BALANCED] * 4)
    assert log_v[:4].tolist() == pytest.approx([0] * 4, abs=1e-6)
    expected = [math.log(2), BALANCED * math.log(2), BALANCED * math.log(3)]
    assert [term.item() for term in step.terms.values()] == pytest.approx(expected)


def test_rates_that_nothing_has_fed_are_one_and_balanced():
    items = list(stream("tasks"))
    learner = learned(gsa(update="after"), items[:3])
    for now in followed(gsa(update="after"), iter(items[:1])):
        assert set(now.case[4].values()) == {BALANCED}
    learner.new_task()
    assert learner.rates()[1].tolist() == [0] * 16
    assert learner.rates()[0][3:].tolist() == pytest.approx([BALANCED] * 13)


def test_no_gradient_flows_through_the_rates():
    now = list(followed(gsa(), stream("tasks")))[-1]
    w, log_v = now.rates
    assert not w.requires_grad and not log_v.requires_grad


def test_without_adaptive_weights_the_loss_is_the_plain_decomposition():
    learner = learned(gsa(weights="none"), list(stream("tasks"))[:5])
    step = learner.learn(*list(stream("tasks"))[5])
    first, mixed = step.outputs
    new, old = learner.new, learner.seen & ~learner.new

    def within(output: Output, side: Tensor) -> Tensor:
        rows = side[output.y] & (output.weight > 0)
        logits = output.logits[rows].masked_fill(~side, -math.inf)
        return F.cross_entropy(logits, output.y[rows])

    across = []
    for o, y, weight in zip(*mixed, strict=True):
        if weight:
            side = (old if new[y] else new).clone()
            side[y] = True
            across.append(F.cross_entropy(o.masked_fill(~side, -math.inf), y))
    expected = within(first, new) + within(mixed, old) + torch.stack(across).mean()
    torch.testing.assert_close(step.loss, expected)


def test_joint_and_separate_forwards_agree_without_batch_normalisation():
    for one, other in zip(
        followed(gsa(), stream("tasks")),
        followed(gsa(forwards="separate"), stream("tasks")),
        strict=True,
    ):
        torch.testing.assert_close(one.step.loss, other.step.loss, rtol=1e-4, atol=1e-5)


def test_the_defaults_are_the_papers():
    learner = onepass.GSA()
    assert (learner.head, learner.mirror, learner.mix) == ("trained", False, 64)
    assert (learner.fill, learner.current, learner.forwards) == (None, 0, "joint")
    assert (learner.statistics, learner.update, learner.weights) == ("mix", "before", "adaptive")
    assert (learner.optimizer, learner.lr, learner.weight_decay) == ("adam", 1e-3, 1e-4)


@pytest.mark.parametrize("current", [0, 7])
@pytest.mark.parametrize("forwards", ["joint", "separate"])
@pytest.mark.parametrize("mirror", [False, True])
def test_a_step_costs_what_passes_says(current, forwards, mirror):
    learner = gsa(net=nn.Flatten(), mix=12, current=current, forwards=forwards, mirror=mirror)
    for item in list(as_images(stream("tasks")))[:3]:
        with kept_logits() as kept:
            learner.learn(*item)
        trained = sum(len(logits) for logits in kept)
        assert trained == learner.cost(10).trained == (1 + mirror) * (10 + current + 12)


# ---- one forward, or a forward for each piece


class Keeper(nn.Module):
    """Features that are the inputs; every batch is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.detach())
        return x.flatten(1)


def keeping(mirror: bool) -> tuple[onepass.GSA, Samples]:
    """A learner whose network keeps what it is given, and five samples."""
    learner = gsa(net=Keeper(), mirror=mirror)
    learner.learn(torch.zeros(2, 1, 2, 3, dtype=torch.uint8), [0, 1])
    learner.model.body.batches.clear()
    pixels = torch.arange(30, dtype=torch.uint8).view(5, 1, 2, 3)
    return learner, Samples(pixels, torch.tensor([0, 1, 1, 0, 1]), torch.tensor([1.0, 1, 0, 1, 0]))


def viewed(pixels: Tensor, mirror: bool) -> Tensor:
    plain = pixels.float() / 255
    return torch.cat([plain, plain.flip(3)]) if mirror else plain


@pytest.mark.parametrize("mirror", [False, True])
def test_a_joint_forward_is_one_of_all_samples(mirror):
    learner, samples = keeping(mirror)
    output = learner.forward(samples)
    (batch,) = learner.model.body.batches
    assert torch.equal(batch, viewed(samples.x, mirror))
    torch.testing.assert_close(output.logits, learner.model.head(batch.flatten(1)))
    assert output.y.tolist() == samples.y.tolist() * (1 + mirror)
    assert output.weight.tolist() == samples.weight.tolist() * (1 + mirror)


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 1), (5,)])
@pytest.mark.parametrize("mirror", [False, True])
def test_a_forward_in_pieces_gives_each_a_batch_of_its_own_and_the_same_output(mirror, sizes):
    learner, samples = keeping(mirror)
    output = learner.forward(samples, sizes)
    for batch, piece in zip(learner.model.body.batches, samples.cut(*sizes), strict=True):
        assert torch.equal(batch, viewed(piece.x, mirror))
    for one, other in zip(output, learner.forward(samples), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3, 1), (5,), (0, 5)])
@pytest.mark.parametrize("mirror", [False, True])
def test_a_piece_of_an_output_has_its_samples_and_their_mirror_images(mirror, sizes):
    learner, samples = keeping(mirror)
    pieces = learner.cut(learner.forward(samples), *sizes)
    for got, piece in zip(pieces, samples.cut(*sizes), strict=True):
        assert isinstance(got, Output)
        logits = learner.model.head(viewed(piece.x, mirror).flatten(1))
        torch.testing.assert_close(got.logits, logits)
        assert got.y.tolist() == piece.y.tolist() * (1 + mirror)
        assert got.weight.tolist() == piece.weight.tolist() * (1 + mirror)


@pytest.mark.parametrize("mirror", [False, True])
def test_a_value_per_sample_is_the_mean_over_its_views(mirror):
    learner, _ = keeping(mirror)
    values = torch.arange(5 * (1 + mirror)).float()
    expected = [2.5 + place for place in range(5)] if mirror else list(range(5))
    assert learner.per_sample(values).tolist() == expected


# ---- X^mix


class Recorder(nn.Module):
    """Features that are the inputs; the last batch can be looked at."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach()
        return 1e-4 * x


class Watched:
    """A learner on numbered samples, and what it put into X^mix: (number, label, genuine); what it
    put into X^new is kept as `first`."""

    def __init__(self, **settings: object) -> None:
        self.learner = gsa(net=Recorder(), lr=1e-6, **settings)
        self.label_of: list[int] = []

    def learn(self, labels: list[int]) -> list[tuple[int, int, bool]]:
        numbers = torch.arange(len(labels)) + len(self.label_of)
        self.label_of += labels
        self.step = self.learner.learn(numbers.float().unsqueeze(1), labels)
        seen = self.learner.model.body.last[:, 0].long().tolist()
        _, rows, weight = (torch.cat(parts) for parts in zip(*self.step.outputs, strict=True))
        names = [self.learner.classes[row] for row in rows]
        every = list(zip(seen, names, (weight > 0).tolist(), strict=True))
        self.first = every[: -self.learner.mix]
        return every[-self.learner.mix :]

    def memory_of(self, labels: set[int]) -> int:
        size = int(self.learner.store.size)
        held = [self.learner.classes[row] for row in self.learner.store.y[:size].tolist()]
        return sum(label in labels for label in held)


def genuine(mixed: list[tuple[int, int, bool]], among: set[int]) -> list[int]:
    return [number for number, label, real in mixed if real and label in among]


@pytest.mark.parametrize(
    ("places", "shares"), [(20, [20, 10, 7, 5, 4]), (64, [64, 32, 21, 16, 13])]
)
def test_new_and_old_have_the_shares_of_the_table(places, shares):
    watched = Watched(mix=places, memory=1000)
    for task, share in enumerate(shares):
        new, old = {2 * task, 2 * task + 1}, set(range(2 * task))
        for _ in range(8):
            last = watched.learn([2 * task, 2 * task + 1] * 5)
        watched.learner.new_task()
        assert len(genuine(last, new)) == share
        assert len(genuine(last, old)) == places - share
        assert len(last) == places


def test_samples_keep_their_labels_and_come_once():
    watched = Watched(mix=20, memory=60)
    for task in range(4):
        for _ in range(6):
            mixed = watched.learn([2 * task, 2 * task + 1] * 4)
            numbers = [number for number, _, real in mixed if real]
            assert len(set(numbers)) == len(numbers)
            assert all(label == watched.label_of[number] for number, label, _ in mixed)
        watched.learner.new_task()


def test_new_samples_are_the_streams_own_before_those_of_the_memory():
    watched = Watched(mix=30, memory=500)
    for _ in range(4):
        watched.learn([0, 1] * 5)
    watched.learner.new_task()
    assert genuine(watched.learn([2, 3] * 5), {2, 3}) == list(range(40, 50))
    second = genuine(watched.learn([2, 3] * 5), {2, 3})
    assert second[:10] == list(range(50, 60))
    assert len(second) == 15 and set(second[10:]) <= set(range(40, 50))


def test_a_share_smaller_than_the_batch_takes_its_first_samples():
    watched = Watched(mix=8, memory=500)
    watched.learn([0, 1, 2] * 3)
    watched.learner.new_task()
    assert genuine(watched.learn([3] * 6), {3}) == [9, 10]


@pytest.mark.parametrize(("fill", "expected"), [(1, 11), (3, 13), (None, 16)])
def test_fill_limits_what_new_classes_take_from_the_memory(fill, expected):
    watched = Watched(mix=32, memory=500, fill=fill)
    for _ in range(4):
        watched.learn([0, 1] * 5)
    watched.learner.new_task()
    for _ in range(3):
        mixed = watched.learn([2, 3] * 5)
    assert len(genuine(mixed, {2, 3})) == expected
    assert len(genuine(mixed, {0, 1})) == 16


@pytest.mark.parametrize("memory", [0, 3, 8, 200])
def test_weights_are_zero_only_where_samples_are_missing(memory):
    watched = Watched(mix=16, memory=memory)
    for task in range(3):
        new, old = {2 * task, 2 * task + 1}, set(range(2 * task))
        for _ in range(5):
            held = (watched.memory_of(new), watched.memory_of(old)) if watched.label_of else (0, 0)
            mixed = watched.learn([2 * task, 2 * task + 1] * 2)
            share = [16, 8, 5][task]
            assert len(genuine(mixed, new)) == min(share, 4 + held[0])
            assert len(genuine(mixed, old)) == min(16 - share, held[1])
        watched.learner.new_task()


def test_an_old_class_in_the_stream_counts_as_old():
    watched = Watched(mix=12, memory=100)
    watched.learn([0, 1, 0, 1])
    watched.learner.new_task()
    mixed = watched.learn([2, 0, 3, 1, 2, 0])
    assert genuine(mixed, {2, 3}) == [4, 6, 8]
    old = genuine(mixed, {0, 1})
    assert old[:3] == [5, 7, 9]
    assert len(old) == 6 and set(old[3:]) <= {0, 1, 2, 3}


def test_the_stream_batch_itself_is_not_yet_in_the_memory():
    watched = Watched(mix=12, memory=100)
    mixed = watched.learn([0, 1, 0, 1])
    assert genuine(mixed, {0, 1}) == [0, 1, 2, 3]


# ---- memory samples of the current classes in X^new


def even(numbers: list[int], members: list[int]) -> bool:
    """Whether these are the members, each as often as any other or once more."""
    often = [numbers.count(member) for member in members]
    return set(numbers) <= set(members) and max(often) - min(often) <= 1


def test_without_current_samples_the_new_batch_is_the_stream_and_nothing_else():
    watched = Watched(memory=100)
    for task in range(3):
        for _ in range(3):
            begin, labels = len(watched.label_of), [2 * task, 2 * task + 1] * 3
            watched.learn(labels)
            assert watched.first == [(begin + k, label, True) for k, label in enumerate(labels)]
        watched.learner.new_task()


@pytest.mark.parametrize("current", [1, 5, 12])
def test_the_new_batch_has_the_stream_and_current_samples_of_the_memory(current):
    watched = Watched(memory=500, current=current)
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
            # X^mix takes the same ones from the memory.
            of_memory = genuine(mixed, set(labels))[4:]
            shared = min(len(replayed), len(of_memory))
            assert of_memory[:shared] == replayed[:shared]
        watched.learner.new_task()


@pytest.mark.parametrize("memory", [0, 3, 500])
def test_current_samples_that_the_memory_lacks_repeat_the_new_batch_evenly_at_weight_0(memory):
    watched = Watched(memory=memory, current=9)
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
    watched, found = Watched(memory=500, current=6), []
    for task in range(2):
        for _ in range(4):
            watched.learn([2 * task, 2 * task + 1] * 2)
            found.append(sum(real for _, _, real in watched.first[4:]))
        watched.learner.new_task()
    assert found == [0, 4, 6, 6] * 2


def test_a_stream_of_old_classes_comes_with_current_samples_of_the_new_ones():
    watched = Watched(memory=500, current=4)
    watched.learn([0, 1, 0, 1])
    watched.learner.new_task()
    watched.learn([0, 1, 0])  # nothing is new yet: what fills the places does not count
    assert [real for _, _, real in watched.first] == [True] * 3 + [False] * 4
    assert watched.step.terms["T1"].item() == 0
    watched.learn([2, 2, 0, 3])
    watched.learn([0, 0, 1])
    assert sorted(watched.first[3:6]) == [(7, 2, True), (8, 2, True), (10, 3, True)]
    assert watched.first[6] == (*watched.first[3][:2], False)
    assert watched.step.terms["T1"].item() > 0


def test_the_within_task_term_is_the_mean_over_stream_and_current_samples():
    items = list(stream("tasks"))[:7]
    *_, now = followed(gsa(current=5), items)
    first = now.step.outputs[0]
    new = torch.tensor([row in now.case[3] for row in range(first.logits.shape[1])])
    assert first.weight.tolist() == [1] * 15 and bool(new[first.y].all())
    logits, t1 = first.logits.masked_fill(~new, -math.inf), now.step.terms["T1"]
    torch.testing.assert_close(t1, F.cross_entropy(logits, first.y))
    assert not torch.allclose(t1, F.cross_entropy(logits[:10], first.y[:10]))
    assert bool((now.gradient[:15] != 0).any(dim=1).all())


def test_in_the_first_task_current_samples_are_replayed_beside_the_stream():
    found = []
    for now in followed(gsa(current=5), first_task(4)):
        assert now.step.terms["T2"].item() == now.step.terms["T3"].item() == 0
        counted = [weight > 0 for _, _, weight in now.case[0]]
        moved = (now.gradient != 0).any(dim=1).tolist()
        assert moved == counted + [False] * 12
        found.append(sum(counted))
    assert found == [10, 10 + 5, 10 + 5, 3 + 5]


def test_current_samples_do_not_change_which_samples_are_mixed_or_kept():
    without, with_some = Watched(memory=20), Watched(memory=20, current=5)
    for task in range(3):
        for _ in range(5):
            labels = [2 * task, 2 * task + 1] * 4
            assert without.learn(labels) == with_some.learn(labels)
        without.learner.new_task()
        with_some.learner.new_task()
    assert torch.equal(without.learner.store.x, with_some.learner.store.x)


@pytest.mark.parametrize("name", ["tasks", "old classes come back"])
def test_current_samples_change_nothing_while_the_memory_has_none(name):
    with_some = followed(gsa(memory=0, current=7), stream(name))
    for one, other in zip(followed(gsa(memory=0), stream(name)), with_some, strict=True):
        for term in ("T1", "T2", "T3"):
            torch.testing.assert_close(one.step.terms[term], other.step.terms[term])
        size = len(one.case[0])
        assert not bool(other.gradient[size : size + 7].any())


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"current": -1}, "between 0 and 12 "),
        ({"current": 13}, "between 0 and 12 "),
        ({"current": 4, "fill": 3}, "between 0 and 3 "),
        ({"current": 21, "fill": 20}, "between 0 and 20 "),
        ({"current": 2.5}, "a whole number"),
        ({"current": None}, "a whole number"),
        ({"current": "many"}, "a whole number"),
        ({"current": True}, "a whole number"),
    ],
    ids=str,
)
def test_a_number_of_current_samples_that_cannot_be_is_refused(settings, wanted):
    with pytest.raises(InputError) as refusal:
        gsa(**settings)
    said = str(refusal.value)
    assert said.startswith(f"gsa: current must be {wanted}")
    assert said.endswith(f", not {settings['current']!r}")


@pytest.mark.parametrize(
    "settings", [{"current": 12}, {"current": 3, "fill": 3}, {"current": 20, "fill": 20}], ids=str
)
def test_as_many_current_samples_as_are_drawn_for_the_mix_are_allowed(settings):
    *_, now = followed(gsa(memory=200, **settings), list(stream("tasks"))[:3])
    assert sum(weight for _, _, weight in now.case[0]) == 10 + settings["current"]


def test_the_command_line_refuses_too_many_current_samples_in_one_line():
    done = command.onepass("run", "gsa", "--set", "current=65")
    assert (done.status, done.out) == (2, "")
    assert "current must be between 0 and 64" in done.error
