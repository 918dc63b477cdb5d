"""A row of a table is a mean over seeds of one thing, whatever lies in the folders and files."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from fuzzing import fuzz

from onepass.base.errors import InputError
from onepass.report.layout import make_table
from onepass.report.rows import Row, group_by_row
from onepass.runs import lines, query
from onepass.runs.result import Result
from onepass.runs.spec import IDENTITY_OPTIONS, Fingerprint, Job
from onepass.runs.variant import Variant

CHOICES: dict[str, list[Any]] = {
    "method": ["finetune", "gsa", "er"],
    "dataset": ["digits", "synthetic", "/a/pets.npz", "/b/pets.npz"],
    "memory": [20, 100],
    "preset": ["common", "tuned"],
    "settings": [{}, {"lr": "5e-4"}, {"lr": "0.0005"}, {"augment": "none"}],
    "stream": ["class-incremental", "class-incremental:boundaries=false", "long-tail:rho=5"],
    "tasks": [None, 2],
    "batch": [10, 20],
    "class_order": ["natural", "shuffled"],
    "every": [None, 5],
    "threads": [1, 2],
    "normalise": ["dataset", "first-task"],
    "validation": [0.0, 0.2],
    "prequential": [False, True],
    "deterministic": [False, True],
    "fingerprint": [
        Fingerprint("a" * 64, 5),
        Fingerprint("b" * 64, 5),
        Fingerprint("a" * 64, 5, 9),
    ],
}
FACTS: dict[str, list[Any]] = {  # of a result
    "source": ["", "0123", "4567"],  # of a user's method
    "revision": [1, 2],
    "device": ["cpu", "cuda"],
    "processor": ["a processor", "another", ""],
    "resumed": [False, True],  # under another version of torch
    "accuracy": [50.0, 60.0],
}
EVERYTHING = CHOICES | FACTS


def alike(chance: random.Random) -> list[Result]:
    """Returns results that differ in the seed, and in two choices or facts at most."""
    usual = {name: chance.choice(values) for name, values in EVERYTHING.items()}
    varied = chance.sample(sorted(EVERYTHING), k=chance.randint(0, 2))
    return [
        make_result(
            **usual | {name: chance.choice(EVERYTHING[name]) for name in varied},
            seed=chance.randrange(3),
        )
        for _ in range(chance.randint(2, 5))
    ]


def make_result(source, revision, device, processor, resumed, accuracy, **options) -> Result:
    if options["method"] == "finetune":
        options["preset"] = "common"  # it has no other
    job = Job(device="cpu", **options)
    identity = json.dumps({**job.identity_fields, "revision": revision, "device": device})
    return Result(
        identity=identity,
        method=job.method,
        revision=revision,
        source=source,
        settings={name: str(value) for name, value in job.chosen_settings().items()},
        dataset=Path(job.dataset).stem,
        dataset_identity=job.dataset,
        data_sha256=job.data_sha256,
        validation=job.validation,
        variant=Variant(job.variant),
        memory=job.memory if job.uses_memory else 0,
        seed=job.seed,
        tasks=job.tasks or 5,
        normalise=job.normalise,
        batch=job.batch,
        accuracy=accuracy,
        seconds=1.0,
        device=device,
        threads=job.threads,
        processor=processor,
        torch="2.13",
        out="",
        state_sha256=f"{identity} {source} {accuracy}",
        other_versions=[{"step": 1, "torch": "2.12"}] if resumed else [],
    )


def what_it_is(result: Result) -> str:
    """Returns all that the identity of its run knows, without the seed, and the method's source."""
    known = json.loads(result.identity)
    return json.dumps({**known, "seed": None, "source": result.source}, sort_keys=True)


def contradict(one: Result, other: Result) -> bool:
    """Returns whether two results of one run disagree, although its bits repeat there."""
    repeats = [
        result.processor
        and not result.other_versions
        and (result.device == "cpu" or "deterministic" in result.variant)
        for result in (one, other)
    ]
    same_run = (one.identity, one.processor) == (other.identity, other.processor)
    return same_run and all(repeats) and one.accuracy != other.accuracy


def a_case(chance: random.Random) -> None:
    results = alike(chance)
    with tempfile.TemporaryDirectory() as top:
        for number, result in enumerate(results):
            place = Path(top, chance.choice(["a.jsonl", "b.jsonl", f"{number}", f"c/{number}"]))
            if place.suffix:
                lines.append_result(place, result)
            else:
                place.mkdir(parents=True)
                content = replace(result, out=str(place)).as_json()
                (place / "result.json").write_text(json.dumps(content))
        found = query.find_results(Path(top))
    if any(contradict(*pair) for pair in combinations(results, 2)):
        with pytest.raises(InputError, match="disagree"):
            group_by_row(found)
        return
    rows = group_by_row(found)
    for row in rows:
        assert len(set(map(what_it_is, row))) == 1, "a mean over two things"
        assert len({result.seed for result in row}) == len(row)
    kept = {(what_it_is(result), result.seed) for row in rows for result in row}
    assert kept == {(what_it_is(result), result.seed) for result in results}
    names = [(row[0].method, row[0].dataset, row[0].memory, str(row[0].variant)) for row in rows]
    assert len(set(names)) == len(names), "two rows that look the same"
    assert len(make_table([Row(row) for row in rows]).body) == len(rows)


def test_a_row_never_holds_two_of_what_the_identity_knows() -> None:
    fuzz("mixtures", a_case, few=100)


def test_whatever_makes_two_runs_of_one_is_drawn() -> None:
    known = {option.name for option in fields(Job) if option.compare} - {"seed", "device"}
    loading = {"image_size", "test_fraction", "mirror_is_same_class", "label", "test"}
    assert known - loading == CHOICES.keys() - {"fingerprint"}
    assert CHOICES.keys() > set(IDENTITY_OPTIONS)


@pytest.mark.parametrize("name", EVERYTHING)
def test_two_seeds_share_a_row_if_and_only_if_they_share_the_choice(name: str) -> None:
    usual = {choice: values[-1] for choice, values in EVERYTHING.items()}
    for value in EVERYTHING[name]:
        first, second = make_result(**usual, seed=0), make_result(**usual | {name: value}, seed=1)
        rows = group_by_row([first, second])
        assert len(rows) == (1 if what_it_is(first) == what_it_is(second) else 2), value
