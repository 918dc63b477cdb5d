"""Random calls of every method, good and bad, work or are refused with one line of ours.

A call that is refused, or only reads, changes no bit.
"""

import contextlib
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import fuzz
from torch import Tensor, nn

import onepass
from onepass import Learner, OnepassError, TrainingError
from onepass.base.settings import construct, setting_names
from onepass.learning import registry
from onepass.learning.network_learner import NetworkLearner

METHODS = [info.key for info in registry.methods()]
SMALL = {"memory": 6, "replay": 3, "mix": 4, "current": 2, "candidates": 4, "pool": 3, "epochs": 1}
SMALL |= {"subsets": 2, "subset_size": 2, "width": 5}
FOLDER = tempfile.TemporaryDirectory()
VALUES = (
    *(None, True, -1, 0, 1, 2, 7, 0.0, 0.5, -0.5, 1e-30, 1e30, math.nan, math.inf, "", "none"),
    *("frozen", "sgd", "adamw", "nesterov", "contrastive", "bf16", "cuda", "graph", "mlp", "vgg"),
    *((), (0.5,), (0.0,), (0.5, 0.5), [], {}, np.float32(0.1), np.int64(3), np.bool_(True), b"x"),
)


class Boom(Exception):
    """The exception that the network raises now and then."""


class Moody(nn.Module):
    """A network with BatchNorm that fails on demand, after its statistics have moved."""

    fails = 0

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 5)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1, 1, generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.layer(self.norm(x)))
        Moody.fails -= 1
        if Moody.fails == 0:
            raise Boom
        return features


# ---- what is given


def good(chance: random.Random) -> tuple[Tensor, list[int]]:
    """Returns a valid batch with old and new labels."""
    count, most = chance.randrange(1, 9), chance.choice([2, 3, 5, 25])
    labels = [chance.randrange(most) for _ in range(count)]
    source = torch.Generator().manual_seed(chance.randrange(99))
    return torch.randn(count, 4, generator=source) + torch.tensor(labels).view(-1, 1), labels


def odd_samples(x: Tensor) -> list[Any]:
    """Returns odd samples, of which a learner may accept some."""
    return [
        *(None, "x", 3, [], [[]], {}, object(), [[1.0, "a"]], [[1.0], [1.0, 2.0]], x.tolist()[0]),
        *(x[:0], x[:, :2], x.T, x[0], x.long(), x.bool(), x.to(torch.complex64), x.byte()),
        *(
            x * math.nan,
            x * math.inf,
            x * 3e38,
            x * 1e30,
            x.double() * 1e300,
            x.clone().requires_grad_(),
        ),
        *(
            x.to_sparse(),
            x.to_sparse_coo(),
            x.to("meta"),
            x.to(torch.float8_e5m2),
            x.expand(2, -1, 4),
        ),
        *(np.ma.masked_invalid(x.numpy()), np.array(x.tolist(), dtype=object), np.array(["a"])),
        *(x.numpy()[::-1], x.numpy().astype(">f4"), np.zeros(3, "datetime64[s]"), x.to_mkldnn()),
        *(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, 8, 8, dtype=torch.uint8)),
    ]


def odd_labels(count: int) -> list[Any]:
    y = torch.arange(count)
    return [
        *(
            None,
            "y",
            3,
            [],
            {},
            object(),
            ["a"] * count,
            [None] * count,
            [[0]] * count,
            [0.5] * count,
        ),
        *(y[:-1], y - 1, y + 0.5, y * math.nan, y.bool(), y.to(torch.complex64), y.view(1, -1)),
        *(y.to_sparse(), y.to("meta"), y + 2**62 + 2**62, [2**63] * count, [2**70] * count),
        *(np.arange(count, dtype=np.uint64) + 2**63, np.array([0] * count, dtype=object), y.half()),
        *(
            [True] * count,
            [-0.0] * count,
            [math.inf] * count,
            y.to(torch.uint8),
            y.int() * 0 + 2**30,
        ),
        *(y.float().to(torch.float8_e5m2), y.to(torch.uint16), np.zeros(count, "datetime64[s]")),
    ]


