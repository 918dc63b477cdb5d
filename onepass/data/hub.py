"""Downloads datasets from the Hugging Face hub with the library `datasets` (the extra `hub`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from onepass.base.errors import DataError
from onepass.data.files import Split, Undecoded, split_of_files

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label")
TEST_SPLITS = ("test", "valid", "validation")


class Download(NamedTuple):
    """A downloaded dataset, and a fingerprint that differs between its versions."""

    undecoded: Undecoded
    fingerprint: str


def download_from_hub(repository: str | Path, shape: tuple[int, int, int]) -> Download:
    """Returns the images of a repository, or of a folder of parquet files with the same columns.

    Raises a DataError if the library is missing, the download fails, or the splits or columns are
    others than expected.
    """
    try:
        import datasets
    except ImportError:
        raise DataError("downloading needs the package datasets: pip install datasets") from None
    try:
        splits = datasets.load_dataset(str(repository))
    except Exception as problem:  # the library has exceptions of many types
        raise DataError(f"{repository} could not be downloaded: {problem}") from None
    test = next((name for name in TEST_SPLITS if name in splits), None)
    if "train" not in splits or test is None:
        raise DataError(f"{repository} must have the splits train and test, not {sorted(splits)}")
    names, label_of = _classes(splits["train"], repository)
    train, held = (
        _image_split(splits[name], shape, label_of, repository) for name in ("train", test)
    )
    # the library computes a fingerprint of each split
    fingerprint = f"{repository} {splits['train']._fingerprint} {splits[test]._fingerprint}"
    return Download(Undecoded(names, train, held), fingerprint)


def _column_name(rows: Any, names: tuple[str, ...], repository: str | Path) -> str:
    """Returns the first of these names that is a column; raises a DataError if none is."""
    found = next((name for name in names if name in rows.column_names), None)
    if found is None:
        raise DataError(f"{repository} has the columns {rows.column_names}, none of {names}")
    return found


def _classes(rows: Any, repository: str | Path) -> tuple[tuple[str, ...], dict[int, int]]:
    """Returns the class names, and the label 0 … C-1 of each value in the label column."""
    label = _column_name(rows, LABEL_COLUMNS, repository)
    names = getattr(rows.features[label], "names", None)
    values = range(len(names)) if names is not None else sorted(set(rows[label]))
    label_of = {value: number for number, value in enumerate(values)}
    return tuple(names or map(str, values)), label_of


def _image_split(
    rows: Any, shape: tuple[int, int, int], label_of: dict[int, int], repository: str | Path
) -> Split:
    from datasets import Image

    image = _column_name(rows, IMAGE_COLUMNS, repository)
    # our own decoder names damaged images and limits their size
    encoded = rows.cast_column(image, Image(decode=False))
    names = [f"{repository}, image {index}" for index in range(len(rows))]

    def read(name: str) -> bytes:
        content: bytes = encoded[int(name.rsplit(" ", 1)[1])][image]["bytes"]
        return content

    values = rows[_column_name(rows, LABEL_COLUMNS, repository)]
    if strange := sorted(set(values) - set(label_of)):
        raise DataError(f"{repository} has the label {strange[0]}, which is not a class of train")
    return split_of_files(names, [label_of[value] for value in values], shape, read)
