"""Encodes a dataset into a file of vectors, by shards, so that it goes on where it was stopped.

Each shard of samples is written whole into a folder beside the file (`features.npz.parts`). When
all are there, the file is put together from them, one after another, and the folder is removed. So
neither all pixels nor all vectors are in memory at any time.
"""

from __future__ import annotations

import csv
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from onepass.base.errors import BusyError, DataError, InputError
from onepass.base.fileio import expect_suffix, locked_file, write_atomically, write_json
from onepass.data import folders, load
from onepass.data.files import fingerprint, name_unreadable
from onepass.data.known import is_path
from onepass.data.labels import class_numbers, sorted_classes
from onepass.encoders import Encoder

Array = np.ndarray[Any, Any]
SHARD = 1024  # samples
TABLES = (".csv", ".parquet")


class Part(NamedTuple):
    """The samples of one part of a dataset, a name for it ("train", "test", or "" if there is only
    one), and a label for each."""

    name: str
    samples: Sequence[Any]
    labels: list[int]


@dataclass(frozen=True)
class Source:
    """The samples to encode: parts of a dataset, its classes, and a hash that changes with it."""

    parts: list[Part]
    class_names: list[str]
    sha256: str

    def __len__(self) -> int:
        return sum(len(part.samples) for part in self.parts)


class Embedded(NamedTuple):
    """The files that were written, the number of vectors in them, and a line about each image that
    was left out."""

    files: list[Path]
    vectors: int
    damaged: list[str]


def find_source(
    dataset: str, *, takes: str, root: Path | None, text: str | None, label: str | None
) -> Source:
    """Returns the samples of a dataset: files of a folder, a table of texts, or the images of a
    dataset that has a name or is a `.npz`."""
    path = Path(dataset)
    if takes == "texts":
        return _texts(path, text, label)
    if text is not None or label is not None:
        raise InputError("--text and --label are for tables of texts; this encoder takes images")
    if is_path(dataset) and path.is_dir():
        with name_unreadable(path):
            return _image_files(path)
    data = load(dataset, root=root)
    if not data.is_images:
        raise InputError(f"{dataset} holds vectors already; this encoder takes images")
    pairs = (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y))
    parts = [Part(name, x, y.tolist()) for name, x, y in pairs]  # type: ignore[arg-type]
    return Source(parts, list(data.class_names), data.sha256())


def _image_files(folder: Path) -> Source:
    classes, first, test = folders.find_class_files(folder)
    parts = [Part("train" if test else "", *first)]
    if test:
        parts.append(Part("test", *test))
    return Source(parts, classes, fingerprint(folder))


def _texts(path: Path, text: str | None, label: str | None) -> Source:
    """Returns the texts of a table, and their labels."""
    if path.suffix.lower() not in TABLES or label is None:
        raise InputError(
            "texts come from a .csv or .parquet file: give --text COLUMN and --label COLUMN"
        )
    with name_unreadable(path):
        text = text or _only_text_column(path, label)
        columns = _read_columns(path, [text, label])
        known = sorted_classes(columns[label])
        labels = class_numbers(columns[label], known).tolist()
        return Source([Part("", columns[text], labels)], list(known), fingerprint(path))


def _only_text_column(path: Path, label: str) -> str:
    """Returns the column beside the labels; raises an InputError if there are several."""
    others = [name for name in _column_names(path) if name != label]
    if len(others) != 1:
        raise InputError(
            f"{path} has the columns {', '.join(others)} beside {label!r}: choose the texts with "
            "onepass embed --text COLUMN, and run on its file"
        )
    return others[0]


def _column_names(path: Path) -> list[str]:
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    from pyarrow import parquet

    return list(parquet.read_schema(path).names)


def _read_columns(path: Path, names: list[str]) -> dict[str, list[str]]:
    """Returns columns of a table as texts; raises a DataError if one is missing or has a gap."""
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            found, rows = list(reader.fieldnames or []), list(reader)
        table = {name: [row[name] for row in rows] for name in names if name in found}
    else:
        from pyarrow import parquet

        found = parquet.read_schema(path).names
        wanted = [name for name in names if name in found]
        table = parquet.read_table(path, columns=wanted).to_pydict()
    for name in names:
        if name not in table:
            raise DataError(f"{path} has no column {name!r}; it has {', '.join(found)}")
        if not table[name] or any(value is None for value in table[name]):
            raise DataError(f"{path}: the column {name!r} is empty or has empty cells")
    return {name: [str(value) for value in values] for name, values in table.items()}


