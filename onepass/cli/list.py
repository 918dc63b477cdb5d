"""`onepass list`: the registered methods, datasets, streams, networks, encoders and probes; the
settings and presets of methods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onepass.base.errors import InputError
from onepass.base.settings import construct, describe_settings, format_setting, setting_names
from onepass.base.text import first_sentence
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, expect_one_of, print_text
from onepass.data.catalogue import CATALOGUE
from onepass.data.registry import DATASETS
from onepass.encoders.registry import list_encoders
from onepass.evaluation.probes.registry import PROBES
from onepass.learning import registry
from onepass.runs.spec import preset_names
from onepass.streams.registry import STREAMS

if TYPE_CHECKING:
    from onepass.learning.learner import Learner
    from onepass.memory import Store

LISTED = ("methods", "datasets", "streams", "networks", "encoders", "probes", "settings", "presets")
SAMPLES = 100  # capacity of the memories whose bytes per sample are listed


@app.command(
    name="list",
    epilog="""\b
Examples:
  onepass list methods
  onepass list methods --columns method,paper,year
  onepass list datasets --json
  onepass list encoders
  onepass list settings gsa
  onepass list presets gsa""",
)
def list_command(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, datasets, streams, networks, encoders, probes, settings or presets.",
            autocompletion=shared.complete_words(*LISTED),
        ),
    ],
    method: Annotated[
        str | None,
        typer.Argument(
            help="Method whose settings or presets to list (default: the settings that all methods "
            "share; all presets).",
            autocompletion=shared.complete_methods,
        ),
    ] = None,
    imports: Imports = None,
    columns: shared.Columns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """List what runs can use: methods, settings, datasets and more."""
    expect_one_of("list", what, LISTED)
    if method is not None and what not in ROWS_OF_A_METHOD:
        raise InputError(f"list {what} takes no method; list settings and list presets do")
    entries = ROWS_OF_A_METHOD[what](method) if what in ROWS_OF_A_METHOD else ROWS[what]()
    if as_json:
        for entry in entries:
            typer.echo(json.dumps(entry))
    elif entries:
        terminal_table.print_rows(entries, columns)
    else:
        print_text(f"{method} has no {what} of its own")


def _method_rows() -> list[dict[str, Any]]:

    entries = []
    for info in registry.methods():
        images = construct(info.learner, **info.common.settings).images_per_batch(batch=10)
        stores = _stores_of_method(info.learner)
        kept = [" + ".join(store.column_names) for store in stores]
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


def _stores_of_method(method: type[Learner]) -> list[Store]:
    """Returns a method's empty memories, with room for SAMPLES colour images of 32x32 pixels.

    The learner's network only pools, so that nothing large is built.
    """
    import torch
    from torch import nn

    from onepass.learning.memory_contents import stores_of
    from onepass.learning.network_learner import NetworkLearner

    if not issubclass(method, NetworkLearner):
        return []
    features = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    chosen = {"memory": SAMPLES} if "memory" in setting_names(method) else {}
    learner = construct(method, net=features, device="cpu", **chosen)
    learner.prepare((3, 32, 32), torch.uint8)
    return stores_of(learner)


def _dataset_rows() -> list[dict[str, Any]]:
    made = [
        {
            "dataset": info.key,
            "classes": info.classes,
            "what": _first_sentence_of(info.make),
        }
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


def _stream_rows() -> list[dict[str, Any]]:
    return [
        {
            "stream": info.key,
            "keys": " ".join(info.arguments),
            "what": _first_sentence_of(info.make),
        }
        for info in STREAMS.all().values()
    ]


def _network_rows() -> list[dict[str, Any]]:
    from onepass.nets import NETWORKS

    return [
        {
            "network": info.key,
            "takes": info.takes,
            "inputs": "normalised" if info.preprocess is None else "its own preprocessing",
            "what": _first_sentence_of(info.make),
        }
        for info in NETWORKS.all().values()
    ]


def _probe_rows() -> list[dict[str, Any]]:
    return [
        {"probe": name, "what": _first_sentence_of(probe)} for name, probe in PROBES.all().items()
    ]


def _first_sentence_of(documented: object) -> str:
    """Returns the first sentence of an object's docstring."""
    return first_sentence(documented.__doc__ or "")


def _setting_rows(method: str | None) -> list[dict[str, Any]]:
    """Returns a row for each setting of a method, or for those that all methods share which train
    a network."""
    from onepass.learning.network_learner import NetworkLearner

    learner = NetworkLearner if method is None else registry.get(method).learner
    return [setting._asdict() for setting in describe_settings(learner)]


def _preset_rows(method: str | None) -> list[dict[str, Any]]:
    """Returns a row for each preset of a method, or of all methods.

    `common` has a row only where it differs from the constructor's defaults.
    """
    infos = registry.methods() if method is None else [registry.get(method)]
    return [
        {
            "method": info.key,
            "preset": name,
            "settings": _as_set_options(preset.settings),
            "unmirrored": _as_set_options(preset.unmirrored or {}),
            "source": preset.source,
        }
        for info in infos
        for name, preset in info.learner.presets.items()
    ]


def _as_set_options(settings: dict[str, Any]) -> str:
    """Returns settings as `--set` takes them."""
    return " ".join(f"{name}={format_setting(value)}" for name, value in settings.items())


ROWS = {
    "methods": _method_rows,
    "datasets": _dataset_rows,
    "streams": _stream_rows,
    "networks": _network_rows,
    "encoders": list_encoders,
    "probes": _probe_rows,
}
ROWS_OF_A_METHOD = {"settings": _setting_rows, "presets": _preset_rows}
