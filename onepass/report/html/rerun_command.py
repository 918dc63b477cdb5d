"""Builds the command that repeats a recorded run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from onepass.base.text import printable
from onepass.runs.spec import NOT_IN_VARIANT, Job
from onepass.runs.variant import PRESET, Variant

OPTIONS = {field.name for field in fields(Job)} - NOT_IN_VARIANT


def rerun_command(run: Mapping[str, Any]) -> str:
    """Returns the command that repeats the run, from the fields of a result or a run.json.

    The command has no `--data-root` and no `--test` file: these paths belong to one machine and
    are not recorded.

    >>> rerun_command({"method": "er", "dataset": "digits", "memory": 100, "seed": 2,
    ...                "device": "cpu", "variant": "tuned lr=3e-4 every=10 prequential=True"})
    'onepass run er --dataset digits --memory 100 --seed 2 --preset tuned --set lr=3e-4 --every 10
    --prequential --device cpu'
    """
    words = ["onepass", "run", str(run["method"])]
    words += ["--dataset", str(run.get("dataset_identity") or run["dataset"])]
    if run.get("memory"):
        words += ["--memory", str(run["memory"])]
    words += ["--seed", str(run["seed"])]
    words += _options(Variant.parse(str(run.get("variant") or "")))
    for name in ("device", "probes", "imports"):
        recorded = run.get(name) or []
        for value in [recorded] if isinstance(recorded, str) else recorded:
            words += [f"--{name.removesuffix('s')}", str(value)]
    return printable(shlex.join(words))


def _options(variant: Variant) -> Iterator[str]:
    """Yields the words of the command line that choose the variant."""
    for name, value in variant.items():
        option = f"--{name.replace('_', '-')}"
        if name == PRESET:
            yield from ("--preset", value)
        elif name == "mirror_is_same_class":
            yield "--mirror-is-another-class"
        elif name not in OPTIONS:
            yield from ("--set", f"{name}={value}")
        else:
            yield from [option] if value == "True" else (option, value)
