"""`onepass run`: learns one stream with one or more methods and seeds.

The parsers of option values below are shared with `sweep`, `tune`, `bench` and `paper`.
"""

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
from onepass.base.settings import expect_type
from onepass.base.text import printable, quoted
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, expect_one_of, messages, parse_count, print_text
from onepass.cli.progress import JobBars, print_line
from onepass.data.known import is_path
from onepass.learning import registry
from onepass.learning.registry import COMMON
from onepass.report import layout, rows
from onepass.runs.query import warn_of_missing_points
from onepass.runs.result import Result
from onepass.runs.spec import CheckpointEvery, Job, Normalise, default_preset

if TYPE_CHECKING:
    from onepass.executors import AtOnce, Executor, RunOptions

IMPORT_AFTER = 2.0  # seconds
CLASS_ORDERS = ("natural", "shuffled")
MOST_THREADS = 1024
TESTED = 0.2  # of each class of a folder without test images
MOST_SEEDS = 1000  # each seed is a job, which is validated and gets a bar before the first starts


@app.command(
    name="run",
    epilog="""\b
Examples:
  onepass run gsa
  onepass run finetune er gsa --dataset digits --memory 100 --seeds 5
  onepass run gsa --dataset cifar100 --preset tuned --set lr=5e-4 --set current=0
  onepass run gsa --preset common --settings tune-gsa/best.toml
  onepass run er gsa --dataset cifar100 --memory 1000 --stream long-tail:rho=100
  onepass run ranpac --dataset photos/ --encoder efficientnet-lite0
  onepass run gsa --dataset photos/ --image-size 64
  onepass run er --dataset flowers.csv --label species --test-fraction 0.2
  onepass run er gsa --dataset cifar100 --memory 1000 --seeds 5 --precision bf16 --jobs auto
  onepass run er --probe balance
  onepass run lwf --import lwf
  onepass run all --seeds 3 --jobs auto --out every/
  onepass run all --jobs auto --fail-fast
  onepass run gsa --out runs/ --resume""",
)
def run_command(
    methods: Annotated[
        list[str],
        typer.Argument(
            help="One or more methods, or all; see: onepass list methods.",
            autocompletion=shared.complete_methods_or_all,
        ),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            help="A name (see: onepass list datasets), or your own folder, .npz, .csv or .parquet.",
            autocompletion=shared.complete_datasets,
        ),
    ] = Job.dataset,
    data_root: shared.DataRoot = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Scale your own images to this many pixels a side.")
    ] = Job.image_size,
    test_fraction: Annotated[
        float | None,
        typer.Option(help="Fraction of your own data to test on, if it is not split."),
    ] = Job.test_fraction,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of your .csv or .parquet with the labels."),
    ] = Job.label,
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="A separate .csv or .parquet to test on.")
    ] = Job.test,
    mirror_is_another_class: Annotated[
        bool,
        typer.Option(
            "--mirror-is-another-class",
            help="Never mirror your own images: their mirror images show another class, or none.",
        ),
    ] = False,
    normalise: Annotated[
        str,
        typer.Option(
            help="Normalise by the mean and deviation of: dataset, first-task or none.",
            autocompletion=shared.complete_words(*get_args(Normalise)),
        ),
    ] = Job.normalise,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Learn the features of a frozen encoder; see: onepass list encoders.",
            autocompletion=shared.complete_encoders,
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(help=f"Samples that the memory may keep (default: {Job.memory})."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = Job.seed,
    seeds: Annotated[
        int, typer.Option(min=1, max=MOST_SEEDS, help="Number of seeds, one run for each.")
    ] = 1,
    stream: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Order of the samples, NAME:KEY=VALUE,…; see: onepass list streams.",
            autocompletion=shared.complete_streams,
        ),
    ] = Job.stream,
    tasks: Annotated[
        int | None,
        typer.Option(help="Number of tasks (default: the dataset's in the GSA paper, or 5)."),
    ] = Job.tasks,
    batch: Annotated[int, typer.Option(help="Stream samples per step.")] = Job.batch,
    class_order: Annotated[
        str,
        typer.Option(
            help="Order of the classes: natural, or shuffled by the seed.",
            autocompletion=shared.complete_words(*CLASS_ORDERS),
        ),
    ] = Job.class_order,
    preset: shared.Preset = None,
    set_: shared.Set = None,
    settings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings as TOML; --set overrides them."),
    ] = None,
    validation: Annotated[
        float,
        typer.Option(help="Hold out this fraction of the training data, and test on it instead."),
    ] = Job.validation,
    every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps between evaluations, besides those at task ends (default: a twentieth of "
            "all steps; more in a long run where that costs over a fifth of training).",
        ),
    ] = Job.every,
    prequential: Annotated[
        bool, typer.Option("--prequential", help="Also predict each batch before learning it.")
    ] = Job.prequential,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure something during the run; repeatable; see: onepass list probes.",
            autocompletion=shared.complete_probes,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run folders.")] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip finished runs and continue interrupted ones.")
    ] = False,
    anyway: shared.Anyway = False,
    checkpoint: shared.Checkpoint = "auto",
    jobs_at_once: shared.Jobs = "1",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop all runs when the first one fails.")
    ] = False,
    device: shared.Device = Job.device,
    engine: shared.Engine = None,
    precision: shared.Precision = None,
    threads: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="CPU threads of each run, on which its last bits depend; auto: all cores.",
        ),
    ] = str(Job.threads),
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Give the same bits on a GPU too, but slower.")
    ] = Job.deterministic,
    imports: Imports = None,
    columns: shared.Columns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per finished run, nothing else.")
    ] = False,
) -> None:
    """Learn a stream with one or more methods; show a table."""
    numbers = {"memory": memory, "seed": seed, "tasks": tasks, "batch": batch, "every": every}
    for option, number in numbers.items():
        expect_type(f"--{option}", number, int | None)
    layout.expect_columns(terminal_table.column_names(columns), layout.COLUMNS)
    choices = settings_of_options(
        settings, set_ or [], {"engine": engine, "precision": precision, "encoder": encoder}
    )
    names = _expand_all(methods)
    test_fraction = _test_fraction_of(dataset, test_fraction)
    used = default_preset(names) if preset is None else preset
    jobs = [
        Job(
            method=name,
            dataset=dataset,
            memory=Job.memory if memory is None else memory,
            seed=job_seed,
            stream=stream,
            tasks=tasks,
            batch=batch,
            class_order=expect_one_of("--class-order", class_order, CLASS_ORDERS),
            image_size=image_size,
            test_fraction=test_fraction,
            mirror_is_same_class=False if mirror_is_another_class else None,
            label=label,
            test=test,
            normalise=expect_one_of("--normalise", normalise, get_args(Normalise)),
            preset=used,
            settings=choices,
            validation=validation,
            every=every,
            prequential=prequential,
            device=str(devices.resolve_device(device)),
            threads=parse_threads(threads),
            deterministic=deterministic,
            data_root=str(data_root) if data_root else None,
            probes=tuple(probe or ()),
            imports=tuple(imports or ()),
        )
        for name in names
        for job_seed in range(seed, seed + seeds)
    ]
    if deterministic:
        devices.allow_determinism()
    from onepass.runs.resources import RunResources

    resources = RunResources()
    jobs = [resources.with_fingerprint(job) if job.has_own_data else job for job in jobs]
    _check_jobs(jobs)
    if anyway and not resume:
        raise InputError("--anyway works with --resume only: give both")
    if memory is not None:
        _say_who_keeps_nothing(jobs)
    options = executors.RunOptions(out, resume, parse_checkpoint(checkpoint), anyway)
    executor = executors.choose_executor(jobs, parse_jobs_at_once(jobs_at_once))
    began = _preset_line(used, chosen=preset is not None)
    if as_json:
        _run_jobs(jobs, options, executor, fail_fast, as_json, began)
    else:
        with _import_plotting_meanwhile():
            results = _run_jobs(jobs, options, executor, fail_fast, as_json, began)
        _print_results(results, out, terminal_table.column_names(columns))


