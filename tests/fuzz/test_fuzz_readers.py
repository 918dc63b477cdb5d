"""Every reader reads damaged or invented files, or refuses them in one line.

In `make fuzz` each case has its own process, so that one that crashes or hangs is reported with its
seed.
"""

import gzip
import io
import os
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import formats
import numpy as np
import pyarrow
from child_process import in_child
from fuzzing import fuzz, without_bars
from pyarrow import csv, parquet
from read_datasets import random_data

import onepass
from onepass.base.errors import OnepassError
from onepass.data import tiny_imagenet
from onepass.learning.checkpoint import file as checkpoint
from onepass.tools.predict_images import classify

Files = dict[str, bytes]
OPCODES = [value for value in vars(pickle).values() if isinstance(value, bytes)]
BYTES = [b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 4, b"\0" * 8, b"\xff" * 8, b"(" * 3000, b"\n"]
FORMS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


def test_fuzz_readers():
    fuzz("readers", in_its_own_process if "FUZZ_SECONDS" in os.environ else a_case, few=40)


def in_its_own_process(rng: random.Random) -> None:
    for make, _ in READERS:
        make()  # once, and not in every process
    in_child(lambda: a_case(rng))


def a_case(rng: random.Random) -> None:
    """Tries one reader, with one or more of its files mutated."""
    make, read = rng.choice(READERS)
    files = dict(make())
    with folder() as here:
        for name in rng.sample(sorted(files), min(len(files), rng.choice((1, 1, 1, 2, 5)))):
            files[name] = mutated(files[name], name, rng)
        write(files, here)
        try:
            read(here, rng)
        except OnepassError as problem:
            assert "\n" not in str(problem), problem
            assert len(str(problem)) < 1000, problem
            known = [str(here), *(Path(name).name for name in files)]
            assert any(name in str(problem) for name in known), problem


@contextmanager
def folder() -> Iterator[Path]:
    """Returns a folder for files, with an empty cache beside it."""
    with tempfile.TemporaryDirectory() as place, without_bars(), patch.dict(os.environ):
        os.environ["ONEPASS_CACHE"] = f"{place}/cache"
        yield Path(place) / "here"


def write(files: Files, here: Path) -> None:
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)


def written(writer: Callable[[Path], object]) -> Files:
    """Returns the files that a writer of undamaged files writes."""
    with tempfile.TemporaryDirectory() as here:
        writer(Path(here))
        found = [path for path in Path(here).rglob("*") if path.is_file()]
        return {path.relative_to(here).as_posix(): path.read_bytes() for path in found}


# ---- mutations


def mutated(content: bytes, name: str, rng: random.Random) -> bytes:
    """Mutates content, also inside archives, where a checksum would hide all other damage."""
    if name.endswith(".gz") and rng.random() < 0.7:
        return gzip.compress(scrambled(gzip.decompress(content), rng))
    if name.endswith((".npz", ".zip")) and rng.random() < 0.7:
        return repacked(content, rng)
    return scrambled(content, rng)


