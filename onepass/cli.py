"""The command line: a thin layer over the package."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from onepass import devices, registry
from onepass.data.catalogue import CATALOGUE
from onepass.data.load import EMBEDDED
from onepass.errors import InputError, OnepassError, RunError, TrainingError, UnknownNameError
from onepass.evaluate import Point, Tick
from onepass.job import Job, execute, report
from onepass.streams import STREAMS
from onepass.version import __version__

app = typer.Typer(
    help="Online class-incremental learning: a stream seen once, bounded memory, predictions at "
    "any time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
messages = Console(stderr=True, highlight=False, soft_wrap=True)
printed = Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onepass {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="""\b
Examples:
  onepass run gsa
  onepass run finetune er gsa --dataset digits --memory 100 --seeds 5
  onepass run gsa --preset tuned --set lr=3e-4 --set forwards=separate
  onepass run gsa --out runs/ --resume"""
)
def run(
    methods: Annotated[list[str], typer.Argument(help="One or more; see: onepass list methods.")],
    dataset: Annotated[str, typer.Option(help="See: onepass list datasets.")] = "digits",
    memory: Annotated[int, typer.Option(help="How many samples may be kept.")] = 100,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    tasks: Annotated[int, typer.Option(help="Into how many tasks the classes are dealt.")] = 5,
    batch: Annotated[int, typer.Option(help="Samples of the stream per step.")] = 10,
    class_order: Annotated[
        str, typer.Option(help="natural or shuffled (by the seed).")
    ] = "natural",
    preset: Annotated[str, typer.Option(help="paper, official or tuned.")] = "paper",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A constructor argument; repeatable."),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Score on this part of the training data, not on the test set.")
    ] = 0.0,
    every: Annotated[
        int | None, typer.Option(min=1, help="Score after so many steps (default: 20 times).")
    ] = None,
    prequential: Annotated[
        bool, typer.Option("--prequential", help="Also predict each batch before learning it.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip finished runs, go on with broken ones.")
    ] = False,
    checkpoint: Annotated[
        str, typer.Option(metavar="N|none", help="Steps between checkpoints, or none.")
    ] = "500",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; part of a run's identity.")] = 1,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same bits on a GPU too, at some cost.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per finished run, nothing else.")
    ] = False,
) -> None:
    """Learn a stream with one or more methods; ends with a table and a picture."""
    choices = _settings(set_ or [])
    jobs = [
        Job(
            method=name,
            dataset=dataset,
            memory=memory,
            seed=one,
            tasks=tasks,
            batch=batch,
            class_order=_one_of("--class-order", class_order, ("natural", "shuffled")),
            preset=preset,
            settings=choices,
            validation=validation,
            every=every,
            prequential=prequential,
            device=devices.resolve(device).type,
            threads=threads,
            deterministic=deterministic,
        )
        for name in methods
        for one in range(seed, seed + seeds)
    ]
    _check_jobs(jobs, out, resume)
    results = _execute_all(jobs, out, resume, _cadence(checkpoint), as_json)
    if not as_json:
        _show(results, out)


def _check_jobs(jobs: list[Job], out: Path, resume: bool) -> None:
    """Everything that can be refused is refused before the first run starts."""
    for job in jobs:
        job.load()
        if not resume and (out / job.folder_name).exists():
            raise RunError(
                f"{out / job.folder_name} exists; --resume goes on with it, --out puts it elsewhere"
            )


def _execute_all(
    jobs: list[Job], out: Path, resume: bool, checkpoint: int | None, as_json: bool
) -> list[dict[str, Any]]:
    results = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=messages) as bars:
        for job in jobs:
            bar = bars.add_task(f"{job.method} seed {job.seed}", total=None, note="")
            watch = _watcher(bars, bar)
            result = execute(job, out, resume=resume, checkpoint=checkpoint, watch=watch)
            note = f"{result['accuracy']:.1f} %"
            bars.update(bar, total=result["steps"], completed=result["steps"], note=note)
            results.append(result)
            if as_json:
                typer.echo(json.dumps(report(result)))
    return results


def _watcher(bars: Progress, bar: Any) -> Callable[[Tick, int], None]:
    def watch(tick: Tick, steps: int) -> None:
        if isinstance(tick, Point):
            bars.update(bar, note=f"task {tick.task + 1}: {tick.accuracy:.1f} %")
        bars.update(bar, completed=tick.step, total=steps)

    return watch


def _show(results: list[dict[str, Any]], out: Path) -> None:
    from onepass.report import tables

    printed.print(_rich(*tables.grid(tables.summarise(results))))
    for result in results if len(results) == 1 else []:
        printed.print(f"run folder  {result['out']}")
    try:
        from onepass.report import figures
    except ImportError as missing:
        messages.print(f"no picture: {missing}")
        return
    picture = out / "accuracy.png"
    folders = [Path(result["out"]) for result in results]
    figures.accuracy(folders, picture)
    printed.print(f"picture     {picture}")


def _rich(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index > 1 else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _settings(pairs: list[str]) -> dict[str, str]:
    chosen = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes KEY=VALUE, not {pair!r}")
        chosen[name.strip()] = value.strip()
    return chosen


def _cadence(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"--checkpoint takes a number of steps, at least 1, or none, not {text!r}")
    return int(text)


def _one_of(name: str, value: str, valid: tuple[str, ...]) -> Any:
    if value not in valid:
        raise UnknownNameError(f"value of {name}", value, valid)
    return value


@app.command(
    name="list",
    epilog="""\b
