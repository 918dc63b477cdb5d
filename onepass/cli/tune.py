"""onepass tune"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from onepass import executors
from onepass.base import devices, plugins, toml
from onepass.base.errors import InputError, TrainingError, UnknownNameError
from onepass.base.settings import check
from onepass.base.text import plain, shortened
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, messages, one_of
from onepass.cli.progress import progress
from onepass.cli.run import MOST_SEEDS, at_once, read_pairs, thread_count
from onepass.evaluation import callbacks
from onepass.learning import registry
from onepass.runs.spec import Job
from onepass.tuning import OBJECTIVES, Asked, Search, Space, Standing

# Options of `onepass run` that a space's file may give, by their names there.
FIXED = (
    *("dataset", "image_size", "test_fraction", "normalise", "memory", "stream", "tasks", "batch"),
    *("class_order", "preset", "validation", "every", "threads", "deterministic", "label", "test"),
)
OPTIONS: dict[str, Any] = {
    "set": dict,
    "seeds": int,
    **{name.replace("_", "-"): get_type_hints(Job)[name] for name in FIXED},
}
LEAST = dict.fromkeys(["seeds", "image-size", "tasks", "batch", "every", "threads"], 1) | {
    "memory": 0
}
USUAL: dict[str, Any] = {"validation": 0.1, "seeds": 1, "set": {}}


@app.command(
    epilog="""\b
Examples:
  onepass tune gsa --space space.toml --trials 30
  onepass tune gsa --space space.toml --trials 60 --dataset cifar100 --memory 1000 --jobs auto
  onepass tune er --space space.toml --trials 20 --seeds 3 --objective anytime --out search/
  onepass run gsa --settings tune-gsa/best.toml

