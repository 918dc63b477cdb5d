"""Tests of merging and unlearning: shards in any tree, samples taken out again, refusals."""

import copy
import threading

import pytest
import torch
from closed_forms import FEW, LEARNERS, expect_same, learned, made_samples, permutation, seeds
from hypothesis import given
from hypothesis import strategies as st

import onepass
from onepass import ER, NCM, SLDA, InputError, KernelLDA, NotFittedError, RanPAC, Ridge

every = pytest.mark.parametrize("name", LEARNERS)
kinds = st.sampled_from(["vectors", "short", "images"])


def state_of(learner):
    """Returns all that a refused call must leave as it was."""
    state = learner.state_dict()
    state.pop("steps")
    return learner.sums_sha256(), learner.steps, learner.classes, repr(learner), str(state)


def expect_refused(act, says, *learners):
    before = [state_of(learner) for learner in learners]
    with pytest.raises(InputError, match=says) as refused:
        act()
    assert "\n" not in str(refused.value)
    assert [state_of(learner) for learner in learners] == before


# ---- merging


@every
@FEW
@given(kind=kinds, seed=seeds, data=st.data())
def test_shards_merged_in_any_tree_are_one_learner(name, kind, seed, data):
    x, y = made_samples(kind, seed=seed)
    shards = [
        learned(LEARNERS[name](), x[part], y[part])
        for part in permutation(len(y), seed).tensor_split(7)
    ]
    while len(shards) > 1:
        first = shards.pop(data.draw(st.integers(0, len(shards) - 1)))
        second = shards[data.draw(st.integers(0, len(shards) - 1))]
        assert second.merge(first) is second
    expect_same(shards[0], learned(LEARNERS[name](), x, y), x)


@every
def test_classes_may_differ(name):
    x, y = made_samples()
    low, high = (learned(LEARNERS[name](), x[own], y[own]) for own in (y < 2, y >= 2))
    low.scores(x)  # solved, and solved again after the merge
    expect_same(copy.deepcopy(low).merge(high), learned(LEARNERS[name](), x, y), x)
    expect_same(high.merge(low), learned(LEARNERS[name](), x, y), x)


@every
def test_a_fresh_learner_is_nothing_to_merge_and_takes_everything(name):
    x, y = made_samples()
    learner = learned(LEARNERS[name](), x, y)
    expect_same(LEARNERS[name]().merge(learner), learner, x)
    before = state_of(learner)
    learner.merge(LEARNERS[name]())
    assert state_of(learner) == before
    fresh = LEARNERS[name]().merge(LEARNERS[name]())
    assert fresh.classes == []
    expect_same(learned(fresh, x, y), learner, x)


@every
def test_the_other_learner_stays_as_it_was_and_both_learn_on(name, tmp_path):
    x, y = made_samples()
    one, other = learned(LEARNERS[name](), x[:20], y[:20]), learned(
        LEARNERS[name](), x[20:40], y[20:40]
    )  # fmt: skip
    before = state_of(other)
    one.merge(other)
    assert state_of(other) == before
    assert one.steps == 4
    one.save(tmp_path / "merged.pt")
    opened = onepass.open(tmp_path / "merged.pt")
    for learner in (one, opened):
        expect_same(learned(learner, x[40:], y[40:]), learned(LEARNERS[name](), x, y), x)
    expect_same(learned(other, x[:20], y[:20]).merge(learned(LEARNERS[name](), x[40:], y[40:])),
                one, x)  # fmt: skip


def test_clipped_values_add_up():
    x = torch.tensor([[100.0, 0, -65]])
    assert learned(NCM(), x, [0]).merge(learned(NCM(), x, [0])).clipped == 4


