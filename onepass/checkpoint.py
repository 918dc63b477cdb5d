"""Opening what `Learner.save` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from onepass import devices, files, registry
from onepass.errors import CheckpointError
from onepass.learner import Learner
from onepass.parts import Images


def open_learner(
    path: str | Path, *, device: str = "auto", net: nn.Module | None = None
) -> Learner:
    """A learner that goes on where the saved one was; on the same kind of device, bit for bit.

    `net` is needed if the learner was made with a network of your own: files hold data, never code.
    """
    return from_payload(files.read_checkpoint(Path(path)), str(path), device=device, net=net)


def from_payload(
    content: dict[str, Any], source: str, *, device: str = "auto", net: nn.Module | None = None
) -> Learner:
    """The learner in the content of a checkpoint; `source` names it in errors."""
    devices.resolve(device)
    try:
        settings: dict[str, Any] = {**content["settings"], "device": device}
        info = registry.get(content["method"])
        if net is not None:
            settings["net"] = net
        elif settings["net"] is None:
            raise CheckpointError(
                f"{source} was made with a network of its own: open it with net=that network"
            )
        learner = info.learner.configured(**settings)
        learner.load_state_dict(content["state"])
        learner.spent = {purpose: Images(*n) for purpose, n in content["spent"].items()}
    except CheckpointError:
        raise
    except Exception as problem:  # whatever a file that fits nothing leads to
        what = "this onepass" if net is None else "the network that was given"
        raise CheckpointError(f"{source} does not fit {what}: {problem}") from None
    return learner
