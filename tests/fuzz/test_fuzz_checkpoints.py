"""Saved learners with random changes open, or are refused with one line of ours.

An opened one predicts and learns, or says why not. A refused one changes nothing.
"""

import copy
import math
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fuzzing import fuzz
from torch import Tensor, nn

import onepass
from onepass import CheckpointError, OnepassError, TrainingError
from onepass.base.settings import setting_names
from onepass.learning import registry
from onepass.learning.checkpoint import file

METHODS = [info.key for info in registry.methods()]
SMALL = {"memory": 6, "replay": 3, "mix": 4, "current": 2, "candidates": 4, "pool": 3, "epochs": 1}
SMALL |= {"width": 5}
OPTIMISERS = ("adam", "adamw", "sgd", "nesterov")
WILD = (
    *(None, True, -1, 0, 1, 3, 2**31, 2**63, -(2**70), 0.5, -0.0, 1e308, math.nan, math.inf, ""),
    *("x", "cuda", b"x", [], [0], [[1]], {}, {0: 1}, (), (1, 2), torch.Size([3])),
)
SETTINGS = (None, True, -1, 0, 1, 3, 40, 0.5, 1e30, math.nan, "", "x", "frozen", [], {}, (), (1.0,))
DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16)
FOLDER = tempfile.TemporaryDirectory()


class Tiny(nn.Module):
    """A network with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1, 1, generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.layer(x)))


def batch(labels: list[int]) -> tuple[Tensor, Tensor]:
    y = torch.tensor(labels)
    return y.view(-1, 1) + torch.randn(len(y), 4, generator=torch.Generator().manual_seed(2)), y


@cache
def saved(key: str, optimizer: str) -> dict[str, Any]:
    """Returns the content of a small learner's file, as a run writes it."""
    kind = registry.get(key).learner
    given = {"net": Tiny(), "optimizer": optimizer, "device": "cpu", **SMALL}
    learner = kind(**{name: value for name, value in given.items() if name in setting_names(kind)})
    for labels in ([0, 1, 2], [2, 1, 0, 1]):
        learner.learn(*batch(labels))
    learner.new_task()
    learner.learn(*batch([3, 0, 3]))
    learner.predict(batch([0])[0])
    return {**file.checkpoint_content(learner), "class_names": ["a", "b", "c", "d", "e"]}


# ---- what is changed


def places(tree: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Returns every entry of nested dicts and lists, as its container and its key."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            found.append((tree, key))
            places(tree[key], found)
    return found


def wild(chance: random.Random) -> Any:
    """Returns a copy of a strange value, because the next change may be inside it."""
    return copy.deepcopy(chance.choice(WILD))


def spoil(content: dict[str, Any], chance: random.Random) -> None:
    """Replaces, removes or adds one entry."""
    holder, key = chance.choice(places(content, []))
    value, what = holder[key], chance.randrange(8)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[chance.choice(WILD[:16])] = wild(chance)
    elif what == 1:
        holder.append(chance.choice([value, wild(chance)]))
    elif what == 2:
        other, name = chance.choice(places(content, []))
        holder[key] = copy.deepcopy(other[name])
    elif isinstance(value, Tensor) and what > 3:
        holder[key] = spoiled(value, chance)
    else:
        setting = holder is content.get("settings")
        holder[key] = copy.deepcopy(chance.choice(SETTINGS)) if setting else wild(chance)


def spoiled(value: Tensor, chance: random.Random) -> Tensor:
    """Returns a tensor of another dtype, shape or content, or something that is no plain tensor."""
    what = chance.randrange(8)
    if what == 0:
        return value.to(chance.choice(DTYPES))
    if what == 1:
        return value.new_zeros([chance.randrange(4) for _ in range(chance.randrange(4))])
    if what == 2:
        return torch.cat([value, value]) if value.ndim else value.view(1)
    if what == 3:
        return value[:-1].clone() if value.ndim else value.expand(2)
    if what == 4:
        odd = (value.to_sparse, value.clone().float().requires_grad_, lambda: value.to("meta"))
        return chance.choice(odd)()
    if what == 5:
        return nn.Parameter(value, requires_grad=False)
    if value.dtype == torch.bool:
        return ~value
    wild = (-1, 2, 100, 2**40, -(2**62), math.nan, math.inf, -1e30, 3e38)
    number = chance.choice(wild if value.is_floating_point() else wild[:5])
    changed = value.clone()
    where = chance.randrange(max(1, value.numel()))
    with torch.no_grad():
        changed.view(-1)[where : where + 1] = torch.tensor(number).to(value.dtype)
    return changed


def as_file(content: dict[str, Any], path: Path) -> None:
    path.unlink(missing_ok=True)
    torch.save({"format": "onepass", "version": 1, **content}, path)


def damage(path: Path, chance: random.Random) -> None:
    """Changes bytes of the file itself."""
    held = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 4)):
        where = chance.choice([chance.randrange(len(held)), len(held) - 1 - chance.randrange(60)])
        what = chance.randrange(3)
        if what == 0:
            held[where] = chance.randrange(256)
        elif what == 1:
            del held[where : where + chance.randrange(1, 200)]
        else:
            held[where:where] = chance.randbytes(chance.randrange(1, 20))
    path.write_bytes(held)


# ---- what must hold


def one_line(problem: BaseException, path: Path | None = None) -> None:
    text = str(problem)
    assert text and "\n" not in text, f"not one line: {text!r}"
    assert path is None or str(path) in text, f"{text!r} does not name the file"


def use(learner: onepass.Learner) -> None:
    """Does what a user would do next; each call works, or says in one line what is wrong."""
    x, y = batch([0, 1, 3, 7])
    steps = (
        *(lambda: learner.predict(x), lambda: learner.learn(x, y), learner.end_task),
        *(lambda: learner.learn(*batch(list(range(40)))), learner.new_task),
        *(lambda: learner.learn(x, y), lambda: learner.snapshot().scores(x)),
        lambda: file.write_checkpoint(
            Path(FOLDER.name) / "again.pt", file.checkpoint_content(learner)
        ),
    )
    for step in steps:
        try:
            step()
        except (OnepassError, TrainingError) as problem:
            one_line(problem)


def a_case(chance: random.Random) -> None:
    key = chance.choice(METHODS)
    content = copy.deepcopy(saved(key, chance.choice(OPTIMISERS)))
    path = Path(FOLDER.name) / "spoiled.pt"
    in_bytes = chance.random() < 0.3
    for _ in range(0 if in_bytes else chance.choice([1, 1, 1, 2, 3])):
        spoil(content, chance)
    try:
        as_file(content, path)
    except Exception:  # torch itself cannot write it, so nobody can have such a file
        return
    if in_bytes:
        damage(path, chance)
    before = path.read_bytes()
    net = Tiny() if "net" in setting_names(registry.get(key).learner) else None
    try:
        learner = onepass.open(path, device="cpu", net=net)
    except CheckpointError as problem:
        one_line(problem, path)
    else:
        use(learner)
    assert path.read_bytes() == before
    expect_refusal_to_leave_no_trace(content)


def expect_refusal_to_leave_no_trace(content: dict[str, Any]) -> None:
    """Loads the state into a new learner."""
    fresh = onepass.ER(net=Tiny(), device="cpu", memory=6, replay=3)
    before = fresh.state_sha256()
    try:
        fresh.load_state_dict(content.get("state"))
    except CheckpointError:
        assert fresh.state_sha256() == before and not fresh._prepared
        fresh.learn(*batch([0, 1]))


def test_changed_checkpoints() -> None:
    fuzz("checkpoints", a_case, few=20)
