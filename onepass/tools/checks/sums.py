"""Checks of closed-form methods: no order, cut or device changes their sums, and these alone decide
their scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from onepass.base.errors import InputError
from onepass.evaluation.loop import evaluate
from onepass.learning.closed_form import ClosedForm
from onepass.learning.memory_contents import memory_bytes
from onepass.tools.checks.helpers import (
    SCORE_METHODS,
    ClosedFormMethod,
    count_bytes,
    expect_finite_values,
    expect_same_state,
    expect_that,
    make_learner,
    small_stream,
    state_fingerprints,
    teach,
    unseen_samples,
)

FEATURES = "make_features features_for"  # functions of a method that decide the sums
Batch = tuple[Tensor, Tensor]


def any_order_gives_the_same_sums(method: ClosedFormMethod) -> None:
    """The same samples in another order give the same sums and the same scores, bit for bit."""
    x, y = _samples()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    learner = _taught(method, _cut(x, y, 10))
    other = _taught(method, _cut(x[order], y[order], 10))
    _expect_same(learner, other, "in any order", x)


def any_cut_gives_the_same_sums(method: ClosedFormMethod) -> None:
    """Batches of any size give the same sums and scores, with predictions in between or without."""
    x, y = _samples()
    whole = _taught(method, [(x, y)])
    pieces = _taught(method, [*_cut(x[:9], y[:9], 1), *_cut(x[9:], y[9:], 37)])
    _expect_same(whole, pieces, "in any batches", x)
    asked = _taught(method, _cut(x, y, 37), after=lambda learner: learner.predict(x[:1]))
    _expect_same(whole, asked, "whether or not it predicts in between", x)


def merged_halves_equal_the_whole(method: ClosedFormMethod) -> None:
    """Two learners of half of the samples each, merged, equal one that learned all of them."""
    x, y = _samples()
    half = torch.arange(len(y)) % 3 == 0
    first, second = _taught(method, [(x[half], y[half])]), _taught(method, [(x[~half], y[~half])])
    before = state_fingerprints(second)
    merged = first.merge(second)
    expect_that(merged is first, "merge to return the learner", "another object", "merge")
    _expect_same(_taught(method, [(x, y)]), first, "in one learner or merged from two", x, "merge")
    expect_same_state(
        before, state_fingerprints(second), "merge to leave the other learner as it is", "merge"
    )


def unlearning_undoes_learning(method: ClosedFormMethod) -> None:
    """After `unlearn` of samples, sums and scores are those of a learner that never saw them."""
    x, y = _samples()
    gone = (y == y[0]) | (torch.arange(len(y)) % 3 == 0)  # a whole class, and parts of the others
    learner = _taught(method, _cut(x, y, 10))
    learner.predict(x[:1])
    learner.unlearn(x[gone], y[gone])
    never = _taught(method, [(x[~gone], y[~gone])])
    _expect_same(never, learner, "once the others are unlearned", x, "unlearn")


def refused_sums_change_nothing(method: ClosedFormMethod) -> None:
    """Merging with itself and unlearning what cannot have been learned are refused in whole."""
    x, y = _samples()
    learner = _taught(method, _cut(x, y, 10))
    before = state_fingerprints(learner)
    named = _taught(method, [(x, [f"class {label}" for label in y.tolist()])])
    narrow = _taught(method, [(x[:, :, :4], y)])
    refused: dict[str, Callable[[], object]] = {
        "merging a learner with itself": lambda: learner.merge(learner),
        "merging text labels with numbers": lambda: learner.merge(named),
        "merging with samples of another shape": lambda: learner.merge(narrow),
        "unlearning an unknown class": lambda: learner.unlearn(x, y + 100),
        "unlearning more than was learned": lambda: learner.unlearn(
            torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
        ),
    }
    for what, call in refused.items():
        try:
            call()
        except InputError:
            pass
        else:
            expect_that(False, f"an InputError for {what}", "that it was done", "merge unlearn")
    wanted = "a refused merge or unlearn to change nothing"
    expect_same_state(before, state_fingerprints(learner), wanted, "merge unlearn")


def classes_are_sorted(method: ClosedFormMethod) -> None:
    """Classes are in sorted order, not in order of arrival, and so are the columns of scores."""
    x, y = _samples()
    back = y.flip(0)
    learner = _taught(method, _cut(x.flip(0), back, 10))
    expected = sorted(set(y.tolist()))
    found = list(learner.classes)
    expect_that(found == expected, f"sorted classes, {expected}", found, "classes")
    known = [learner.scores(x[y == label]).mean(dim=0) for label in expected]
    highest = torch.stack(known).argmax(dim=1).tolist()
    wanted = "the mean score of a class's own samples to be highest in the class's own column"
    expect_that(highest == list(range(len(expected))), wanted, f"columns {highest}", "solve")


def features_are_whole_numbers(method: ClosedFormMethod) -> None:
    """Features are whole numbers in float32, no larger than declared.

    A sample's features depend on the sample alone, in a batch of any size.
    """
    for shape in ((3, 8, 8), (5,)):
        stream = small_stream(shape=shape)
        learner = make_learner(method)
        x, _ = stream.batch(0)
        learner.prepare(tuple(x.shape[1:]), x.dtype)
        z = learner._grid(unseen_samples(stream).to(learner.torch_device))
        h = learner.features(z)
        wanted = f"features as float32 (n, {learner._width}), as features_for declares"
        found = f"{h.dtype} {tuple(h.shape)}".removeprefix("torch.")
        expect_that(h.dtype == torch.float32 and h.shape[1:] == (learner._width,), wanted, found)
        whole = bool((h == h.round()).all())
        expect_that(whole, "features that are whole numbers", "others", FEATURES)
        largest, most = float(h.abs().max()), learner.largest_feature
        wanted = f"features of at most largest_feature, {most}"
        expect_that(largest <= most, wanted, f"{largest:g}", FEATURES)
        alone = torch.cat([learner.features(row) for row in z[:5].split(1)])
        wanted = "a sample's features to depend on the sample alone"
        expect_that(torch.equal(alone, h[:5]), wanted, "other features in a batch of 1", FEATURES)


def degenerate_sums_are_solved(method: ClosedFormMethod) -> None:
    """Scores are finite for one class, one sample a class, equal samples, and after 10^30."""
    x, y = _samples()
    grey = torch.full_like(x, 127)
    huge = 1e30 * torch.eye(40)
    cases: dict[str, tuple[Tensor, Tensor]] = {
        "one sample": (x[:1], y[:1]),
        "one class": (x[y == y[0]], y[y == y[0]]),
        "one sample of each class": (x[::40], y[::40]),
        "samples that are all equal": (grey, y),
        "vectors with values of 1e30": (huge, torch.arange(40) % 3),
        "short vectors with values of 1e30": (huge[:, :3], torch.arange(40) % 3),
    }
    for what, batch in cases.items():
        learner = _taught(method, [batch])
        expect_finite_values(learner.scores(batch[0]), f"scores after {what}", "solve scores")


def classes_are_told_apart(method: ClosedFormMethod) -> None:
    """The method ends over 20 percentage points above chance."""
    stream = small_stream()
    *_, last = evaluate(make_learner(method), stream)
    chance = 100 / stream.dataset.classes
    wanted = f"accuracy 20 points above chance, {chance:.1f}"
    expect_that(last.accuracy > chance + 20, wanted, f"{last.accuracy:.1f}", "solve")


def declared_bytes_are_held(method: ClosedFormMethod) -> None:
    """The state holds as many bytes as declared, and a step declares no image in a network."""
    learner = teach(make_learner(method), small_stream())
    declared, held = memory_bytes(learner), count_bytes(learner.state_dict())
    expect_that(held == declared, f"the declared {declared} bytes", f"{held} held", "_own_state")
    images = learner.images_per_batch(10)
    expect_that(not images.forwards, "no image through a network", images, "images_per_batch")


def threads_change_no_sum(method: ClosedFormMethod) -> None:
    """The number of threads of torch changes no bit of the sums."""
    x, y = _samples()
    before, hashes = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            hashes.append(_taught(method, [(x, y)]).sums_sha256())
    finally:
        torch.set_num_threads(before)
    wanted = "the same sums with one thread and with two"
    expect_that(hashes[0] == hashes[1], wanted, "others", FEATURES)


def devices_give_the_same_sums(method: ClosedFormMethod) -> None:
    """A GPU and the host give the same sums, bit for bit, and nearly the same scores."""
    x, y = _samples()
    host, gpu = (_taught(method, [(x, y)], device=name) for name in ("cpu", "cuda"))
    same = host.sums_sha256() == gpu.sums_sha256()
    expect_that(same, "the same sums on a GPU as on the host", "others", FEATURES)
    scores, others = host.scores(x), gpu.scores(x).cpu()
    near = torch.allclose(scores, others, rtol=1e-3, atol=1e-3)
    expect_that(near, "the scores of the host on a GPU", "others", SCORE_METHODS)


# ---- helpers


def _samples() -> Batch:
    """Returns images and labels, class after class."""
    dataset = small_stream().dataset
    return dataset.train_x, dataset.train_y


def _cut(x: Tensor, y: Tensor, size: int) -> list[Batch]:
    return list(zip(torch.split(x, size), torch.split(y, size), strict=True))


def _taught(
    method: ClosedFormMethod,
    batches: Iterable[tuple[Tensor, Tensor | list[str]]],
    after: Callable[[ClosedForm], object] = lambda _: None,
    **settings: str,
) -> ClosedForm:
    """Returns a new learner that has learned the batches; calls `after` after each."""
    learner = make_learner(method, **settings)
    for x, y in batches:
        learner.learn(x, y)
        after(learner)
    return learner


def _expect_same(
    wanted: ClosedForm, found: ClosedForm, how: str, x: Tensor, at: str = FEATURES
) -> None:
    """Raises ExpectationError unless two learners have the same classes, sums and scores."""
    expect_that(found.classes == wanted.classes, f"the same classes {how}", found.classes, at)
    same = wanted.sums_sha256() == found.sums_sha256()
    expect_that(same, f"the same samples to give the same sums {how}", "others", at)
    equal = torch.equal(wanted.scores(x), found.scores(x))
    expect_that(equal, f"the same samples to give the same scores {how}", "others", "solve")
