"""Results as lines of a file: written whole, whatever happens, and read back."""

import json
import logging
import multiprocessing
import os
import signal
import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest

from onepass.base.errors import RunError, WriteError
from onepass.runs import lines
from onepass.runs.execute import run_job
from onepass.runs.result import Result
from onepass.runs.spec import Job

RESULTS = Path(__file__).parents[2] / "results" / "lines"
WRITERS, EACH = 4, 25


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run_job(Job("er", "synthetic", batch=60, device="cpu"), tmp_path_factory.mktemp("runs"))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "all.jsonl"


def seeds(file):
    return [result.seed for result in lines.read_results(file)]


def test_an_appended_result_is_read_with_the_number_of_its_line(result, file):
    for seed in (3, 1):
        lines.append_result(file, replace(result, seed=seed))
    assert lines.read_results(file) == [
        replace(result, seed=seed, out=f"{file}:{number}") for number, seed in ((1, 3), (2, 1))
    ]
    # a line leaves out the folder, which matters on one machine only
    whole = {field.name for field in fields(Result)} - {"out"}
    assert all(set(json.loads(line)) == whole for line in file.read_text().splitlines())


def test_with_once_a_run_that_the_file_holds_is_not_added_again(result, file):
    for identity in (result.identity, "0f", result.identity):
        lines.append_result(file, replace(result, identity=identity), once=True)
    assert [line.identity for line in lines.read_results(file)] == [result.identity, "0f"]
    lines.append_result(file, result)
    assert len(lines.read_results(file)) == 3


def test_committed_lines_can_be_read():
    found = lines.read_results(RESULTS / "cifar100.jsonl")
    assert {line.method for line in found} >= {"derpp", "er", "gsa", "gsa-released", "mir"}
    assert all(line.dataset == "cifar100" for line in found)
    assert found[0].class_accuracy == []  # early lines did not have it


def test_empty_lines_are_counted_and_skipped(result, file):
    lines.append_result(file, result)
    file.write_text(f"\n{file.read_text()}  \n")
    assert [line.out for line in lines.read_results(file)] == [f"{file}:2"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"method": "er"', "not JSON"),
        ('{"method": NaN}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "not an object"),
        ('{"method": "er"}', "no dataset"),
        ('{"method": 3}', "method is of the wrong type"),
    ],
)
def test_a_damaged_line_is_named_by_file_and_number(line, problem, result, file):
    lines.append_result(file, result)
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(RunError, match=problem) as caught:
        lines.read_results(file)
    assert f"{file}:2 is" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\n"], ids=["none", "no text"])
def test_a_file_that_is_not_a_results_file_is_named(content, file):
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RunError, match=str(file)):
        lines.read_results(file)


def test_a_byte_order_mark_is_named(result, file):
    lines.append_result(file, result)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    with pytest.raises(RunError, match="begins with a byte order mark"):
        lines.read_results(file)


def test_a_line_cut_short_is_passed_over_and_replaced_by_the_next(result, file, caplog):
    for seed in (0, 1):
        lines.append_result(file, replace(result, seed=seed))
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    assert seeds(file) == [0]
    assert [f"{file}:2" in message for message in caplog.messages] == [True]
    caplog.clear()
    lines.append_result(file, replace(result, seed=1))
    assert file.read_bytes() == content
    assert not caplog.messages


def test_a_last_line_without_a_line_end_is_kept(result, file):
    lines.append_result(file, result)
    file.write_bytes(file.read_bytes()[:-1])
    assert seeds(file) == [0]
    lines.append_result(file, replace(result, seed=1))
    assert seeds(file) == [0, 1]


def test_a_file_with_other_content_is_not_changed(result, file, tmp_path):
    file.write_text("milk\neggs")
    notes = tmp_path / "notes.txt"
    notes.write_text("{milk")
    for path, kind in ((file, WriteError), (notes, RunError)):
        before = path.read_text()
        with pytest.raises(kind, match=path.name):
            lines.append_result(path, result)
        assert path.read_text() == before


def test_no_link_is_followed(result, file, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text("")
    file.symlink_to(other)
    with pytest.raises(WriteError, match="link"):
        lines.append_result(file, result)
    assert other.read_text() == ""


def test_only_regular_files_are_written_to(result, file):
    os.mkfifo(file)
    with pytest.raises(WriteError, match="not a regular file"):
        lines.append_result(file, result)


def test_a_full_disk_leaves_the_lines_that_were_there(result, file, monkeypatch):
    lines.append_result(file, result)
    before = file.read_bytes()

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(WriteError, match="No space"):
        lines.append_result(file, replace(result, seed=1))
    assert file.read_bytes() == before


def write_some(path, result, first):
    for seed in range(first, first + EACH):
        lines.append_result(path, replace(result, seed=seed))


def write_and_die(path, result):
    """Appends a line, and is killed while only part of it is written."""
    real = os.fsync

    def die(number):
        os.ftruncate(number, os.fstat(number).st_size - 30)
        real(number)
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = die
    lines.append_result(path, result)


def ended(processes):
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        for process in processes:  # Python warns of forks in a process with threads
            process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_several_processes_write_whole_lines_while_others_are_killed(result, file, caplog):
    context = multiprocessing.get_context("fork")
    caplog.set_level(logging.WARNING)
    writers = [
        context.Process(target=write_some, args=(file, result, EACH * number))
        for number in range(WRITERS)
    ]
    dying = [context.Process(target=write_and_die, args=(file, result)) for _ in range(3)]
    assert ended([*writers, *dying]) == [0] * WRITERS + [-signal.SIGKILL] * 3
    lines.append_result(file, replace(result, seed=WRITERS * EACH))
    assert sorted(seeds(file)) == list(range(WRITERS * EACH + 1))
    assert not caplog.messages
