"""MIR: scores in closed form and at limits, and whole steps against plain loops."""

import naive_linear as naive
import pytest
import torch
from expected_settings import COMPARABLE, PLAIN_SGD, defaults, official
from tiny_learners import Magnify, flat, on_every_forward, small
from torch import nn

from onepass import ER, Finetune
from onepass.base.errors import InputError
from onepass.base.parts import Samples
from onepass.base.settings import construct
from onepass.functional.losses import cross_entropy
from onepass.methods.mir import MIR, highest_scored


def mir(**changed):
    learner = small(MIR, **{"replay": 5, "candidates": 12, **changed})
    learner.prepare((naive.FEATURES,), torch.float32)
    return learner


def taught(**changed):
    learner = mir(**changed)
    naive.teach(learner, "tasks")
    return learner


def a_stream(*rows):
    return Samples(naive.vectors(len(rows)), torch.tensor(rows), torch.ones(len(rows)))


def numbered(*weight):
    place = torch.arange(len(weight))
    return Samples(place.unsqueeze(1).float(), place, torch.tensor(weight))


def stored(learner):
    held = int(learner.store.size)
    return Samples(learner.store.x[:held], learner.store.y[:held], torch.ones(held))


def stream_gradient(learner, stream):
    return learner.trainer.gradients(cross_entropy(*learner.forward(stream), among=learner.seen))


# ---- choosing


def test_the_highest_scores_are_chosen():
    some = numbered(*[1.0] * 6)
    got = highest_scored(torch.tensor([0.3, -1.0, 2.0, 0.1, -5.0, 0.2]), some, 3)
    assert got.y.tolist() == [2, 0, 5] and got.x.flatten().tolist() == [2, 0, 5]


def test_padding_is_chosen_last():
    some = numbered(1.0, 1.0, 0.0, 1.0, 0.0)
    scores = torch.tensor([-3.0, -2.0, 9.0, -1.0, 8.0])
    assert highest_scored(scores, some, 3).y.tolist() == [3, 1, 0]
    four = highest_scored(scores, some, 4)
    assert four.y[:3].tolist() == [3, 1, 0] and four.weight.tolist() == [1, 1, 1, 0]


# ---- scores


@pytest.mark.parametrize("net", [Magnify(), "mlp"], ids=["linear", "mlp"])
def test_scores_are_the_rise_of_each_samples_loss_in_a_real_step(net):
    learner, other = taught(net=net, lr=0.1), taught(net=net, lr=0.1)
    stream = a_stream(5, 6, 6)
    memory = stored(learner)
    got = learner.interference(memory, stream_gradient(learner, stream))
    before = losses(other, memory)
    other.descend(cross_entropy(*other.forward(stream), among=other.seen))
    torch.testing.assert_close(got, losses(other, memory) - before, rtol=1e-4, atol=1e-5)
    assert float(got.std()) > 0.01


@torch.no_grad()
def losses(learner, some):
    logits = learner.model(some.x)[:, : len(learner.classes)]
    return nn.functional.cross_entropy(logits, some.y, reduction="none")


def test_for_small_steps_a_score_is_minus_lr_times_the_product_of_gradients():
    learner = taught(lr=1e-3)
    stream = a_stream(5, 2)
    g = stream_gradient(learner, stream)
    memory = stored(learner)
    theta, seen = naive.weights(learner), set(range(7))
    of_stream = naive.gradient(theta, naive.weighted(stream), seen)
    products = [
        -naive.dot(of_stream, naive.gradient(theta, [sample], seen))
        for sample in naive.weighted(memory)
    ]
    got = learner.interference(memory, g) / learner.lr
    torch.testing.assert_close(got, torch.tensor(products), rtol=0.01, atol=0.01)


def test_a_step_of_length_zero_has_zero_scores():
    learner = taught(lr=1e-30)  # too short to change any parameter
    stream = a_stream(5)
    scores = learner.interference(stored(learner), stream_gradient(learner, stream))
    assert not bool(scores.any())


@pytest.mark.parametrize("net", [Magnify(), "mlp"], ids=["linear", "mlp"])
def test_a_stream_sample_as_candidate_has_a_negative_score(net):
    learner = taught(net=net, lr=1e-2)
    for row in range(7):
        stream = a_stream(row)
        assert learner.interference(stream, stream_gradient(learner, stream)).item() < 0


def batchnorm():
    linear = nn.Linear(naive.FEATURES, 8)
    linear.weight.data.copy_(naive.vectors(8) / 2)
    linear.bias.data.zero_()
    return nn.Sequential(linear, nn.BatchNorm1d(8), nn.ReLU())