@pytest.mark.parametrize(
    ("one", "other", "kind", "says"),
    [
        (SLDA(), Ridge(), "short", "slda can only be merged with slda, not with ridge"),
        (RanPAC(width=9), RanPAC(width=9, seed=1), "short", "projection is "),
        (KernelLDA(width=9), KernelLDA(width=9, seed=1), "short", "projection is "),
        (KernelLDA(width=9), KernelLDA(width=9, gamma=3.0), "short", "projection is "),
        (RanPAC(width=9), RanPAC(width=8), "short", "width is 9 here and 8 there"),
        (NCM(), NCM(scale=2.0), "short", "scale is 1.0 here and 2.0 there"),
        (NCM(), NCM(mean=(0.5,), std=(1.0,)), "vectors", "mean is None here and "),
        (NCM(mean=(0.5,), std=(2.0,)), NCM(mean=(0.5,), std=(1.0,)), "images", "std is "),
        (NCM(halflife=5.0), NCM(), "short", "halflife is 5.0 here and None there"),
        (NCM(halflife=5.0), NCM(halflife=5.0), "short", "merge needs exact sums"),
    ],
)
def test_learners_that_do_not_fit_are_refused(one, other, kind, says):
    x, y = made_samples(kind)
    fresh, one, other = (copy.deepcopy(learner) for learner in (one, one, other))
    learned(one, x, y), learned(other, x, y)
    expect_refused(lambda: one.merge(other), says, one, other)
    with pytest.raises(InputError):
        fresh.merge(other)
    assert repr(fresh) == repr(type(fresh)(**fresh.get_params()))
    expect_same(learned(fresh, x, y), one, x)


def test_a_seed_without_random_numbers_does_not_matter():
    x, y = made_samples()
    expect_same(
        learned(SLDA(), x[:30], y[:30]).merge(learned(SLDA(seed=9), x[30:], y[30:])),
        learned(SLDA(seed=5), x, y),
        x,
    )


@every
def test_samples_of_another_kind_are_refused(name):
    x, y = made_samples("vectors")
    one = learned(LEARNERS[name](), x, y)
    for kind in ("short", "images"):
        other = learned(LEARNERS[name](), *made_samples(kind))
        expect_refused(lambda other=other: one.merge(other), "samples is float32 \\[33\\]", one,
                       other)  # fmt: skip
    texts = learned(LEARNERS[name](), x, [f"class {label}" for label in y.tolist()])
    expect_refused(lambda: one.merge(texts), "are whole numbers, not 'class", one, texts)


@pytest.mark.parametrize("other", [3, None, "slda.pt", ER(), object()])
def test_only_learners_can_be_merged(other):
    one = learned(SLDA(), *made_samples())
    expect_refused(lambda: one.merge(other), "slda can only be merged with slda, not with", one)


def test_a_learner_cannot_be_merged_with_itself():
    one = learned(SLDA(), *made_samples())
    expect_refused(lambda: one.merge(one), "with itself: every sample would count twice", one)


def test_two_threads_that_merge_the_same_two_learners_both_end():
    x, y = made_samples()
    for _ in range(30):
        one, other = learned(NCM(), x, y), learned(NCM(), x, y)
        threads = [
            threading.Thread(target=a.merge, args=(b,), daemon=True)
            for a, b in ((one, other), (other, one))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)
        assert not any(thread.is_alive() for thread in threads)
        assert sorted([one._sums.samples, other._sums.samples]) == [120, 180]


# ---- unlearning


@every
@FEW
@given(kind=kinds, seed=seeds, share=st.floats(0.05, 0.95))
def test_samples_taken_out_were_never_there(name, kind, seed, share):
    x, y = made_samples(kind, seed=seed)
    out = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < share
    out[0], out[1] = True, False
    learner = learned(LEARNERS[name](), x, y)
    learner.scores(x)
    for part in torch.split(out.nonzero().flatten(), 9):
        learner.unlearn(x[part], y[part])
    expect_same(learner, learned(LEARNERS[name](), x[~out], y[~out], batch=3), x)


