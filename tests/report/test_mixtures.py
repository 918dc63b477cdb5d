"""A row of a table is a mean over seeds of one thing, whatever lies in the folders and files."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.report.rows import group_by_row
from onepass.runs import lines, query
from onepass.runs.result import Result
from onepass.runs.spec import Fingerprint, Job
from onepass.runs.variant import Variant

CHOICES = {
    "method": ["finetune", "gsa", "er"],
    "memory": [20, 100],
    "preset": ["common", "tuned"],
    "settings": [{}, {"lr": "5e-4"}, {"lr": "0.0005"}, {"augment": "none"}],
    "tasks": [None, 2],
    "batch": [10, 20],
    "every": [None, 5],
    "threads": [1, 2],
    "normalise": ["dataset", "first-task"],
    "prequential": [False, True],
    "fingerprint": [
        Fingerprint("a" * 64, 5),
        Fingerprint("b" * 64, 5),
        Fingerprint("a" * 64, 5, 9),
    ],
    # facts of a result
    "source": ["", "0123", "4567"],  # of a user's method
    "revision": [1, 2],
    "device": ["cpu", "cuda"],
    "processor": ["a processor", "another", ""],
    "accuracy": [50.0, 60.0],
}
SEEDS = st.integers(0, 2)


@st.composite
def alike(draw):
    """Draws results that differ in the seed, and in two choices at most."""
    usual = {name: draw(st.sampled_from(values)) for name, values in CHOICES.items()}
    varied = draw(st.lists(st.sampled_from(sorted(CHOICES)), min_size=1, max_size=2))
    found = []
    for _ in range(draw(st.integers(2, 5))):
        others = {name: draw(st.sampled_from(CHOICES[name])) for name in varied}
        found.append({**usual, **others, "seed": draw(SEEDS)})
    return [make_result(**chosen) for chosen in found]


def make_result(source, revision, device, processor, accuracy, **options):
    if options["method"] == "finetune":
        options["preset"] = "common"  # it has no other
    job = Job(dataset="synthetic", device="cpu", **options)
    identity = json.dumps({**job.identity_fields, "revision": revision, "device": device})
    return Result(
        identity=identity,
        method=job.method,
        revision=revision,
        source=source,
        settings={name: str(value) for name, value in job.chosen_settings().items()},
        dataset=job.dataset,
        dataset_identity=job.dataset,
        data_sha256=job.data_sha256,
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
        # two runs of the same seed that disagree are another matter: see test_tables.py
        state_sha256=f"{identity} {source} {accuracy}",
        other_versions=[{"step": 1, "torch": "2.12"}],
    )


def what_it_is(result):
    """Returns all that the identity of its run knows, without the seed, and the method's source."""
    known = json.loads(result.identity)
    return {**known, "seed": None, "source": result.source}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(alike(), st.data())
def test_a_row_never_holds_two_of_what_the_identity_knows(results, data):
    with tempfile.TemporaryDirectory() as top:
        for number, result in enumerate(results):
            place = data.draw(st.sampled_from(["a.jsonl", "b.jsonl", "folder"]))
            if place == "folder":
                folder = Path(top, f"run-{number}")
                folder.mkdir()
                content = replace(result, out=str(folder)).as_json()
                (folder / "result.json").write_text(json.dumps(content))
            else:
                lines.append_result(Path(top, place), result)
        found = query.find_results(Path(top))
    rows = group_by_row(found)
    for row in rows:
        kinds = {json.dumps(what_it_is(result), sort_keys=True) for result in row}
        assert len(kinds) == 1, "a mean over two things"
        assert len({result.seed for result in row}) == len(row)
    names = [(row[0].method, row[0].dataset, row[0].memory, str(row[0].variant)) for row in rows]
    assert len(set(names)) == len(names), "two rows that look the same"


@pytest.mark.parametrize("name", CHOICES)
def test_two_seeds_share_a_row_if_and_only_if_they_share_the_choice(name):
    usual = {choice: values[-1] for choice, values in CHOICES.items()}
    for value in CHOICES[name]:
        first, second = make_result(**usual, seed=0), make_result(**usual | {name: value}, seed=1)
        rows = group_by_row([first, second])
        assert len(rows) == (1 if what_it_is(first) == what_it_is(second) else 2), value
