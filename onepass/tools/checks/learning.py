"""Checks of learning: any valid batch works, nothing but batches is needed, and it does learn."""

from __future__ import annotations

from functools import cache

import torch

from onepass.base.errors import InputError
from onepass.evaluation.loop import evaluate
from onepass.evaluation.probes import PROBES
from onepass.learning.memory_contents import stores_of
from onepass.methods.finetune import Finetune
from onepass.streams import ClassIncremental
from onepass.tools.checks.helpers import (
    SCORE_METHODS,
    AnyMethod,
    Method,
    batch_steps,
    device_of_checks,
    expect_finite_values,
    expect_same_state,
    expect_that,
    make_learner,
    make_wide_learner,
    parameter_fingerprints,
    small_dataset,
    small_stream,
    state_fingerprints,
    teach,
    unseen_samples,
)

RATES = (3e-3, 1e-3)  # learning rates to try; some heads need the smaller one


def learn_leaves_its_inputs_alone(method: AnyMethod) -> None:
    """Learning does not change the caller's batch, and keeps copies of its samples."""
    stream = small_stream()
    learner, other = make_learner(method), make_learner(method)
    for index in range(12):
        x, y = stream.batch(index)
        given_x, given_y = x.clone(), y.clone()
        learner.learn(given_x, given_y)
        same = torch.equal(x, given_x) and torch.equal(y, given_y)
        expect_that(same, "learn to leave x and y as they are", "other values in them")
        given_x.zero_()  # the caller may reuse the batch afterwards
        other.learn(x, y)
    wanted = "samples to be copied from the batch"
    expect_same_state(state_fingerprints(other), state_fingerprints(learner), wanted)


def odd_batches_are_learned(method: AnyMethod) -> None:
    """Loss and scores stay finite on batches of one sample, one class or a new class among old."""
    stream = small_stream()
    x, y = stream.dataset.train_x, stream.dataset.train_y
    learner = make_learner(method)
    # indices of samples: the dataset has 40 of class 0, then 40 of class 1, and so on
    order = [[0], [0, 40, 1], [2, 3, 4], [41, 80, 42, 5], [81], [120, 0, 40, 80, 121, 200]]
    for index in order:
        step = learner.learn(x[index], y[index])
        labels = y[index].tolist()
        expect_finite_values(step.loss, f"the loss of a batch with the labels {labels}")
        expect_finite_values(
            learner.scores(x), f"scores after a batch with the labels {labels}", SCORE_METHODS
        )
    arrivals, found = [0, 1, 2, 3, 5], learner.classes
    expect_that(found == arrivals, f"classes in order of arrival, {arrivals}", found, "classes")


def extreme_inputs_stay_finite(method: AnyMethod) -> None:
    """The loss stays finite on black, white and grey images and on vectors of 1e4."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    for value in (0, 255, 127):
        step = learner.learn(torch.full((10, 3, 8, 8), value, dtype=torch.uint8), [0] * 10)
        expect_finite_values(step.loss, f"the loss on images whose pixels are all {value}")
    vectors = small_stream(shape=(5,))
    learner = teach(make_learner(method), vectors, last=12)
    step = learner.learn(torch.full((10, 5), 1e4), [0] * 5 + [1] * 5)
    expect_finite_values(step.loss, "the loss on vectors whose values are all 1e4")


def large_logits_do_no_harm(method: Method) -> None:
    """Loss, parameters and scores stay finite in a step with logits of 1e4."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    x, y = stream.batch(12)
    with torch.no_grad():
        logits = learner.trainer.eval_model(
            learner.views.normalise(x.to(learner.trainer.torch_device))
        )
        learner.model.head.weight.mul_(1e4 / logits.abs().max())
    step = learner.learn(x, y)
    expect_finite_values(step.loss, "the loss at logits of 1e4")
    for name, parameter in learner.model.named_parameters():
        expect_finite_values(parameter, f"{name}, after a step at logits of 1e4,")
    expect_finite_values(learner.scores(x), "scores after a step at logits of 1e4", SCORE_METHODS)


def precisions_agree(method: Method) -> None:
    """The losses of the first four steps in bf16 are within 2 % (plus 0.002) of those in fp32."""
    stream = small_stream()
    losses = [
        [float(give(learner).loss) for give in batch_steps(stream, last=4)]
        for learner in (make_learner(method), make_learner(method, precision="bf16"))
    ]
    for exact, rounded in zip(*losses, strict=True):
        near = abs(exact - rounded) < 0.02 * abs(exact) + 0.002
        expect_that(near, f"a loss in bf16 like that in fp32, {exact:.5g}", f"{rounded:.5g}")


