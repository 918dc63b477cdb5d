"""What `onepass.completion` tells shells: all commands, options and words, kept as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from textwrap import shorten
from typing import Any

import typer
from typer.main import get_command

from onepass import completion
from onepass.base.fileio import write_atomically
from onepass.cli.app import app
from onepass.cli.options import of_settings
from onepass.learning import registry

WIDTH = 60


def stored() -> completion.Stored:
    """All that there is to say; where it cannot be stored, every Tab takes as long as the first."""
    methods = [info.key for info in registry.methods()]
    content = {
        "stamp": completion.stamp(),
        "commands": _described(get_command(app)),
        "settings": {key: _short(of_settings(key)) for key in methods},
    }
    with suppress(OSError):
        completion.file().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(completion.file(), lambda file: file.write(json.dumps(content).encode()))
    return content


def _described(command: Any) -> dict[str, Any]:
    context = command.make_context("onepass", [], resilient_parsing=True)
    inner = getattr(command, "commands", {})
    return {
        "help": command.get_short_help_str(),
        "parameters": [_parameter(one, context) for one in command.params if one.expose_value],
        "commands": {name: _described(one) for name, one in inner.items()},
    }


def _parameter(one: Any, context: typer.Context) -> dict[str, Any]:
    words = one.shell_complete(context, "")
    return {
        "name": one.name,
        "options": one.opts if one.param_type_name == "option" else [],
        "flag": getattr(one, "is_flag", False),
        "several": one.nargs != 1 or one.multiple,
        "help": shorten(getattr(one, "help", None) or "", WIDTH, placeholder="..."),
        "words": _short([(word.value, word.help or "") for word in words]),
    }


def _short(words: Sequence[tuple[str, str]]) -> list[list[str]]:
    """What a word means has to have room on one line beside it."""
    return [[word, shorten(meaning, WIDTH, placeholder="...")] for word, meaning in words]
