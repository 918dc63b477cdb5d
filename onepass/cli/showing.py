"""onepass list, table, figure"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from onepass import registry
from onepass.cli.base import app, one_of, printed, rich_table, say
from onepass.data import load, usual_tasks
from onepass.data.catalogue import CATALOGUE
from onepass.data.load import EMBEDDED
from onepass.errors import InputError
from onepass.job import Job, preset_names
from onepass.learner import Learner
from onepass.memory import Store
from onepass.nets import NETWORKS
from onepass.probes import PROBES
from onepass.streams import STREAMS, filled, make, parse

SAMPLES = 100


@app.command(
    name="list",
    epilog="""\b
Examples:
  onepass list methods
  onepass list datasets --json""",
)
def list_(
    what: Annotated[str, typer.Argument(help="methods, datasets, streams, networks or probes.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what there is."""
    rows = {
        "methods": _methods,
        "datasets": _datasets,
        "streams": _streams,
        "networks": _networks,
        "probes": _probes,
    }
    entries = rows[one_of("list", what, tuple(rows))]()
    if as_json:
        for entry in entries:
            typer.echo(json.dumps(entry))
    else:
        cells = [[str(value) for value in entry.values()] for entry in entries]
        printed.print(rich_table(entries[0].keys(), cells))


def _methods() -> list[dict[str, Any]]:
    entries = []
    for info in registry.methods():
        images = info.learner().cost(batch=10)
        stores = _stores(info.learner)
        kept = [" + ".join(store.kept) for store in stores]
        entries.append(
            {
                "method": info.key,
                "revision": info.revision,
                "paper": info.paper,
                "year": info.year or None,
                "trained images a step": images.trained,
                "scored images a step": images.scored,
                "boundaries": info.boundaries,
                "kept per sample": "; ".join(kept) or "nothing",
                "bytes (3x32x32)": sum(store.bytes for store in stores) // SAMPLES,
                "presets": " ".join(preset_names(info.learner)),
            }
        )
    return entries


def _stores(method: type[Learner]) -> list[Store]:
    """What a method keeps, asked of its memories for so many colour images of 32 pixels."""
    features = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    chosen = {"memory": SAMPLES} if "memory" in method.setting_names() else {}
    learner = method.configured(net=features, device="cpu", **chosen)
    learner.prepare((3, 32, 32), torch.uint8)
    return list(learner.stores.values())


def _datasets() -> list[dict[str, Any]]:
    embedded = [
        {"dataset": name, "classes": 10, "what": _summary(load)} for name, load in EMBEDDED.items()
    ]
    published = [
        {
            "dataset": entry.name,
            "classes": len(entry.train),
            "what": f"{sum(entry.train)} + {sum(entry.test)} images of {entry.shape[1]}x"
            f"{entry.shape[2]}; onepass data check {entry.name} says whether it is here",
        }
        for entry in CATALOGUE.values()
    ]
    return embedded + published


def _streams() -> list[dict[str, Any]]:
    return [
        {"stream": info.key, "keys": " ".join(info.arguments), "what": _summary(info.make)}
        for info in STREAMS.entries.values()
    ]


def _networks() -> list[dict[str, Any]]:
    return [
        {"network": info.key, "takes": info.takes, "what": _summary(info.make)}
        for info in NETWORKS.entries.values()
    ]


def _probes() -> list[dict[str, Any]]:
    return [{"probe": name, "what": _summary(probe)} for name, probe in PROBES.entries.items()]


def _summary(documented: object) -> str:
    """The first sentence of what it says about itself."""
    text = " ".join((documented.__doc__ or "").split())
    return text.split(". ")[0].rstrip(".")


@app.command(
    epilog="""\b
Examples:
  onepass table runs/
  onepass table runs/ --format latex
  onepass table runs/ --against published
  onepass table results/cifar100.jsonl runs/ more-runs/"""
)
def table(
    paths: Annotated[
        list[Path], typer.Argument(help="Folders of runs and .jsonl files of lines, in any number.")
    ],
    format_: Annotated[
        str, typer.Option("--format", help="text, markdown, latex or csv.")
    ] = "text",
    against: Annotated[
        str | None, typer.Option(help="published: put the published figures beside ours.")
    ] = None,
) -> None:
    """Finished runs as a table: mean, spread and number of runs for each method."""
    from onepass.report import tables

    if against is not None:
        one_of("--against", against, ("published",))
    one_of("--format", format_, ("text", *tables.FORMATS))
    rows = tables.summarise(tables.read(*paths))
    header, cells = tables.grid(rows, published=against is not None, apart=format_ == "csv")
    if format_ == "text":
        printed.print(rich_table(header, cells))
    else:
        typer.echo(tables.FORMATS[format_](header, cells), nl=False)


@app.command(
    epilog="""\b
Examples:
  onepass figure accuracy runs/ -o accuracy.png
  onepass figure accuracy runs/ --kind curves -o curves.svg
  onepass figure accuracy results/cifar100.jsonl --kind bars -o bars.pdf
  onepass figure stream blurry:n=50,m=10 --dataset cifar10 -o stream.png"""
)
def figure(
    what: Annotated[str, typer.Argument(help="accuracy, or stream.")],
    drawn: Annotated[
        list[str], typer.Argument(help="Folders of runs, .jsonl files (bars), or a stream's SPEC.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .png, .svg or .pdf file.")],
    kind: Annotated[str, typer.Option(help="accuracy: both, bars or curves.")] = "both",
    dataset: Annotated[str, typer.Option(help="stream: over which dataset.")] = Job.dataset,
    data_root: Annotated[Path | None, typer.Option(help="stream: where datasets lie.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="stream: as for run.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="stream: as for run.")] = None,
    label: Annotated[str | None, typer.Option(help="stream: as for run.")] = None,
    test: Annotated[Path | None, typer.Option(help="stream: as for run.")] = None,
    seed: Annotated[int, typer.Option(help="stream: its seed.")] = Job.seed,
) -> None:
    """Draw finished runs, or a stream: class against time."""
    from onepass.report import figures, tables

    if one_of("figure", what, ("accuracy", "stream")) == "accuracy":
        one_of("--kind", kind, figures.KINDS)
        figures.accuracy(tables.read(*map(Path, drawn)), output, kind=kind)
    else:
        data = load(
            dataset,
            root=data_root,
            image_size=image_size,
            test_fraction=test_fraction,
            label=label,
            test=test,
        )
        table = filled(parse(_only(drawn)), {"tasks": usual_tasks(data.name, data.classes)})
        figures.stream(make(data, table, seed=seed), output)
    say(str(output))


def _only(specs: list[str]) -> str:
    if len(specs) > 1:
        raise InputError(f"one stream is drawn at a time, not {len(specs)}")
    return specs[0]
