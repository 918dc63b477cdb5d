"""Features of datasets in the cache folder, so that all runs on a dataset encode it once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onepass.base.cache_dir import cache_root
from onepass.base.checksum import sha256
from onepass.base.fileio import locked_file
from onepass.base.news import Line, Pace, tell
from onepass.data import Dataset, load
from onepass.data.known import is_path
from onepass.encoders.embed import Source, embed, find_source
from onepass.encoders.encoder import Encoder

FOLDER = "features"


def encoded_dataset(
    dataset: str,
    encoder: Encoder,
    *,
    root: str | Path | None = None,
    test_fraction: float | None = None,
    label: str | None = None,
) -> Dataset:
    """Returns a dataset whose samples are an encoder's features of the named one, or of the files
    at a path. They come from the cache if it has them, and go on from there if it has some. Waits
    while another process computes the same features."""
    below = None if root is None else Path(root)
    source = find_source(dataset, takes=encoder.takes, root=below, text=None, label=label)
    stem = Path(dataset).stem[:50] if is_path(dataset) else dataset
    key = sha256([source.sha256, dict(encoder.identity())])[:16]
    file = cache_root() / FOLDER / f"{stem}-{key}.npz"
    if not file.exists():  # a cache that may only be read serves, too
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked_file(file.with_suffix(".lock"), wait=True):
            if not file.exists():
                _encode(source, encoder, file, stem)
    return replace(load(file, test_fraction=test_fraction), name=dataset)


def _encode(source: Source, encoder: Encoder, file: Path, name: str) -> None:
    """Writes the features of all samples, and tells how far it is."""
    pace, done = Pace(len(source)), 0
    tell(Line(f"encoding {len(source)} {encoder.takes} of {name} by {encoder.name}", "note"))

    def count(samples: int) -> None:
        nonlocal done
        done += samples
        if pace.is_due(done):
            tell(Line(f"encoded {done} of {len(source)}, {pace.left(done)}", "work"))

    embed(source, encoder, file, progress=count)
