"""A learner as a file, and back: tensors and plain values, never code."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from onepass import devices, registry
from onepass.errors import CheckpointError, InputError
from onepass.files import write_atomically
from onepass.parts import Images

if TYPE_CHECKING:
    from onepass.learner import Learner

FORMAT = "onepass"
VERSION = 1


def content(learner: Learner) -> dict[str, Any]:
    """What a file must hold to make this learner again: plain values and tensors."""
    if "key" not in vars(type(learner)):
        raise InputError(
            f"{type(learner).__name__} cannot be saved: a file names its method, and this class "
            "has no name of its own; give it one with @method"
        )
    settings = {
        name: None if isinstance(value, nn.Module) else value  # files hold no code
        for name, value in learner.get_params().items()
    }
    return {
        "method": learner.key,
        "settings": settings,
        "state": learner.state_dict(),
        "spent": {purpose: list(images) for purpose, images in learner.spent.items()},
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """The whole file or, if it cannot be written, the one that was there before."""
    buffer = io.BytesIO()  # torch turns a full disk into an error that does not say so
    torch.save({"format": FORMAT, "version": VERSION, **content}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))


def read(path: Path) -> dict[str, Any]:
    """Tensors and plain values only: a file that asks for code to be run is refused unread."""
    try:
        with zipfile.ZipFile(path) as archive:  # torch itself does not compare the checksums
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path} is damaged: the checksum of {damaged} is wrong")
        found = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path} is a folder, not a checkpoint") from None
    except PermissionError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}") from None
    except Exception:  # whatever a damaged or foreign file leads to
        raise CheckpointError(
            f"{path} is not a whole onepass checkpoint: it is truncated, or another program's file"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a onepass checkpoint")
    if found.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {found.get('version')}; this onepass reads {VERSION}"
        )
    return found


def restored(
    content: dict[str, Any], path: str, *, device: str = "auto", net: nn.Module | None = None
) -> Learner:
    """The learner in the content of a checkpoint; `path` names it in errors."""
    where = devices.resolve(device)
    try:
        settings: dict[str, Any] = {**content["settings"], "device": device}
        if settings["engine"] == "graph" and where.type != "cuda":
            settings["engine"] = "auto"  # made on a GPU, opened where there is none
        info = registry.get(content["method"])
        if net is not None:
            settings["net"] = net
        elif settings["net"] is None:
            raise CheckpointError(
                f"{path} was made with a network of its own: open it with net=that network"
            )
        learner = info.learner.configured(**settings)
        learner.load_state_dict(content["state"])
        learner.spent = {purpose: Images(*n) for purpose, n in content["spent"].items()}
    except CheckpointError:
        raise
    except Exception as problem:  # whatever a file that fits nothing leads to
        what = "this onepass" if net is None else "the network that was given"
        raise CheckpointError(f"{path} does not fit {what}: {problem}") from None
    return learner


def open_learner(
    path: str | Path, *, device: str = "auto", net: nn.Module | None = None
) -> Learner:
    """A learner that goes on where the saved one was; on the same kind of device, bit for bit.

    `net` is needed if the learner was made with a network of your own: files hold data, never code.
    """
    return restored(read(Path(path)), str(path), device=device, net=net)
