"""onepass list, figure"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from onepass.base.errors import InputError
from onepass.base.settings import as_text
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, one_of, say, summary
from onepass.data import DATASETS, load, usual_tasks
from onepass.data.catalogue import CATALOGUE
from onepass.evaluation.probes import PROBES
from onepass.learning import registry
from onepass.learning.learner import Learner
from onepass.memory import Store
from onepass.nets import NETWORKS
from onepass.runs.query import results as read
from onepass.runs.spec import Job, preset_names
from onepass.streams import STREAMS, filled, make, parse

PAPER_FIGURES = ("fig1", "fig3", "fig7", "loss-curves", "proposition1")
FIGURES = ("accuracy", "stream", *PAPER_FIGURES)
LISTED = ("methods", "datasets", "streams", "networks", "probes", "settings", "presets")
SAMPLES = 100


@app.command(
    name="list",
    epilog="""\b
Examples:
  onepass list methods
  onepass list methods --columns method,paper,year
  onepass list datasets --json
  onepass list settings gsa
  onepass list presets gsa""",
)
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, datasets, streams, networks, probes, settings or presets.",
            autocompletion=shared.words(*LISTED),
        ),
    ],
    method: Annotated[
        str | None,
        typer.Argument(
            help="settings, presets: of which method (default: settings that all have, every "
            "preset).",
            autocompletion=shared.methods,
        ),
    ] = None,
    imports: Imports = None,
    columns: shared.Columns = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List methods, settings, presets, datasets, streams and more."""
    one_of("list", what, LISTED)
    if method is not None and what not in ROWS_OF_A_METHOD:
        raise InputError(f"only settings and presets are those of a method, not {what}")
    entries = ROWS_OF_A_METHOD[what](method) if what in ROWS_OF_A_METHOD else ROWS[what]()
    if as_json:
        for entry in entries:
            typer.echo(json.dumps(entry))
    else:
        terminal_table.show_rows(entries, columns)


def _methods() -> list[dict[str, Any]]:
    entries = []
    for info in registry.methods():
        images = info.learner().images(batch=10)
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
    made = [
        {"dataset": info.key, "classes": info.classes, "what": summary(info.make)}
        for info in DATASETS.all().values()
    ]
    published = [
        {
            "dataset": entry.name,
            "classes": entry.classes,
            "what": f"{sum(entry.train)} + {sum(entry.test)} images of {entry.shape[1]}x"
            f"{entry.shape[2]}; onepass data check {entry.name} says whether it is here",
        }
        for entry in CATALOGUE.values()
    ]
    return made + published


def _streams() -> list[dict[str, Any]]:
    return [
        {"stream": info.key, "keys": " ".join(info.arguments), "what": summary(info.make)}
        for info in STREAMS.all().values()
    ]


def _networks() -> list[dict[str, Any]]:
    return [
        {"network": info.key, "takes": info.takes, "what": summary(info.make)}
        for info in NETWORKS.all().values()
    ]


def _probes() -> list[dict[str, Any]]:
    return [{"probe": name, "what": summary(probe)} for name, probe in PROBES.all().items()]


def _settings(method: str | None) -> list[dict[str, Any]]:
    learner = Learner if method is None else registry.get(method).learner
    return [one._asdict() for one in learner.described()]


def _presets(method: str | None) -> list[dict[str, Any]]:
    infos = registry.methods() if method is None else [registry.get(method)]
    return [
        {
            "method": info.key,
            "preset": name,
            "settings": _by_hand(preset.settings),
            "unmirrored": _by_hand(preset.unmirrored or {}),
            "source": preset.source,
        }
        for info in infos
        for name, preset in info.learner.presets.items()
    ]


def _by_hand(settings: dict[str, Any]) -> str:
    """As `--set` takes them."""
    return " ".join(f"{name}={as_text(value)}" for name, value in settings.items())


ROWS = {
    "methods": _methods,
    "datasets": _datasets,
    "streams": _streams,
    "networks": _networks,
    "probes": _probes,
}
ROWS_OF_A_METHOD = {"settings": _settings, "presets": _presets}


