"""Measures A-PN in two readings: by the plain softmax, and by the gradients of the method's loss.

A-PN of a class is the sum of the positive gradients of its logit divided by that of the negative
ones, over the whole stream; -1 is balance. The first reading is the paper's definition, which the
probe `balance` measures.

    python benchmarks/own_rates.py gsa --dataset mnist --memory 500 --seed 0 >> FILE.jsonl
    python benchmarks/own_rates.py gsa --dataset mnist --memory 500 --set weights=none >> FILE.jsonl

It prints one JSON object: both rates by class, and the mean of |A-PN + 1| of each. It runs on a
CPU, because a captured step calls no hooks.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onepass.base.devices import threads_and_determinism
from onepass.evaluation.loop import evaluate
from onepass.evaluation.probes import BalanceProbe
from onepass.gsa_paper.claims import imbalance
from onepass.learning.learner import Learner
from onepass.runs.environment import describe_environment
from onepass.runs.resources import RunResources
from onepass.runs.spec import Job


@dataclass
class OwnGradients:
    """Sums of the positive and of the negative gradients of the loss by each logit."""

    positive: Tensor = field(default_factory=lambda: torch.zeros(0))  # (C)
    negative: Tensor = field(default_factory=lambda: torch.zeros(0))  # (C)

    def watch(self, learner: Learner) -> None:
        """Adds the gradients of every output that trains to the sums, from now on."""
        forward = learner.forward

        def watched(*samples: Any) -> Any:
            outputs = forward(*samples)
            for out in outputs:
                if out.logits.requires_grad:
                    out.logits.register_hook(self.add)  # type: ignore[no-untyped-call]
            return outputs

        learner.forward = watched  # type: ignore[method-assign]

    def add(self, gradient: Tensor) -> None:
        """Adds the gradients (n, C) of logits to the sums, which grow with the head."""
        if more := gradient.shape[1] - len(self.positive):
            self.positive = torch.nn.functional.pad(self.positive, (0, more))
            self.negative = torch.nn.functional.pad(self.negative, (0, more))
        self.positive += gradient.clamp(min=0).sum(dim=0)
        self.negative += gradient.clamp(max=0).sum(dim=0)

    def rates(self, classes: int) -> list[float]:
        """Returns A-PN of the first classes, in order of arrival."""
        return [float(rate) for rate in (self.positive / self.negative)[:classes]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method")
    parser.add_argument("--dataset", default=Job.dataset)
    parser.add_argument("--memory", type=int, default=Job.memory)
    parser.add_argument("--seed", type=int, default=Job.seed)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    given = vars(parser.parse_args())
    settings = dict(word.split("=", 1) for word in given.pop("set"))
    job = Job(**given, settings=settings, device="cpu")
    stream, learner = job.make(RunResources().dataset(job))
    own, plain = OwnGradients(), BalanceProbe()
    own.watch(learner)
    with threads_and_determinism(job.threads, job.deterministic):
        *_, last = evaluate(learner, stream, every=len(stream), listeners=[plain])
    by_softmax = plain.a_pn()
    rates = {"softmax": list(by_softmax.values()), "own": own.rates(len(by_softmax))}
    far = {name: imbalance(values) for name, values in rates.items()}
    found = {"accuracy": last.accuracy, "a_pn": rates, "imbalance": far}
    print(
        json.dumps({**given, "settings": settings, **found, **describe_environment()}), flush=True
    )


if __name__ == "__main__":
    main()