def test_a_score_does_not_depend_on_the_other_candidates():
    learner = taught(net=batchnorm(), lr=0.1)
    stream = a_stream(5, 6, 6)
    g = stream_gradient(learner, stream)
    memory = stored(learner)
    each = [
        learner.interference(Samples(*(part[i : i + 1] for part in memory)), g)
        for i in range(len(memory.y))
    ]
    torch.testing.assert_close(learner.interference(memory, g), torch.cat(each), rtol=0, atol=1e-5)


def test_candidates_are_scored_without_augmentation():
    learner = MIR(net=nn.Flatten(), memory=30, replay=2, candidates=8, mirror=True, device="cpu")
    images = torch.arange(480).view(10, 3, 4, 4).to(torch.uint8)
    learner.learn(images, [0, 1] * 5)
    g = [torch.ones_like(parameter) for parameter in learner.trainer.trainable]
    memory = stored(learner)
    state = learner.trainer.rngs["augmentation"].get_state()
    first, second = (learner.interference(memory, g) for _ in range(2))
    assert len(first) == len(memory.y) and torch.equal(first, second)
    assert torch.equal(state, learner.trainer.rngs["augmentation"].get_state())


# ---- whole steps


def as_set(pairs):
    return {(tuple(x), y) for x, y in pairs}


CASES = [
    *((name, {}) for name in naive.STREAMS),
    ("tasks", {"memory": 200, "replay": 10, "candidates": 50}),
    ("tasks", {"candidates": 5}),
    ("tasks", {"replay": 1}),
    ("tasks", {"memory": 2}),
    ("tasks", {"memory": 0}),
    ("tasks", {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}),
    ("tasks", {"optimizer": "nesterov", "lr": 0.1}),
    ("short batches", {"memory": 0}),
]


@pytest.mark.parametrize(("name", "changed"), CASES, ids=str)
def test_every_step_agrees_with_plain_loops(name, changed):
    learner = mir(**changed)
    drawn, trained = (
        naive.record_calls(learner.store, "draw"),
        naive.record_calls(learner, "forward"),
    )
    chosen_from_more = 0
    for step, theta, stream, seen, held, _ in naive.naive_steps(learner, name):
        candidates = naive.weighted(drawn[-1][1])
        assert len(candidates) == min(learner.candidates, held)
        g = naive.gradient(theta, stream, seen)
        virtual = naive.add_scaled(theta, g, -learner.lr)

        def score(sample, theta=theta, virtual=virtual, seen=seen):
            return naive.loss(virtual, *sample, seen) - naive.loss(theta, *sample, seen)

        ranked = sorted(candidates, key=score, reverse=True)
        replayed = naive.weighted(trained[-1][0])
        if len(seen) > 1:  # else all scores are 0
            assert as_set(replayed) == as_set(ranked[: learner.replay])
        assert len(replayed) == min(learner.replay, len(candidates))
        chosen_from_more += len(candidates) > len(replayed)
        terms = {"stream": stream, "replay": replayed}
        for term, some in terms.items():
            mean = naive.mean_loss(theta, some, seen)
            assert step.terms[term].item() == pytest.approx(mean, rel=1e-4, abs=1e-5)
        assert step.loss.item() == pytest.approx(sum(map(float, step.terms.values())), rel=1e-6)
        if learner.optimizer == "sgd":
            both = naive.add_scaled(g, naive.gradient(theta, replayed, seen), 1)
            expected = naive.add_scaled(theta, both, -learner.lr)
            got = torch.tensor(naive.weights(learner))
            torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    settings = {"memory": 30, "replay": 5, "candidates": 12, **changed}
    if min(settings["memory"], settings["candidates"]) > settings["replay"]:
        assert chosen_from_more


@pytest.mark.parametrize(("memory", "replay"), [(40, 12), (8, 12)])
def test_with_as_many_candidates_as_replays_it_is_experience_replay(memory, replay):
    chosen = {"net": "mlp", "lr": 0.05, "memory": memory, "replay": replay}
    learner = mir(**chosen, candidates=replay)
    er = small(ER, **chosen, forwards="separate", loss="sum")
    torch.testing.assert_close(
        naive.teach(learner, "tasks"), naive.teach(er, "tasks"), rtol=0, atol=1e-4
    )
    other = naive.teach(mir(**chosen, candidates=5 * replay), "tasks")
    if memory > replay:
        assert float((other - flat(er)).abs().max()) > 1e-3


