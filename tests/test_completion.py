"""Tab: what a shell is offered, without keeping it waiting for torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import onepass

from onepass import completion
from onepass.cli import completing
from onepass.learning import registry

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from onepass.cli import main; main()"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> completion.Stored:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEPASS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return completing.stored()


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("_ONEPASS_COMPLETE", "complete_bash")


def type_(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("onepass ru", {"run", "runs"}),
        ("onepass runs d", {"diff"}),
        ("onepass run gs", {"gsa", "gsa-released", "gss"}),
        ("onepass run er gsa --dataset c", {"cifar10", "cifar100"}),
        ("onepass run gsa --set mi", {"mix=64", "mirror=false", "mirror_scores=false"}),
        ("onepass tune er --set repl", {"replay=64"}),
        ("onepass list settings mi", {"mir"}),
        ("onepass data check m", {"mnist"}),
        ("onepass run gsa --prec", {"--precision"}),
        ("onepass table runs/ --format c", {"csv"}),
        ("onepass predict mod", set()),  # left to the shell, which knows files
    ],
)
def test_words_are_those_that_could_stand_there(
    line: str,
    words: set[str],
    stored: completion.Stored,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    type_(line, monkeypatch)
    with pytest.raises(SystemExit):
        completion.tell(stored)
    assert set(capsys.readouterr().out.split()) == words


def test_from_the_second_time_on_torch_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    type_("onepass run er gsa ", monkeypatch)
    first = onepass()
    assert {info.key for info in registry.methods()} <= set(first.out.split())
    command = [sys.executable, "-c", WITHOUT_TORCH]
    again = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert again.stdout == first.out


@pytest.mark.parametrize("damage", ["", "[]", '{"stamp": 1}', "{"])
def test_what_another_version_has_stored_is_not_used(
    damage: str, stored: completion.Stored
) -> None:
    completion.file().parent.mkdir()
    completion.file().write_text(json.dumps(stored))
    assert completion.read() == stored
    completion.file().write_text(damage)
    assert completion.read() is None


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
    type_("onepass ru", monkeypatch)
    assert onepass().out.split() == ["run", "runs"]
