"""onepass tune"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from onepass.base.text import plain
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, messages
from onepass.cli.progress import progress
from onepass.cli.run import MOST_SEEDS, at_once, read_pairs, thread_count
from onepass.runs.spec import Job
from onepass.tuning import tune as tuning
from onepass.tuning.spec import OBJECTIVES
from onepass.tuning.tune import TuneListener

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Progress
    from onepass.tuning.search import SearchState


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
    with ShownSearch(method, trials) as shown:
        standing = tuning.tune(
            method,
            space,
            trials,
            objective=objective,
            validation=validation,
            seeds=seeds,
            seed=seed,
            jobs=at_once(jobs_at_once),
            out=out,
            dataset=dataset,
            data_root=data_root,
            memory=memory,
            stream=stream,
            batch=batch,
            preset=preset,
            settings=read_pairs(set_ or []),
            every=every,
            device=device,
            threads=None if threads is None else thread_count(threads),
            imports=imports or (),
            listener=shown,
        )
    messages.print(plain(f"{standing.summary}; the best is in {standing.best_file}"))
    typer.echo(standing.best_file.read_text("utf-8"), nl=False)


class ShownSearch(TuneListener):
    """Shows a bar for a search and one for each run, on standard error."""

    def __init__(self, method: str, trials: int) -> None:
        self.name, self.trials = f"{method} trials", trials
        self.bars = progress()
        self.runs: dict[tuple[int, int] | None, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.bars.stop()
        if kind is KeyboardInterrupt:
            messages.print("the same command goes on with the search")

    def started(self, standing: SearchState) -> None:
        self.whole = self.bars.add_task(self.name, total=self.trials, note="")
        self.bars.start()
        self.ended(standing)

    def progressed(self, trial: int, seed: int, progress: Progress) -> None:
        if (trial, seed) not in self.runs:
            name = f"trial {trial} seed {seed}"
            self.runs[trial, seed] = self.bars.add_task(name, total=progress.steps, note="")
        score = "" if progress.accuracy is None else f"{progress.accuracy:.1f} %"
        self.bars.update(self.runs[trial, seed], completed=progress.step, note=score)

    def ended(self, standing: SearchState) -> None:
        if standing.run in self.runs:
            self.bars.remove_task(self.runs.pop(standing.run))
        self.bars.update(self.whole, completed=standing.ended, note=plain(_best(standing)))


def _best(standing: SearchState) -> str:
    if standing.settings is None:
        return ""
    settings = " ".join(f"{name}={value}" for name, value in standing.settings.items())
    return f"best {standing.value:.2f}: {settings}"
