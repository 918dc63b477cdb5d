"""Commands refuse bad images with one clear line and exit 2, and write nothing by halves."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from command import JOB, RUN, finished_run, onepass, refused, untouched
from PIL import Image


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def model(finished: Path) -> Path:
    return finished / JOB.folder_name / "checkpoint.pt"


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(*chunks: bytes, side: int = 12) -> bytes:
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + start + b"".join(chunks) + chunk(b"IEND", b"")


PIXELS = zlib.compress(bytes(7 * i % 251 for i in range(12 * 13)))
NO_IMAGES = {
    "empty": b"",
    "text": b"no image at all",
    "no pixels": png(),
    "cut short": png(chunk(b"IDAT", PIXELS))[:100],
    "damaged pixels": png(chunk(b"IDAT", b"\0" + PIXELS[1:])),
    "a chunk without a name": png(chunk(b"IDAT", PIXELS[:50]), chunk(b"\1\2\3\4", PIXELS[50:])),
    "far too large": png(chunk(b"IDAT", PIXELS), side=60_000),
}


@pytest.mark.parametrize("kind", NO_IMAGES)
def test_what_is_no_image_is_named_once(kind: str, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(NO_IMAGES[kind])
    assert str(path) in refused("predict", model, tmp_path)
    assert str(path) in refused("predict", model, path)


def test_the_images_that_can_be_read_are_classified_all_the_same(
    model: Path, tmp_path: Path
) -> None:
    for name in ("a.png", "c.png"):
        Image.new("RGB", (12, 12)).save(tmp_path / name)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    done = onepass("predict", model, tmp_path, "--json")
    assert done.status == 2
    assert [Path(record["path"]).name for record in done.records] == ["a.png", "c.png"]
    assert str(tmp_path / "b.png") in done.error


def test_a_folder_with_the_name_of_an_image_is_no_image(model: Path, tmp_path: Path) -> None:
    (tmp_path / "holiday.png").mkdir()
    Image.new("RGB", (12, 12)).save(tmp_path / "holiday.png/beach.png")
    done = onepass("predict", model, tmp_path, "--json")
    assert done.status == 0, done.err
    assert Path(done.record["path"]).name == "beach.png"


def test_a_result_can_be_read_by_any_json_reader(finished: Path) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for path in (finished / JOB.folder_name).glob("*.json*"):
        text = path.read_text()
        for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
            json.loads(part, parse_constant=no_constant)


def test_an_option_may_repeat_what_the_stream_says(tmp_path: Path) -> None:
    said = ("--stream", "class-incremental:tasks=2,batch=20", "--tasks", 2, "--batch", 20)
    done = onepass("run", "er", "--dataset", "synthetic", *said, "--json", "--out", tmp_path)
    assert done.status == 0, done.err


def test_a_folder_with_a_plain_name_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets").mkdir()
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--test-fraction", 0.2), ("--image-size", 8)):
        assert "./pets" in refused("run", "er", "--dataset", "pets", *more)


def test_a_file_for_out_is_not_a_folder_whichever_way_it_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with untouched(tmp_path):
        line = refused(*RUN, "--out", tmp_path / "file")
    assert "a file is in the way" in line and "Errno" not in line


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_failure_is_told(jobs: int, tmp_path: Path) -> None:
    """Failures in a process of its own are tested with the executors too."""
    runs = ("run", "er", "gsa", "finetune", "--set", "lr=1e30", "--dataset", "synthetic")
    done = onepass(*runs, "--jobs", jobs, "--out", tmp_path)
    assert done.status == 1
    assert all(f"the loss of {name!r}" in done.error for name in ("er", "gsa", "finetune"))


def test_scoring_less_often_than_the_stream_is_long_still_ends_with_a_result(
    tmp_path: Path,
) -> None:
    done = onepass(
        "run", "finetune", "--dataset", "synthetic", "--every", 10_000, "--out", tmp_path
    )
    assert done.status == 0, done.err


def test_a_dataset_may_be_spelled_otherwise_when_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "below").mkdir()
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(80, 5)), y=np.arange(80) % 4)
    for place, spelled in ((tmp_path, "./mine.npz"), (tmp_path / "below", "../mine.npz")):
        monkeypatch.chdir(place)
        data = ("--dataset", spelled, "--test-fraction", 0.2, "--tasks", 2)
        done = onepass("run", "er", *data, "--resume", "--out", tmp_path / "runs", "--json")
        assert done.status == 0, done.err
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 1


def test_data_that_cannot_be_scored_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {"train_x": rng.normal(size=(80, 5)), "train_y": np.arange(80) % 4}
    parts |= {"test_x": rng.normal(size=(20, 5)), "test_y": np.arange(20) % 2}
    np.savez(tmp_path / "mine.npz", **parts)
    with untouched(tmp_path):
        line = refused("run", "er", "--dataset", tmp_path / "mine.npz", "--tasks", 2,
                       "--out", tmp_path / "runs")  # fmt: skip
    assert "no test samples of task 2" in line


def test_a_stream_over_files_that_are_not_split_can_be_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(80, 5)), y=np.arange(80) % 4)
    data = ("--dataset", tmp_path / "mine.npz", "--test-fraction", 0.2)
    stream = "class-incremental:tasks=2"
    done = onepass("figure", "stream", stream, *data, "-o", tmp_path / "s.PNG")
    assert done.status == 0, done.err
    assert (tmp_path / "s.PNG").stat().st_size > 1000


def test_hidden_files_are_no_images(model: Path, tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "seen.png")
    (tmp_path / "._seen.png").write_bytes(b"what a Mac leaves behind")
    done = onepass("predict", model, tmp_path)
    assert done.status == 0, done.err
    assert "._seen" not in done.out + done.err
