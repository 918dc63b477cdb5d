"""Options and arguments that several commands share, and their completions in a shell."""

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
from onepass.encoders.registry import list_encoders
from onepass.evaluation.probes.registry import PROBES
from onepass.learning import registry
from onepass.learning.registry import METHODS
from onepass.runs.spec import PRESETS
from onepass.streams.registry import STREAMS
from onepass.tools.checks.names import check_summaries

Completions = list[str | tuple[str, str]]  # a word, or a word and its description


def complete_words(*given: str) -> Callable[[], Completions]:
    """Returns a completion that always offers these words."""
    return lambda: list(given)


def complete_methods() -> Completions:
    return [(key, facts.paper) for key in METHODS.names() if (facts := registry.facts(key))]


def complete_methods_or_all() -> Completions:
    return [*complete_methods(), ("all", "every method")]


def complete_datasets() -> Completions:
    return list(dataset_names())


def complete_encoders() -> Completions:
    return [(str(row["encoder"]), str(row["what"])) for row in list_encoders()]


def complete_streams() -> Completions:
    return list(STREAMS.summaries().items())


def complete_probes() -> Completions:
    return list(PROBES.summaries().items())


def complete_checks(incomplete: str) -> Completions:
    """Returns the names of the contract's checks, with `-` or `_` as the typed word has it."""
    spelled = "-" if "-" in incomplete else "_"
    return [(name.replace("_", spelled), text) for name, text in check_summaries().items()]


def complete_settings(context: typer.Context) -> Completions:
    """Returns `NAME=DEFAULT` and meaning of each setting, for completion after `--set`.

    The methods are those that the command line already names, or all.
    """
    stored = _cached_settings()
    typed = [word for word in context.args if word in stored] or list(stored)
    return list(dict.fromkeys((word, help_) for method in typed for word, help_ in stored[method]))


def _cached_settings() -> dict[str, list[list[str]]]:
    """Returns `[NAME=DEFAULT, meaning]` for each setting, by method.

    Inspecting the classes imports torch, which takes seconds. So the answer is cached in a file,
    until onepass or the installed packages change.
    """
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
    with suppress(OSError):  # without the file, the next Tab is as slow as this one
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, lambda to: to.write(json.dumps({stamp: found}).encode()))
    return found


def _installation_stamp() -> str:
    """Returns a text that changes when a file of onepass or the set of installed packages does.

    Installed packages count because a plugin among them may register methods.
    """
    package = Path(onepass.__file__).parent
    installed = [Path(folder) for folder in sys.path if folder.endswith("-packages")]
    paths = [path for path in (*package.rglob("*.py"), *installed) if path.exists()]
    return f"{package} {max(path.stat().st_mtime_ns for path in paths)}"


Method = Annotated[
    str, typer.Argument(help="See: onepass list methods.", autocompletion=complete_methods)
]
Paths = Annotated[
    list[Path], typer.Argument(help="Run folders, folders of them, or .jsonl files of results.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the method (see: onepass list settings METHOD); repeatable.",
        autocompletion=complete_settings,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(PRESETS)}; see: onepass list presets (default: tuned for one method "
        "that has it, else common).",
        autocompletion=complete_words(*PRESETS),
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of the datasets (default: $ONEPASS_DATA, or data)."),
]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs",
        metavar="N|auto",
        help="Runs in parallel; auto: one per CPU core, or 8 per GPU.",
        autocompletion=complete_words("auto"),
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        metavar="N|auto|none",
        help="Steps between checkpoints; auto: one every ten seconds, or for closed-form methods "
        "with over 64 MB of sums one at the end.",
        autocompletion=complete_words("auto", "none"),
    ),
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway", help="Resume runs even if onepass, torch or your method has changed since."
    ),
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
        help="auto (the default), eager, or graph (each step is a CUDA graph).",
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
        help="Only runs with KEY=VALUE (or !=, >, <, >=, <=); KEY is a field of the result or a "
        "setting; repeatable.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="The columns of the table, in this order."),
]
