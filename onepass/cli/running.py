"""onepass run"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from onepass import devices
from onepass.cli.base import app, messages, one_of, printed, rich_table
from onepass.errors import InputError, RunError
from onepass.evaluate import Point, Tick
from onepass.job import Job, allow_determinism, execute, report


@app.command(
    epilog="""\b
Examples:
  onepass run gsa
  onepass run finetune er gsa --dataset digits --memory 100 --seeds 5
  onepass run gsa --preset tuned --set lr=3e-4 --set forwards=separate
  onepass run er gsa --dataset cifar100 --memory 1000 --stream long-tail:rho=100
  onepass run gsa --dataset photos/ --image-size 64 --test-fraction 0.2
  onepass run gsa --out runs/ --resume"""
)
def run(
    methods: Annotated[list[str], typer.Argument(help="One or more; see: onepass list methods.")],
    dataset: Annotated[
        str, typer.Option(help="A name (see: onepass list datasets), a folder or a .npz.")
    ] = "digits",
    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets lie (default: $ONEPASS_DATA, or data).")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Scale your own images to this many pixels.")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="The part of your own files to test on, if not split.")
    ] = None,
    memory: Annotated[int, typer.Option(help="How many samples may be kept.")] = 100,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    stream: Annotated[
        str, typer.Option(metavar="SPEC", help="NAME:KEY=VALUE,…; see: onepass list streams.")
    ] = "class-incremental",
    tasks: Annotated[
        int | None, typer.Option(help="How many tasks (default: the paper's, or 5).")
    ] = None,
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
            stream=stream,
            tasks=tasks,
            batch=batch,
            class_order=one_of("--class-order", class_order, ("natural", "shuffled")),
            image_size=image_size,
            test_fraction=test_fraction,
            preset=preset,
            settings=choices,
            validation=validation,
            every=every,
            prequential=prequential,
            device=devices.resolve(device).type,
            threads=threads,
            deterministic=deterministic,
            data_root=str(data_root) if data_root else None,
        )
        for name in methods
        for one in range(seed, seed + seeds)
    ]
    if deterministic:
        allow_determinism()
    _check_jobs(jobs, out, resume)
    results = _execute_all(jobs, out, resume, _cadence(checkpoint), as_json)
    if not as_json:
        _show(results, out)


def _check_jobs(jobs: list[Job], out: Path, resume: bool) -> None:
    """Everything that can be refused is refused before the first run starts."""
    if jobs[0].memory < 0:
        raise InputError(f"--memory must be zero or more, not {jobs[0].memory}")
    names = [job.folder_name for job in jobs]
    for job in jobs:
        if names.count(job.folder_name) > 1:
            raise InputError(f"{job.method!r} is asked for twice")
        finished = resume and (out / job.folder_name / "result.json").exists()
        if job.seed == jobs[0].seed and not finished:
            stream, learner = job.load()
            sample = stream.dataset.train_x[0]
            learner.prepare(tuple(sample.shape), sample.dtype)
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

    printed.print(rich_table(*tables.grid(tables.summarise(results))))
    for result in results if len(results) == 1 else []:
        typer.echo(f"run folder  {result['out']}")
    try:
        from onepass.report import figures
    except ImportError as missing:
        messages.print(f"no picture: {missing}")
        return
    picture = out / "accuracy.png"
    folders = [Path(result["out"]) for result in results]
    figures.accuracy(folders, picture)
    typer.echo(f"picture     {picture}")


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
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--checkpoint takes a number of steps, at least 1, or none, not {text!r}")
    return int(text)
