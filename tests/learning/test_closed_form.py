"""Tests of closed-form learners: any order and cut, saving, predicting, modes, bounds, fading."""

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from closed_forms import FEW, LEARNERS, expect_same, learned, made_samples, permutation, seeds
from hypothesis import given
from hypothesis import strategies as st

import onepass
from onepass import NCM, SLDA, CheckpointError, InputError, NotFittedError, RanPAC, Ridge
from onepass.functional import exact
from onepass.functional.closed_form import Moments, discriminant, nearest_mean
from onepass.learning import closed_form

every = pytest.mark.parametrize("name", LEARNERS)
KINDS = ["vectors", "short", "images"]
kinds = st.sampled_from(KINDS)


# ---- any order, any cut


@every
@FEW
@given(kind=kinds, seed=seeds, batch=st.sampled_from([1, 7, 10, 1000]), block=st.integers(1, 80))
def test_order_batches_and_blocks_change_no_bit(name, kind, seed, batch, block):
    x, y = made_samples(kind, seed=seed)
    expected = learned(LEARNERS[name](), x, y)
    order = permutation(len(y), seed)
    before, closed_form.BLOCK = closed_form.BLOCK, block
    try:
        found = learned(LEARNERS[name](), x[order], y[order], batch)
    finally:
        closed_form.BLOCK = before
    expect_same(found, expected, x)
    assert found.classes == sorted(set(y.tolist()))


@every
def test_float64_input_of_equal_values_changes_no_bit(name):
    x, y = made_samples()
    expect_same(learned(LEARNERS[name](), x.double(), y), learned(LEARNERS[name](), x, y), x)


@every
def test_labels_that_are_text_are_sorted(name):
    x, y = made_samples()
    texts = [["dog", "ant", "cow", "cat"][label] for label in y.tolist()]
    learner = learned(LEARNERS[name](), x, texts)
    assert learner.classes == ["ant", "cat", "cow", "dog"]
    assert (learner.predict(x) == texts).mean() > 0.5
    order = permutation(len(y), 3)
    again = learned(LEARNERS[name](), x[order], [texts[index] for index in order.tolist()], 7)
    expect_same(again, learner, x)


@every
def test_asking_between_batches_changes_no_bit(name):
    x, y = made_samples()
    asked, left = LEARNERS[name](), learned(LEARNERS[name](), x, y)
    for start in range(0, len(y), 10):
        asked.learn(x[start : start + 10], y[start : start + 10])
        asked.predict(x)
        asked.sums_sha256()
        asked.new_task()
    expect_same(asked, left, x)


@every
def test_one_more_sample_changes_the_hash(name):
    x, y = made_samples()
    learner = learned(LEARNERS[name](), x, y)
    before = learner.sums_sha256()
    learner.learn(x[:1], y[:1])
    assert learner.sums_sha256() != before


def test_what_gives_sums_their_meaning_is_in_the_hash():
    x, y = made_samples("short")
    made = [
        NCM(), NCM(scale=2.0), NCM(mean=(0.5,), std=(2.0,)), SLDA(), Ridge(), RanPAC(width=9),
        RanPAC(width=8), RanPAC(width=8, seed=1), onepass.KernelLDA(width=8),
        onepass.KernelLDA(width=8, seed=1), onepass.KernelLDA(width=8, gamma=2.0),
        NCM(halflife=9.0),
    ]  # fmt: skip
    hashes = {learned(learner, x, y).sums_sha256() for learner in made}
    assert len(hashes) == len(made)
    assert learned(NCM(seed=1), x, y).sums_sha256() in hashes  # it has no random numbers


# ---- modes and processes

PRINT_HASHES = """
import json, sys
import torch
from closed_forms import LEARNERS, learned, made_samples

x, y = made_samples()
made = [learned(make(), x, y) for make in LEARNERS.values()]
print(json.dumps([[one.sums_sha256(), one.predict(x).tolist()] for one in made]))
"""


