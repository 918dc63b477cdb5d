"""Builds the command that repeats a run: a recorded one, or one that a job describes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from onepass.base.text import printable
from onepass.learning.registry import COMMON
from onepass.runs.spec import NOT_IN_VARIANT, Job
from onepass.runs.variant import PRESET, Variant

OPTIONS = {field.name: field.default for field in fields(Job) if field.name not in NOT_IN_VARIANT}


def rerun_command(run: Mapping[str, Any]) -> str:
    """Returns the command that repeats the run, from the fields of a result or a run.json.

    The command has no `--data-root` and no `--test` file: these paths belong to one machine and
    are not recorded.

    >>> rerun_command({"method": "er", "dataset": "digits", "memory": 100, "seed": 2,
    ...                "device": "cpu", "variant": "tuned lr=3e-4 every=10 prequential=True"})
    'onepass run er --dataset digits --memory 100 --seed 2 --preset tuned --set lr=3e-4 --every 10
    --prequential --device cpu'
    """
    return printable(shlex.join(_words(run)))


def job_command(job: Job, seeds: int = 1) -> str:
    """Returns the command that runs the job with `seeds` seeds, the first of which is its own.

    >>> job_command(Job("er", batch=20, stream="long-tail:rho=10", device="cpu"), seeds=3)
    'onepass run er --dataset digits --memory 100 --seed 0 --preset common
    --stream long-tail:rho=10 --batch 20 --device cpu --seeds 3'
    """
    known = {**vars(job), "dataset_identity": job.dataset_identity, "variant": str(job.variant)}
    words = _words(known)
    for option, path in (("--test", job.test), ("--data-root", job.data_root)):
        words += [option, str(Path(path).resolve())] if path else []
    words += ["--seeds", str(seeds)] if seeds > 1 else []
    return printable(shlex.join(words))


def _words(run: Mapping[str, Any]) -> list[str]:
    words = ["onepass", "run", str(run["method"])]
    words += ["--dataset", str(run.get("dataset_identity") or run["dataset"])]
    if run.get("memory") is not None:
        words += ["--memory", str(run["memory"])]
    words += ["--seed", str(run["seed"])]
    words += _options(Variant.parse(str(run.get("variant") or "")))
    for name in ("device", "probes", "imports"):
        recorded = run.get(name) or []
        for value in [recorded] if isinstance(recorded, str) else recorded:
            words += [f"--{name.removesuffix('s')}", str(value)]
    return words


def _options(variant: Variant) -> Iterator[str]:
    """Yields the words of the command line that choose the variant. The preset is always named,
    because a command without it may mean another one."""
    yield from ("--preset", variant.get(PRESET, COMMON))
    for name, value in variant.without(PRESET).items():
        option = f"--{name.replace('_', '-')}"
        if name == "mirror_is_same_class":
            yield "--mirror-is-another-class"
        elif name not in OPTIONS:
            yield from ("--set", f"{name}={value}")
        else:
            yield from [option] if OPTIONS[name] is False else (option, value)