def vectors_are_learned_like_images(method: Method) -> None:
    """Two separable classes of float vectors are learned to over 90 % accuracy.

    It is enough if one of two learning rates does so.
    """
    stream = small_stream(shape=(64,))
    known = stream.dataset.test_y < 2
    x, y = stream.dataset.test_x[known], stream.dataset.test_y[known]

    def right(lr: float) -> float:
        learner = teach(make_wide_learner(method, lr=lr), stream, last=8)
        predicted = torch.as_tensor(learner.predict(x)).cpu()
        return float((predicted == y).float().mean())

    best = 0.0
    for lr in RATES:
        best = max(best, right(lr))
        if best > 0.9:
            return
    wanted = "over 90 % accuracy on two separable classes of vectors"
    expect_that(False, wanted, f"{best:.0%} at best")


def every_parameter_gets_a_gradient(method: Method) -> None:
    """The loss gives every trainable parameter of the network a gradient."""
    learner = teach(make_learner(method), small_stream(), last=12)
    trainable = [pair for pair in learner.model.named_parameters() if pair[1].requires_grad]
    for name, parameter in trainable:
        idle = parameter.grad is None or not bool(parameter.grad.any())
        expect_that(not idle, "every parameter to get a gradient from the loss", f"none for {name}")


def memory_reaches_the_gradient(method: Method) -> None:
    """The stored samples are trained on: with other labels in the memory the update differs."""
    stream = small_stream()
    learners = [teach(make_learner(method), stream, last=12) for _ in range(2)]
    for store in stores_of(learners[1]):
        store.y.copy_((store.y + 1) % 2)
    for learner in learners:
        teach(learner, stream, first=12, last=13)
    same = learners[0].params_sha256() == learners[1].params_sha256()
    expect_that(not same, "another update when the memory has other labels", "the same")


def bad_batches_change_nothing(method: AnyMethod) -> None:
    """A batch that is refused leaves the learner unchanged."""
    stream = small_stream()
    learner = teach(make_learner(method), stream, last=12)
    before = state_fingerprints(learner)
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
            batch = f"x {bad_x.dtype} {tuple(bad_x.shape)} and y {bad_y}"
            expect_that(False, f"an InputError for {batch}", "that learn accepted it", "learn")
    expect_same_state(
        before, state_fingerprints(learner), "refused batches to change nothing", "learn"
    )


def labels_are_only_names(method: AnyMethod) -> None:
    """Renaming the classes changes no parameter; predictions use the new names."""
    stream = small_stream()
    plain, renamed = make_learner(method), make_learner(method)
    for index in range(12):
        x, y = stream.batch(index)
        plain.learn(x, y)
        renamed.learn(x, [f"class {label}" for label in y.tolist()])
    wanted = "the same parameters whatever the classes are called"
    expect_same_state(parameter_fingerprints(plain), parameter_fingerprints(renamed), wanted)
    x = unseen_samples(stream)
    named = [f"class {label}" for label in plain.predict(x).tolist()]
    same = renamed.predict(x).tolist() == named
    expect_that(same, "the same predictions whatever the classes are called", "others", "predict")


def nobody_tells_the_future(method: AnyMethod) -> None:
    """The state after the first tasks does not depend on the tasks that follow.

    It is also the same in `evaluate` and in a plain loop over the batches.
    """
    dataset = small_dataset(classes=20)
    groups = [[label, label + 1] for label in range(0, 20, 2)]
    short = ClassIncremental(dataset, tasks=groups[:2], seed=1)
    longer = ClassIncremental(dataset, tasks=groups, seed=1)
    ends = [teach(make_learner(method), stream, last=len(short)) for stream in (short, longer)]
    ends.append(make_learner(method))
    for _ in evaluate(ends[-1], short):
        pass
    first, second, third = map(state_fingerprints, ends)
    expect_same_state(first, second, "the same state whatever is still to come")
    expect_same_state(first, third, "the same state in an evaluation as in a plain loop")


def boundaries_are_inferred(method: AnyMethod) -> None:
    """Without `new_task`, a task begins when unseen classes come after `gap` batches without any.

    After one batch fewer it does not begin. Inferred boundaries act like announced ones.
    """
    stream = small_stream()
    quiet = 7  # of the eight batches of a task, all but the first have no unseen class
    learner = make_learner(method, gap=quiet)
    for x, y in stream:
        learner.learn(x, y)
    expect_that(learner.task == 2, "2 inferred boundaries", learner.task, "learn")
    waiting = make_learner(method, gap=quiet + 1)
    for index in range(quiet + 2):
        waiting.learn(*stream.batch(index))
    wanted = f"no boundary after {quiet} batches without an unseen class, at gap={quiet + 1}"
    expect_that(waiting.task == 0, wanted, "a boundary", "learn")
    announced = make_learner(method, gap=quiet)
    for index, (x, y) in enumerate(stream):
        if stream.starts_task(index):
            announced.new_task()
        announced.learn(x, y)
    wanted = "inferred boundaries to act like announced ones"
    expect_same_state(
        parameter_fingerprints(announced),
        parameter_fingerprints(learner),
        wanted,
        "on_task_end step",
    )


