"""Draws `onepass run` commands of all methods, on data so small that most of them take a second."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from formats import noise

from onepass.base.settings import setting_names
from onepass.evaluation.probes import PROBES
from onepass.learning import registry
from onepass.runs.spec import preset_names
from onepass.streams import STREAMS

METHODS = [info.key for info in registry.methods()]
OPTIONS = (
    *(("--prequential",), ("--prequential",), ("--every", "1"), ("--every", "7")),
    *(("--normalise", "first-task"), ("--validation", "0.2"), ("--class-order", "shuffled")),
    *(("--tasks", "2"), ("--tasks", "3"), ("--precision", "bf16")),
    *(("--seed", "3"), ("--deterministic",)),
    *(("--probe", name) for name in PROBES.all()),
)
# what `best` presets are made of, for the methods that have none
SETTINGS: tuple[dict[str, object], ...] = (
    *({"average": "growing"}, {"average": "arrivals"}, {"average": 0.9, "distil": 1.0}),
    *({"average": "growing", "distil": 1.0, "distil_from": "arrivals"}, {"repeats": 2}),
    *({"norms": "memory"}, {"mirror": "true"}, {"mirror_scores": "true"}, {"augment": "none"}),
    *({"optimizer": "nesterov"}, {"head": "frozen"}),
    # of methods that keep sums
    *({"width": 40}, {"strength": 2.0}, {"gamma": 0.1}, {"halflife": 50}, {"scale": 0.5}),
)
STREAM_ARGUMENTS = {"long-tail": ("", ":rho=5"), "blurry": ("", ":n=0,m=30", ":n=100")}


def write_data(folder: Path) -> dict[str, list[str]]:
    """Writes colour images and vectors; returns the options that load each kind of data."""
    images = noise(5, (3, 9, 9), train=40, test=6)
    np.savez(folder / "images.npz", **images._asdict())
    vectors = {"train_x": images.train_x, "test_x": images.test_x}
    flat = {name: x.reshape(len(x), -1)[:, :12] / 255.0 for name, x in vectors.items()}
    np.savez(folder / "vectors.npz", **{**images._asdict(), **flat})
    return {
        "digits": ["--dataset", "digits"],
        "images": ["--dataset", str(folder / "images.npz")],
        "vectors": ["--dataset", str(folder / "vectors.npz")],
    }


def a_run(chance: random.Random, method: str, data: dict[str, list[str]]) -> list[str]:
    """Returns a command without --out. Some are refused, since not every choice goes with every
    method."""
    learner = registry.get(method).learner
    kind = chance.choice(["digits", "images", "images", "vectors"])
    stream = chance.choice(sorted(STREAMS.all()))
    stream += chance.choice(STREAM_ARGUMENTS.get(stream, ("", ":boundaries=false")))
    preset = chance.choice(preset_names(learner))
    settings: dict[str, object] = dict(learner.traits.quick)
    for chosen in chance.sample(SETTINGS, k=chance.choice([0, 0, 1, 2, 3])):
        settings |= {name: chosen[name] for name in chosen if name in setting_names(learner)}
    options = chance.sample(OPTIONS, k=chance.randrange(5))
    if kind == "images" and "net" in setting_names(learner) and chance.random() < 0.1:
        settings["net"] = "resnet18-slim"
    batch = 40 if kind == "digits" or "net" in settings else 5
    return [
        *("run", method, "--preset", preset, "--stream", stream, *data[kind]),
        *("--memory", chance.choice(["8", "20", "60"]), "--device", "cpu"),
        *("--batch", str(batch)),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
        *(word for option in options for word in option),
    ]