def hashes(**environment):
    """Returns hashes and predictions of all learners in a process of its own."""
    helpers = str(Path(__file__).parents[1] / "helpers")
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([helpers, *sys.path]), **environment}
    command = [sys.executable, "-c", PRINT_HASHES]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def own_hashes(kind="vectors"):
    x, y = made_samples(kind)
    made = [learned(make(), x, y) for make in LEARNERS.values()]
    return [[one.sums_sha256(), one.predict(x).tolist()] for one in made]


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
        {"OMP_NUM_THREADS": "2"},
        {"OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default",
         "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2",
         "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    ],
    ids=["bf16", "two threads", "sse", "avx2"],
)  # fmt: skip
def test_other_processes_have_the_same_sums(environment):
    assert hashes(**environment) == own_hashes()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["medium", "autocast", "float64"])
def test_modes_change_no_bit(mode, kind, threads):
    expected = own_hashes(kind)
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(threads)
    try:
        if mode == "medium":
            torch.set_float32_matmul_precision("medium")
        if mode == "float64":
            torch.set_default_dtype(torch.float64)
        with torch.autocast("cpu", enabled=mode == "autocast"):
            found = own_hashes(kind)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
    assert found == expected


@every
def test_predicting_in_inference_mode_leaves_a_learner_that_learns(name):
    x, y = made_samples()
    expected = learned(LEARNERS[name](), x, y)
    learner = learned(LEARNERS[name](), x[:30], y[:30])
    with torch.inference_mode():
        learner.predict(x)
        learner.snapshot()
        learner.sums_sha256()
    expect_same(learned(learner, x[30:], y[30:]), expected, x)


# ---- copies and files


def saved_and_opened(learner, folder):
    learner.save(folder / "learner.pt")
    return onepass.open(folder / "learner.pt")


