"""`onepass predict`: classifies image files with a saved learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onepass.base.news import heard_by
from onepass.base.text import printable
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, messages
from onepass.cli.progress import print_line
from onepass.runs.spec import Job


@app.command(
    name="predict",
    epilog="""\b
Examples:
  onepass predict runs/gsa-digits-m100-s0/checkpoint.pt photos/
  onepass predict model.pt photos/ --json""",
)
def predict_command(
    model: Annotated[
        Path, typer.Argument(help="A file from learner.save, or a run's checkpoint.pt.")
    ],
    folder: Annotated[Path, typer.Argument(help="A folder of images, or one image.")],
    device: shared.Device = Job.device,
    imports: Imports = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per image.")
    ] = False,
) -> None:
    """Print path, class and probability (softmax) of each image.

    An image that cannot be read is reported on standard error. The exit status is then 2.
    """
    from onepass.tools.predict_images import UnreadableImage, classify

    failed = 0
    with heard_by(lambda line: print_line(line.text)):  # a method may train before it predicts
        for entry in classify(model, folder, device):
            if isinstance(entry, UnreadableImage):
                messages.print(printable(f"error: {entry.problem}"))
                failed += 1
            elif as_json:
                typer.echo(json.dumps(entry._asdict()))
            else:
                typer.echo(f"{printable(entry.path)}\t{printable(entry.label)}\t{entry.score:.4f}")
    if failed:
        raise typer.Exit(2)