@app.command(
    epilog="""fig1 and those behind it are figures of the GSA paper, with what it says to them and
whether the runs say the same (also written beside the picture, as .md); the runs are those of
experiments/fig1.toml and so on.

\b
Examples:
  onepass figure accuracy runs/ -o accuracy.png
  onepass figure accuracy runs/ --kind curves -o curves.svg
  onepass figure accuracy runs/ --where memory=50 -o accuracy.png
  onepass figure accuracy results/lines/cifar100.jsonl --kind bars -o bars.pdf
  onepass figure stream blurry:n=50,m=10 --dataset cifar10 -o stream.png
  onepass figure fig1 runs/fig1 -o fig1.png                  PN of old tasks, and their accuracy
  onepass figure fig3 runs/fig3 -o fig3.png                  A-PN by class, and its accuracy
  onepass figure fig7 runs/fig7 -o fig7.png                  A-PN with and without the GSA-CE loss
  onepass figure loss-curves runs/loss-curves -o losses.png  losses of stream and replay in task 2
  onepass figure proposition1 runs/fig7 -o proposition1.png  the decomposed loss, and its gap"""
)
def figure(
    what: Annotated[
        str,
        typer.Argument(
            help="accuracy, stream, fig1, fig3, fig7, loss-curves or proposition1.",
            autocompletion=shared.words(*FIGURES),
        ),
    ],
    drawn: Annotated[
        list[str], typer.Argument(help="Folders of runs, .jsonl files (bars), or a stream's SPEC.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .png, .svg or .pdf file.")],
    kind: Annotated[
        str,
        typer.Option(
            help="accuracy: both, bars or curves.",
            autocompletion=shared.words("both", "bars", "curves"),
        ),
    ] = "both",
    dataset: Annotated[
        str,
        typer.Option(help="stream: over which dataset.", autocompletion=shared.datasets),
    ] = Job.dataset,
    data_root: Annotated[Path | None, typer.Option(help="stream: where datasets lie.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="stream: as for run.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="stream: as for run.")] = None,
    label: Annotated[str | None, typer.Option(help="stream: as for run.")] = None,
    test: Annotated[Path | None, typer.Option(help="stream: as for run.")] = None,
    seed: Annotated[int, typer.Option(help="stream: its seed.")] = Job.seed,
    where: shared.Where = None,
    imports: Imports = None,
) -> None:
    """Draw finished runs, a figure of the paper, or a stream."""
    from onepass.report import figures

    one_of("figure", what, FIGURES)
    of_stream = {
        "--dataset": dataset != Job.dataset,
        "--data-root": data_root is not None,
        "--image-size": image_size is not None,
        "--test-fraction": test_fraction is not None,
        "--label": label is not None,
        "--test": test is not None,
        "--seed": seed != Job.seed,
    }
    _refuse(["stream"], what, of_stream)
    _refuse(["accuracy"], what, {"--kind": kind != "both"})
    _refuse(["accuracy", *PAPER_FIGURES], what, {"--where": bool(where)})
    one_of("--kind", kind, figures.KINDS)
    if what != "stream":
        results = read(*map(Path, drawn), where=where or [])
    if what == "accuracy":
        figures.accuracy(results, output, kind=kind)
    elif what in PAPER_FIGURES:
        from onepass.gsa_paper import figures as paper_figures

        typer.echo(paper_figures.drawn(what, results, output))
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


def _refuse(of: Sequence[str], what: str, given: dict[str, bool]) -> None:
    """Options of some figures that were given for another."""
    if what not in of and (in_vain := [name for name in given if given[name]]):
        raise InputError(f"{in_vain[0]} goes with figure {', '.join(of)}, not with figure {what}")


def _only(specs: list[str]) -> str:
    if len(specs) > 1:
        raise InputError(f"one stream is drawn at a time, not {len(specs)}")
    return specs[0]
