"""Options and arguments that several commands have, and the words by which shells complete them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

import onepass
from onepass.base.cache_dir import cache_root
from onepass.base.fileio import write_atomically
from onepass.base.settings import describe_settings
from onepass.data.known import dataset_names
from onepass.evaluation.probes.registry import PROBES
from onepass.learning import registry
from onepass.learning.registry import METHODS
from onepass.runs.spec import PRESETS
from onepass.streams.registry import STREAMS
from onepass.tools.checks.names import check_summaries

Completions = list[str | tuple[str, str]]  # a word, or a word and what it means


def complete_words(*given: str) -> Callable[[], Completions]:
    return lambda: list(given)


def complete_methods() -> Completions:
    return [(key, facts.paper) for key in METHODS.names() if (facts := registry.facts(key))]


def complete_methods_or_all() -> Completions:
    return [*complete_methods(), ("all", "every method")]


def complete_datasets() -> Completions:
    return list(dataset_names())


def complete_streams() -> Completions:
    return list(STREAMS.summaries().items())


def complete_probes() -> Completions:
    return list(PROBES.summaries().items())


def complete_checks(incomplete: str) -> Completions:
    """Returns the names of the contract's checks, spelled as what is typed so far."""
    spelled = "-" if "-" in incomplete else "_"
    return [(name.replace("_", spelled), text) for name, text in check_summaries().items()]


def complete_settings(context: typer.Context) -> Completions:
    """Returns the settings of the methods that are typed already, or of all methods."""
    stored = _cached_settings()
    typed = [word for word in context.args if word in stored] or list(stored)
    return list(dict.fromkeys((word, help_) for method in typed for word, help_ in stored[method]))


def _cached_settings() -> dict[str, list[list[str]]]:
    """Returns each method's settings with their defaults and what they mean. They are asked of the
    classes once, which takes torch, and then kept in a file until something that is installed
    changes."""
    file, stamp = cache_root() / "settings.json", _installation_stamp()
    with suppress(OSError, ValueError, TypeError, KeyError):
        stored: dict[str, dict[str, list[list[str]]]] = json.loads(file.read_text("utf-8"))
        return stored[stamp]
    found = {
        info.key: [
            [f"{setting.name}={setting.default}", shorten(setting.meaning, 60, placeholder="...")]
            for setting in describe_settings(info.learner)
        ]
        for info in registry.methods()
    }
    with suppress(OSError):  # then the next Tab takes as long
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, lambda to: to.write(json.dumps({stamp: found}).encode()))
    return found


def _installation_stamp() -> str:
    """Returns a text that is another one after every change of the package and of what is
    installed, which may bring methods too."""
    package = Path(onepass.__file__).parent
    installed = [Path(place) for place in sys.path if place.endswith("-packages")]
    places = [place for place in (*package.rglob("*.py"), *installed) if place.exists()]
    return f"{package} {max(place.stat().st_mtime_ns for place in places)}"


Method = Annotated[
    str, typer.Argument(help="See: onepass list methods.", autocompletion=complete_methods)
]
Paths = Annotated[
    list[Path], typer.Argument(help="Folders of runs and .jsonl files of lines, in any number.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A constructor argument (see: onepass list settings METHOD); repeatable.",
        autocompletion=complete_settings,
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        help=f"{', '.join(PRESETS)}; see: onepass list methods.",
        autocompletion=complete_words(*PRESETS),
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Where datasets lie (default: $ONEPASS_DATA, or data)."),
]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs",
        metavar="N|auto",
        help="Runs at a time; auto: as many as pay.",
        autocompletion=complete_words("auto"),
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        metavar="N|auto|none",
        help="Steps between checkpoints; auto: ten seconds; or none.",
        autocompletion=complete_words("auto", "none"),
    ),
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Resume runs of other versions of onepass or torch too.")
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, mps, cuda or cuda:N.",
        autocompletion=complete_words("auto", "cpu", "mps", "cuda"),
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="auto (the default), eager or graph (one CUDA graph per step).",
        autocompletion=complete_words("auto", "eager", "graph"),
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(help="fp32 (the default) or bf16.", autocompletion=complete_words("fp32", "bf16")),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Only these: =, !=, > or < a value of the result or a setting; repeatable.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="Which columns the table shows, in which order."),
]
