"""Every probe equals a second computation from the logits, also after a stop and a resumption."""

import json
import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from naive_gsa import Sums, average, cross_entropy
from network_methods import NETWORK_METHODS
from recording_listeners import Stopped, stop_after

import onepass
from onepass.evaluation.callbacks import Listener
from onepass.evaluation.probes import PROBES
from onepass.learning import registry
from onepass.runs.execute import run_job
from onepass.runs.spec import Job

NAMES = ("balance", "bias", "logits", "losses")
METHODS = ("er", "gsa", "derpp")


class Logged(Listener):
    """Records all that every step trained, as lists, to compute the values of probes again."""

    def __init__(self):
        self.steps = []

    def stepped(self, learner, step):
        known = len(learner.classes)
        self.labels = learner.classes
        parts = [[tensor.tolist() for tensor in output[:3]] for output in step.outputs]
        batches = [
            [(o[:known], y, weight) for o, y, weight in zip(*part, strict=True)] for part in parts
        ]
        new = {row for row, is_new in enumerate(learner.new.tolist()) if is_new}
        head = learner.model.head
        rows = torch.cat([head.weight[:known], head.bias[:known].unsqueeze(1)], dim=1).tolist()
        self.steps.append((learner.task, set(range(known)), new, batches, rows))


def job(method, every=5):
    """Runs with a memory smaller than a draw, so that there is padding."""
    return Job(method, "synthetic", memory=20, device="cpu", probes=NAMES, every=every)


def recorded_lines(folder):
    return {
        name: list(map(json.loads, (Path(folder) / f"{name}.jsonl").read_text().splitlines()))
        for name in NAMES
    }


@pytest.fixture(scope="module", params=METHODS)
def watched(request, tmp_path_factory):
    logged = Logged()
    result = run_job(job(request.param), tmp_path_factory.mktemp("runs"), listeners=[logged])
    return logged.steps, recorded_lines(result.out), logged.labels


def same(found, expected):
    if expected is None or not math.isfinite(expected):
        assert found is None
    else:
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def ratio(up, down):
    return up / down if down else math.inf


def test_rates_equal_a_second_computation(watched):
    steps, lines, labels = watched
    lines = {line["step"]: line for line in lines["balance"]}
    sums, by_new, task, samples, own = Sums(), Sums(), 0, 0, Counter()
    for number, (now, seen, new, batches, _) in enumerate(steps, 1):
        if now != task:
            sums.new_task()
            by_new.new_task()
            task, samples, own = now, 0, Counter()
        for batch in batches:
            sums.add(batch, seen)
            by_new.add([sample for sample in batch if sample[1] in new], seen)
            samples += sum(weight != 0 for *_, weight in batch)
            own.update(y for _, y, weight in batch if weight)
        if number not in lines:
            continue
        line = lines.pop(number)
        assert (line["task"], line["samples"]) == (task, samples)
        assert line["own"] == {str(labels[c]): own[c] for c in seen}
        for c in seen:
            label = str(labels[c])
            up, down = sums.task_positive[c], sums.task_negative[c]
            same(line["p"][label], up / samples)
            same(line["n"][label], down / samples)
            same(line["p_new"][label], by_new.task_positive[c] / samples)
            same(line["pn"][label], ratio(up, down))
            same(line["a_pn"][label], ratio(sums.positive[c], sums.negative[c]))
        for of in range(task + 1):
            group = [labels.index(label) for label in (2 * of, 2 * of + 1)]
            up, down = (
                sum(side[c] for c in group) for side in (sums.task_positive, sums.task_negative)
            )
            same(line["pn_of_tasks"][of], ratio(up, down))
    assert not lines


def test_losses_equal_a_second_computation(watched):
    steps, lines, _ = watched
    values, lines = defaultdict(list), {line["step"]: line for line in lines["losses"]}
    for number, (task, seen, new, batches, _) in enumerate(steps, 1):
        for place, batch in enumerate(batches):
            for o, y, weight in batch:
                if weight:
                    loss = cross_entropy(o, y, seen)
                    values["replay" if place else "stream"].append(loss)
                    values["new" if y in new else "old"].append(loss)
        if number in lines:
            line = lines.pop(number)
            assert line["task"] == task
            for group in ("stream", "replay", "new", "old"):
                expected = average(values[group]) if values[group] else None
                found = line[group]
                assert found is None if expected is None else found == pytest.approx(expected, 1e-4)
            values.clear()
    assert not lines


def test_norms_biases_and_logits_equal_a_second_computation(watched):
    steps, lines, _ = watched
    logits, lines = {"old": [], "new": []}, {line["step"]: line for line in lines["bias"]}
    for number, (_, seen, new, batches, rows) in enumerate(steps, 1):
        sides = {"old": seen - new, "new": new}
        for o, _, weight in (sample for batch in batches for sample in batch):
            for name, side in sides.items():
                if weight and side:
                    logits[name].append(average([o[c] for c in side]))
        if number in lines:
            line = lines.pop(number)
            for name, side in sides.items():
                if not side:
                    assert line[name] is None
                    continue
                norms = [math.hypot(*rows[c][:-1]) for c in side]
                assert line[name]["norm"] == pytest.approx(average(norms), 1e-5)
                assert line[name]["bias"] == pytest.approx(
                    average([rows[c][-1] for c in side]), 1e-5, 1e-7
                )
                assert line[name]["logit"] == pytest.approx(average(logits[name]), 1e-3, 1e-5)
            logits = {"old": [], "new": []}
    assert not lines


