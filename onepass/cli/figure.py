"""onepass figure"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from onepass import data, streams
from onepass.base.errors import InputError
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, one_of, say
from onepass.runs.query import results as read
from onepass.runs.spec import Job

PAPER_FIGURES = ("fig1", "fig3", "fig7", "loss-curves", "proposition1")
FIGURES = ("accuracy", "stream", *PAPER_FIGURES)


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
        figures.draw_accuracy(results, output, kind=kind)
    elif what in PAPER_FIGURES:
        from onepass.gsa_paper import figures as paper_figures

        typer.echo(paper_figures.draw_paper_figure(what, results, output))
    else:
        whole = data.load(
            dataset,
            root=data_root,
            image_size=image_size,
            test_fraction=test_fraction,
            label=label,
            test=test,
        )
        usual = {"tasks": data.usual_tasks(whole.name, whole.classes)}
        table = streams.filled(streams.parse(_only(drawn)), usual)
        figures.draw_stream_map(streams.make(whole, table, seed=seed), output)
    say(str(output))


def _refuse(of: Sequence[str], what: str, given: dict[str, bool]) -> None:
    """Options of some figures that were given for another."""
    if what not in of and (in_vain := [name for name in given if given[name]]):
        raise InputError(f"{in_vain[0]} goes with figure {', '.join(of)}, not with figure {what}")


def _only(specs: list[str]) -> str:
    if len(specs) > 1:
        raise InputError(f"one stream is drawn at a time, not {len(specs)}")
    return specs[0]
