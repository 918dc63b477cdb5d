"""Writes a learner to a file and reads it back. Files hold tensors and plain values, never code."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from onepass.base import devices, plugins
from onepass.base.errors import CheckpointError, InputError
from onepass.base.expect import expect_kind, expect_number
from onepass.base.fileio import write_atomically
from onepass.base.parts import ImageCount, Label
from onepass.base.settings import construct, setting_names
from onepass.base.text import error_in_one_line, quoted, shortened
from onepass.encoders.names import parse_name
from onepass.encoders.registry import is_module
from onepass.functional.views import Augment
from onepass.learning import registry
from onepass.learning.encoding import expect_same_encoder
from onepass.memory import Store

if TYPE_CHECKING:
    from onepass.learning.learner import Learner

FORMAT = "onepass"
VERSION = 1
MOST_IMAGES = 2**62
OWN = {"net": "that network", "augment": "that function"}  # settings that may be code; error texts


def checkpoint_content(learner: Learner, *, memory: bool = True) -> dict[str, Any]:
    """Returns the content of the learner's file: plain values and tensors. Raises a TrainingError
    if learning has diverged, so that a good file stays, and an InputError for a class without a
    name.

    Without the memory the content may have more entries, which predicting would otherwise compute
    from the memory."""
    if "key" not in vars(type(learner)):
        raise InputError(
            f"{type(learner).__name__} cannot be saved: a file names its method, and this class "
            "has no name of its own; give it one with @method"
        )
    settings = {
        name: None if callable(value) else value  # a network or a function: files hold no code
        for name, value in learner.get_params().items()
    }
    names = learner._names
    known = bool(names) and names.keys() >= set(learner.classes)
    settings["device"] = devices.device_type(learner.device)
    return {
        "method": learner.key,
        **_module(learner),
        "settings": settings,
        "state": finite_state(learner, memory=memory),
        **learner._predicting_state(memory=memory),
        **({"encoder": dict(learner.encoder_identity() or {})} if learner.encoder else {}),
        "spent": {purpose: list(images) for purpose, images in learner.image_counts.items()},
        **({"class_names": list(names.values())} if known else {}),
    }


def finite_state(learner: Learner, *, memory: bool = True) -> dict[str, Any]:
    """Returns the learner's state, with empty memories if `memory` is false. Raises a TrainingError
    if learning has diverged."""
    with learner._lock.reading():
        learner.expect_healthy()
        state = learner.state_dict()
        if not memory and learner.steps:
            parts = learner._parts.items()
            blank = {name: part.empty_state() for name, part in parts if isinstance(part, Store)}
            if blank:
                state["parts"] |= blank
        return state


def _module(learner: Learner) -> dict[str, str]:
    """Returns the file's entry for the method's module; none if the method is in onepass."""
    module = type(learner).__module__
    return {} if module.startswith("onepass.") else {"module": module}


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes a file atomically: if this fails, an earlier file stays."""
    buffer = io.BytesIO()  # torch, writing to a full disk, raises an error that does not say so
    torch.save({"format": FORMAT, "version": VERSION, **content}, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Returns the content of a checkpoint: tensors and plain values. Runs no code from the file.
    Raises a CheckpointError if it is not a whole checkpoint of this version."""
    try:
        with zipfile.ZipFile(path) as archive:  # torch does not compare checksums
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
    except Exception:  # a damaged or foreign file may raise anything
        raise CheckpointError(
            f"{path} is not a whole onepass checkpoint: it is truncated, or another program's file"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a onepass checkpoint")
    if found.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {found.get('version')}; this onepass reads {VERSION}"
        )
    if not _is_plain(found.get("settings")):
        raise CheckpointError(
            f"{path} is not a onepass checkpoint: its settings are not plain values"
        )
    return found


def _is_plain(value: Any) -> bool:
    """Returns whether a value consists of None, numbers, text, tuples and dicts only. Other values,
    such as tensors, cannot be compared with settings."""
    if type(value) is dict:
        return all(map(_is_plain, (*value, *value.values())))
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def learner_from_content(
    content: dict[str, Any],
    path: str,
    *,
    device: str = "auto",
    net: nn.Module | None = None,
    augment: Augment | None = None,
) -> Learner:
    """Returns the learner in the content of a checkpoint. `path` names the file in errors. Raises a
    CheckpointError if the content does not fit, or needs code that was not given."""
    devices.expect_working_threads()
    where = devices.resolve_device(device)
    _expect_code(content, path)
    try:
        settings = _settings(content, where, device=device, net=net, augment=augment)
        needed = [name for name in OWN if name in _names_of_settings(content)]
        missing = [f"{name}={OWN[name]}" for name in needed if settings[name] is None]
        if not missing:
            return _made(content, settings)
    except Exception as problem:  # a file that does not fit may raise anything
        what = "this onepass" if net is None else "the network that was given"
        raise CheckpointError(f"{path} does not fit {what}: {error_in_one_line(problem)}") from None
    given = " and ".join(missing)
    raise CheckpointError(
        f"{path} was made with code of its own, which no file holds: open it with {given}"
    )


def learner_for_predicting(content: dict[str, Any], path: str, *, device: str = "auto") -> Learner:
    """Returns the learner for a command that only predicts. If it was made with an augmentation
    function of the user's own, it gets none, unless the method trains to predict."""
    training = [info.key for info in registry.methods() if info.learner.traits.trains_to_score]
    lacks = content["settings"].get("augment", "") is None and content.get("method") not in training
    return learner_from_content(content, path, device=device, augment="none" if lacks else None)


def _expect_code(content: dict[str, Any], path: str) -> None:
    """Raises a CheckpointError if the file needs a module that the user has not named: the module
    of its method, or of its network. Files import nothing by themselves."""
    method, module, settings = (content.get(name) for name in ("method", "module", "settings"))
    if isinstance(method, str) and isinstance(module, str) and method not in registry.METHODS:
        raise CheckpointError(
            f"{path} was made by {quoted(method)} of the module {quoted(module)}, which is not "
            f"imported: if you trust it, name it with --import {shortened(module)} or imports=[...]"
        )
    if isinstance(settings, dict):
        try:
            plugins.expect_user_named(settings.get("net"), path)
            if isinstance(encoder := settings.get("encoder"), str):
                for part in filter(is_module, parse_name(encoder).parts):
                    plugins.expect_user_named(part.base, path)
        except InputError as problem:
            raise CheckpointError(str(problem)) from None


def _settings(
    content: dict[str, Any], where: torch.device, **here: str | nn.Module | Augment | None
) -> dict[str, Any]:
    """Returns the settings of the file, some of them replaced by those given at opening. Raises a
    CheckpointError if an entry of the content has a wrong type."""
    for name, kind in (("method", str), ("settings", dict), ("state", dict), ("spent", dict)):
        expect_kind(content.get(name), kind, name)
    settings = {
        **content["settings"],
        **{key: value for key, value in here.items() if value is not None},
    }
    has_engine = "engine" in _names_of_settings(content)
    if has_engine and settings["engine"] == "graph" and where.type != "cuda":
        settings["engine"] = "auto"  # made on a GPU, opened on a machine without
    return settings


def _names_of_settings(content: dict[str, Any]) -> list[str]:
    """Returns the names of the settings of the content's method."""
    return setting_names(registry.get(content["method"]).learner)


def _made(content: dict[str, Any], settings: dict[str, Any]) -> Learner:
    learner = construct(registry.get(content["method"]).learner, **settings)
    if learner.encoder is not None:
        saved = expect_same_encoder(content.get("encoder"), learner.encoder, learner.device)
        learner._encoder_identity = saved
    learner.load_state_dict(content["state"])
    learner._load_predicting_state(content)
    if content.get("class_names") is not None:
        _expect_names(content["class_names"], learner.classes)
        learner.class_names = content["class_names"]
    spent = {purpose: _images(n, purpose) for purpose, n in content["spent"].items()}
    learner.image_counts.clear()
    learner.image_counts.update(spent)
    return learner


def _expect_names(names: Any, labels: list[Label]) -> None:
    """Raises a CheckpointError unless `names` is a list with a text for each label."""
    expect_kind(names, list, "class_names")
    for name in names:
        expect_kind(name, str, "class_names")
    for label in labels:
        expect_number(label, 0, len(names) - 1, "a label, which class_names has to name,")


def _images(counts: Any, purpose: str) -> ImageCount:
    expect_kind(purpose, str, "spent")
    expect_kind(counts, list, f"spent.{purpose}")
    for count in counts:
        expect_kind(count, int, f"spent.{purpose}")
        expect_number(count, 0, MOST_IMAGES, f"spent.{purpose}")
    return ImageCount(*counts)


def open_learner(
    path: str | Path,
    *,
    device: str = "auto",
    net: nn.Module | None = None,
    augment: Augment | None = None,
    imports: Sequence[str] = (),
) -> Learner:
    """Returns a saved learner, which resumes learning; on the same kind of device, bit for bit.

    Pass `net` or `augment` if the learner was made with a network or function of your own, because
    files hold no code. `imports` are modules to import first, such as the one of your method: a
    file names what it needs, but imports nothing. Raises a CheckpointError if the file cannot be
    opened, or needs something that was not passed.
    """
    plugins.import_modules(imports)
    return learner_from_content(
        read_checkpoint(Path(path)), str(path), device=device, net=net, augment=augment
    )
