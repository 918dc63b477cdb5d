"""`onepass merge` and `onepass prove`: adds, and compares, what closed-form learners learned."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onepass.base.errors import InputError
from onepass.base.text import quoted
from onepass.cli.app import Imports, app, print_text

if TYPE_CHECKING:
    from onepass.learning.closed_form import ClosedForm

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(
    name="merge",
    epilog="""\b
Examples:
  onepass merge monday.pt tuesday.pt -o both.pt
  onepass merge shard-1.pt shard-2.pt shard-3.pt -o all.pt --json""",
)
def merge_command(
    models: Annotated[
        list[Path], typer.Argument(help="Two or more files of closed-form learners.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Merge features of a :float encoder that were rounded in another way, too.",
        ),
    ] = False,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Write the learner that learned what all these learned.

    Methods whose state is sums can be merged: ncm, slda, ridge, ranpac, kernel-lda. The result has
    the bits of one learner that saw all samples, in any order.
    """
    _expect_different_files(models, output)
    first, *others = models
    merged = _open(first)
    for path in others:
        try:
            merged.merge(_open(path), approximate=approximate)
        except InputError as problem:
            raise InputError(f"{path}: {problem}") from None
    merged.save(output)
    found = {
        "method": merged.key,
        "classes": len(merged.classes),
        "samples": merged.samples,
        "sums_sha256": merged.sums_sha256(),
        "out": str(output),
    }
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for name, value in found.items():
            print_text(f"{name:<12}{value}")


def _expect_different_files(models: list[Path], output: Path) -> None:
    if len(models) < 2:
        raise InputError(f"merge takes two or more files, and got only {models[0]}")
    places = Counter(path.resolve() for path in models)
    for path in models:
        if places[path.resolve()] > 1:
            raise InputError(f"{path} is given twice: every sample in it would count twice")
    if output.resolve() in places:
        raise InputError(f"-o {output} is one of the files to merge: write into another")


@app.command(
    name="prove",
    epilog="""\b
Examples:
  onepass prove again.pt model.pt
  onepass prove after-unlearning.pt never-seen.pt --json""",
)
def prove_command(
    a: Annotated[Path, typer.Argument(metavar="A", help="A file of a closed-form learner.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Say if two learners hold equal sums, or which classes differ.

    Equal sums come from the same samples, whatever their order, cut or machine. The exit status is
    1 if they differ.
    """
    from onepass.learning.comparison import compare

    found = compare(_open(a), _open(b))
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        for line in found.lines():
            print_text(line)
    if not found.equal:
        raise typer.Exit(1)


def _open(path: Path) -> ClosedForm:
    """Returns the closed-form learner in a file. Raises an InputError for another method's."""
    from onepass.learning.checkpoint.file import learner_from_content, read_checkpoint
    from onepass.learning.closed_form import ClosedForm

    learner = learner_from_content(read_checkpoint(path), str(path), device="cpu")
    if not isinstance(learner, ClosedForm):
        raise InputError(
            f"{path} holds {quoted(learner.key)}, which trains a network: only closed-form methods "
            "keep sums, which can be added and compared"
        )
    return learner