def the_head_grows(method: Method) -> None:
    """The class head doubles when it is full, and no class is lost."""
    stream = small_stream(classes=20, per_class=10)
    learner = teach(make_learner(method), stream)
    arrivals = dict.fromkeys(label for _, y in stream for label in y.tolist())
    capacity, found = learner.model.head.capacity, learner.classes
    expect_that(
        capacity == 32, "a head that doubles from 16 rows to 32", f"{capacity}", "make_head"
    )
    expect_that(
        found == list(arrivals), f"classes in order of arrival, {list(arrivals)}", found, "classes"
    )
    columns = learner.scores(unseen_samples(stream)).shape[1]
    expect_that(columns == 20, "scores for 20 classes", f"{columns} columns", SCORE_METHODS)


def spare_rows_stay_at_birth(method: Method) -> None:
    """Weight decay does not change the rows of the head that have no class yet.

    So a new class starts from its row's initial value.
    """
    stream = small_stream()
    learner = teach(make_learner(method, weight_decay=0.1), stream, last=1)
    spare = learner.model.head.weight[8:].detach().clone()
    teach(learner, stream, first=1)
    same = torch.equal(spare, learner.model.head.weight[8:])
    expect_that(
        same,
        "rows without a class to keep their initial values",
        "that they changed",
        "step make_head",
    )


def a_frozen_head_stays(method: Method) -> None:
    """With `head="frozen"` the head trains in the first task, and no row changes afterwards."""
    stream = small_stream()
    learner = teach(make_learner(method, head="frozen"), stream, last=1)
    initial = learner.model.head.weight.detach().clone()
    teach(learner, stream, first=1, last=8)
    frozen = learner.model.head.weight.detach().clone()
    trained = not torch.equal(initial[:2], frozen[:2])
    expect_that(trained, "a frozen head to train in the first task", "that it did not")
    teach(learner, stream, first=8)
    same = torch.equal(frozen, learner.model.head.weight)
    expect_that(same, "a frozen head not to change after the first task", "that a row changed")


def probing_changes_nothing(method: Method) -> None:
    """Probes change no bit of the learner."""
    stream = small_stream()
    plain, probed = make_learner(method), make_learner(method)
    probes = [probe() for probe in PROBES.all().values()]
    for give in batch_steps(stream):
        give(plain)
        step = give(probed)
        for probe in probes:
            probe.stepped(probed, step)
            probe.task_ended(0)
    expect_same_state(
        state_fingerprints(plain), state_fingerprints(probed), "probes to change nothing"
    )


def training_does_not_notice_an_average(method: Method) -> None:
    """A moving average of the weights changes no bit of network, memory, optimiser or generators.

    Self-distillation is switched off, because there the average teaches.
    """
    if "average" in method.traits.unsupported:
        return
    stream = small_stream()
    plain, averaged = (
        state_fingerprints(teach(make_learner(method, average=rule, distil=0.0), stream, last=9))
        for rule in (None, 0.9)
    )
    others = {key: sha for key, sha in averaged.items() if not key.startswith("parts.averaged.")}
    expect_same_state(plain, others, "an average to change nothing but itself")


def beats_finetuning(method: Method) -> None:
    """The method ends over 20 percentage points above fine-tuning, at one of two learning rates."""
    floor, best = _finetune_accuracy(device_of_checks.get()), 0.0
    for lr in RATES:
        best = max(best, _final_accuracy(method, lr))
        if best > floor + 20:
            return
    wanted = f"accuracy 20 points above that of fine-tuning, {floor:.1f}"
    expect_that(False, wanted, f"{best:.1f} at best")


def _final_accuracy(method: Method, lr: float) -> float:
    *_, last = evaluate(make_wide_learner(method, lr=lr), small_stream())
    return last.accuracy


@cache
def _finetune_accuracy(device: str) -> float:
    """Returns the final accuracy of fine-tuning, with which each method is compared.

    It is computed once per device. `device` is only the key of the cache: the learner itself is
    made on `device_of_checks`.
    """
    return _final_accuracy(Finetune, RATES[0])
