"""`onepass tune`: searches for the best settings of a method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from onepass.base.news import Line
from onepass.base.text import printable
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, messages
from onepass.cli.progress import Lines, progress_bars
from onepass.cli.run import MOST_SEEDS, parse_jobs_at_once, parse_pairs, parse_threads
from onepass.runs.spec import Job
from onepass.tuning import tune as tuning
from onepass.tuning.spec import OBJECTIVES
from onepass.tuning.tune import TuneListener

if TYPE_CHECKING:
    from onepass.evaluation.callbacks import Progress
    from onepass.tuning.search import SearchState


@app.command(
    name="tune",
    epilog="""\b
Examples:
  onepass tune gsa --space space.toml --trials 30
  onepass tune gsa --space space.toml --trials 60 --dataset cifar100 --memory 1000 --jobs auto
  onepass tune er --space space.toml --trials 20 --seeds 3 --objective anytime --out search/
  onepass run gsa --preset common --settings tune-gsa/best.toml

\b
The search space, as TOML:
  [space]
  lr = {low = 1e-4, high = 1e-2, log = true}
  head = ["trained", "frozen"]
  [defaults]
  dataset = "cifar100"
  memory = 1000
  set = {mirror = true}""",
)
def tune_command(
    method: shared.Method,
    space: Annotated[
        Path, typer.Option(metavar="FILE", help="TOML file with the search space; see below.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="Number of trials in all.")],
    objective: Annotated[
        str,
        typer.Option(
            help="What to maximise: accuracy (final), anytime, or mean (of both).",
            autocompletion=shared.complete_words(*OBJECTIVES),
        ),
    ] = OBJECTIVES[0],
    validation: Annotated[
        float | None,
        typer.Option(help="Fraction of the training data to hold out and score on (default: 0.1)."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MOST_SEEDS, help="Runs of each trial (default: 1).")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the search: the same seed tries the same settings.")
    ] = 0,
    jobs_at_once: shared.Jobs = "1",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the search (default: tune-METHOD).")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="As for run.", autocompletion=shared.complete_datasets)
    ] = None,
    data_root: shared.DataRoot = None,
    memory: Annotated[int | None, typer.Option(min=0, help="As for run.")] = None,
    stream: Annotated[str | None, typer.Option(metavar="SPEC", help="As for run.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="As for run.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="As for run, but always common by default; trials start from it."),
    ] = None,
    set_: shared.Set = None,
    every: Annotated[int | None, typer.Option(min=1, help="As for run.")] = None,
    device: shared.Device = Job.device,
    threads: Annotated[str | None, typer.Option(metavar="N|auto", help="As for run.")] = None,
    imports: Imports = None,
) -> None:
    """Search for a method's best settings, on held-out training data.

    A trial stops early if its any-time accuracy so far is below the median of complete trials. If
    the search is stopped, give the same command again: it continues, and with more --trials it
    searches further. The best settings are printed as TOML, which `onepass run --settings` takes,
    below the whole command.
    """
    with SearchDisplay(method, trials) as shown:
        standing = tuning.tune(
            method,
            space,
            trials,
            objective=objective,
            validation=validation,
            seeds=seeds,
            seed=seed,
            jobs=parse_jobs_at_once(jobs_at_once),
            out=out,
            dataset=dataset,
            data_root=data_root,
            memory=memory,
            stream=stream,
            batch=batch,
            preset=preset,
            settings=parse_pairs(set_ or []),
            every=every,
            device=device,
            threads=None if threads is None else parse_threads(threads),
            imports=imports or (),
            listener=shown,
        )
    messages.print(printable(f"{standing.summary}; the best is in {standing.best_file}"))
    typer.echo(standing.best_file.read_text("utf-8"), nl=False)


class SearchDisplay(TuneListener):
    """Shows a bar for a search and one for each run, on standard error."""

    def __init__(self, method: str, trials: int) -> None:
        self.name, self.trials = f"{method} trials", trials
        self.bars, self.lines = progress_bars(), Lines(many=True)
        self.runs: dict[tuple[int, int] | None, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.bars.stop()
        if kind is KeyboardInterrupt:
            messages.print("the same command continues the search")

    def started(self, standing: SearchState) -> None:
        self.search_bar = self.bars.add_task(self.name, total=self.trials, note="")
        self.bars.start()
        self.ended(standing)

    def progressed(self, trial: int, seed: int, progress: Progress) -> None:
        name = f"trial {trial} seed {seed}"
        if progress.line:
            self.lines.show(name, progress.line)
        if (trial, seed) not in self.runs:
            self.runs[trial, seed] = self.bars.add_task(name, total=progress.steps, note="")
        score = "" if progress.accuracy is None else f"{progress.accuracy:.1f} %"
        self.bars.update(self.runs[trial, seed], completed=progress.step, note=score)

    def ended(self, standing: SearchState) -> None:
        if standing.run in self.runs:
            self.bars.remove_task(self.runs.pop(standing.run))
        best = printable(_best_note(standing))
        self.bars.update(self.search_bar, completed=standing.ended, note=best)
        ended = [f"{standing.ended} of {self.trials} ended", best]
        self.lines.show(self.name, Line(", ".join(filter(None, ended)), "steps"))


def _best_note(standing: SearchState) -> str:
    if standing.settings is None:
        return ""
    settings = " ".join(f"{name}={value}" for name, value in standing.settings.items())
    return f"best {standing.value:.2f}: {settings}"
