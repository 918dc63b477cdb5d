"""Shell completion offers the right words, without waiting for torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import onepass

from onepass.base.settings import describe_settings
from onepass.learning import registry

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from onepass.cli import main; main()"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a cache that the tests of this file share; the first Tab after --set fills it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", str(cache))
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
        ("onepass check er --only the_h", {"the_head_grows"}),
        ("onepass check er --only the-h", {"the-head-grows"}),
        ("onepass table runs/ --format c", {"csv"}),
        ("onepass predict mod", set()),  # left to the shell, which knows files
    ],
)
def test_words_are_those_that_could_stand_there(
    line: str, words: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    type_(line, monkeypatch)
    assert set(onepass().out.split()) == words


@pytest.mark.parametrize(
    "line", ["onepass run er gsa ", "onepass run gsa --set mi", "onepass check er --only the"]
)
def test_torch_is_not_needed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    type_(line, monkeypatch)
    first = onepass()
    assert first.out
    command = [sys.executable, "-c", WITHOUT_TORCH]
    again = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert again.stdout == first.out


@pytest.mark.parametrize("damage", ["", "[]", '{"another stamp": {}}', "{"])
def test_what_another_version_has_stored_is_not_used(
    damage: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "settings.json").write_text(damage)
    type_("onepass run gsa --set mi", monkeypatch)
    assert "mix=64" in onepass().out


def test_what_a_word_means_stands_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ONEPASS_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "onepass run gsa --set ")
    lines = [line.split("\t") for line in onepass().out.splitlines()]
    assert [line[0].split("=")[0] for line in lines] == [
        entry.name for entry in describe_settings(registry.get("gsa").learner)
    ]
    assert all(len(line) == 2 for line in lines)


def test_a_cache_that_cannot_be_written_costs_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONEPASS_CACHE", "/dev/null/nowhere")
    type_("onepass ru", monkeypatch)
    assert onepass().out.split() == ["run", "runs"]