COPIES = {
    "deepcopy": lambda learner, _: copy.deepcopy(learner),
    "pickle": lambda learner, _: pickle.loads(pickle.dumps(learner)),
    "file": saved_and_opened,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", KINDS)
@every
def test_copies_and_files_go_on_as_the_original(name, kind, how, tmp_path):
    x, y = made_samples(kind)
    expected = learned(LEARNERS[name](), x, y)
    learner = learned(LEARNERS[name](), x[:35], y[:35])
    learner.learn(x[35:36], y[35:36])  # it waits in the buffer
    copied = COPIES[how](learner, tmp_path)
    expect_same(copied, learner, x)
    assert copied.steps == learner.steps
    expect_same(learned(copied, x[36:], y[36:]), expected, x)
    assert learner.sums_sha256() != expected.sums_sha256()


@every
def test_a_snapshot_stays_as_it_is(name):
    x, y = made_samples()
    learner = learned(LEARNERS[name](), x[:30], y[:30])
    taken, before = learner.snapshot(), learner.scores(x)
    learned(learner, x[30:], y[30:])
    assert torch.equal(taken.scores(x), before)
    assert not torch.equal(learner.scores(x), before)


def test_the_classifier_is_solved_once_until_something_is_learned(monkeypatch):
    solved = []
    solve = SLDA.solve
    monkeypatch.setattr(SLDA, "solve", lambda own, given: solved.append(1) or solve(own, given))
    x, y = made_samples()
    learner = learned(SLDA(), x, y)
    assert not solved
    for _ in range(3):
        learner.predict(x)
        learner.snapshot()
    assert len(solved) == 1
    learner.learn(x[:5], y[:5])
    learner.predict(x)
    assert len(solved) == 2


def damaged(part, change):
    def act(state):
        change(state["sums"][part])

    return act


DAMAGE = {
    "counts not whole": damaged("counts", lambda values: values.add_(0.5)),
    "counts negative": damaged("counts", lambda values: values.neg_()),
    "counts zero": damaged("counts", lambda values: values[:1].zero_()),
    "counts infinite": damaged("counts", lambda values: values.fill_(torch.inf)),
    "totals not whole": damaged("totals", lambda values: values[1].fill_(0.25)),
    "totals nan": damaged("totals", lambda values: values[1].fill_(torch.nan)),
    "totals past the bound": damaged("totals", lambda values: values[0].fill_(2.0**53)),
    "products not whole": damaged("gram", lambda values: values[0, 1:2].fill_(0.5)),
    "products negative": damaged("gram", lambda values: values[2, 2:3].fill_(-1)),
    "products infinite": damaged("gram", lambda values: values.fill_(-torch.inf)),
    "another shape": lambda state: state["sums"].update(counts=torch.ones(9).double()),
    "another dtype": lambda state: state["sums"].update(counts=state["sums"]["counts"].float()),
    "none": lambda state: state.update(sums=None),
    "no gram": lambda state: state["sums"].pop("gram"),
    "clipped negative": lambda state: state.update(clipped=-1),
    "a class more": lambda state: state["book"].update(labels=[0, 1, 2, 3, 9]),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_sums_are_refused(how):
    x, y = made_samples()
    state = learned(SLDA(), x, y).state_dict()
    DAMAGE[how](state)
    learner = SLDA()
    with pytest.raises(CheckpointError):
        learner.load_state_dict(state)
    assert repr(learner) == "SLDA()"
    expect_same(learned(learner, x, y), learned(SLDA(), x, y), x)


def test_damaged_squares_are_refused():
    x, y = made_samples()
    state = learned(NCM(), x, y).state_dict()
    state["sums"]["squares"][3] = -1
    with pytest.raises(CheckpointError, match="squares holds"):
        NCM().load_state_dict(state)


# ---- the bound of 2^53


def forged(learner, x, y, room, counts=False):
    """Returns the learner with sums of x that leave this room below 2^53."""
    state = learned(learner, x, y).state_dict()
    if counts:
        state["sums"]["counts"][0] += 2**53 - 1 - room - state["sums"]["counts"].sum()
    else:
        squares = state["sums"]["squares"]
        squares[0] = 2**53 - 1 - room
    made = type(learner)()
    made.load_state_dict(state)
    return made


@pytest.mark.parametrize("counts", [False, True])
def test_learning_and_merging_stop_before_the_bound(counts):
    x, y = torch.zeros(8, 3), torch.arange(8) % 2
    x[:, 0] = 2 / 64  # 2 grid steps: each sample adds 4 to the squares
    more = learned(NCM(), x, y)
    room = 8 if counts else 32
    for act in (lambda learner: learner.learn(x, y), lambda learner: learner.merge(more)):
        full = forged(NCM(), x, y, room - 1, counts)
        before = full.sums_sha256(), full.steps, full.state_sha256()
        with pytest.raises(InputError, match="sums have reached 2\\^53"):
            act(full)
        assert (full.sums_sha256(), full.steps, full.state_sha256()) == before
        fits = forged(NCM(), x, y, room, counts)
        act(fits)
        assert fits.unlearn(x, y).samples == 8
        assert fits.sums_sha256() == forged(NCM(), x, y, room, counts).sums_sha256()


def test_batches_that_wait_count_towards_the_bound():
    x, y = torch.full((8, 3), 2 / 64), torch.arange(8) % 2
    learner = forged(NCM(), x, y, 32)
    for start in range(8):
        learner.learn(x[start : start + 1], y[start : start + 1])
    with pytest.raises(InputError, match="reached 2"):
        learner.learn(x[:1], y[:1])
    assert bool(torch.isfinite(learner.scores(x)).all())


def test_a_merge_uses_up_room():
    x, y = torch.full((8, 3), 2 / 64), torch.arange(8) % 2
    learner = learned(NCM(), x, y)
    learner.merge(forged(NCM(), x, y, 32 + 31))
    before = learner.sums_sha256()
    with pytest.raises(InputError, match="reached 2"):
        learner.learn(x, y)
    assert learner.sums_sha256() == before
    learner.learn(x[:7], y[:7])
    assert bool(torch.isfinite(learner.scores(x)).all())


# ---- short vectors


def test_clipped_values_are_counted_and_said():
    x, y = made_samples("short")
    learner = learned(NCM(), x, y)
    assert learner.clipped == 0
    assert "clipped" not in repr(learner)
    learner.learn(torch.tensor([[100.0, 0, -65]]), torch.tensor([1]))
    assert learner.clipped == 2
    assert "2 values clipped: choose a smaller scale" in repr(learner)


def test_a_scale_is_the_same_as_multiplying():
    x, y = made_samples("short")
    one, other = learned(SLDA(scale=0.25), x, y), learned(SLDA(), x / 4, y)
    assert torch.equal(one.scores(x), other.scores(x / 4))


@pytest.mark.parametrize("scale", [0.0, -2.0, 3.0, 0.1, 2.0**100])
def test_a_bad_scale_is_refused(scale):
    with pytest.raises(InputError, match="scale must be a power of two"):
        NCM(scale=scale)


def test_a_scale_of_standardised_samples_is_refused():
    x, y = made_samples("vectors")
    learner = NCM(scale=2.0)
    with pytest.raises(InputError, match="scale is for vectors of fewer than 32 values"):
        learner.learn(x, y)
    assert repr(learner) == "NCM(scale=2)"


# ---- fading


def naive_weights(count, batch, halflife):
    """Returns the weight of each sample: it halves with every `halflife` samples that follow its
    batch."""
    ends = [min(index // batch * batch + batch, count) for index in range(count)]
    return [0.5 ** ((count - end) / halflife) for end in ends]


@pytest.mark.parametrize(("kind", "solve"), [(NCM, nearest_mean), (SLDA, discriminant)])
def test_a_half_life_is_a_weighted_sum(kind, solve):
    x, y = made_samples("short")
    learner = learned(kind(halflife=20.0), x, y)
    h = (learner._grid(x) / 64).double()
    w = torch.tensor(naive_weights(len(y), 10, 20.0), dtype=torch.float64)
    one_hot = torch.nn.functional.one_hot(y).double() * w.unsqueeze(1)
    weighted = h * w.unsqueeze(1)
    own = Moments(one_hot.sum(0), one_hot.T @ h, (weighted * h).sum(0), weighted.T @ h)
    linear = solve(own)
    assert torch.allclose(learner.scores(x).double(), h @ linear.weight + linear.bias, rtol=1e-5)


@every
def test_what_has_faded_away_is_still_predicted(name):
    """A million half-lives: the weight of the first class is below the smallest float."""
    x, y = made_samples(classes=2)
    learner = LEARNERS[name](halflife=1e-3)
    learned(learner, x[y == 0], y[y == 0])
    learned(learner, x[y == 1], y[y == 1])
    assert bool(torch.isfinite(learner.scores(x)).all())
    assert learner.classes == [0, 1]


@every
def test_a_half_life_is_saved_and_resumed(name, tmp_path):
    x, y = made_samples()
    learner = learned(LEARNERS[name](halflife=7.0), x[:35], y[:35])
    opened = saved_and_opened(learner, tmp_path)
    for one in (learner, opened):
        learned(one, x[35:], y[35:])
    expect_same(learner, opened, x)


# ---- refusals


@every
def test_nothing_learned_is_said(name):
    learner = LEARNERS[name]()
    with pytest.raises(NotFittedError, match="has learned nothing yet: call learn"):
        learner.predict(torch.zeros(1, 33))
    with pytest.raises(NotFittedError, match="has learned nothing to unlearn"):
        learner.unlearn(torch.zeros(1, 33), [0])


@every
def test_a_batch_that_fails_changes_nothing(name, monkeypatch):
    x, y = made_samples()
    learner = learned(LEARNERS[name](), x[:30], y[:30])
    before = learner.sums_sha256(), learner.steps, learner.classes

    def fail(*_, **__):
        raise MemoryError

    learner.learn(x[30:31], y[30:31])
    with monkeypatch.context() as broken:
        broken.setattr(exact, "class_sums", fail)
        with pytest.raises(onepass.OnepassError):
            learner.learn(x.repeat(20, 1), y.repeat(20))
    assert (learner.steps, learner.classes) == (before[1] + 1, before[2])
    expect_same(learned(learner, x[31:], y[31:]), learned(LEARNERS[name](), x, y), x)


@every
def test_samples_that_are_constant_teach_the_classes(name):
    learner = LEARNERS[name]()
    x = torch.arange(6.0).unsqueeze(1).expand(6, 33)
    learner.learn(x, [0, 1, 2, 0, 1, 2])
    probabilities = learner.scores(x).softmax(dim=1)
    assert torch.allclose(probabilities, torch.full((6, 3), 1 / 3), atol=1e-4)