\b
A space, as TOML:
  [space]
  lr = {low = 1e-4, high = 1e-2, log = true}
  head = ["trained", "frozen"]
  [defaults]
  dataset = "cifar100"
  memory = 1000
  set = {mirror = true}"""
)
def tune(
    method: shared.Method,
    space: Annotated[
        Path, typer.Option(metavar="FILE", help="What to search, as TOML; see below.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="How many in all.")],
    objective: Annotated[
        str,
        typer.Option(
            help="accuracy (final), anytime, or the mean of both.",
            autocompletion=shared.words(*OBJECTIVES),
        ),
    ] = OBJECTIVES[0],
    validation: Annotated[
        float | None,
        typer.Option(help="Score on this part of the training data (default: 0.1)."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MOST_SEEDS, help="Runs of each trial (default: 1).")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the sampler: the same one tries the same.")
    ] = 0,
    jobs_at_once: shared.Jobs = "1",
    out: Annotated[
        Path | None, typer.Option(help="Where the search goes (default: tune-METHOD).")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="As for run.", autocompletion=shared.datasets)
    ] = None,
    data_root: shared.DataRoot = None,
    memory: Annotated[int | None, typer.Option(min=0, help="As for run.")] = None,
    stream: Annotated[str | None, typer.Option(metavar="SPEC", help="As for run.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="As for run.")] = None,
    preset: Annotated[str | None, typer.Option(help="As for run: where trials start from.")] = None,
    set_: shared.Set = None,
    every: Annotated[int | None, typer.Option(min=1, help="As for run.")] = None,
    device: shared.Device = Job.device,
    threads: Annotated[str | None, typer.Option(metavar="N|auto", help="As for run.")] = None,
    imports: Imports = None,
) -> None:
    """Search a method's best settings, on held-out training data.

    Trials that are worse than most, by their any-time accuracy so far, are stopped early. The same
    command goes on with a search that was stopped; with more --trials it searches on. The best
    settings are printed as TOML, which `onepass run --settings` takes.
    """
    one_of("--objective", objective, OBJECTIVES)
    check("--trials", trials, int)
    given = {
        "dataset": dataset,
        "memory": memory,
        "stream": stream,
        "batch": batch,
        "preset": preset,
        "validation": validation,
        "every": every,
        "threads": None if threads is None else thread_count(threads),
        "seeds": seeds,
    }
    searched, fixed = _read(space, method)
    fixed |= {name: value for name, value in given.items() if value is not None}
    chosen = {**fixed.pop("set"), **read_pairs(set_ or [])}
    per_trial = fixed.pop("seeds")
    root = str(data_root) if data_root else None
    where = str(devices.resolve(device))
    here: dict[str, Any] = {"device": where, "data_root": root, "imports": tuple(imports or ())}
    job = Job(method, settings=chosen, **here, **fixed)
    if job.deterministic:
        devices.allow_determinism()
    asked = Asked(job, searched, objective, per_trial, seed)
    search = Search(asked, out or Path(f"tune-{method}"))
    executor = executors.choose([job] * min(trials, MOST_SEEDS), at_once(jobs_at_once))
    with _said_how_to_go_on():
        standing = _shown(search, executor, trials)
    _tell(standing, search)


def _read(file: Path, method: str) -> tuple[Space, dict[str, Any]]:
    """What is searched, and the options that the file gives beside it."""
    content = toml.read(file)
    for name in content:
        if name not in ("space", "defaults"):
            raise UnknownNameError(f"table of {file}", name, ("space", "defaults"))
    table = content.get("defaults", {})
    if not isinstance(table, dict):
        raise InputError(f"{file}: defaults must be a table [defaults]")
    for name, value in table.items():
        if name not in OPTIONS:
            raise UnknownNameError(f"option in {file}", name, OPTIONS)
        check(f"{file}: {name}", value, OPTIONS[name])
        if name in LEAST and value < LEAST[name]:
            raise InputError(f"{file}: {name} must be at least {LEAST[name]}, not {value}")
    options = {name.replace("-", "_"): value for name, value in {**USUAL, **table}.items()}
    options["set"] = {name: toml.as_text(one, name) for name, one in options["set"].items()}
    for net in (options["set"].get("net"), *_searched(content, "net")):
        plugins.expect_named(net, str(file))
    return Space.read(content.get("space"), registry.get(method).learner, str(file)), options


def _searched(content: dict[str, Any], name: str) -> list[Any]:
    """The alternatives of a setting in a space."""
    space = content.get("space")
    values = space.get(name) if isinstance(space, dict) else None
    return values if isinstance(values, list) else []


@contextmanager
def _said_how_to_go_on() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        messages.print("the same command goes on with the search")
        raise


def _shown(search: Search, executor: executors.Executor, trials: int) -> Standing:
    """Runs the search with a bar for it and one for each run, on standard error."""
    bars = progress()
    runs: dict[tuple[int, int] | None, Any] = {}

    def watch(trial: int, seed: int, now: callbacks.Progress) -> None:
        if (trial, seed) not in runs:
            name = f"trial {trial} seed {seed}"
            runs[trial, seed] = bars.add_task(name, total=now.steps, note="")
        score = "" if now.accuracy is None else f"{now.accuracy:.1f} %"
        bars.update(runs[trial, seed], completed=now.step, note=score)

    standings = search.go_on(executor, trials, watch)
    first = next(standings)  # what can be refused is refused before there is a bar
    whole = bars.add_task(f"{search.asked.job.method} trials", total=trials, note="")
    with bars:
        for standing in chain([first], standings):
            if standing.run in runs:
                bars.remove_task(runs.pop(standing.run))
            bars.update(whole, completed=standing.ended, note=plain(_best(standing)))
    return standing


def _best(standing: Standing) -> str:
    if standing.settings is None:
        return ""
    settings = " ".join(f"{name}={value}" for name, value in standing.settings.items())
    return f"best {standing.value:.2f}: {settings}"


def _tell(standing: Standing, search: Search) -> None:
    counts = f"{standing.ended} trials, {standing.stopped} stopped early"
    if standing.problems:
        first = shortened(standing.problems[0])
        counts += f", {len(standing.problems)} could not be run: {first}"
    messages.print(plain(f"{counts}; the best is in {search.best_file}"))
    if standing.settings is None:
        raise TrainingError(f"no trial has come to its end: {counts}")
    typer.echo(search.best_file.read_text("utf-8"), nl=False)
