"""onepass run"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from onepass import devices, sweep
from onepass.cli.base import app, messages, one_of, printed, rich_table
from onepass.errors import InputError, RunError
from onepass.evaluate import Point, Tick
from onepass.job import Job, allow_determinism, report


@app.command(
    epilog="""\b
Examples:
  onepass run gsa
  onepass run finetune er gsa --dataset digits --memory 100 --seeds 5
  onepass run gsa --preset tuned --set lr=3e-4 --set forwards=separate
  onepass run er gsa --dataset cifar100 --memory 1000 --stream long-tail:rho=100
  onepass run gsa --dataset photos/ --image-size 64 --test-fraction 0.2
  onepass run er gsa --dataset cifar100 --memory 1000 --seeds 5 --precision bf16 --jobs auto
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
    jobs_at_once: Annotated[
        str, typer.Option("--jobs", metavar="N|auto", help="Runs at a time; auto: as many as pay.")
    ] = "1",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    engine: Annotated[
        str, typer.Option(help="auto, eager or graph (one CUDA graph per step).")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    threads: Annotated[
        int, typer.Option(min=1, max=1024, help="CPU threads; part of a run's identity.")
    ] = 1,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same bits on a GPU too, at some cost.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per finished run, nothing else.")
    ] = False,
) -> None:
    """Learn a stream with one or more methods; ends with a table and a picture."""
    choices = read_pairs(set_ or [])
    for name, value, usual in (("engine", engine, "auto"), ("precision", precision, "fp32")):
        if value != usual and name in choices:
            raise InputError(f"give --{name} or --set {name}, not both")
        if value != usual:
            choices[name] = value
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
    at_once = 1 if jobs_at_once == "1" else sweep.fitting(_at_once(jobs_at_once), jobs)
    results = _execute_all(jobs, out, at_once, resume, _checkpoint_steps(checkpoint), as_json)
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
    jobs: list[Job],
    out: Path,
    at_once: int,
    resume: bool,
    checkpoint: int | None,
    as_json: bool,
) -> list[dict[str, Any]]:
    results: dict[int, dict[str, Any]] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=messages) as bars:
        bar_of = [
            bars.add_task(f"{job.method} seed {job.seed}", total=None, note="", visible=False)
            for job in jobs
        ]

        def watch(index: int, tick: Tick, steps: int) -> None:
            if isinstance(tick, Point):
                note = f"task {tick.task + 1}: {tick.accuracy:.1f} %"
                bars.update(bar_of[index], note=note)
            bars.update(bar_of[index], completed=tick.step, total=steps, visible=True)

        ended = sweep.execute_all(
            jobs, out, at_once=at_once, resume=resume, checkpoint=checkpoint, watch=watch
        )
        for index, result in ended:
            steps, note = result["steps"], f"{result['accuracy']:.1f} %"
            bars.update(bar_of[index], total=steps, completed=steps, note=note, visible=True)
            results[index] = result
            if as_json:
                typer.echo(json.dumps(report(result)))
    return [results[index] for index in sorted(results)]


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


def read_pairs(pairs: list[str]) -> dict[str, str]:
    chosen = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes KEY=VALUE, not {pair!r}")
        if name.strip() in chosen:
            raise InputError(f"{name.strip()} is set twice")
        chosen[name.strip()] = value.strip()
    return chosen


def _at_once(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--jobs takes a number of runs, at least 1, or auto, not {text!r}")
    return int(text)


def _checkpoint_steps(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--checkpoint takes a number of steps, at least 1, or none, not {text!r}")
    return int(text)