Examples:
  onepass list methods
  onepass list datasets --json""",
)
def list_(
    what: Annotated[str, typer.Argument(help="methods, datasets or streams.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what there is."""
    rows = {"methods": _methods, "datasets": _datasets, "streams": _streams}
    entries = rows[_one_of("list", what, tuple(rows))]()
    if as_json:
        for entry in entries:
            typer.echo(json.dumps(entry))
    else:
        cells = [[str(value) for value in entry.values()] for entry in entries]
        printed.print(_rich(entries[0].keys(), cells))


def _methods() -> list[dict[str, Any]]:
    entries = []
    for info in registry.methods():
        passes = info.learner().passes(batch=10)
        entries.append(
            {
                "method": info.key,
                "paper": info.paper,
                "year": info.year or None,
                "trained images a step": passes.trained,
                "scored images a step": passes.scored,
                "boundaries": info.boundaries,
                "kept per sample": " + ".join(info.learner.keeps) or "nothing",
                "presets": " ".join(["paper", *info.learner.presets]),
            }
        )
    return entries


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
    return [{"stream": name, "what": _summary(stream)} for name, stream in STREAMS.items()]


def _summary(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


@app.command(
    epilog="""\b
Examples:
  onepass table runs/
  onepass table runs/ --format latex
  onepass table runs/ --against published"""
)
def table(
    folder: Annotated[Path, typer.Argument(help="A folder of runs.")],
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
        _one_of("--against", against, ("published",))
    _one_of("--format", format_, ("text", *tables.FORMATS))
    rows = tables.summarise(tables.read(folder))
    header, cells = tables.grid(rows, published=against is not None)
    if format_ == "text":
        printed.print(_rich(header, cells))
    else:
        typer.echo(tables.FORMATS[format_](header, cells), nl=False)


@app.command(
    epilog="""\b
Examples:
  onepass figure accuracy runs/ -o accuracy.png
  onepass figure accuracy runs/ --kind curves -o curves.svg"""
)
def figure(
    what: Annotated[str, typer.Argument(help="accuracy.")],
    folder: Annotated[Path, typer.Argument(help="A folder of runs.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .png, .svg or .pdf file.")],
    kind: Annotated[str, typer.Option(help="both, bars or curves.")] = "both",
) -> None:
    """Draw finished runs."""
    from onepass.record import finished_runs
    from onepass.report import figures

    _one_of("figure", what, ("accuracy",))
    _one_of("--kind", kind, figures.KINDS)
    figures.accuracy([run.path for run in finished_runs(folder)], output, kind=kind)
    typer.echo(str(output))


@app.command(
    epilog="""\b
Examples:
  onepass predict runs/gsa-digits-m100-s0/checkpoint.pt photos/
  onepass predict model.pt photos/ --json"""
)
def predict(
    model: Annotated[
        Path, typer.Argument(help="A file of learner.save, or a run's checkpoint.pt.")
    ],
    folder: Annotated[Path, typer.Argument(help="A folder of images, or one image.")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per image.")] = False,
) -> None:
    """Print path, class and score (softmax probability) for every image."""
    from onepass.pictures import Unreadable, classify

    failed = 0
    for entry in classify(model, folder, device):
        if isinstance(entry, Unreadable):
            messages.print(f"error: {entry.path} is not a readable image", markup=False)
            failed += 1
        elif as_json:
            typer.echo(json.dumps(entry._asdict()))
        else:
            typer.echo(f"{entry.path}\t{entry.label}\t{entry.score:.4f}")
    if failed:
        raise InputError(f"{failed} of the files could not be read as images")


def main() -> None:
    """Runs a command; whatever the user can mend is one line on standard error and exit 2."""
    try:
        status = app(standalone_mode=False)
    except OnepassError as problem:
        status = _say(problem, 2)
    except click.exceptions.Abort:
        status = _say("interrupted; what was written can be resumed", 130)
    except click.ClickException as problem:
        status = _say(problem.format_message(), 2)
    except TrainingError as problem:
        status = _say(problem, 1)
    except OSError as problem:
        status = _say(problem, 2)
    sys.stdout.flush()
    sys.exit(status if isinstance(status, int) else 0)


def _say(problem: object, status: int) -> int:
    messages.print(f"error: {problem}".replace(os.linesep, " "), markup=False)
    return status
