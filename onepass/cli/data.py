"""`onepass data list`, `check` and `cache`: the published datasets on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onepass.base.errors import DataError, UnknownNameError
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import app, print_text
from onepass.data.catalogue import CATALOGUE, CatalogueEntry, data_root

data_app = typer.Typer(
    help="List, check and cache the published datasets on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
Name = Annotated[
    str,
    typer.Argument(
        help="mnist, cifar10, cifar100 or tiny-imagenet.",
        autocompletion=shared.complete_words(*CATALOGUE),
    ),
]


def _catalogue_entry(name: str) -> CatalogueEntry:
    if name not in CATALOGUE:
        raise UnknownNameError("dataset", name, CATALOGUE)
    return CATALOGUE[name]


@data_app.command(
    name="list", epilog="\b\nExamples:\n  onepass data list\n  onepass data list --data-root ~/data"
)
def list_datasets(
    root: shared.DataRoot = None,
    columns: shared.Columns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """List which datasets are here and how to get the others."""
    from onepass.data.verify import describe_location

    folder = data_root(root)
    rows = []
    for entry in CATALOGUE.values():
        found = describe_location(entry, folder)
        how = "" if found != "missing" else f"into {folder / entry.paths[0]}, or from {entry.hub}"
        rows.append({"dataset": entry.name, "found": found, "how to get it": how})
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    else:
        terminal_table.print_rows(rows, columns)


@data_app.command(name="check", epilog="\b\nExamples:\n  onepass data check cifar100")
def check_dataset(
    name: Name,
    root: shared.DataRoot = None,
) -> None:
    """Compare a dataset with its official counts and checksums.

    The cached copy is checked too. The exit status is 2 if anything differs.
    """
    from onepass.data.verify import verify

    results = verify(_catalogue_entry(name), data_root(root))
    for result in results:
        print_text(f"{'ok   ' if result.good else 'WRONG'}  {result.text}")
    bad = sum(not result.good for result in results)
    if bad:
        raise DataError(f"{name} is damaged or incomplete: {bad} of {len(results)} checks failed")


@data_app.command(
    name="cache",
    epilog="\b\nExamples:\n  onepass data cache cifar100\n  onepass data cache mnist --download",
)
def cache_dataset(
    name: Name,
    root: shared.DataRoot = None,
    fetch: Annotated[
        bool,
        typer.Option("--download", help="Download it from the hub first (pip install datasets)."),
    ] = False,
) -> None:
    """Decode a dataset into the cache, so that later loads are fast."""
    from onepass.data.loading import download_dataset, load

    entry = _catalogue_entry(name)
    dataset = download_dataset(entry) if fetch else load(name, root=root)
    typer.echo(f"{name}: {len(dataset.train_y)} training and {len(dataset.test_y)} test images")
