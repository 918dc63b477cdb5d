"""Compares GSA's loss with others if all methods have the same recipe.

    python benchmarks/comparison.py search SEARCH.jsonl --dataset cifar100 --memory 1000 --jobs 8
    python benchmarks/comparison.py final SEARCH.jsonl FINAL.jsonl --jobs 8
    python benchmarks/comparison.py table SEARCH.jsonl FINAL.jsonl -o comparison.png

It compares `er` (its loss is the sum of two means), `er` with one mean, `er-ace`, `gsa`, `gsa` with
w = v = 1, and `gsa` with plain cross-entropy over all classes. All have the same images,
augmentation and head. Each runs as it is, predicting with a moving average of its weights, and also
learning from that average.

`search` tries three learning rates on a held-out tenth of the training data. `final` runs the best
rate and the better rule of averaging of each (by the mean of final and any-time accuracy) on the
test set, over paired seeds. `table` prints and draws the results. Each run is one of
benchmarks/averages.py, which scores the network and its averages at once. Runs that the file
already holds are not repeated. The table leaves out lines without a commit, and a method without
a search.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from onepass.base.devices import resolve_device
from onepass.executors.processes.cuda_mps import cuda_mps_service
from onepass.report.layout import format_p_value
from onepass.report.rows import Spread
from onepass.report.significance import compare_paired
from onepass.report.table import Table, markdown

STUDY = Path(__file__).with_name("averages.py")
METHODS = {
    "er": ("er", {}),
    "er, mean": ("er", {"loss": "mean"}),
    "er-ace": ("er-ace", {}),
    "gsa, all rivals": ("gsa", {"weights": "none", "rivals": "all"}),
    "gsa, w=v=1": ("gsa", {"weights": "none"}),
    "gsa": ("gsa", {}),
}
SHARED = {"head": "frozen", "mirror": "true", "augment": "crop-grey-reflected"}
RATES = ("3e-4", "5e-4", "1e-3")
RULES = ("growing 16", "arrivals 0.25")  # rules of averaging for prediction
TAUGHT = {"distil_from": "growing", "distil": "1"}
TWICE = {**TAUGHT, "repeats": "2"}
KINDS = {"plain": {}, "averaged": {}, "distilled": TAUGHT, "distilled, two steps": TWICE}
SEEDS = 3
BATCH = 10  # of the stream
VALUES = ("final", "any-time")
Line = dict[str, Any]


# ---- runs


def line_of_run(name: str, kind: str, rate: str, where: Line, **more: object) -> Line:
    """Returns the fields by which a line of the study is recognised as this run."""
    method, own = METHODS[name]
    settings = {**SHARED, **own, **KINDS[kind], "lr": rate, "precision": where["precision"]}
    data = {key: where[key] for key in ("dataset", "memory", "device")}
    return {"method": method, "seed": 0, **data, "settings": settings, **more}


def holds(line: Line, run: Line) -> bool:
    """Returns whether a line is of this run, on whichever device."""
    return all(line[key] == value for key, value in run.items() if key != "device")


def carry_out(runs: Iterable[Line], file: Path, jobs: int, device: str) -> None:
    """Carries out the runs, `jobs` at a time, and appends the line of each as soon as it ends.

    Runs that the file already holds are left out.
    """
    held = read(file) if file.exists() else []
    wanted: list[Line] = []
    for run in runs:
        if run not in wanted and not any(holds(line, run) for line in held):
            wanted.append(run)
    lock = threading.Lock()

    def carry_out_one(run: Line) -> None:
        pairs = [f"{key}={value}" for key, value in run["settings"].items()]
        rest = [f"--{key}={run[key]}" for key in run if key not in ("method", "settings")]
        command = [sys.executable, str(STUDY), run["method"], *rest, "--set", *pairs]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        with lock, file.open("a") as lines:
            lines.write(done.stdout)
        print(f"{run['method']} {' '.join(pairs)} seed {run['seed']}", file=sys.stderr)

    with cuda_mps_service(resolve_device(device).type), ThreadPoolExecutor(jobs) as pool:
        list(pool.map(carry_out_one, wanted))


def search(where: Line, names: Iterable[str] = METHODS) -> list[Line]:
    """Returns the runs of the search: every method and rate, without and with distillation."""
    return [
        line_of_run(name, kind, rate, where, validation=0.1)
        for kind in ("plain", "distilled")
        for rate in RATES
        for name in names
    ]


def final(found: Sequence[Line], where: Line) -> list[Line]:
    """Returns the final runs: every method and kind with its best learning rate, over all seeds.

    The kind with two steps per batch uses the rate that was found with one.
    """
    chosen = {(name, kind): best(found, name, kind, where)[0] for name in METHODS for kind in KINDS}
    return [
        line_of_run(name, kind, chosen[name, kind], where, seed=seed, validation=0.0)
        for kind in KINDS
        for seed in range(SEEDS)
        for name in METHODS
    ]


def best(found: Sequence[Line], name: str, kind: str, where: Line) -> tuple[str, str]:
    """Returns the learning rate and the scored network that were best in the search.

    They are best by the sum of final and any-time accuracy. Exits if a run of the search is missing
    or there twice.
    """
    searched = "plain" if kind in ("plain", "averaged") else "distilled"
    worth = {}
    for rate in RATES:
        run = line_of_run(name, searched, rate, where, validation=0.1)
        lines = [line for line in found if holds(line, run)]
        if len(lines) != 1:
            sys.exit(f"the search holds {len(lines)} runs, not one, of {run}: `search` makes them")
        (line,) = lines
        for scored in predictors(kind):
            numbers = line["summary"][scored]
            worth[rate, scored] = numbers["final"] + numbers["any-time"]
    return max(worth, key=lambda key: worth[key])


def predictors(kind: str) -> Sequence[str]:
    """Returns the names of the scored networks that may predict in runs of a kind."""
    return ("student",) if kind == "plain" else RULES


def read(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def with_commit(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines that say which code made them; only these may stand in a table."""
    return [line for line in lines if line["commit"]]


