"""A learner as a file, and back: tensors and plain values, never code."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from onepass.base import devices, plugins
from onepass.base.errors import CheckpointError, InputError
from onepass.base.expect import expect_alike, expect_kind, expect_number
from onepass.base.fileio import write_atomically
from onepass.base.parts import ImageCount, Label
from onepass.base.settings import configured
from onepass.base.text import in_a_line, quoted, shortened
from onepass.functional.views import Augment
from onepass.learning import registry
from onepass.learning.divergence import expect_finite
from onepass.learning.memory_contents import stores_of
from onepass.memory import Store

if TYPE_CHECKING:
    from onepass.learning.learner import Learner

FORMAT = "onepass"
VERSION = 1
MOST_IMAGES = 2**62
OWN = {"net": "that network", "augment": "that function"}  # settings that may be code


def content(learner: Learner, *, memory: bool = True) -> dict[str, Any]:
    """What a file must hold to make this learner again: plain values and tensors. A learner that
    has diverged has none: nothing would come of it, and a file that is good would be lost.

    Without the memory there is a `scorer`: what predicting needs in its place."""
    if "key" not in vars(type(learner)):
        raise InputError(
            f"{type(learner).__name__} cannot be saved: a file names its method, and this class "
            "has no name of its own; give it one with @method"
        )
    settings = {
        name: None if callable(value) else value  # a network, a function: files hold no code
        for name, value in learner.get_params().items()
    }
    scorer = scorer_state(learner) if learner._only_predicts or not memory else None
    names = learner._names
    known = bool(names) and names.keys() >= set(learner.classes)
    spent = learner.trainer.image_counts if learner._prepared else {}
    settings["device"] = devices.kind(learner.device)
    return {
        "method": learner.key,
        **_module(learner),
        "settings": settings,
        "state": good_state(learner, memory=memory),
        **({} if scorer is None else {"scorer": scorer}),
        "spent": {purpose: list(images) for purpose, images in spent.items()},
        **({"class_names": list(names.values())} if known else {}),
    }


def good_state(learner: Learner, *, memory: bool = True) -> dict[str, Any]:
    """Returns the state, perhaps as if the memory were empty; unless learning has diverged."""
    with learner._lock.looking():
        expect_finite(learner)
        state = learner.state_dict()
        if not memory and learner.steps:
            parts = learner.trainer.parts.items()
            blank = {name: part.empty_state() for name, part in parts if isinstance(part, Store)}
            state["parts"] |= blank
        return state


def scorer_state(learner: Learner) -> dict[str, Any] | None:
    """Returns what scores are made with besides the network, for a file that leaves out the memory;
    None if there is no memory to leave out."""
    if not learner.steps or not stores_of(learner):
        return None
    with learner._lock.looking():
        return _own_tensors(learner._made_scorer(), learner.trainer.answering)


def only_predict(learner: Learner, state: dict[str, Any]) -> None:
    """The memory is not there: scores are made with this `scorer_state`, and nothing is learned
    from here on."""
    made = learner._made_scorer()  # of an empty memory: what it holds is all to come
    own = _own_tensors(made, learner.trainer.answering)
    expect_alike(state, own, "scorer")
    for name, value in own.items():
        value.copy_(state[name])
    learner._only_predicts = True


def _own_tensors(scorer: nn.Module, network: nn.Module) -> dict[str, Tensor]:
    """Returns those of a scorer that are not the network's, by name."""
    if scorer is network:
        return {}
    shared = tuple(f"{name}." for name, module in scorer.named_modules() if module is network)
    return {
        name: value for name, value in scorer.state_dict().items() if not name.startswith(shared)
    }


def _module(learner: Learner) -> dict[str, str]:
    """Which code it needs besides this package."""
    module = type(learner).__module__
    return {} if module.startswith("onepass.") else {"module": module}


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
    if not _is_plain(found.get("settings")):
        raise CheckpointError(f"{path} is not a onepass checkpoint: its settings are none")
    return found


