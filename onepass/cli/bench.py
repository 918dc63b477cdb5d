"""`onepass bench`: times the steps of methods on random data."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from onepass.base import devices
from onepass.base.errors import InputError
from onepass.base.settings import expect_type
from onepass.base.text import format_rate, quoted
from onepass.cli import options as shared
from onepass.cli import terminal_table
from onepass.cli.app import Imports, app, messages, parse_count
from onepass.cli.run import parse_threads, settings_of_options
from onepass.report.layout import expect_columns
from onepass.runs import environment
from onepass.runs.spec import Job

COLUMNS = (
    "method",
    "settings",
    "memory",
    "classes",
    "images",
    "steps/s",
    "images/s",
    "of bare",
    "peak MB",
)


@app.command(
    name="bench",
    epilog="""\b
Examples:
  onepass bench er gsa
  onepass bench er gsa --device cuda --precision bf16
  onepass bench gsa --set current=22 --set mirror=true --precision bf16
  onepass bench er --memory 100 --memory 1000 --memory 100000 --json""",
)
def bench_command(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help="One or more methods (default: er and gsa).",
            autocompletion=shared.complete_methods,
        ),
    ] = None,
    memory: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Samples in the memory; repeatable (default: 1000)."),
    ] = None,
    classes: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Classes learned so far; repeatable (default: 100)."),
    ] = None,
    shape: Annotated[
        str,
        typer.Option(
            help="Shape of a sample: channels,height,width, or features; auto: 1,28,28 on a CPU, "
            "3,32,32 on a GPU."
        ),
    ] = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Stream samples per step.")] = 10,
    steps: Annotated[int, typer.Option(min=5, help="Number of steps to time.")] = 200,
    set_: shared.Set = None,
    device: shared.Device = "auto",
    engine: shared.Engine = None,
    precision: shared.Precision = None,
    threads: Annotated[
        str, typer.Option(metavar="N|auto", help="CPU threads; auto: all cores.")
    ] = str(Job.threads),
    imports: Imports = None,
    columns: shared.Columns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row, nothing else.")
    ] = False,
) -> None:
    """Time the steps of methods, on random data.

    Methods have their preset common, with the settings of --set on top.
    The column "of bare" is the rate divided by that of a bare training step, which has the same
    forward passes, one backward pass and one optimiser step, and nothing else.
    """
    from onepass.tools import bench as benchmarks

    numbers = {"memory": memory or [], "classes": classes or [], "batch": [batch], "steps": [steps]}
    expect_columns(terminal_table.column_names(columns), COLUMNS)
    for name, given in numbers.items():
        expect_type(f"--{name}", tuple(given), tuple[int, ...])
    where, count = str(devices.resolve_device(device)), parse_threads(threads)
    options = {"engine": engine, "precision": precision}
    chosen = {"engine": "auto", "precision": "fp32"} | settings_of_options(
        None, set_ or [], options
    )
    cases = [
        benchmarks.BenchCase(
            method=method,
            memory=size,
            classes=known,
            shape=_parse_shape(shape, where),
            batch=batch,
            settings=chosen,
            device=where,
            steps=steps,
        )
        for method in methods or ["er", "gsa"]
        for size in memory or [1000]
        for known in classes or [100]
    ]
    for case in cases:
        case.learner()  # raises an error for wrong settings before anything is timed
    rows = []
    with devices.threads_and_determinism(count, deterministic=False):
        for case in cases:
            messages.print(f"timing {case.method}, memory {case.memory}, {case.classes} classes")
            found = benchmarks.measure(case)
            rows.append(_table_row(found))
            if as_json:
                typer.echo(
                    json.dumps({**found, "threads": count, **environment.describe_environment()})
                )
    if not as_json:
        terminal_table.print_rows(rows, columns)


def _table_row(found: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a measured case, by column."""
    chosen = " ".join(f"{name}={value}" for name, value in found["settings"].items())
    images = str(found["trained_images"])
    if found["scored_images"]:
        images += f" + {found['scored_images']} scored"
    cells = (
        found["method"],
        chosen,
        str(found["memory"]),
        str(found["classes"]),
        images,
        format_rate(found["steps_per_second"]),
        format_rate(found["images_per_second"]),
        f"{found['fraction_of_bare']:.2f}",
        "-" if found["peak_megabytes"] is None else f"{found['peak_megabytes']:.0f}",
    )
    return dict(zip(COLUMNS, cells, strict=True))


def _parse_shape(text: str, device: str) -> tuple[int, ...]:
    """Returns the value of `--shape`; auto is MNIST's shape on a CPU and CIFAR's on a GPU."""
    if text == "auto":
        return (1, 28, 28) if device == "cpu" else (3, 32, 32)
    wanted = "channels,height,width, or features"
    numbers = text.split(",")
    if len(numbers) not in (1, 3):
        raise InputError(f"--shape takes {wanted}, not {quoted(text)}")
    return tuple(parse_count("--shape", number, wanted) for number in numbers)