def test_without_memory_it_is_finetuning():
    learner, plain = mir(net="mlp", memory=0), small(Finetune, net="mlp")
    assert torch.equal(naive.teach(learner, "tasks"), naive.teach(plain, "tasks"))


def test_with_the_whole_memory_as_candidates_the_most_harmed_samples_are_replayed():
    learner = taught(candidates=60)
    x, y = naive.vectors(4), torch.tensor([5, 6, 6, 5])
    stream = Samples(x, y, torch.ones(4))
    scores = learner.interference(stored(learner), stream_gradient(learner, stream))
    worst = highest_scored(scores, stored(learner), learner.replay)
    trained = naive.record_calls(learner, "forward")
    learner.learn(x, y)
    assert as_set(naive.weighted(trained[-1][0])) == as_set(naive.weighted(worst))


@pytest.mark.parametrize(("mirror", "copies"), [(False, 1), (True, 2)])
def test_scoring_makes_two_evaluation_forwards_between_two_training_forwards(mirror, copies):
    kept = []
    learner = MIR(net=nn.Flatten(), memory=30, replay=4, candidates=9, mirror=mirror, device="cpu")
    learner.prepare((3, 4, 4), torch.uint8)
    on_every_forward(
        learner,
        lambda module, given, out: kept.append(
            (len(out), module.training, torch.is_grad_enabled())
        ),
    )
    images = torch.arange(480).view(10, 3, 4, 4).to(torch.uint8)
    for _ in range(2):
        learner.learn(images, [0, 1] * 5)
    scoring = (9, False, False)
    training = [(10 * copies, True, True), scoring, scoring, (4 * copies, True, True)]
    assert kept == training * 2
    assert learner.cost(10) == (14 * copies, 18)


def test_scoring_does_not_move_batchnorms_statistics():
    """The statistics are those of two training forward passes, of the stream batch and of the
    replay."""
    learner = taught(net=batchnorm(), lr=0.1)
    body = learner.model.body
    linear, norm = body[0], body[1]
    trained = naive.record_calls(learner, "forward")
    x = naive.vectors(4)
    weight, bias = linear.weight.detach().clone(), linear.bias.detach().clone()
    expected = norm.running_mean.clone()
    learner.learn(x, torch.tensor([5, 6, 6, 5]))
    for some, _ in trained:
        features = some.x @ weight.T + bias
        expected = 0.9 * expected + 0.1 * features.mean(dim=0)
    torch.testing.assert_close(norm.running_mean, expected, rtol=1e-4, atol=1e-5)


def test_replay_is_padded_at_weight_zero_until_the_memory_has_enough():
    learner = mir(replay=16, candidates=20)
    x, y = naive.vectors(10), [0, 1] * 5
    steps = [learner.learn(x, y) for _ in range(3)]
    assert steps[0].terms["replay"].item() == 0
    assert [int(step.outputs[1].weight.sum()) for step in steps] == [0, 10, 16]
    assert [len(output.y) for output in steps[0].outputs] == [10, 16]


@pytest.mark.parametrize("name", ["tasks", "old classes come back", "one class at a time"])
@pytest.mark.parametrize("memory", [0, 30])
def test_logits_of_ten_thousand_keep_everything_finite(name, memory):
    learner = mir(net=Magnify(1e5), memory=memory)
    assert bool(torch.isfinite(naive.teach(learner, name)).all())
    assert float(learner.scores(torch.ones(1, naive.FEATURES)).abs().max()) > 1e4


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"memory": -1}, "memory"),
        ({"replay": 0}, "replay"),
        ({"candidates": 0}, "candidates"),
        ({"candidates": 50}, "candidates must be at least 64"),
        ({"candidates": 320.0}, "candidates"),
        ({"replay": 321}, "candidates"),
        ({"lr": 0.0}, "lr"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(changed, named):
    with pytest.raises(InputError, match=named):
        MIR(**changed)


def test_the_default_keeps_the_official_five_candidates_for_each_replay():
    official = MIR.presets["official"].settings
    assert MIR().candidates / MIR().replay == official["candidates"] / official["replay"] == 5


def test_the_official_preset_learns():
    learner = construct(MIR, **MIR.presets["official"].settings, net="mlp", device="cpu")
    assert (learner.optimizer, learner.lr, learner.replay) == ("sgd", 0.1, 10)
    assert bool(torch.isfinite(naive.teach(learner, "tasks")).all())


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "candidates": 320}
    assert defaults(MIR, expected) == expected


def test_the_official_preset_has_the_values_of_its_source():
    assert official(MIR) == {**PLAIN_SGD, "candidates": 50}
