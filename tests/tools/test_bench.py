"""`onepass bench` times the right thing and reports it."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from command import Done, onepass

from onepass import GSA, MIR
from onepass.base.parts import ImageCount
from onepass.learning.memory_contents import stores_of
from onepass.tools import bench
from onepass.tools.bench import BenchCase, RandomBatches, measure
from onepass.tools.forward_counter import ForwardPass, record_forwards

CASE = ["method", "memory", "classes", "shape", "batch", "settings", "device", "steps"]
SPEED = [
    "steps_per_second",
    "images_per_second",
    "trained_images",
    "scored_images",
    "bare_steps_per_second",
    "fraction_of_bare",
    "peak_megabytes",
]
AROUND = ["threads", "python", "torch", "numpy", "system", "processor", "commit", "dirty"]
SMALL = ("--shape", 6, "--steps", 5, "--device", "cpu")


def timed(*arguments: object) -> Done:
    done = onepass("bench", *arguments)
    assert done.status == 0, done.err
    return done


def declared(record: dict) -> ImageCount:
    """Returns the images per step that the method declares, once it knows the samples."""
    learner = BenchCase(
        record["method"], memory=record["memory"], settings=record["settings"]
    ).learner()
    learner.prepare(tuple(record["shape"]), torch.uint8 if len(record["shape"]) == 3 else None)
    return learner.cost(record["batch"])


# ---- the command


@pytest.fixture(scope="module")
def several() -> Done:
    sizes = ("--memory", 20, "--memory", 30, "--classes", 4, "--classes", 18)
    return timed("er", "mir", *SMALL, *sizes, "--batch", 7, "--json")


def test_json_is_one_object_for_each_case_and_nothing_else(several: Done) -> None:
    found = [(entry["method"], entry["memory"], entry["classes"]) for entry in several.records]
    assert found == list(itertools.product(("er", "mir"), (20, 30), (4, 18)))
    for record in several.records:
        assert list(record) == CASE + SPEED + AROUND
        assert record["shape"] == [6]
        assert (record["batch"], record["steps"], record["threads"]) == (7, 5, 1)
        assert record["settings"] == {"engine": "auto", "precision": "fp32"}
        assert record["device"] == "cpu"


def test_what_is_being_timed_goes_to_standard_error(several: Done) -> None:
    assert several.err.count("timing") == 8
    assert "timing mir, memory 30, 18 classes" in several.err


def test_the_images_are_those_that_the_method_declares(several: Done) -> None:
    for record in several.records:
        passes = declared(record)
        assert (record["trained_images"], record["scored_images"]) == passes
    first, last = several.records[0], several.records[-1]
    assert (first["trained_images"], first["scored_images"]) == (7 + 64, 0)
    assert last["scored_images"] > 0


def test_rates_are_of_each_other(several: Done) -> None:
    for record in several.records:
        rate, bare = record["steps_per_second"], record["bare_steps_per_second"]
        assert rate > 0 and bare > 0
        assert record["fraction_of_bare"] == pytest.approx(rate / bare)
        images = record["trained_images"] + record["scored_images"]
        assert record["images_per_second"] == pytest.approx(rate * images)
        assert 10 < record["peak_megabytes"] < 1e5


def test_a_table_has_a_row_for_each_case() -> None:
    done = timed("er", "mir", *SMALL, "--memory", 20, "--classes", 4, "--precision", "bf16")
    rows = [line.split() for line in done.out.splitlines() if line.strip()]
    assert " ".join(rows[0]) == (
        "method settings memory classes images steps/s images/s of bare peak MB"
    )
    er, mir = rows[1:]
    assert er[:6] == ["er", "engine=auto", "precision=bf16", "20", "4", "74"]
    assert mir[0] == "mir"
    assert " ".join(mir[5:9]) == f"74 + {MIR().cost(10).scored} scored"
    with pytest.raises(ValueError, match="Expecting"):
        _ = done.records


@pytest.mark.parametrize(
    ("arguments", "trained"),
    [
        (("--set", "mirror=true", "--shape", "1,6,6"), 2 * (10 + 8)),
        (("--set", "mirror=true", "--shape", "16"), 10 + 8),
        (("--shape", "auto"), 10 + 8),
    ],
    ids=["mirrored images", "vectors have no mirror image", "as usual on a CPU"],
)
def test_shapes_and_settings_reach_the_method(arguments: tuple, trained: int) -> None:
    known = ("--memory", 20, "--classes", 4, "--steps", 5, "--device", "cpu", "--json")
    record = timed("er", "--set", "replay=8", *arguments, *known).record
    assert record["trained_images"] == trained
    assert record["shape"] == {"auto": [1, 28, 28], "16": [16], "1,6,6": [1, 6, 6]}[arguments[-1]]
    assert record["settings"]["replay"] == "8"


def test_a_method_is_timed_in_the_common_setting_with_the_chosen_settings_on_top() -> None:
    learner = BenchCase("gsa", memory=20, settings={"statistics": "mix"}).learner()
    common = {**GSA.presets["common"].settings, "statistics": "mix"}
    assert {name: getattr(learner, name) for name in common} == common


def test_a_method_without_a_memory_and_a_single_class_at_a_time_can_be_timed() -> None:
    record = timed("finetune", *SMALL, "--classes", 2, "--batch", 1, "--json").record
    assert (record["trained_images"], record["scored_images"]) == (1, 0)


def test_threads_are_those_asked_for_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = [], torch.get_num_threads()
    real = bench.measure

    def spy(case: BenchCase) -> dict:
        seen.append(torch.get_num_threads())
        return real(case)

    monkeypatch.setattr(bench, "measure", spy)
    done = timed("finetune", *SMALL, "--classes", 2, "--threads", 2, "--json")
    assert seen == [2]
    assert done.record["threads"] == 2
    assert torch.get_num_threads() == before


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--shape", "3,8"), "--shape"),
        (("--shape", "3,8,8,8"), "--shape"),
        (("--shape", "0"), "--shape"),
        (("--shape", "x"), "--shape"),
        (("--shape", ""), "--shape"),
        (("--shape", "-4"), "--shape"),
        (("finetun",), "'finetune'"),
        (("--set", "lr=fast"), "lr"),
        (("--set", "rate=1"), "'rate'"),
        (("--set", "lr"), "KEY=VALUE"),
        (("--precision", "fp64"), "precision"),
        (("--engine", "steam"), "engine"),
        (("--memory", "-1"), "memory"),
        (("--steps", "0"), "--steps"),
        (("--batch", "0"), "--batch"),
        (("--device", "tpu"), "tpu"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_timed_is_refused_before_anything_is(arguments: tuple, word: str) -> None:
    done = onepass("bench", "er", "--classes", 4, *arguments, "--json")
    assert done.status == 2
    assert word in done.error
    assert done.out == ""
    assert "timing" not in done.err


@pytest.mark.parametrize("classes", [0, -1])
def test_a_number_of_classes_that_cannot_be_is_refused(classes: int) -> None:
    done = onepass("bench", "finetune", *SMALL, "--classes", classes, "--json")
    assert done.status == 2
    assert "--classes" in done.error
    assert done.out == ""


def test_a_single_class_is_timed_or_refused_in_words_that_name_it() -> None:
    """A single class cannot be split into old and new ones."""
    done = onepass("bench", "finetune", *SMALL, "--classes", 1, "--json")
    assert done.status == 0 or "--classes" in done.error


@pytest.mark.parametrize("pair", ["seed=1", "device=cpu", "memory=5"])
def test_a_setting_that_is_not_for_choosing_is_refused(pair: str) -> None:
    """`onepass run` refuses it too."""
    done = onepass("bench", "er", *SMALL, "--memory", 20, "--classes", 4, "--set", pair)
    assert done.status == 2
    assert pair.partition("=")[0] in done.error


def test_a_graph_is_refused_on_a_cpu() -> None:
    done = onepass("bench", "er", *SMALL, "--classes", 4, "--engine", "graph", "--json")
    assert done.status == 2
    assert "GPU" in done.error
    assert done.out == ""


# ---- what is timed


TINY = BenchCase("er", memory=20, classes=5, shape=(6,), steps=5)


def test_measuring_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    measure(TINY)
    assert torch.get_num_threads() == before


def test_measuring_neither_reads_nor_moves_the_global_generator() -> None:
    before = torch.get_rng_state()
    measure(TINY)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_result_begins_with_the_case() -> None:
    found = measure(TINY)
    assert {name: found[name] for name in CASE} == asdict(TINY)
    assert list(found) == CASE + SPEED


@pytest.mark.parametrize("classes", [2, 7, 40])
@pytest.mark.parametrize("memory", [20, 600, 1300])
def test_all_classes_are_known_half_of_them_old_and_the_memory_is_full(
    classes: int, memory: int
) -> None:
    case = replace(TINY, classes=classes, memory=memory)
    learner, batches = case.learner(), RandomBatches(case)
    batches.introduce(learner)
    old = -(-classes // 2)
    assert learner.classes == list(range(classes))
    assert learner.task == 1
    assert learner.seen.sum() == classes
    assert learner.new.nonzero().flatten().tolist() == list(range(old, classes))
    assert int(learner.store.size) == memory
    assert set(learner.store.y[:memory].tolist()) <= set(range(classes))


@pytest.mark.parametrize("batch", [1, 2, 3, 10])
@pytest.mark.parametrize("method", ["er", "derpp", "bic"], ids=["plain", "with fields", "two"])
def test_the_memory_is_full_whatever_the_batch(method: str, batch: int) -> None:
    case = replace(TINY, method=method, batch=batch, memory=600)
    learner, batches = case.learner(), RandomBatches(case)
    batches.introduce(learner)
    assert sum(int(store.size) for store in stores_of(learner)) == 600
    batches.learn(learner)


def test_batches_go_round_and_round() -> None:
    case = replace(TINY, batch=3)
    learner, batches = case.learner(), RandomBatches(case)
    for _ in range(200):
        batches.learn(learner)
    assert (learner.steps, batches.next) == (200, 0)
    assert batches.x.dtype == torch.float32
    images = RandomBatches(replace(TINY, shape=(1, 4, 4))).x
    assert images.dtype == torch.uint8
    assert images.shape == (2000, 1, 4, 4)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("er", [ForwardPass(74, True, True, False)]),
        ("derpp", [ForwardPass(size, True, True, False) for size in (10, 64, 64)]),
        ("mir", None),  # a virtual step, and scores before and after it in fp32
        ("gss", None),  # gradients of single samples, in evaluation mode
    ],
)
def test_the_bare_step_has_the_forwards_of_the_method(
    method: str, expected: list[ForwardPass] | None
) -> None:
    case = replace(TINY, method=method, settings={"precision": "bf16"})
    learner, batches = case.learner(), RandomBatches(case)
    batches.introduce(learner)
    passes = bench._record_step_passes(case)
    assert passes == expected or expected is None
    trained = sum(entry.images for entry in passes if entry.graded)
    assert trained == learner.cost(case.batch).trained
    bare = bench._make_bare_step(learner, case, passes)
    before = learner.params_sha256()
    with record_forwards(type(learner.model.body)) as made:
        bare()
    assert made == passes
    assert learner.params_sha256() != before


def test_the_fastest_block_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([8.0, 4.0, 2.0, 5.0, 3.0, 1.0, 9.0, 6.0, 7.0, 2.0])
    monkeypatch.setattr(bench, "_seconds_of", lambda call, count, device: next(taken))
    found = measure(replace(TINY, steps=50))
    assert found["steps_per_second"] == 10 / 2
    assert found["bare_steps_per_second"] == 10 / 1
    assert found["fraction_of_bare"] == 0.5


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    timed("finetune", *SMALL, "--classes", 2)
    assert list(tmp_path.iterdir()) == []
