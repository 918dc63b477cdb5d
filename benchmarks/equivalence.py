"""Checks whether two versions of the tree learn the same bits.

    PYTHONPATH=OLD python benchmarks/equivalence.py dump old.json
    PYTHONPATH=NEW python benchmarks/equivalence.py dump new.json
    python benchmarks/equivalence.py compare old.json new.json

Every method learns the digits with three seeds, and a stream of small colour images with a
ResNet18. Each does so with its common settings and with its presets `tuned` and `best`. `dump`
writes a checksum of each entry of the state. `compare` prints those that differ, after the entries
of OLD have got their new names (`RENAMED`), and exits with status 1 if there are any. Checksums
depend on the machine and the version of torch, so compare files from the same ones. The oldest tree
that works is 8150c8e, the last before modules moved into packages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from onepass.base.settings import setting_names

SEEDS = (0, 1, 2)
# Entries of the state of commit 68e2b2f that were renamed since; None: no longer kept.
RENAMED: dict[str, str | None] = {
    "parts/store/seen": "parts/store/offered",  # samples offered to a reservoir so far
    "parts/running/seen": "parts/running/offered",
}


def entries(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from entries(value, f"{path}/{key}" if path else str(key))
    else:
        yield path, tree


def cases() -> Iterator[tuple[str, Any, Any]]:
    """Yields the name, stream and learner of each case."""
    import onepass

    digits = onepass.load("digits")
    small = onepass.load(
        "synthetic", classes=6, train_per_class=20, test_per_class=5, shape=(3, 12, 12), seed=1
    )
    for info in _registry().methods():
        names = setting_names(info.learner)
        tasks = 1 if info.one_task else 5
        for preset, settings, unmirrored in presets(info.learner):
            for seed in SEEDS:
                chosen = {"memory": 100} if "memory" in names else {}
                chosen |= {"mean": digits.mean, "std": digits.std, **unmirrored}
                learner = info.learner(seed=seed, device="cpu", **chosen)
                stream = onepass.ClassIncremental(digits, tasks=tasks, seed=seed)
                yield f"{info.key} {preset} digits {seed}", stream, learner
            chosen = {"memory": 40} if "memory" in names else {}
            chosen |= settings | ({"epochs": 2} if "epochs" in names else {})
            learner = info.learner(net="resnet18", device="cpu", **chosen)
            stream = onepass.ClassIncremental(small, tasks=min(tasks, 3), seed=0)
            yield f"{info.key} {preset} resnet18", stream, learner


def _registry() -> Any:
    try:
        from onepass.learning import registry
    except ImportError:  # before the modules moved
        from onepass import registry
    return registry


def _sha256(value: Any) -> str:
    try:
        from onepass.base.checksum import sha256
    except ImportError:
        from onepass.files import sha256
    return sha256(value)


def presets(learner: Any) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yields name, settings, and settings for images that are never mirrored, of each preset."""
    yield "common", {}, {}
    for name in ("tuned", "best"):
        if preset := learner.presets.get(name):
            settings = dict(preset.settings)
            instead = preset.unmirrored or ({"mirror": False} if "mirror" in settings else {})
            yield name, settings, settings | instead


def dump(output: Path) -> None:
    import onepass

    torch.set_num_threads(1)
    found = {}
    for name, stream, learner in cases():
        *_, last = onepass.evaluate(learner, stream)
        state = {path: _sha256(value) for path, value in entries(learner.state_dict())}
        found[name] = {
            "accuracy": last.accuracy,
            "correct": last.correct,
            "parameters": learner.params_sha256(),
            "state": state,
        }
        print(f"{name}: {last.accuracy:.2f}", flush=True)
        output.write_text(json.dumps(found, indent=1) + "\n")


def renamed(state: dict[str, str]) -> dict[str, str]:
    """Returns the entries of an old state under their new names, without those no longer kept."""
    moved = {}
    for path, value in state.items():
        for old, new in RENAMED.items():
            if path == old or path.startswith(f"{old}/"):
                path = None if new is None else new + path[len(old) :]  # noqa: PLW2901
                break
        if path is not None:
            moved[path] = value
    return moved


def compare(old: Path, new: Path) -> int:
    """Prints every difference between two files of `dump`; returns 1 if there is any, else 0."""
    before, after = (json.loads(file.read_text()) for file in (old, new))
    differ = sorted(set(before) ^ set(after))
    for name in before.keys() & after.keys():
        first, second = before[name], after[name]
        was, now = renamed(first["state"]), second["state"]
        for what in ("parameters", "correct"):
            if first[what] != second[what]:
                differ.append(f"{name}: {what}")
        differ += [
            f"{name}: {path}" for path in sorted(was.keys() | now.keys())
            if was.get(path) != now.get(path)
        ]  # fmt: skip
    print("\n".join(differ) or f"the same parameters, predictions and states in {len(after)} runs")
    return bool(differ)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["dump", output]:
            dump(Path(output))
        case ["compare", old, new]:
            sys.exit(compare(Path(old), Path(new)))
        case _:
            sys.exit(__doc__)
