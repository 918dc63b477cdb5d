"""Finished runs as pictures."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import onepass
from PIL import Image
from reported import METHODS, reported


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reported(tmp_path_factory.mktemp("runs"))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("kind", ["both", "bars", "curves"])
def test_a_figure_is_drawn_as_png_and_as_svg(kind: str, runs: Path, tmp_path: Path) -> None:
    size = {}
    for suffix in ("png", "svg"):
        output = tmp_path / "new/folder" / f"{kind}.{suffix}"
        done = onepass("figure", "accuracy", runs, "--kind", kind, "-o", output)
        assert (done.status, done.out) == (0, f"{output}\n"), done.err
        size[suffix] = output
    with Image.open(size["png"]) as image:
        image.load()
        assert image.format == "PNG"
        assert (image.width > 2 * image.height) == (kind == "both")
    drawing = size["svg"].read_text()
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert all(f"<!-- {name} -->" in drawing for name in (*METHODS, "er lr=5e-4"))
    assert ("batches learned" in drawing) == (kind != "bars")
    assert ("final accuracy" in drawing) == (kind != "curves")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_stream_is_drawn(suffix: str, tmp_path: Path) -> None:
    output = tmp_path / f"stream.{suffix}"
    done = onepass("figure", "stream", "blurry:n=50,m=10", "--dataset", "synthetic", "-o", output)
    assert (done.status, done.out) == (0, f"{output}\n"), done.err
    assert output.read_bytes()[:4] in (b"\x89PNG", b"<?xm")


def test_bars_show_the_means_of_the_table(runs: Path, tmp_path: Path) -> None:
    output = tmp_path / "bars.svg"
    onepass("figure", "accuracy", runs, "--kind", "bars", "-o", output)
    for row in rows(onepass("table", runs, "--format", "csv").out):
        assert f"<!-- {float(row['accuracy']):.1f} -->" in output.read_text()


def test_both_is_the_default_kind(runs: Path, tmp_path: Path) -> None:
    onepass("figure", "accuracy", runs, "-o", tmp_path / "default.png")
    onepass("figure", "accuracy", runs, "-o", tmp_path / "both.png", "--kind", "both")
    assert (tmp_path / "default.png").read_bytes() == (tmp_path / "both.png").read_bytes()