def settings_of_options(
    file: Path | None, pairs: list[str], options: dict[str, str | None]
) -> dict[str, str]:
    """Returns the settings from `--settings`, `--set` and options such as `--engine`.

    `--set` and the options override the file. Raises InputError if a setting is both an option and
    in `--set`.
    """
    chosen = parse_pairs(pairs)
    for name, value in options.items():
        if value is not None:
            if name in chosen:
                raise InputError(f"give --{name} or --set {name}, not both")
            chosen[name] = value
    return {**(toml.read_settings_file(file) if file else {}), **chosen}


@contextmanager
def _import_plotting_meanwhile() -> Iterator[None]:
    """Imports matplotlib in a thread while the runs go on, if they take over IMPORT_AFTER seconds.

    Quick runs would only be slowed by it.
    """

    def load() -> None:
        with suppress(ImportError):  # reported when the picture is to be drawn
            import_module("onepass.report.figures")
            import_module("matplotlib.backends.backend_agg")

    timer = threading.Timer(IMPORT_AFTER, load)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _expand_all(methods: list[str]) -> list[str]:
    """Returns the methods, or all registered ones if `all` is among them."""
    return [info.key for info in registry.methods()] if "all" in methods else methods


def _test_fraction_of(dataset: str, chosen: float | None) -> float | None:
    """Returns the fraction of the user's own data to test on: by default a fifth of a folder that
    has no test images, which a line says."""
    folder = Path(dataset)
    if chosen is not None or not is_path(dataset) or not folder.is_dir():
        return chosen
    from onepass.data.folders import has_class_folders

    if has_class_folders(folder):
        return None
    print_line(f"{printable(dataset)} has no test images: testing on {TESTED:g} of each class")
    return TESTED


