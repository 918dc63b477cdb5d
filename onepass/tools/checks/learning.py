"""What learning must be: of any batch, from labels alone, with every part in use."""

from __future__ import annotations

from functools import cache

import torch

from onepass.base.checksum import sha256
from onepass.base.errors import InputError
from onepass.evaluation.loop import evaluate
from onepass.evaluation.probes import PROBES
from onepass.learning.memory_contents import stores_of
from onepass.methods.finetune import Finetune
from onepass.streams import ClassIncremental
from onepass.tools.checks.tools import (
    Method,
    batches,
    dataset,
    device,
    expect,
    make,
    make_wide,
    samples,
    small_stream,
    teach,
)

RATES = (3e-3, 1e-3)


def learn_leaves_its_inputs_alone(method: Method) -> None:
    """The batch is the caller's; what is kept of it is a copy."""
    stream = small_stream()
    learner, other = make(method), make(method)
    for index in range(12):
        x, y = stream.batch(index)
        given_x, given_y = x.clone(), y.clone()
        learner.learn(given_x, given_y)
        expect(torch.equal(x, given_x) and torch.equal(y, given_y), "learn changed its inputs")
        given_x.zero_()  # what the caller does with the batch afterwards must not matter
        other.learn(x, y)
    expect(learner.state_sha256() == other.state_sha256(), "the learner keeps a view of the batch")


def odd_batches_are_learned(method: Method) -> None:
    """One sample, one class, ragged batches, a class first seen amid others: all finite."""
    stream = small_stream()
    x, y = stream.dataset.train_x, stream.dataset.train_y
    learner = make(method)
    order = [[0], [0, 40, 1], [2, 3, 4], [41, 80, 42, 5], [81], [120, 0, 40, 80, 121, 200]]
    for index in order:
        step = learner.learn(x[index], y[index])
        expect(bool(torch.isfinite(step.loss)), f"the loss of batch {index} is {step.loss}")
        expect(bool(torch.isfinite(learner.scores(x)).all()), "a score is not finite")
    expect(learner.classes == [0, 1, 2, 3, 5], "classes must come in order of arrival")


def extreme_inputs_stay_finite(method: Method) -> None:
    """Black, white and constant images, and vectors of size 1e4."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    for value in (0, 255, 127):
        step = learner.learn(torch.full((10, 3, 8, 8), value, dtype=torch.uint8), [0] * 10)
        expect(bool(torch.isfinite(step.loss)), f"the loss on images of {value} is not finite")
    vectors = small_stream(shape=(5,))
    learner = teach(make(method), vectors, last=12)
    step = learner.learn(torch.full((10, 5), 1e4), [0] * 5 + [1] * 5)
    expect(bool(torch.isfinite(step.loss)), "the loss on large vectors is not finite")


def large_logits_do_no_harm(method: Method) -> None:
    """With logits of 1e4 a step is still finite, and so is all that it leaves behind."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    x, y = stream.batch(12)
    with torch.no_grad():
        logits = learner.evaluator(learner.views.normalise(x.to(learner.where)))
        learner.model.head.weight.mul_(1e4 / logits.abs().max())
    step = learner.learn(x, y)
    expect(bool(torch.isfinite(step.loss)), f"the loss is {step.loss}")
    for name, parameter in learner.model.named_parameters():
        expect(bool(torch.isfinite(parameter).all()), f"{name} is no longer finite")
    expect(bool(torch.isfinite(learner.scores(x)).all()), "a score is not finite")


def precisions_agree(method: Method) -> None:
    """The losses of the first steps are those of fp32 in bf16 too, within 2 %."""
    stream = small_stream()
    losses = [
        [float(give(learner).loss) for give in batches(stream, last=4)]
        for learner in (make(method), make(method, precision="bf16"))
    ]
    for exact, rounded in zip(*losses, strict=True):
        near = abs(exact - rounded) < 0.02 * abs(exact) + 0.002
        expect(near, f"the loss is {exact} in fp32, {rounded} in bf16")


