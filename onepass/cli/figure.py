"""`onepass figure`: draws accuracy, a stream, or a figure of the GSA paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from onepass import data, streams
from onepass.base.errors import InputError, UnknownNameError
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, expect_one_of, print_text
from onepass.runs.query import find_results as read
from onepass.runs.spec import Job

PAPER_FIGURES = ("fig1", "fig3", "fig7", "loss-curves", "proposition1")
FIGURES = ("accuracy", "stream", *PAPER_FIGURES)


def _expect_figure(name: str) -> str:
    if name not in FIGURES:
        raise UnknownNameError("figure", name, FIGURES)
    return name


@app.command(
    name="figure",
    epilog="""fig1, fig3, fig7, loss-curves and proposition1 are figures of the GSA paper. Each
prints the paper's claims and whether the runs confirm them, and writes this beside the picture as
.md. The runs come from experiments/fig1.toml and so on.

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
  onepass figure proposition1 runs/fig7 -o proposition1.png  the decomposed loss, and its gap""",
)
def figure_command(
    what: Annotated[
        str,
        typer.Argument(
            help="accuracy, stream, fig1, fig3, fig7, loss-curves or proposition1.",
            autocompletion=shared.complete_words(*FIGURES),
            callback=_expect_figure,  # a wrong name is told before a missing option
        ),
    ],
    drawn: Annotated[
        list[str],
        typer.Argument(
            help="Run folders, or .jsonl files for bars. For stream: one SPEC, as for run."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The .png, .svg or .pdf file to write.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            help="accuracy: draw bars, curves, or both.",
            autocompletion=shared.complete_words("both", "bars", "curves"),
        ),
    ] = "both",
    dataset: Annotated[
        str,
        typer.Option(help="stream: its dataset.", autocompletion=shared.complete_datasets),
    ] = Job.dataset,
    data_root: Annotated[Path | None, typer.Option(help="stream: as for run.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="stream: as for run.")] = None,
    test_fraction: Annotated[float | None, typer.Option(help="stream: as for run.")] = None,
    label: Annotated[str | None, typer.Option(help="stream: as for run.")] = None,
    test: Annotated[Path | None, typer.Option(help="stream: as for run.")] = None,
    seed: Annotated[int, typer.Option(help="stream: its seed.")] = Job.seed,
    where: shared.Where = None,
    imports: Imports = None,
) -> None:
    """Draw finished runs, a stream, or a figure of the GSA paper."""
    from onepass.report import figures

    of_stream = {
        "--dataset": dataset != Job.dataset,
        "--data-root": data_root is not None,
        "--image-size": image_size is not None,
        "--test-fraction": test_fraction is not None,
        "--label": label is not None,
        "--test": test is not None,
        "--seed": seed != Job.seed,
    }
    _refuse_options_of_others(["stream"], what, of_stream)
    _refuse_options_of_others(["accuracy"], what, {"--kind": kind != "both"})
    _refuse_options_of_others(["accuracy", *PAPER_FIGURES], what, {"--where": bool(where)})
    expect_one_of("--kind", kind, figures.KINDS)
    if what != "stream":
        results = read(*map(Path, drawn), where=where or [])
    if what == "accuracy":
        figures.draw_accuracy(results, output, kind=kind)
    elif what in PAPER_FIGURES:
        from onepass.gsa_paper import figures as paper_figures

        typer.echo(paper_figures.draw_paper_figure(what, results, output))
    else:
        loaded = data.load(
            dataset,
            root=data_root,
            image_size=image_size,
            test_fraction=test_fraction,
            label=label,
            test=test,
        )
        usual = {"tasks": data.usual_tasks(loaded.name, loaded.classes)}
        spec = streams.with_defaults(streams.parse_stream(_single_spec(drawn)), usual)
        figures.draw_stream_map(streams.make_stream(loaded, spec, seed=seed), output)
    print_text(str(output))


def _refuse_options_of_others(of: Sequence[str], what: str, given: dict[str, bool]) -> None:
    """Raises InputError if an option is given that only the figures in `of` take.

    Nothing is raised if `what` is one of them. `given` says of each option whether it was given.
    """
    if what not in of and (unused := [name for name in given if given[name]]):
        raise InputError(f"{unused[0]} goes with figure {', '.join(of)}, not with figure {what}")


def _single_spec(specs: list[str]) -> str:
    if len(specs) > 1:
        raise InputError(f"figure stream takes one SPEC, not {len(specs)}")
    return specs[0]