def batch(chance: random.Random) -> tuple[Any, Any]:
    """Returns a batch of an accepted kind, or of one of two that may be refused."""
    x, labels = good(chance)
    what = chance.randrange(5)
    as_x = chance.choice([lambda: x, x.numpy, x.tolist, x.double, x.half, x.t().contiguous().t])
    as_y = chance.choice([list, np.array, torch.tensor, lambda y: np.array(y, dtype=float)])
    return (
        chance.choice(odd_samples(x)) if what == 0 else as_x(),
        chance.choice(odd_labels(len(x))) if what == 1 else as_y(labels),
    )


# ---- what is called


def learner(chance: random.Random) -> Learner | None:
    """Returns a learner with a setting changed now and then; None if that was refused."""
    kind = registry.get(chance.choice(METHODS)).learner
    given: dict[str, Any] = {"net": Moody(), "device": "cpu", "gap": 2, **SMALL}
    chosen = {name: value for name, value in given.items() if name in setting_names(kind)}
    if chance.random() < 0.4:
        chosen[chance.choice([*setting_names(kind), "lrr"])] = chance.choice(VALUES)
    try:
        return construct(kind, **chosen)
    except OnepassError as problem:
        one_line(problem)
        return None


def learned(made: onepass.ClosedForm, chance: random.Random) -> onepass.ClosedForm:
    """Returns another learner of the same settings, or the same one, that may have learned."""
    other = chance.choice([made, type(made)(**made.get_params())])
    with contextlib.suppress(OnepassError):
        other is made or other.learn(*batch(chance))
    return other


def a_call(made: Learner, chance: random.Random) -> tuple[Callable[[], Any], bool]:
    """Returns a call, and whether it may change the learner."""
    path, (x, y) = Path(FOLDER.name) / "learner.pt", batch(chance)
    to = chance.choice([path, str(path), Path(FOLDER.name) / "no" / "where", FOLDER.name])
    calls = {
        "learn": lambda: made.learn(x, y),
        "end_task": made.end_task,
        "new_task": made.new_task,
        "scores": lambda: made.scores(x),
        "predict": lambda: made.predict(x),
        "snapshot": lambda: made.snapshot().predict(x),
        "save": lambda: made.save(to),
    }
    weights = [6, 1, 1, 1, 1, 1, 1]
    if isinstance(made, onepass.ClosedForm):
        other = learned(made, chance)
        calls |= {"unlearn": lambda: made.unlearn(x, y), "merge": lambda: made.merge(other)}
        weights += [2, 2]
    what = chance.choices(list(calls), weights)[0]
    changes = what in ("learn", "end_task", "new_task", "unlearn", "merge")
    Moody.fails = chance.choice([0, 0, 0, 1, 2, 3, 4]) if changes else 0
    return calls[what], changes


def kept_by_failures(made: Learner) -> tuple[int, int | None]:
    """Returns what stays when a step fails, as `learn` says: the task, and the rows of the head."""
    rows = made.model.head.capacity if isinstance(made, NetworkLearner) and made.steps else None
    return made.task, rows


def one_line(problem: BaseException) -> None:
    assert str(problem) and "\n" not in str(problem), f"not one line: {problem!r}"


def a_case(chance: random.Random) -> None:
    made = learner(chance)
    modes = (torch.enable_grad, torch.no_grad, torch.inference_mode)
    for _ in range(12 if made else 0):
        before, grown = made.state_sha256(), kept_by_failures(made)
        call, changes = a_call(made, chance)
        boom = False
        try:
            with chance.choices(modes, [8, 1, 1])[0]():
                call()
        except (OnepassError, Boom) as problem:
            changes, boom = False, isinstance(problem, Boom)
            boom or one_line(problem)
        except TrainingError as problem:
            changes = False
            one_line(problem)
        finally:
            Moody.fails = 0
        if boom and made.steps and made.trainer.unfinished:  # it failed when it had moved
            with pytest.raises(TrainingError, match="is unfinished"):
                made.new_task()
            return
        if boom and kept_by_failures(made) != grown:
            continue
        assert changes or made.state_sha256() == before, "what was refused left a trace"


def test_calls_of_the_library() -> None:
    assert len(onepass.methods.__all__) == len(METHODS)
    fuzz("api", a_case, few=40)
