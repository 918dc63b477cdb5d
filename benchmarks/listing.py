"""Measures how long `onepass runs list` takes for many runs, in folders and in a .jsonl file.

    python benchmarks/listing.py --runs 10000 --rounds 5

It makes that many runs in a temporary folder, from the lines of results/lines/cifar100.jsonl, and
lists them in a new process each time, as a user would. It prints one JSON object per kind of
listing, with the seconds that it took, and with those of the processor, which depend less on what
else the machine does. The kind "nothing" is `onepass --version`, for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

SOURCE = Path(__file__).parents[1] / "results" / "lines" / "cifar100.jsonl"
COMMAND = [sys.executable, "-c", "from onepass.cli import main; main()"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), given.runs)
        cases = {
            "nothing": ["--version"],
            "folders": ["runs", "list", f"{folder}/runs"],
            "lines": ["runs", "list", f"{folder}/all.jsonl"],
            "lines, one in three": [
                *("runs", "list", f"{folder}/all.jsonl", "--where", "method=gsa"),
                *("--sort", "-accuracy", "--json"),
            ],
        }
        for name, arguments in cases.items():
            times, worked = zip(*(seconds(arguments) for _ in range(given.rounds)), strict=True)
            found = {"median": median(times), "least": min(times), "most": max(times)}
            found["cpu"] = median(worked)
            print(json.dumps({"listed": name, "runs": given.runs, **found}), flush=True)


def make(folder: Path, count: int) -> None:
    """Writes each run as a folder, with the usual files, and as a line of a .jsonl file."""
    lines = [json.loads(line) for line in SOURCE.read_text().splitlines()]
    job = {"method": "gsa", "dataset": "cifar100", "settings": {}}
    run = json.dumps({"job": job, "learner": {"lr": 1e-3}, "class_names": ["a class"] * 100})
    with (folder / "all.jsonl").open("w") as file:
        for number in range(count):
            place = folder / "runs" / f"run-{number}"
            content = {"class_accuracy": [50.5] * 100, **lines[number % len(lines)]}
            content |= {"seed": number, "out": str(place)}
            file.write(json.dumps(content) + "\n")
            place.mkdir(parents=True)
            (place / "result.json").write_text(json.dumps(content, indent=2))
            (place / "run.json").write_text(run)
            (place / "events.jsonl").write_text("{}\n")


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Returns the seconds that a command takes, by the clock and by the processor."""
    began, before = time.perf_counter(), os.times()
    subprocess.run([*COMMAND, *arguments], check=True, capture_output=True)
    took, after = time.perf_counter() - began, os.times()
    worked = sum(after[kind] - before[kind] for kind in (2, 3))  # of children: user and system
    return took, worked


if __name__ == "__main__":
    main()
