"""`onepass memory`: the samples in the memory of a saved learner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onepass.base.errors import InputError
from onepass.base.settings import setting_names
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, print_text
from onepass.data.labels import sorted_classes

if TYPE_CHECKING:
    from torch import Tensor


@app.command(
    name="memory",
    epilog="""\b
Examples:
  onepass memory runs/gsa-digits-m100-s0/checkpoint.pt
  onepass memory model.pt -o sheet.png""",
)
def memory_command(
    model: Annotated[
        Path, typer.Argument(help="A file from learner.save, or a run's checkpoint.pt.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Draw the images into this .png, a row per class."),
    ] = None,
    imports: Imports = None,
) -> None:
    """Show a learner's memory by class: samples, mean and deviation."""
    from onepass.learning.checkpoint.file import learner_for_predicting, read_checkpoint

    content = read_checkpoint(model)
    learner = learner_for_predicting(content, str(model), device="cpu")
    if "memory" not in setting_names(type(learner)):
        raise InputError(f"{model} has no memory: {learner.key} keeps no samples")
    if not learner.steps or not len(learner.kept):
        raise InputError(
            f"{model} holds no samples: its memory was empty, or was left out when it was saved"
        )
    kept, classes = learner.kept, learner.classes
    name_of = dict(zip(classes, learner.class_names, strict=True))
    groups = {label: kept.x[kept.y == label] for label in sorted_classes(classes)}
    if output is not None:
        if kept.x.ndim != 4:
            raise InputError(f"{model} holds vectors, which cannot be drawn: leave out -o")
        from onepass.report import contact_sheet

        pixels = contact_sheet.to_uint8(kept.x)
        images = [(label, pixels[kept.y == label]) for label in groups]
        contact_sheet.draw_sheet(
            [(f"{name_of[label]}  ({len(x)})", x) for label, x in images], output
        )
    numbers = [
        [name_of[label], str(len(x)), *_mean_and_deviation(x)] for label, x in groups.items()
    ]
    terminal_table.print_table(("class", "samples", "mean", "deviation"), numbers)
    if output is not None:
        print_text(f"picture     {output}")


def _mean_and_deviation(x: Tensor) -> list[str]:
    """Returns mean and standard deviation over all values of the samples, as text."""
    if not len(x):
        return ["-", "-"]
    exact = x.double()
    return [f"{float(exact.mean()):.4g}", f"{float(exact.std(correction=0)):.4g}"]
