"""onepass tune"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from onepass import devices, executors, listeners, registry, toml
from onepass.cli.base import app, messages, one_of
from onepass.cli.running import MOST_SEEDS, at_once, read_pairs
from onepass.errors import InputError, TrainingError, UnknownNameError
from onepass.job import Job
from onepass.settings import check
from onepass.tune import OBJECTIVES, Asked, Search, Space, Standing
from onepass.words import plain, shortened

# Options of `onepass run` that a space's file may give, by their names there.
FIXED = (
    *("dataset", "image_size", "test_fraction", "normalise", "memory", "stream", "tasks", "batch"),
    *("class_order", "preset", "validation", "every", "threads", "deterministic"),
)
HINTS = {name.replace("_", "-"): get_type_hints(Job)[name] for name in FIXED}
OTHERS = {"set": dict, "seeds": int}


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
  replay = [32, 64, 128]
  [defaults]
  dataset = "cifar100"
  memory = 1000
  set = {head = "frozen"}"""
)
def tune(
    method: Annotated[str, typer.Argument(help="See: onepass list methods.")],
    space: Annotated[
        Path, typer.Option(metavar="FILE", help="What to search, as TOML; see below.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="How many in all.")],
    objective: Annotated[
        str, typer.Option(help="accuracy (final), anytime, or the mean of both.")
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
    jobs_at_once: Annotated[
        str, typer.Option("--jobs", metavar="N|auto", help="Runs at a time; auto: as many as pay.")
    ] = "1",
    out: Annotated[
        Path | None, typer.Option(help="Where the search goes (default: tune-METHOD).")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="As for run.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="As for run.")] = None,
    memory: Annotated[int | None, typer.Option(min=0, help="As for run.")] = None,
    stream: Annotated[str | None, typer.Option(metavar="SPEC", help="As for run.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="As for run.")] = None,
    preset: Annotated[str | None, typer.Option(help="As for run: where trials start from.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As for run: what is not searched."),
    ] = None,
    every: Annotated[int | None, typer.Option(min=1, help="As for run.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = Job.device,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="As for run.")] = None,
) -> None:
    """Search a method's best settings on held-out training data, with Optuna.

    Trials that are worse than most, by their any-time accuracy so far, are stopped early. The same
    command goes on with a search that was stopped; with more --trials it searches on. The best
    settings are printed as TOML, which `onepass run --settings` takes.
    """
    one_of("--objective", objective, OBJECTIVES)
    learner = registry.get(method).learner
    content = toml.read(space)
    for name in content:
        if name not in ("space", "defaults"):
            raise UnknownNameError(f"table of {space}", name, ("space", "defaults"))
    searched = Space.read(content.get("space"), learner, str(space))
    fixed = _defaults(content.get("defaults", {}), space)
    chosen = {name: toml.as_text(value, name) for name, value in fixed.pop("set", {}).items()}
    per_trial = seeds or fixed.pop("seeds", 1)
    fixed.pop("seeds", None)
    options = {
        "dataset": dataset,
        "memory": memory,
        "stream": stream,
        "batch": batch,
        "preset": preset,
        "validation": validation,
        "every": every,
        "threads": threads,
    }
    fixed = {"validation": 0.1, **fixed} | {
        name: value for name, value in options.items() if value is not None
    }
    job = Job(
        method,
        settings={**chosen, **read_pairs(set_ or [])},
        device=devices.resolve(device).type,
        data_root=str(data_root) if data_root else None,
        **fixed,
    )
    if job.deterministic:
        devices.allow_determinism()
    search = Search(Asked(job, searched, objective, per_trial, seed), out or Path(f"tune-{method}"))
    together = (
        1 if jobs_at_once == "1" else executors.fitting(at_once(jobs_at_once), [job] * trials)
    )
    with _said_how_to_go_on():
        standing = _shown(search, together, trials)
    _tell(standing, search)


def _defaults(table: Any, file: Path) -> dict[str, Any]:
    """The options of a file, as a job takes them."""
    if not isinstance(table, dict):
        raise InputError(f"{file}: defaults must be a table [defaults]")
    valid = {**HINTS, **OTHERS}
    for name, value in table.items():
        if name not in valid:
            raise UnknownNameError(f"option in {file}", name, valid)
        check(f"{file}: {name}", value, valid[name])
    return {name.replace("-", "_"): value for name, value in table.items()}


@contextmanager
def _said_how_to_go_on() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        messages.print("the same command goes on with the search")
        raise


def _shown(search: Search, together: int, trials: int) -> Standing:
    """Runs the search with a bar for it and one for each run, on standard error."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=messages) as bars:
        whole = bars.add_task(f"{search.asked.job.method} trials", total=trials, note="")
        runs: dict[tuple[int, int], Any] = {}

        def watch(trial: int, seed: int, now: listeners.Progress) -> None:
            if (trial, seed) not in runs:
                name = f"trial {trial} seed {seed}"
                runs[trial, seed] = bars.add_task(name, total=now.steps, note="")
            score = "" if now.accuracy is None else f"{now.accuracy:.1f} %"
            bars.update(runs[trial, seed], completed=now.step, note=score)

        for standing in search.go_on(executors.choose(together), trials, watch):
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