# ---- results


def scores(lines: Sequence[Line], found: Sequence[Line]) -> dict[tuple[str, str], list[Line]]:
    """Returns the scores of the runs of each method and kind, of the network chosen to predict.

    A method is left out until it has a search, a kind until every method has a run of it.
    """
    first = lines[0]
    where = {key: first[key] for key in ("dataset", "memory", "device")}
    where["precision"] = first["settings"]["precision"]
    names = [
        name
        for name in METHODS
        if any(holds(line, run) for run in search(where, [name]) for line in found)
    ]
    table: dict[tuple[str, str], list[Line]] = {}
    for kind in KINDS:
        for name in names:
            rate, scored = best(found, name, kind, where)
            run = line_of_run(name, kind, rate, where, validation=0.0)
            del run["seed"]
            own = [line for line in lines if holds(line, run)]
            table[name, kind] = [
                {
                    **line["summary"][scored],
                    "seed": line["seed"],
                    "lr": rate,
                    "rule": scored,
                    "images": line["images"][0] / BATCH,
                    "shown": line["images"][1] / BATCH,
                }
                for line in own
            ]
    whole = [kind for kind in KINDS if all(table[name, kind] for name in names)]
    return {(name, kind): runs for (name, kind), runs in table.items() if kind in whole}


def as_table(table: dict[tuple[str, str], list[Line]]) -> Table:
    """Returns the table of methods and kinds, with gsa's lead over each other method per seed."""
    names = ["", "method", "lr", "predicts", "trained", "shown", "final", "any-time", "n"]
    ahead = [f"gsa ahead, {value}" for value in VALUES]
    rows = []
    for (name, kind), runs in table.items():
        first = runs[0]
        cells = [kind, name, first["lr"], first["rule"]]
        cells += [f"{first['images']:.1f}", f"{first['shown']:.1f}"]
        cells += [str(Spread.over(run[value] for run in runs)) for value in VALUES]
        cells.append(str(len(runs)))
        for value in VALUES:
            own = {run["seed"]: run[value] for run in runs}
            gsa = {run["seed"]: run[value] for run in table.get(("gsa", kind), [])}
            found = compare_paired(gsa, own if name != "gsa" else {})
            cells += [str(Spread.over(found.differences) or "-"), format_p_value(found.t_test)]
        rows.append(cells)
    return Table([*names, ahead[0], "p", ahead[1], "p"], rows)


def draw(table: dict[tuple[str, str], list[Line]], output: Path) -> None:
    """Draws accuracy against the images trained per image of the stream.

    An image that only the average sees needs a forward pass and no backward pass: it counts as a
    third.
    """
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharex=True)
    markers = dict(zip(KINDS, "osD^", strict=True))
    colours = dict(zip(METHODS, plt.get_cmap("tab10").colors, strict=False))
    colours = {name: colour for name, colour in colours.items() if (name, "plain") in table}
    for axes, value in zip(panels, VALUES, strict=True):
        for (name, kind), runs in table.items():
            place = list(METHODS).index(name) - (len(METHODS) - 1) / 2  # side by side
            x = runs[0]["images"] + runs[0]["shown"] / 3 + 0.2 * place
            values = [run[value] for run in runs]
            error = stdev(values) if len(values) > 1 else None
            style: Any = {"color": colours[name], "marker": markers[kind], "capsize": 3}
            axes.errorbar(x, mean(values), yerr=error, linestyle="", **style)
        axes.set(xlabel="images trained per stream image", ylabel=f"{value} accuracy (%)")
        axes.grid(alpha=0.3)
    for name, colour in colours.items():
        panels[0].plot([], [], "o", color=colour, label=name)
    for kind in dict.fromkeys(kind for _, kind in table):
        panels[1].plot([], [], markers[kind], color="0.4", label=kind)
    for axes in panels:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(output, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=("search", "final", "table"))
    parser.add_argument("searched", type=Path)
    parser.add_argument("finals", type=Path, nargs="?")
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--memory", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    where = vars(given)
    if given.do == "search":
        carry_out(search(where), given.searched, given.jobs, given.device)
    elif given.do == "final":
        runs = final(read(given.searched), where)
        carry_out(runs, given.finals, given.jobs, given.device)
    else:
        table = scores(with_commit(read(given.finals)), with_commit(read(given.searched)))
        print(markdown(as_table(table)), end="")
        if given.output:
            draw(table, given.output)


if __name__ == "__main__":
    main()
