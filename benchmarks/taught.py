"""Measures what a moving average of the weights, and learning from it, add to a step.

    python benchmarks/taught.py --device cuda --precision bf16 >> FILE.jsonl
    python benchmarks/taught.py --shape 1,28,28 --classes 10 --augment none

There are three kinds of step: `plain`, `average` (with an average) and `distil` (which also learns
from it). Blocks of each kind alternate. The fastest of each counts, because a disturbance can only
make a block slower. `forward` is the average's forward pass alone, on as many images as in a step.
It prints one JSON object for each method: steps per second, the percentage of the step's time that
`average` adds, and the percentage that `distil` adds beyond that forward pass.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from onepass.base.parts import Step
from onepass.learning import execution
from onepass.learning.network_learner import NetworkLearner
from onepass.runs.environment import describe_environment
from onepass.tools.bench import BenchCase, RandomBatches

KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "average": {"average": "growing"},
    "distil": {"average": "growing", "distil": "1"},
}
WARM_UP, ROUNDS = 20, 7


def learning(
    case: BenchCase, settings: dict[str, str]
) -> tuple[NetworkLearner, Callable[[], None]]:
    """Returns a learner with these settings too, and a function that takes one step of it."""
    case = replace(case, settings={**case.settings, **settings})
    learner, batches = case.learner(), RandomBatches(case)
    batches.introduce(learner)
    return learner, lambda: batches.learn(learner)


def forward_of(learner: NetworkLearner, case: BenchCase) -> Callable[[], Any]:
    """Returns a function that makes the average's forward pass, captured if steps are."""
    average, where = learner.trainer.distillation.teaching, learner.trainer.torch_device
    assert average is not None
    views = torch.rand(learner.teacher_images(case.batch), *case.shape, device=where)
    runner = execution.make_engine(learner.engine, True, where, ())

    def step(x: torch.Tensor, y: torch.Tensor) -> Step:
        return Step(average.teacher_logits(x)[0, 0], {}, ())

    y = torch.zeros(len(views), dtype=torch.int64, device=where)
    return lambda: runner.run(step, views, y)


def fastest(calls: dict[str, Callable[[], Any]], count: int, device: str) -> dict[str, float]:
    """Returns the seconds of one call of each function, from its fastest block."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(count):
                call()
            if device != "cpu":
                torch.cuda.synchronize()
            taken[name].append((time.perf_counter() - began) / count)
    return {name: min(each) for name, each in taken.items()}


def measure(case: BenchCase) -> dict[str, Any]:
    made = {name: learning(case, settings) for name, settings in KINDS.items()}
    calls: dict[str, Callable[[], Any]] = {name: call for name, (_, call) in made.items()}
    calls["forward"] = forward_of(made["distil"][0], case)
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    seconds = fastest(calls, case.steps, case.device)
    plain = seconds["plain"]
    taught = seconds["distil"] - seconds["average"] - seconds["forward"]
    return {
        "steps_per_second": {name: round(1 / taken, 1) for name, taken in seconds.items()},
        "average_adds_percent": round(100 * (seconds["average"] / plain - 1), 2),
        "forward_percent": round(100 * seconds["forward"] / plain, 2),
        "distil_adds_beyond_forward_percent": round(100 * taught / plain, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=["er", "gsa"])
    parser.add_argument("--memory", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--shape", default="3,32,32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--augment", default="crop-grey")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for method in given.methods:
        case = BenchCase(
            method,
            memory=given.memory,
            classes=given.classes,
            shape=tuple(map(int, given.shape.split(","))),
            settings={"precision": given.precision, "augment": given.augment},
            device=given.device,
            steps=given.steps,
        )
        arguments = {name: value for name, value in vars(given).items() if name != "methods"}
        print(
            json.dumps({"method": method, **arguments, **measure(case), **describe_environment()}),
            flush=True,
        )


if __name__ == "__main__":
    main()