def repacked(content: bytes, rng: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        whole = {member.filename: archive.read(member) for member in archive.infolist()}
    text = [name for name in whole if name.endswith((".txt", ".npy"))]
    name = rng.choice(text if rng.random() < 0.7 else sorted(whole))
    whole[name] = scrambled(whole[name], rng)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as made:
        for each, held in whole.items():
            made.writestr(each, held)
    return file.getvalue()


def scrambled(content: bytes, rng: random.Random) -> bytes:
    """Changes bytes, more often near the beginning, where the headers are."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        end = len(content) if rng.random() < 0.5 else min(len(content), 200)
        first = rng.randint(0, end)
        last = min(len(content), first + rng.choice((0, 1, 1, 4, 100)))
        other = rng.randint(0, len(content))
        new = rng.choice(
            (
                rng.randbytes(last - first),
                rng.choice(BYTES),
                rng.choice(OPCODES),
                b"".join(rng.choices(OPCODES, k=6)),
                content[other : other + 50],
                rng.randint(0, 2**32).to_bytes(8, rng.choice(("little", "big"))),
            )
        )
        content = content[:first] + new + content[last:]
        if rng.random() < 0.1:
            content = content[: rng.randint(0, len(content))]
    return content


# ---- readers, and whole files for each


def published(name: str) -> Callable[[Path, random.Random], None]:
    return lambda here, rng: touched(onepass.load(name, root=here))


def tiny_at(name: str) -> Callable[[Path, random.Random], None]:
    """Calls the reader alone, because a whole dataset would have 200 classes."""

    def read(here: Path, rng: random.Random) -> None:
        undecoded = tiny_imagenet.read_tiny_imagenet(here / name)
        for part in (undecoded.train, undecoded.test):
            part.fill(np.empty((len(part.labels), *part.shape), np.uint8), lambda done: None)

    return read


def touched(data: onepass.Dataset) -> None:
    """Reads every value, which may be mapped from a file."""
    assert data.train_x.sum() + data.test_x.sum() + data.train_y.sum() + data.test_y.sum() >= -1e30
    assert len(data.class_names) > int(data.train_y.max())


@cache
def cifar10() -> Files:
    return written(lambda here: formats.write_cifar10(here / "cifar10", random_data("cifar10")))


@cache
def cifar100_of_python_3() -> Files:
    whole = written(lambda here: formats.write_cifar100(here / "cifar100", random_data("cifar100")))
    entries = {name: pickle.loads(content, encoding="latin1") for name, content in whole.items()}
    return {name: pickle.dumps(entry, 2 + len(name) % 4) for name, entry in entries.items()}


@cache
def mnist() -> Files:
    return written(lambda here: formats.write_idx(here / "mnist", random_data("mnist")))


@cache
def mnist_packed() -> Files:
    return written(
        lambda here: formats.write_idx(here / "mnist", random_data("mnist"), packed=True)
    )


@cache
def tiny() -> Files:
    few = formats.tiny(classes=3)
    return written(lambda here: formats.write_tiny(here / formats.TINY_FOLDER, few))


@cache
def tiny_packed() -> Files:
    def both(here: Path) -> None:
        write(tiny(), here)
        formats.zipped(here / formats.TINY_FOLDER, here / f"{formats.TINY_FOLDER}.zip")

    return {name: content for name, content in written(both).items() if name.endswith(".zip")}


@cache
def arrays() -> Files:
    x = np.random.default_rng(0).normal(size=(8, 5))
    y = np.arange(8) % 2
    whole = {"train_x": x, "train_y": y, "test_x": x, "test_y": y}
    return written(lambda here: np.savez(here / "mine.npz", **whole, class_names=["ant", "bee"]))


@cache
def tables() -> Files:
    columns = {"size": np.arange(8) / 4, "kind": ["ant", "bee"] * 4, "legs": [6] * 8}

    def both(here: Path) -> None:
        table = pyarrow.table(columns)
        csv.write_csv(table, here / "mine.csv")
        parquet.write_table(table, here / "mine.parquet")

    return written(both)


def one_table(here: Path, rng: random.Random) -> None:
    path = here / rng.choice(("mine.csv", "mine.parquet"))
    touched(onepass.load(path, label="kind", test_fraction=0.5))


@cache
def images() -> Files:
    """Returns classes and image files of several formats."""
    source = np.random.default_rng(0)
    files = {}
    for number in range(24):
        form = FORMS[number % len(FORMS)]
        part, name = ("train", "test")[number % 3 == 0], ("ant", "bee")[number % 2]
        image = source.integers(0, 256, (1 + 2 * (number % 5 > 0), 6, 5), dtype=np.uint8)
        options = {} if form in ("BMP", "GIF", "PPM") else {"exif": formats.exif(number % 9)}
        path = f"mine/{part}/{name}/{number}.{form.lower()}"
        files[path] = formats.encode(image, form, **options)
    return files


def own_images(here: Path, rng: random.Random) -> None:
    touched(onepass.load(here / "mine", image_size=rng.choice((None, 5))))


def decoded_before(here: Path, rng: random.Random) -> None:
    """Damages the cache of undamaged images: the data must be the same."""
    write(images(), here)
    wanted = onepass.load(here / "mine", image_size=5)
    path = rng.choice(sorted(Path(os.environ["ONEPASS_CACHE"]).glob("*/*")))
    times = path.stat()
    path.write_bytes(scrambled(path.read_bytes(), rng))
    if rng.random() < 0.5:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    found = onepass.load(here / "mine", image_size=5)
    touched(found)
    assert found.train_x.shape[1:] == wanted.train_x.shape[1:]


@cache
def model() -> bytes:
    learner = onepass.ER(memory=4, device="cpu", seed=0)
    learner.learn(np.zeros((4, 3, 8, 8), np.uint8), np.arange(4) % 2)
    with tempfile.TemporaryDirectory() as here:
        path = Path(here) / "model.pt"
        checkpoint.write_checkpoint(
            path, {**checkpoint.checkpoint_content(learner), "class_names": ["ant", "bee"]}
        )
        return path.read_bytes()


def predicted(here: Path, rng: random.Random) -> None:
    path = here / "model.pt"
    path.write_bytes(model())
    assert len(list(classify(path, here / "mine", "cpu"))) == len(images())


READERS = [
    (cifar10, published("cifar10")),
    (cifar100_of_python_3, published("cifar100")),
    (mnist, published("mnist")),
    (mnist_packed, published("mnist")),
    (tiny, tiny_at(formats.TINY_FOLDER)),
    (tiny_packed, tiny_at(f"{formats.TINY_FOLDER}.zip")),
    (arrays, lambda here, rng: touched(onepass.load(here / "mine.npz"))),
    (tables, one_table),
    (images, own_images),
    (images, decoded_before),
    (images, predicted),
]
