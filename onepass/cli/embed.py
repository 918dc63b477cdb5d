"""`onepass embed`: encodes a dataset into a file of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onepass.base.news import Pace
from onepass.base.text import printable
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, print_text
from onepass.cli.progress import bars_are_seen, print_line, progress_bars


@app.command(
    name="embed",
    epilog="""\b
Examples:
  onepass embed photos/ --encoder efficientnet-lite0 -o features.npz
  onepass embed cifar100 --encoder efficientnet-lite2^+mirror -o features.npz
  onepass embed mails.csv --encoder text:hash --text body --label folder -o features.npz""",
)
def embed_command(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A dataset, a folder of images in one folder per class, or a table of texts.",
            autocompletion=shared.complete_datasets,
        ),
    ],
    encoder: Annotated[
        str, typer.Option("--encoder", metavar="NAME", help="See: onepass list encoders.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="A .npz or .parquet file.")],
    device: shared.Device = "auto",
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Leave out and name images that cannot be decoded."),
    ] = False,
    text: Annotated[
        str | None, typer.Option("--text", metavar="COLUMN", help="Column of a table of texts.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="Column of its labels.")
    ] = None,
    root: shared.DataRoot = None,
    imports: Imports = None,
) -> None:
    """Turn photos or texts into a file of vectors.

    The file is a dataset: onepass run METHOD --dataset features.npz. A job that was stopped goes on
    where it was.
    """
    from onepass.encoders import Encoder
    from onepass.encoders.embed import embed, find_source

    found = Encoder(encoder, device)
    source = find_source(dataset, takes=found.takes, root=root, text=text, label=label)
    print_line(f"{found.name} on {found.engine}: {len(source)} {found.takes}")
    with progress_bars() as bars:
        bar = bars.add_task(printable(str(out)), total=len(source), note="")
        pace = Pace(len(source))

        def show(count: int) -> None:
            bars.advance(bar, count)
            done = int(bars.tasks[0].completed)
            if pace.is_due(done) and not bars_are_seen():
                print_line(f"{done} of {len(source)}, {pace.left(done)}")

        done = embed(source, found, out, skip_damaged=skip_damaged, progress=show)
    for problem in done.damaged:
        print_line(f"left out: {problem}")
    lost = f", {len(done.damaged)} damaged left out" if done.damaged else ""
    files = " and ".join(map(str, done.files))
    print_text(f"{files}: {done.vectors} vectors of {found.dimension}{lost}")
