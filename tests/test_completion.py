"""Tab: what a shell is offered, without keeping it waiting for torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import onepass

from onepass import completion, registry

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from onepass.cli import main; main()"


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("_ONEPASS_COMPLETE", "complete_bash")


def offered(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    done = onepass()
    assert done.status == 0, done.err
    return done.out.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("onepass ru", {"run", "runs"}),
        ("onepass runs d", {"diff"}),
        ("onepass run gs", {"gsa", "gsa-released", "gss"}),
        ("onepass run er gsa --dataset c", {"cifar10", "cifar100"}),
        ("onepass run gsa --set mi", {"mix=64", "mirror=false"}),
        ("onepass tune er --set repl", {"replay=64"}),
        ("onepass list settings mi", {"mir"}),
        ("onepass data check m", {"mnist"}),
        ("onepass run gsa --prec", {"--precision"}),
        ("onepass table runs/ --format c", {"csv"}),
        ("onepass predict mod", set()),  # left to the shell, which knows files
    ],
)
def test_words_are_those_that_could_stand_there(
    line: str, words: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(offered(line, monkeypatch)) == words


def test_from_the_second_time_on_torch_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = offered("onepass run er gsa ", monkeypatch)
    assert {info.key for info in registry.methods()} <= set(first)
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split() == first


@pytest.mark.parametrize("damage", ["", "[]", '{"stamp": 1}', "{"])
def test_what_was_stored_by_another_version_is_not_used(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = offered("onepass ru", monkeypatch)
    assert completion.read() is not None
    completion.file().write_text(damage)
    assert completion.read() is None
    assert offered("onepass ru", monkeypatch) == before
    assert completion.read() is not None


def test_what_a_word_means_stands_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ONEPASS_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "onepass run gsa --set ")
    lines = [line.split("\t") for line in onepass().out.splitlines()]
    assert [line[0].split("=")[0] for line in lines] == [
        one.name for one in registry.get("gsa").learner.described()
    ]
    assert all(len(line) == 2 for line in lines)


def test_a_cache_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", "/dev/null/nowhere")
    assert offered("onepass ru", monkeypatch) == ["run", "runs"]