def vectors_are_learned_like_images(method: Method) -> None:
    """Float feature vectors are first-class: two separable classes are told apart, at one of two
    learning rates."""
    stream = small_stream(shape=(64,))
    known = stream.dataset.test_y < 2
    x, y = stream.dataset.test_x[known], stream.dataset.test_y[known]

    def right(lr: float) -> float:
        learner = teach(make_wide(method, lr=lr), stream, last=8)
        predicted = torch.as_tensor(learner.predict(x)).cpu()
        return float((predicted == y).float().mean())

    learned = any(right(lr) > 0.9 for lr in RATES)
    expect(learned, "two separable classes of vectors were not learned")


def every_parameter_gets_a_gradient(method: Method) -> None:
    """No part of the network is forgotten by the loss."""
    learner = teach(make(method), small_stream(), last=12)
    trainable = [pair for pair in learner.model.named_parameters() if pair[1].requires_grad]
    for name, parameter in trainable:
        idle = parameter.grad is None or not bool(parameter.grad.any())
        expect(not idle, f"{name} got no gradient")


def memory_reaches_the_gradient(method: Method) -> None:
    """Other labels in the memory give another update: what is stored is really trained on."""
    stream = small_stream()
    learners = [teach(make(method), stream, last=12) for _ in range(2)]
    for store in stores_of(learners[1]):
        store.y.copy_((store.y + 1) % 2)
    for learner in learners:
        teach(learner, stream, first=12, last=13)
    same = learners[0].params_sha256() == learners[1].params_sha256()
    expect(not same, "changing the stored labels changed nothing")


def bad_batches_change_nothing(method: Method) -> None:
    """A batch that is refused leaves the learner as it was."""
    stream = small_stream()
    learner = teach(make(method), stream, last=12)
    before = learner.state_sha256()
    x, y = stream.batch(12)
    refused = [
        (x.float(), y),
        (x[:, :, :4], y),
        (x, y[:-1]),
        (x, y.bool()),
        (x, [f"class {label}" for label in y.tolist()]),
        (x, y + 0.5),
        (x[:0], y[:0]),
    ]
    for bad_x, bad_y in refused:
        try:
            learner.learn(bad_x, bad_y)
        except InputError:
            pass
        else:
            expect(False, f"learn took x {bad_x.dtype} {tuple(bad_x.shape)}, y {bad_y}")
    expect(learner.state_sha256() == before, "a refused batch changed the learner")


def labels_are_only_names(method: Method) -> None:
    """Other labels for the same classes give the same parameters, and predictions by those."""
    stream = small_stream()
    plain, renamed = make(method), make(method)
    for index in range(12):
        x, y = stream.batch(index)
        plain.learn(x, y)
        renamed.learn(x, [f"class {label}" for label in y.tolist()])
    expect(plain.params_sha256() == renamed.params_sha256(), "the value of a label matters")
    x = samples(stream)
    named = [f"class {label}" for label in plain.predict(x).tolist()]
    expect(renamed.predict(x).tolist() == named, "predictions differ")


def nobody_tells_the_future(method: Method) -> None:
    """A stream's beginning gives the same bits whatever comes after it, and whether an evaluation
    or a plain loop brings it."""
    whole = dataset(classes=20)
    groups = [[label, label + 1] for label in range(0, 20, 2)]
    short = ClassIncremental(whole, tasks=groups[:2], seed=1)
    longer = ClassIncremental(whole, tasks=groups, seed=1)
    ends = [teach(make(method), stream, last=len(short)) for stream in (short, longer)]
    ends.append(make(method))
    for _ in evaluate(ends[-1], short):
        pass
    found = {end.state_sha256() for end in ends}
    expect(len(found) == 1, "what is still to come, or the stream object itself, matters")