def embed(
    source: Source,
    encoder: Encoder,
    out: Path,
    *,
    skip_damaged: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> Embedded:
    """Writes the vectors of all samples, with their labels, into a `.npz` or `.parquet` file.

    A job that was stopped goes on after its last whole shard. `progress` is called with the number
    of samples done since its last call, those of an earlier time first. A damaged image raises its
    DataError, or is left out with `skip_damaged`.
    """
    expect_suffix(out, "the file of vectors", ".npz", ".parquet")
    shards = out.with_name(f"{out.name}.parts")
    if out.exists() and not shards.exists():
        raise InputError(f"there is {out} already: remove it, or choose another name")
    shards.mkdir(parents=True, exist_ok=True)
    try:
        with locked_file(shards / "lock", wait=False):
            job = {"data": source.sha256, "samples": len(source), **encoder.identity()}
            _expect_same_job(shards / "job.json", job)
            damaged = []
            for part in source.parts:
                for file, first, last in _shards_of(part, shards):
                    if file.exists():
                        progress(last - first)
                    else:
                        samples = part.samples[first:last]
                        _encode_shard(file, samples, encoder, first, skip_damaged, progress)
                    with np.load(file) as stored:
                        damaged += stored["damaged"].tolist()
            files, vectors = _assemble(source, shards, out, encoder)
    except BlockingIOError:
        raise BusyError(f"another process is writing {out}") from None
    shutil.rmtree(shards)
    return Embedded(files, vectors, damaged)


def _expect_same_job(file: Path, job: dict[str, Any]) -> None:
    """Writes down what is encoded by what; raises an InputError if there are shards of another
    job."""
    if not any(file.parent.glob("*.npz")):
        write_json(file, job)
        return
    began = json.loads(file.read_text("utf-8"))
    if began != job:
        other = [key for key in job if began.get(key) != job[key]]
        raise InputError(
            f"{file.parent} holds the beginning of another job ({', '.join(other)} differ): remove "
            "it to begin anew, or choose another file"
        )


def _shards_of(part: Part, folder: Path) -> Iterator[tuple[Path, int, int]]:
    """Yields the file of each shard, and the range of its samples."""
    for first in range(0, len(part.samples), SHARD):
        last = min(first + SHARD, len(part.samples))
        yield folder / f"{part.name or 'all'}-{first:09}.npz", first, last


def _encode_shard(
    file: Path,
    samples: Sequence[Any],
    encoder: Encoder,
    first: int,
    skip_damaged: bool,
    progress: Callable[[int], object],
) -> None:
    """Writes the vectors of a shard, the index of each in its part, and the errors of others."""
    damaged: list[tuple[int, DataError]] = []
    try:
        vectors = encoder.encode(samples, progress, damaged if skip_damaged else None).numpy()
    except DataError as problem:
        problem.add_note("(onepass embed --skip-damaged leaves such images out)")
        raise
    progress(len(damaged))
    lost = {index for index, _ in damaged}
    kept = [first + index for index in range(len(samples)) if index not in lost]
    problems = np.array([str(problem) for _, problem in damaged], np.str_)
    write_atomically(
        file, lambda to: np.savez(to, vectors=vectors, kept=np.array(kept), damaged=problems)
    )


def _assemble(source: Source, shards: Path, out: Path, encoder: Encoder) -> tuple[list[Path], int]:
    """Writes the file, or two `.parquet` files, from the shards; returns them and the vectors'
    number."""
    labels = [_kept_labels(part, shards) for part in source.parts]
    for index, name in enumerate(source.class_names):
        if not (labels[0] == index).any():
            raise DataError(f"none of the samples of the class {name!r} could be encoded")
    if out.suffix.lower() == ".npz":
        write_atomically(out, lambda file: _write_npz(file, source, labels, shards, encoder))
        return [out], sum(map(len, labels))
    files = [out, out.with_name(f"{out.stem}-test{out.suffix}")][: len(source.parts)]
    for file, part, y in zip(files, source.parts, labels, strict=True):
        names = [source.class_names[label] for label in y.tolist()]
        _write_parquet(file, names, _vectors(part, shards), encoder.dimension)
    return files, sum(map(len, labels))


def _kept_labels(part: Part, shards: Path) -> Array:
    found = []
    for file, _, _ in _shards_of(part, shards):
        with np.load(file) as stored:
            found.append(np.asarray(part.labels, np.int64)[stored["kept"].astype(np.int64)])
    return np.concatenate(found)


def _vectors(part: Part, shards: Path) -> Iterator[Array]:
    for file, _, _ in _shards_of(part, shards):
        with np.load(file) as stored:
            yield stored["vectors"]


def _write_npz(
    file: IO[bytes], source: Source, labels: list[Array], shards: Path, encoder: Encoder
) -> None:
    """Writes the arrays that `onepass.load` reads, and the encoder's identity as JSON."""
    with zipfile.ZipFile(file, "w") as archive:
        for part, y in zip(source.parts, labels, strict=True):
            prefix = f"{part.name}_" if part.name else ""
            shape = (len(y), encoder.dimension)
            _write_array(archive, f"{prefix}x", shape, "<f4", _vectors(part, shards))
            _write_array(archive, f"{prefix}y", y.shape, "<i8", [y])
        names = np.array(source.class_names)
        _write_array(archive, "class_names", names.shape, names.dtype.str, [names])
        identity = np.array([json.dumps(encoder.identity())])
        _write_array(archive, "encoder", identity.shape, identity.dtype.str, [identity])


def _write_array(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str, pieces: Any
) -> None:
    """Writes an array from its pieces, without a time, so that equal arrays give equal files."""
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for piece in pieces:
            member.write(np.ascontiguousarray(piece, dtype).tobytes())


def _write_parquet(file: Path, labels: list[str], pieces: Iterator[Array], width: int) -> None:
    """Writes a table with a column for each feature, and the column `label`."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = [f"f{index}" for index in range(width)]
    schema = pa.schema([*((name, pa.float32()) for name in columns), ("label", pa.string())])

    def write(to: IO[bytes]) -> None:
        first = 0
        with parquet.ParquetWriter(to, schema) as writer:
            for piece in pieces:
                some = labels[first : first + len(piece)]
                arrays = [*np.ascontiguousarray(piece.T), pa.array(some, pa.string())]
                writer.write_table(pa.table(arrays, schema=schema))
                first += len(piece)

    write_atomically(file, write)
