"""onepass run"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from onepass import executors
from onepass.base import devices, toml
from onepass.base.errors import InputError
from onepass.base.settings import check
from onepass.base.text import plain, quoted
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, messages, one_of, say, whole
from onepass.cli.progress import Bars
from onepass.learning import registry
from onepass.report import layout, rows
from onepass.runs.query import warn_of_missing_points
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery, Job, Normalise

if TYPE_CHECKING:
    from onepass.executors import AtOnce, Executor, RunOptions

IMPORT_AFTER = 2.0  # seconds
CLASS_ORDERS = ("natural", "shuffled")
MOST_THREADS = 1024
MOST_SEEDS = 1000  # of one command: each is a job, checked and shown before the first starts


@app.command(
    epilog="""\b
Examples:
  onepass run gsa
  onepass run finetune er gsa --dataset digits --memory 100 --seeds 5
  onepass run gsa --dataset cifar100 --preset tuned --set lr=5e-4 --set current=0
  onepass run gsa --settings best.toml
  onepass run er gsa --dataset cifar100 --memory 1000 --stream long-tail:rho=100
  onepass run gsa --dataset photos/ --image-size 64 --test-fraction 0.2
  onepass run er --dataset flowers.csv --label species --test-fraction 0.2
  onepass run er gsa --dataset cifar100 --memory 1000 --seeds 5 --precision bf16 --jobs auto
  onepass run er --probe balance
  onepass run lwf --import lwf
  onepass run all --seeds 3 --jobs auto --out every/
  onepass run all --jobs auto --fail-fast
  onepass run gsa --out runs/ --resume"""
)
def run(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="One or more, or all; see: onepass list methods.",
            autocompletion=shared.methods_or_all,
        ),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            help="A name (see: onepass list datasets), a folder, .npz, .csv or .parquet.",
            autocompletion=shared.datasets,
        ),
    ] = Job.dataset,
    data_root: shared.DataRoot = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Scale your own images to this many pixels.")
    ] = Job.image_size,
    test_fraction: Annotated[
        float | None, typer.Option(help="The part of your own files to test on, if not split.")
    ] = Job.test_fraction,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The labels of your own .csv or .parquet.")
    ] = Job.label,
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="A .csv or .parquet of its own to test on.")
    ] = Job.test,
    mirror_is_another_class: Annotated[
        bool,
        typer.Option(
            "--mirror-is-another-class", help="Your own images lose their class in a mirror."
        ),
    ] = False,
    normalise: Annotated[
        str,
        typer.Option(
            help="By whose mean and deviation: dataset or first-task.",
            autocompletion=shared.words(*get_args(Normalise)),
        ),
    ] = Job.normalise,
    memory: Annotated[int, typer.Option(help="How many samples may be kept.")] = Job.memory,
    seed: Annotated[int, typer.Option(help="The first seed.")] = Job.seed,
    seeds: Annotated[int, typer.Option(min=1, max=MOST_SEEDS, help="How many seeds.")] = 1,
    stream: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="NAME:KEY=VALUE,…; see: onepass list streams.",
            autocompletion=shared.streams,
        ),
    ] = Job.stream,
    tasks: Annotated[
        int | None, typer.Option(help="How many tasks (default: the paper's, or 5).")
    ] = Job.tasks,
    batch: Annotated[int, typer.Option(help="Samples of the stream per step.")] = Job.batch,
    class_order: Annotated[
        str,
        typer.Option(
            help="natural or shuffled (by the seed).",
            autocompletion=shared.words(*CLASS_ORDERS),
        ),
    ] = Job.class_order,
    preset: shared.Preset = Job.preset,
    set_: shared.Set = None,
    settings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Constructor arguments as TOML; --set wins over them."),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Score on this part of the training data, not on the test set.")
    ] = Job.validation,
    every: Annotated[
        int | None, typer.Option(min=1, help="Score after so many steps (default: 20 times).")
    ] = Job.every,
    prequential: Annotated[
        bool, typer.Option("--prequential", help="Also predict each batch before learning it.")
    ] = Job.prequential,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            help="Watch the run; repeatable; see: onepass list probes.",
            autocompletion=shared.probes,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip finished runs, go on with broken ones.")
    ] = False,
    anyway: shared.Anyway = False,
    checkpoint: shared.Checkpoint = "auto",
    jobs_at_once: shared.Jobs = "1",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="The first run that fails stops the others.")
    ] = False,
    device: shared.Device = Job.device,
    engine: shared.Engine = None,
    precision: shared.Precision = None,
    threads: Annotated[
        str,
        typer.Option(metavar="N|auto", help="CPU threads; auto: all cores; part of the identity."),
    ] = str(Job.threads),
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same bits on a GPU too, at some cost.")
    ] = Job.deterministic,
    imports: Imports = None,
    columns: shared.Columns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per finished run, nothing else.")
    ] = False,
) -> None:
    """Learn a stream with one or more methods: a table and a picture."""
    numbers = {"memory": memory, "seed": seed, "tasks": tasks, "batch": batch, "every": every}
    for option, number in numbers.items():
        check(f"--{option}", number, int | None)
    layout.expect_columns(terminal_table.names(columns), layout.COLUMNS)
    choices = chosen_settings(settings, set_ or [], {"engine": engine, "precision": precision})
    jobs = [
        Job(
            method=name,
            dataset=dataset,
            memory=memory,
            seed=one,
            stream=stream,
            tasks=tasks,
            batch=batch,
            class_order=one_of("--class-order", class_order, CLASS_ORDERS),
            image_size=image_size,
            test_fraction=test_fraction,
            mirror_is_same_class=False if mirror_is_another_class else None,
            label=label,
            test=test,
            normalise=one_of("--normalise", normalise, get_args(Normalise)),
            preset=preset,
            settings=choices,
            validation=validation,
            every=every,
            prequential=prequential,
            device=str(devices.resolve(device)),
            threads=thread_count(threads),
            deterministic=deterministic,
            data_root=str(data_root) if data_root else None,
            probes=tuple(probe or ()),
            imports=tuple(imports or ()),
        )
        for name in _every(methods)
        for one in range(seed, seed + seeds)
    ]
    if deterministic:
        devices.allow_determinism()
    from onepass.runs.resources import Supplies

    supplies = Supplies()
    jobs = [supplies.known(job) if job.is_own else job for job in jobs]
    _check_list(jobs)
    if anyway and not resume:
        raise InputError("--anyway says how to --resume; give both")
    options = executors.RunOptions(out, resume, checkpoint_steps(checkpoint), anyway)
    executor = executors.choose(jobs, at_once(jobs_at_once))
    if as_json:
        _execute_all(jobs, options, executor, fail_fast, as_json)
    else:
        with _plotting_imported_meanwhile():
            results = _execute_all(jobs, options, executor, fail_fast, as_json)
        _show(results, out, terminal_table.names(columns))


def chosen_settings(
    file: Path | None, pairs: list[str], options: dict[str, str | None]
) -> dict[str, str]:
    """Returns constructor arguments: of a file, of `--set` and of options of their own."""
    chosen = read_pairs(pairs)
    for name, value in options.items():
        if value is not None:
            if name in chosen:
                raise InputError(f"give --{name} or --set {name}, not both")
            chosen[name] = value
    return {**(toml.read_settings(file) if file else {}), **chosen}


@contextmanager
def _plotting_imported_meanwhile() -> Iterator[None]:
    """Imports what draws the picture beside the runs, if they take longer than that."""

    def load() -> None:
        with suppress(ImportError):  # told when the picture is due
            import_module("onepass.report.figures")
            import_module("matplotlib.backends.backend_agg")

    timer = threading.Timer(IMPORT_AFTER, load)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _every(methods: list[str]) -> list[str]:
    """`all` stands for every method that there is."""
    return [info.key for info in registry.methods()] if "all" in methods else methods


def _check_list(jobs: list[Job]) -> None:
    if jobs[0].memory < 0:
        raise InputError(f"--memory must be zero or more, not {jobs[0].memory}")
    asked = set()
    for job in jobs:
        if job.folder_name in asked:
            raise InputError(f"{job.method!r} is asked for twice")
        asked.add(job.folder_name)


def _execute_all(
    jobs: list[Job], options: RunOptions, executor: Executor, fail_fast: bool, as_json: bool
) -> list[Result]:
    results: dict[int, Result] = {}
    bars = Bars(jobs)
    ended = executors.execute_all(
        jobs, options, executor, bars.watch, failed=bars.fail, fail_fast=fail_fast
    )
    with bars:
        for index, result in ended:
            results[index] = result
            bars.fill(index, result)
            if as_json:
                typer.echo(json.dumps(result.printed()))
    return [results[index] for index in sorted(results)]


def _show(results: list[Result], out: Path, columns: list[str]) -> None:
    shown = layout.make_table(rows.summarise(results), columns=columns)
    if shown.above:
        say(shown.above)
    terminal_table.show(shown.header, shown.body)
    if len(results) == 1:
        say(f"run folder  {results[0].out}")
    try:
        from onepass.report import figures
    except ImportError as missing:
        messages.print(plain(f"no picture: {missing}"))
        return
    picture = out / "accuracy.png"
    warn_of_missing_points(results)
    figures.draw_accuracy(results, picture, kind="both" if len(results) > 1 else "curves")
    say(f"picture     {picture}")


def read_pairs(pairs: list[str]) -> dict[str, str]:
    chosen = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes KEY=VALUE, not {quoted(pair)}")
        if name.strip() in chosen:
            raise InputError(f"{quoted(name.strip())} is set twice")
        chosen[name.strip()] = value.strip()
    return chosen


def at_once(text: str) -> AtOnce:
    if text == "auto":
        return "auto"
    return whole("--jobs", text, "a number of runs, at least 1, or auto")


def thread_count(text: str) -> int:
    """auto: as many as this process has cores."""
    if text == "auto":
        return devices.cores()
    wanted = f"a number of CPU threads, 1 to {MOST_THREADS}, or auto"
    count = whole("--threads", text, wanted)
    if count > MOST_THREADS:
        raise InputError(f"--threads takes {wanted}, not {count}")
    return count


def checkpoint_steps(text: str) -> CheckpointEvery:
    if text == "none":
        return None
    if text == "auto":
        return "auto"
    return whole("--checkpoint", text, "a number of steps, at least 1, auto or none")