def test_norms_and_biases_include_classes_that_came_during_the_task():
    learner, probe = onepass.Finetune(seed=0, device="cpu"), PROBES["bias"]()
    for label in (0, 1):
        probe.stepped(learner, learner.learn(torch.ones(10, 4), [label] * 10))
    probe.task_ended(0)
    (line,) = map(json.loads, probe.take_lines())
    head = learner.model.head
    rows, biases = head.weight[:2].tolist(), head.bias[:2].tolist()
    assert line["old"] is None
    assert line["new"]["norm"] == pytest.approx(average([math.hypot(*row) for row in rows]), 1e-5)
    assert line["new"]["bias"] == pytest.approx(average(biases), 1e-5, 1e-7)


def test_logits_are_those_of_the_last_step_of_each_task(watched):
    steps, lines, labels = watched
    assert [line["step"] for line in lines["logits"]] == [12, 24, 36, 48, 60]
    for line in lines["logits"]:
        _, seen, new, batches, _ = steps[line["step"] - 1]
        assert line["classes"] == [labels[row] for row in sorted(seen)]
        assert line["new"] == [labels[row] for row in sorted(new)]
        for record, batch in zip(line["batches"], batches, strict=True):
            rows = map(labels.index, record["y"])
            assert list(zip(record["logits"], rows, record["weight"], strict=True)) == batch


@pytest.mark.parametrize("boundaries", ["told", "inferred"])
def test_logits_of_user_batches_equal_those_of_a_stream(boundaries):
    """Although the end of a task is known only when the learner has begun the next one."""
    data = onepass.load("synthetic", classes=6, train_per_class=9, shape=(10,))
    stream = onepass.ClassIncremental(data, tasks=3, batch=4, seed=1)

    def lines(own):
        learner = onepass.ER(memory=20, gap=1, device="cpu", seed=0)

        def batches():
            for step, batch in enumerate(stream):
                if boundaries == "told" and stream.starts_task(step):
                    learner.new_task()
                yield batch

        probe = PROBES["logits"]()
        followed, test = (batches(), data) if own else (stream, None)
        list(onepass.evaluate(learner, followed, test=test, listeners=[probe]))
        return [json.loads(line) for line in probe.take_lines()]

    expected = lines(own=False)
    assert [(line["task"], line["step"], len(line["new"])) for line in expected] == [
        (0, 5, 2),
        (1, 10, 2),
        (2, 15, 2),
    ]
    assert lines(own=True) == expected


@pytest.mark.parametrize(
    "stop", [31, 24, 44]
)  # before a line is due, after a task, inside ten steps
def test_stop_and_resume_leave_the_files_of_a_run_that_was_never_stopped(stop, tmp_path):
    whole = run_job(job("er", every=7), tmp_path / "whole")
    with pytest.raises(Stopped):
        run_job(
            job("er", every=7),
            tmp_path / "broken",
            checkpoint=stop,
            listeners=[stop_after(stop + 1)],
        )
    resumed = run_job(job("er", every=7), tmp_path / "broken", resume=True)
    assert resumed.state_sha256 == whole.state_sha256
    for name in NAMES:
        both = [(Path(result.out) / f"{name}.jsonl").read_bytes() for result in (whole, resumed)]
        assert both[0] == both[1], name


def test_watched_runs_have_the_bits_of_unwatched_ones(tmp_path):
    plain, seen = (
        run_job(Job("gsa", "synthetic", device="cpu", probes=names), tmp_path / str(len(names)))
        for names in ((), NAMES)
    )
    assert (plain.state_sha256, seen.dropped) == (seen.state_sha256, {})


@pytest.mark.slow
@pytest.mark.parametrize("method", [info.key for info in registry.methods()])
def test_every_probe_follows_every_method_to_the_end(method, tmp_path):
    trains = method in NETWORK_METHODS
    names = tuple(name for name, probe in PROBES.all().items() if trains or not probe.needs_network)
    quick = registry.get(method).learner.traits.quick
    settings = {name: str(value).lower() for name, value in quick.items()}
    result = run_job(
        Job(method, "synthetic", device="cpu", probes=names, settings=settings), tmp_path
    )
    assert result.dropped == {}


def test_a_task_has_a_line_at_its_end_even_if_it_is_not_scored_there(tmp_path):
    """A method that trains before it is scored is scored at the end only."""
    settings = {
        name: str(value) for name, value in registry.get("gdumb").learner.traits.quick.items()
    }
    job = Job("gdumb", "synthetic", device="cpu", probes=("balance", "bias"), settings=settings)
    folder = Path(run_job(job, tmp_path).out)
    for name in job.probes:
        lines = map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines())
        assert [(line["task"], line["step"]) for line in lines] == [
            (task, 12 * task + 12) for task in range(5)
        ]


def test_user_batches_give_the_same_lines_as_the_stream_they_form():
    """The end of a task is known a batch late, so the head is one batch ahead then."""
    stream = onepass.ClassIncremental(onepass.load("synthetic"), tasks=5, batch=7)
    test = (stream.dataset.test_x, stream.dataset.test_y)

    def batches(learner):
        for index in range(len(stream)):
            if stream.starts_task(index):
                learner.new_task()
            yield stream.batch(index)

    found = []
    for own in (False, True):
        learner = onepass.ER(memory=20, seed=0, device="cpu")
        watching = [PROBES[name]() for name in ("losses", "bias")]
        given, options = (batches(learner), {"test": test}) if own else (stream, {})
        list(onepass.evaluate(learner, given, every=4, listeners=watching, **options))
        losses, bias = ([json.loads(line) for line in probe.take_lines()] for probe in watching)
        sides = [[side and side["logit"] for side in (line["old"], line["new"])] for line in bias]
        found.append((losses, [(line["task"], line["step"]) for line in bias], sides))
    assert found[0] == found[1]
    assert {line["task"] for line in found[1][0]} == set(range(5))
    assert found[1][0][-1]["step"] == len(stream)