def _preset_line(preset: str, chosen: bool) -> str:
    """Returns the line that names the preset in use."""
    to_compare = "" if chosen or preset == COMMON else f" (to compare methods: --preset {COMMON})"
    return f"preset {preset}{to_compare}"


def _check_jobs(jobs: list[Job]) -> None:
    """Raises InputError if the memory is negative, or if two jobs have the same run folder."""
    if jobs[0].memory < 0:
        raise InputError(f"--memory must be zero or more, not {jobs[0].memory}")
    folders = set()
    for job in jobs:
        if job.folder_name in folders:
            raise InputError(f"{job.method!r} is given twice")
        folders.add(job.folder_name)


def _say_who_keeps_nothing(jobs: list[Job]) -> None:
    """Prints a line that names the methods on which `--memory` has no effect, if there are any."""
    names = dict.fromkeys(job.method for job in jobs if not job.uses_memory)
    if names:
        print_line(f"--memory has no effect on {', '.join(names)}, which keep no samples")


def _run_jobs(
    jobs: list[Job],
    options: RunOptions,
    executor: Executor,
    fail_fast: bool,
    as_json: bool,
    began: str,
) -> list[Result]:
    """Runs the jobs below progress bars; returns the results in the order of the jobs.

    The line `began` is printed once all jobs are found valid. With `as_json` each result is printed
    as soon as its run has finished.
    """
    results: dict[int, Result] = {}
    bars = JobBars(jobs)
    ended = executors.execute_all(
        jobs, options, executor, bars.watch, failed=bars.fail, fail_fast=fail_fast
    )
    print_line(began)
    with bars:
        for index, result in ended:
            results[index] = result
            bars.fill(index, result)
            if as_json:
                typer.echo(json.dumps(result.printed()))
    return [results[index] for index in sorted(results)]


def _print_results(results: list[Result], out: Path, columns: list[str]) -> None:
    """Prints the table of the results, and draws their accuracy into `accuracy.png` in `out`.

    Without matplotlib it says that there is no picture.
    """
    summarised = rows.summarise(results)
    table = layout.make_table(summarised, columns=columns)
    for text in filter(None, [layout.preset_line(summarised), table.above]):
        print_text(text)
    terminal_table.print_table(table.header, table.body)
    if len(results) == 1:
        print_text(f"run folder  {results[0].out}")
    try:
        from onepass.report import figures
    except ImportError as missing:
        messages.print(printable(f"no picture: {missing}"))
        return
    picture = out / "accuracy.png"
    warn_of_missing_points(results)
    figures.draw_accuracy(results, picture, kind="both" if len(results) > 1 else "curves")
    print_text(f"picture     {picture}")


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """Returns the names and values of `--set KEY=VALUE`; raises InputError if one is given twice.

    >>> parse_pairs(["lr=5e-4", "head=frozen"])
    {'lr': '5e-4', 'head': 'frozen'}
    """
    chosen = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes KEY=VALUE, not {quoted(pair)}")
        if name.strip() in chosen:
            raise InputError(f"--set gives {quoted(name.strip())} twice")
        chosen[name.strip()] = value.strip()
    return chosen


def parse_jobs_at_once(text: str) -> AtOnce:
    """Returns the value of `--jobs`: how many runs go on at once, or auto."""
    if text == "auto":
        return "auto"
    return parse_count("--jobs", text, "a number of runs, at least 1, or auto")


def parse_threads(text: str) -> int:
    """Returns the value of `--threads`; auto is the number of cores of this process."""
    if text == "auto":
        return devices.usable_cores()
    wanted = f"a number of CPU threads, 1 to {MOST_THREADS}, or auto"
    count = parse_count("--threads", text, wanted)
    if count > MOST_THREADS:
        raise InputError(f"--threads takes {wanted}, not {count}")
    return count


def parse_checkpoint(text: str) -> CheckpointEvery:
    """Returns the value of `--checkpoint`: steps, auto, or None for no checkpoints."""
    if text == "none":
        return None
    if text == "auto":
        return "auto"
    return parse_count("--checkpoint", text, "a number of steps, at least 1, auto or none")