@every
def test_a_whole_class_goes_and_comes_back(name, tmp_path):
    x, y = made_samples()
    learner, out = learned(LEARNERS[name](), x, y), y == 2
    report = learner.unlearn(x[out], y[out])
    gone, left = int(out.sum()), int((~out).sum())
    assert (report.samples, report.left, report.gone) == (gone, left, [2])
    assert str(report) == (
        f"{gone} samples unlearned, {left} are left; without samples, and so gone: 2"
    )
    assert learner.classes == [0, 1, 3]
    expect_same(learner, learned(LEARNERS[name](), x[~out], y[~out]), x)
    learner.save(tmp_path / "less.pt")
    opened = onepass.open(tmp_path / "less.pt")
    for one in (learner, opened):
        expect_same(learned(one, x[out], y[out]), learned(LEARNERS[name](), x, y), x)


@every
def test_everything_can_be_unlearned_and_learned_again(name, tmp_path):
    x, y = made_samples()
    learner = learned(LEARNERS[name](), x, y)
    assert learner.unlearn(x, y).gone == [0, 1, 2, 3]
    assert learner.classes == []
    with pytest.raises(NotFittedError, match="unlearned all that it learned"):
        learner.predict(x)
    with pytest.raises(NotFittedError, match="nothing to unlearn"):
        learner.unlearn(x, y)
    learner.save(tmp_path / "empty.pt")
    opened = onepass.open(tmp_path / "empty.pt")
    for one in (learner, opened):
        again = learned(copy.deepcopy(one), x, y)
        expect_same(again, learned(LEARNERS[name](), x, y), x)
        one.merge(again)
        expect_same(one, again, x)


@every
def test_a_shard_can_be_taken_out_of_a_merge(name):
    x, y = made_samples()
    one, other = learned(LEARNERS[name](), x[:40], y[:40]), learned(
        LEARNERS[name](), x[40:], y[40:]
    )  # fmt: skip
    one.merge(other).unlearn(x[:40], y[:40])
    expect_same(one, other, x)


@every
def test_samples_that_cannot_have_been_learned_are_refused(name):
    x, y = made_samples()
    learner = learned(LEARNERS[name](), x, y)
    own, other = y == 1, y == 3
    most = int(own.sum())
    cases = [
        (x[:1], [9], "label 9 has not been learned: see learner.classes"),
        (x[:1], ["cat"], "label 'cat' has not been learned"),
        (
            torch.cat([x[own], x[:1]]),
            [1] * (most + 1),
            f"{most} samples of 1 were learned",
        ),
        (x[~own][:most], [1] * most, "as many, with another sum"),
        (x[:2, :5], y[:2], "x: "),
        (x[:2], y[:3], "y must hold one label"),
    ]
    for samples, labels, says in cases:
        act = lambda samples=samples, labels=labels: learner.unlearn(samples, labels)  # noqa: E731
        expect_refused(act, says, learner)
    swapped = x.clone()
    swapped[own.nonzero()[0]], swapped[other.nonzero()[0]] = x[other][0], x[own][0]
    expect_refused(lambda: learner.unlearn(swapped, y), "another sum", learner)


def test_samples_with_equal_sums_and_other_products_are_refused():
    learner = learned(SLDA(), torch.tensor([[1.0, 1], [-1, -1]]), [0, 0])
    act = lambda: learner.unlearn(torch.tensor([[1.0, -1], [-1, 1]]), [0, 0])  # noqa: E731
    expect_refused(act, "as many, with other products", learner)


def test_fading_sums_cannot_be_unlearned():
    x, y = made_samples()
    learner = learned(NCM(halflife=5.0), x, y)
    expect_refused(lambda: learner.unlearn(x, y), "unlearn needs exact sums: with halflife=5",
                   learner)  # fmt: skip


# ---- the right call for each kind of method


@every
def test_a_closed_form_has_nothing_to_forget(name):
    learner = learned(LEARNERS[name](), *made_samples())
    expect_refused(lambda: learner.forget(1), "keeps no samples: unlearn\\(x, y\\)", learner)


@pytest.mark.parametrize("learner", [ER(), onepass.Finetune()])
def test_a_network_can_neither_unlearn_nor_be_merged(learner):
    x, y = made_samples()
    with pytest.raises(InputError, match="cannot unlearn samples: closed-form methods can"):
        learner.unlearn(x, y)
    with pytest.raises(InputError, match="cannot be merged: closed-form methods can"):
        learner.merge(learner)