def boundaries_are_inferred(method: Method) -> None:
    """Without new_task, unseen classes after `gap` batches without any begin a task, and after one
    batch less they do not."""
    stream = small_stream()
    quiet = 7  # batches without an unseen class, of the eight of a task
    learner = make(method, gap=quiet)
    for x, y in stream:
        learner.learn(x, y)
    expect(learner.task == 2, f"{learner.task} boundaries were inferred instead of 2")
    waiting = make(method, gap=quiet + 1)
    for index in range(quiet + 2):
        waiting.learn(*stream.batch(index))
    expect(waiting.task == 0, "a boundary was inferred one batch too early")
    told = make(method, gap=quiet)
    for index, (x, y) in enumerate(stream):
        if stream.starts_task(index):
            told.new_task()
        told.learn(x, y)
    expect(told.params_sha256() == learner.params_sha256(), "inferred boundaries act otherwise")


def the_head_grows(method: Method) -> None:
    """More classes than the head was born for: all are learned, and none is lost."""
    stream = small_stream(classes=20, per_class=10)
    learner = teach(make(method), stream)
    arrivals = dict.fromkeys(label for _, y in stream for label in y.tolist())
    expect(learner.model.head.capacity == 32, "the head must double from 16 to 32")
    expect(learner.classes == list(arrivals), "rows must keep their order of arrival")
    expect(learner.scores(samples(stream)).shape[1] == 20, "a class was lost")


def spare_rows_stay_at_birth(method: Method) -> None:
    """Rows that wait for a class are not moved by decay, and a new class starts from its birth."""
    stream = small_stream()
    learner = teach(make(method, weight_decay=0.1), stream, last=1)
    spare = learner.model.head.weight[8:].detach().clone()
    teach(learner, stream, first=1)
    expect(torch.equal(spare, learner.model.head.weight[8:]), "spare rows moved")


def a_frozen_head_stays(method: Method) -> None:
    """`head="frozen"`: rows train in the first task and no row moves after the first boundary."""
    stream = small_stream()
    learner = teach(make(method, head="frozen"), stream, last=1)
    born = learner.model.head.weight.detach().clone()
    teach(learner, stream, first=1, last=8)
    frozen = learner.model.head.weight.detach().clone()
    expect(not torch.equal(born[:2], frozen[:2]), "the head did not train in the first task")
    teach(learner, stream, first=8)
    expect(torch.equal(frozen, learner.model.head.weight), "a row moved after the first boundary")


def probing_changes_nothing(method: Method) -> None:
    """Probes watch: not one bit of the learner is different."""
    stream = small_stream()
    plain, watched = make(method), make(method)
    everyone = [probe() for probe in PROBES.all().values()]
    for give in batches(stream):
        give(plain)
        step = give(watched)
        for probe in everyone:
            probe.stepped(watched, step)
            probe.task_ended(0)
    expect(plain.state_sha256() == watched.state_sha256(), "the probe disturbed what it measures")


def training_does_not_notice_an_average(method: Method) -> None:
    """With an average or without one: the same network, memory, optimiser and generators, to the
    bit."""
    if "average" in method.cannot:
        return
    stream = small_stream()
    ends = [
        teach(make(method, average=rule, distil=0.0), stream, last=9).state_dict()
        for rule in (None, 0.9)
    ]
    ends[1]["parts"].pop("averaged")
    expect(sha256(ends[0]) == sha256(ends[1]), "the average disturbs what it follows")


def beats_finetuning(method: Method) -> None:
    """On a stream that fine-tuning forgets, the method is at least 20 points above it, at one of
    two learning rates: some heads need a smaller one."""
    floor, best = _floor(device.get()), 0.0
    for lr in RATES:
        best = max(best, _final_accuracy(method, lr))
        if best > floor + 20:
            return
    expect(False, f"accuracy {best:.1f}, fine-tuning {floor:.1f}")


def _final_accuracy(method: Method, lr: float) -> float:
    *_, last = evaluate(make_wide(method, lr=lr), small_stream())
    return last.accuracy


@cache
def _floor(device: str) -> float:
    """What fine-tuning comes to there, which is the same for every method that is compared."""
    return _final_accuracy(Finetune, RATES[0])