def _is_plain(value: Any) -> bool:
    """What can be compared with settings, as a tensor cannot."""
    if type(value) is dict:
        return all(map(_is_plain, (*value, *value.values())))
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def restored(
    content: dict[str, Any],
    path: str,
    *,
    device: str = "auto",
    net: nn.Module | None = None,
    augment: Augment | None = None,
) -> Learner:
    """The learner in the content of a checkpoint; `path` names it in errors."""
    where = devices.resolve(device)
    _expect_code(content, path)
    try:
        settings = _settings(content, where, device=device, net=net, augment=augment)
        missing = [f"{name}={what}" for name, what in OWN.items() if settings[name] is None]
        if not missing:
            return _made(content, settings)
    except Exception as problem:  # whatever a file that fits nothing leads to
        what = "this onepass" if net is None else "the network that was given"
        raise CheckpointError(f"{path} does not fit {what}: {in_a_line(problem)}") from None
    given = " and ".join(missing)
    raise CheckpointError(
        f"{path} was made with code of its own, which no file holds: open it with {given}"
    )


def restored_to_predict(content: dict[str, Any], path: str, *, device: str = "auto") -> Learner:
    """As `restored`, for a command that will not train: a function of the user's own that augments
    is not missed, unless the method trains when scores are asked for."""
    training = [info.key for info in registry.methods() if info.learner.traits.trains_to_score]
    lacks = content["settings"].get("augment", "") is None and content.get("method") not in training
    return restored(content, path, device=device, augment="none" if lacks else None)


def _expect_code(content: dict[str, Any], path: str) -> None:
    """A file says which code it needs, and imports none: that is for the user to name."""
    method, module, settings = (content.get(name) for name in ("method", "module", "settings"))
    if isinstance(method, str) and isinstance(module, str) and method not in registry.METHODS:
        raise CheckpointError(
            f"{path} was made by {quoted(method)} of the module {quoted(module)}, which is not "
            f"here: if you trust it, name it, with --import {shortened(module)} or imports=[...]"
        )
    if isinstance(settings, dict):
        try:
            plugins.expect_named(settings.get("net"), path)
        except InputError as problem:
            raise CheckpointError(str(problem)) from None


def _settings(
    content: dict[str, Any], where: torch.device, **here: str | nn.Module | Augment | None
) -> dict[str, Any]:
    """Those of the file, but for what is chosen anew where it is opened."""
    for name, kind in (("method", str), ("settings", dict), ("state", dict), ("spent", dict)):
        expect_kind(content.get(name), kind, name)
    settings = {**content["settings"], **{key: one for key, one in here.items() if one is not None}}
    if settings["engine"] == "graph" and where.type != "cuda":
        settings["engine"] = "auto"  # made on a GPU, opened where there is none
    return settings


def _made(content: dict[str, Any], settings: dict[str, Any]) -> Learner:
    learner = configured(registry.get(content["method"]).learner, **settings)
    learner.load_state_dict(content["state"])
    if "scorer" in content:
        only_predict(learner, content["scorer"])
    if content.get("class_names") is not None:
        _expect_names(content["class_names"], learner.classes)
        learner.class_names = content["class_names"]
    spent = {purpose: _images(n, purpose) for purpose, n in content["spent"].items()}
    if learner._prepared:
        learner.trainer.image_counts = spent
    return learner


def _expect_names(names: Any, labels: list[Label]) -> None:
    """One for each label of a run's dataset."""
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
    """A learner that goes on where the saved one was; on the same kind of device, bit for bit.

    `net` is needed if the learner was made with a network of your own, `augment` if with a function
    of your own: files hold data, never code.
    `imports` are modules to import first, such as the one of your own method: a file says what it
    needs, and imports nothing by itself.
    """
    plugins.import_named(imports)
    return restored(read(Path(path)), str(path), device=device, net=net, augment=augment)
