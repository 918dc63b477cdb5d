"""Results: written, read and printed."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from onepass.base.errors import RunError
from onepass.runs.execute import run_job
from onepass.runs.folder import RunFolder
from onepass.runs.result import Result
from onepass.runs.spec import Job


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_job(Job("er", "synthetic", batch=60, device="cpu"), tmp_path_factory.mktemp("runs"))


def test_a_result_that_is_written_and_read_is_the_same(result):
    folder = RunFolder(Path(result.out))
    assert folder.result() == result
    assert set(json.loads(folder.result_file.read_text())) == {
        field.name for field in fields(Result)
    }


@pytest.mark.parametrize("gone", ["method", "accuracy", "variant", "tasks", "device"])
def test_a_result_that_lacks_a_field_is_refused_by_file_and_field(gone, result, tmp_path):
    content = result.as_json()
    del content[gone]
    with pytest.raises(RunError, match=rf"{tmp_path}.*no {gone}"):
        Result.read(content, str(tmp_path))


def test_a_result_of_an_early_version_is_read_and_unknown_fields_are_ignored(result, tmp_path):
    later = ("dataset_identity", "scoring_seconds", "copy_bytes", "dropped", "images_beside_steps",
             "normalise")  # fmt: skip
    content = {name: value for name, value in result.as_json().items() if name not in later}
    read = Result.read({**content, "source": "synthetic"}, str(tmp_path))
    assert (read.dataset_identity, read.copy_bytes, read.dropped) == ("synthetic", 0, {})
    assert read.normalise == "dataset"
    assert (read.accuracy, read.out) == (result.accuracy, str(tmp_path))
