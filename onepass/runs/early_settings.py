"""Completes the settings of results that do not record all of them.

Early results recorded no settings, and later ones lack those settings that are newer than they are.
`early_settings.json` holds the defaults of every method, and the presets, as these results were
made with them. A default that changes today does not change what an old result was, so the file
keeps the old one. It gains a setting only if that setting is new and its default is not what the
method did before (`ssil`: `replayed`, `rivals`).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from onepass.runs.variant import PRESET, Variant

FILE = Path(__file__).with_name("early_settings.json")
WORDS = {"true": True, "false": False, "none": None}


def completed(method: str, variant: str, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recorded settings, and early values of those that the result lacks: the
    variant's, or the default. In a result that recorded none the preset's come before the default.
    (A preset has no value for a setting that is newer than the result.)

    >>> completed("er", "tuned lr=1e-3", {})["lr"], completed("er", "tuned", {})["head"]
    (0.001, 'frozen')
    >>> completed("er", "best", {"head": "frozen"})["norms"]
    'running'
    """
    early = _early().get(method)
    if early is None or early["defaults"].keys() <= recorded.keys():
        return dict(recorded)
    usual, named = early["defaults"], Variant.parse(variant)
    preset = {} if recorded else early["presets"].get(named.get(PRESET), {})
    own = {name: _value(text, usual[name]) for name, text in named.only(usual).items()}
    return {**usual, **preset, **own, **recorded}


def _value(text: str, usual: object) -> Any:
    """Returns the value of a setting's text, as JSON has it. A setting that is text by default
    (`augment`, `weights`) may have the value "none"."""
    if isinstance(usual, str):
        return text
    try:
        return WORDS[text] if text in WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@cache
def _early() -> dict[str, Any]:
    """Returns the content of the file. It is read once, when the first settings are asked for."""
    content: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return content
