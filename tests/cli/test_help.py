"""The help of every command, the version, and `onepass list`."""

from __future__ import annotations

import json

import pytest
import typer
from command import onepass

import onepass as package
from onepass.base.settings import parse_settings, setting_names
from onepass.cli.app import app
from onepass.learning import registry


def within(group, words=()):
    """Returns the words of each command of a group, as in ("data", "list")."""
    if not hasattr(group, "commands"):
        return [words]
    inner = group.commands.items()
    return [item for name, command in inner for item in within(command, (*words, name))]


COMMANDS = within(typer.main.get_command(app))
AFTERWARDS = {("tune",): "onepass run"}  # what is done with the settings that were found


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_shows_examples(words: tuple[str, ...]) -> None:
    done = onepass(*words, "-h")
    assert done == onepass(*words, "--help")
    assert done.status == 0
    examples = done.out.split("Examples:")[1].lstrip("\n").split("\n\n")[0].splitlines()
    own = f"onepass {' '.join(words)}"
    assert examples[0].strip().startswith(own)
    assert all(line.strip().startswith((own, AFTERWARDS.get(words, own))) for line in examples)


def test_the_first_help_lists_every_command() -> None:
    done = onepass("--help")
    assert done.status == 0
    assert all(f"\n  {name} " in done.out for name, *_ in COMMANDS)


@pytest.mark.parametrize("group", [(), ("data",), ("runs",)])
def test_what_a_command_does_is_told_whole_in_a_line_of_the_list(group: tuple[str, ...]) -> None:
    assert "..." not in onepass(*group, "--help").out.split("Commands:")[1]


@pytest.mark.parametrize(("group", "inner"), [([], "predict"), (["data"], "check")])
def test_no_command_at_all_shows_the_help(group: list[str], inner: str) -> None:
    done = onepass(*group)
    assert done.status in (0, 2)
    shown = done.out + done.err
    assert shown.startswith("Usage:")
    assert f"\n  {inner} " in shown


def test_version() -> None:
    done = onepass("--version")
    assert (done.status, done.out) == (0, f"onepass {package.__version__}\n")


# ---- list


def test_list_methods_knows_every_registered_method() -> None:
    listed = onepass("list", "methods", "--json").records
    assert [item["method"] for item in listed] == [info.key for info in registry.methods()]
    assert all({"paper", "year", "boundaries", "presets"} <= set(item) for item in listed)
    gsa = next(item for item in listed if item["method"] == "gsa")
    assert (gsa["year"], gsa["trained images a step"]) == (2023, 74)
    assert gsa["presets"] == "common tuned best fast"


@pytest.mark.parametrize(
    ("what", "key", "names"),
    [
        ("methods", "method", {"gsa", "er", "finetune", "joint", "gsa-released"}),
        ("datasets", "dataset", {"digits", "synthetic", "cifar100"}),
        ("streams", "stream", {"class-incremental", "long-tail", "blurry"}),
        ("networks", "network", {"mlp", "resnet18"}),
        ("probes", "probe", {"balance"}),
    ],
)
def test_list_shows_what_there_is(what: str, key: str, names: set[str]) -> None:
    listed = {item[key] for item in onepass("list", what, "--json").records}
    assert names <= listed
    done = onepass("list", what)
    assert done.status == 0
    words = done.out.split()
    assert all(name in words for name in listed)


def test_presets_are_listed_as_they_would_be_set_by_hand() -> None:
    for item in onepass("list", "presets", "--json").records:
        learner = registry.get(item["method"]).learner
        preset = learner.presets[item["preset"]]
        assert item["source"] == preset.source
        for told, meant in [("settings", preset.settings), ("unmirrored", preset.unmirrored or {})]:
            pairs = dict(pair.split("=", 1) for pair in item[told].split())
            assert parse_settings(learner, pairs) == meant
    of_er = onepass("list", "presets", "er", "--json").records
    assert [item["preset"] for item in of_er] == list(package.ER.presets)


def test_a_method_without_presets_is_no_error() -> None:
    done = onepass("list", "presets", "finetune")
    assert (done.status, done.out) == (0, "finetune has no presets of its own\n"), done.err


def test_settings_are_listed_with_what_they_mean() -> None:
    listed = {item["name"]: item for item in onepass("list", "settings", "gsa", "--json").records}
    assert listed.keys() == set(setting_names(package.GSA))
    assert listed["mix"] == {
        "name": "mix",
        "type": "a whole number",
        "default": "64",
        "meaning": "Size of X^mix.",
    }
    of_all = [item["name"] for item in onepass("list", "settings", "--json").records]
    assert set(of_all) == set(setting_names(package.NetworkLearner)) <= listed.keys()


@pytest.mark.parametrize("words", [("settings", "gsaa"), ("streams", "gsa")])
def test_settings_are_those_of_a_method_that_there_is(words: tuple[str, ...]) -> None:
    done = onepass("list", *words)
    assert (done.status, done.out) == (2, "")
    assert done.error


def test_what_a_stream_is_is_a_whole_sentence():
    sentences = {
        entry["stream"]: entry["what"]
        for entry in map(json.loads, onepass("list", "streams", "--json").out.splitlines())
    }
    assert sentences["blurry"].endswith("(i-Blurry, Koh et al., ICLR 2022)")
    assert sentences["class-incremental"].endswith("with samples shuffled within each task")


def test_a_network_is_listed_with_what_it_takes_and_its_sentence():
    listed = {item["network"]: item for item in onepass("list", "networks", "--json").records}
    assert listed["resnet18"]["takes"] == "images"
    assert listed["mlp"] == {
        "network": "mlp",
        "takes": "images and vectors",
        "inputs": "normalised",
        "what": "Two layers of 400 units over all pixels or features",
    }
