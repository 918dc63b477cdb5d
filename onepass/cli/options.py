"""Options and arguments that several commands have, and the words by which shells complete them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from onepass.data.known import names
from onepass.evaluation.probes import PROBES
from onepass.learning import registry
from onepass.learning.registry import METHODS
from onepass.runs.spec import PRESETS
from onepass.streams import STREAMS

Words = list[str | tuple[str, str]]  # a word, or a word and what it means


def words(*given: str) -> Callable[[], Words]:
    return lambda: list(given)


def methods() -> Words:
    return [(key, facts.paper) for key in METHODS.names() if (facts := registry.facts(key))]


def methods_or_all() -> Words:
    return [*methods(), ("all", "every method")]


def datasets() -> Words:
    return list(names())


def streams() -> Words:
    return list(STREAMS.summaries().items())


def probes() -> Words:
    return list(PROBES.summaries().items())


def of_settings(method: str) -> list[tuple[str, str]]:
    """Each setting with its default, as it is after `--set`, and what it means."""
    settings = registry.get(method).learner.described()
    return [(f"{one.name}={one.default}", one.meaning) for one in settings]


Method = Annotated[str, typer.Argument(help="See: onepass list methods.", autocompletion=methods)]
Paths = Annotated[
    list[Path], typer.Argument(help="Folders of runs and .jsonl files of lines, in any number.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A constructor argument (see: onepass list settings METHOD); repeatable.",
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        help=f"{', '.join(PRESETS)}; see: onepass list methods.", autocompletion=words(*PRESETS)
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
        autocompletion=words("auto"),
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        metavar="N|auto|none",
        help="Steps between checkpoints; auto: ten seconds; or none.",
        autocompletion=words("auto", "none"),
    ),
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Resume runs of other versions of onepass or torch too.")
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, mps, cuda or cuda:N.", autocompletion=words("auto", "cpu", "mps", "cuda")
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="auto, eager or graph (one CUDA graph per step).",
        autocompletion=words("auto", "eager", "graph"),
    ),
]
Precision = Annotated[str, typer.Option(help="fp32 or bf16.", autocompletion=words("fp32", "bf16"))]
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
