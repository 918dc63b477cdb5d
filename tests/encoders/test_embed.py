import csv
import json
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
import torch
from command import command, onepass
from tiny_encoders import photo

from onepass import load
from onepass.encoders import Encoder
from onepass.encoders import embed as tool

MODULE = """
import torch
class Mean(torch.nn.Module):
    def forward(self, x):
        return x.mean(dim=(2, 3))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Makes the current folder one with an encoder that takes no time, `means:Mean`."""
    (tmp_path / "means.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("means", None)


def save_photos(folder, count, first=0):
    folder.mkdir(parents=True)
    for index in range(count):
        photo(first + index).save(folder / f"{index:03}.jpg")


@pytest.fixture
def photos(here):
    for number, name in enumerate(("cats", "dogs")):
        save_photos(here / "photos" / name, 12, 100 * number)
    return here / "photos"


def embed(*arguments, out="features.npz", encoder="means:Mean@32"):
    return onepass("embed", *arguments, "--encoder", encoder, "-o", out, "--device", "cpu")


def test_a_folder_becomes_a_dataset_of_vectors(photos):
    done = embed("photos/")
    assert done.status == 0, done.err
    assert done.out == "features.npz: 24 vectors of 3\n"
    data = load("./features.npz", test_fraction=0.25)
    assert data.class_names == ("cats", "dogs") and data.train_x.shape == (18, 3)
    files = [str(path) for path in sorted(photos.rglob("*.jpg"))]
    with np.load("features.npz") as stored:
        assert np.array_equal(stored["x"], Encoder("means:Mean@32", "cpu").encode(files))
        assert stored["y"].tolist() == [0] * 12 + [1] * 12
        identity = json.loads(str(stored["encoder"][0]))
    assert identity["encoder"] == "means:Mean@32" and len(identity["sha256"]) == 64
    assert {path.name for path in photos.parent.iterdir()} >= {"photos", "features.npz"}
    assert not list(photos.parent.glob("*.parts"))


def test_training_and_test_images_stay_apart(here):
    save_photos(here / "set" / "train" / "a", 3)
    save_photos(here / "set" / "train" / "b", 2, 50)
    save_photos(here / "set" / "val" / "a", 1, 70)
    save_photos(here / "set" / "val" / "b", 1, 80)
    assert embed("set/").status == 0
    data = load("./features.npz")
    assert data.train_y.tolist() == [0, 0, 0, 1, 1] and data.test_y.tolist() == [0, 1]
    assert embed("set/", out="features.parquet").status == 0
    table = load("./features.parquet", label="label", test="features-test.parquet")
    assert torch.equal(table.train_x, data.train_x) and torch.equal(table.test_x, data.test_x)
    assert table.class_names == ("a", "b")


def test_a_dataset_with_a_name_is_embedded_too(here, tiny_published):
    done = embed("digits", encoder="efficientnet-lite0@32")
    assert done.status == 0, done.err
    digits, data = load("digits"), load("./features.npz")
    assert torch.equal(data.train_y, digits.train_y)
    found = Encoder("efficientnet-lite0@32").encode(digits.test_x[:5])
    assert torch.equal(data.test_x[:5], found)


@pytest.fixture
def tiny_published(monkeypatch):
    from tiny_encoders import tiny_network

    from onepass.encoders import efficientnet
    from onepass.encoders.whole_numbers import freeze, weights_sha256

    network = tiny_network()
    known = {"efficientnet-lite0": weights_sha256(freeze(network, whole=True))}
    monkeypatch.setattr(efficientnet, "pretrained", lambda _: network)
    monkeypatch.setattr(efficientnet, "DERIVED", known)


def test_texts_of_a_table_become_vectors(here):
    rows = [("spam", "buy this now"), ("ham", "see you at noon")] * 3
    with (here / "mails.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("kind", "body"), *rows])
    done = embed("mails.csv", "--text", "body", "--label", "kind", encoder="text:hash")
    assert done.status == 0, done.err
    data = load("./features.npz", test_fraction=0.34)
    assert data.class_names == ("ham", "spam") and data.train_x.shape[1] == 2048
    missing = embed(
        "mails.csv", "--text", "txt", "--label", "kind", out="b.npz", encoder="text:hash"
    )
    assert missing.status == 2 and "has no column 'txt'; it has kind, body" in missing.error


def test_a_stopped_job_goes_on_and_gives_the_same_file(photos, monkeypatch):
    monkeypatch.setattr(tool, "SHARD", 5)
    assert embed("photos/", out="whole.npz").status == 0
    encoded = []
    right = Encoder.encode

    def stopping(self, samples, *rest):
        if len(encoded) in (2, 3):  # twice
            encoded.append(None)
            raise KeyboardInterrupt
        encoded.append(len(samples))
        return right(self, samples, *rest)

    monkeypatch.setattr(Encoder, "encode", stopping)
    assert [embed("photos/").status for _ in range(3)] == [130, 130, 0]
    assert [count for count in encoded if count] == [5, 5, 5, 5, 4]  # none is encoded twice
    files = [photos.parent / name for name in ("whole.npz", "features.npz")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_damaged_images_are_named_or_left_out_and_counted(photos):
    for name in ("cats/003.jpg", "dogs/011.jpg"):
        content = (photos / name).read_bytes()
        (photos / name).write_bytes(content[: len(content) // 2])
    done = embed("photos/")
    assert done.status == 2 and "003.jpg is damaged" in done.error
    assert "--skip-damaged" in done.error and not (photos.parent / "features.npz").exists()
    done = embed("photos/", "--skip-damaged")
    assert done.status == 0
    assert done.out == "features.npz: 22 vectors of 3, 2 damaged left out\n"
    assert "left out: photos/cats/003.jpg" in done.err.replace("\n", "")
    with np.load("features.npz") as stored:
        assert stored["y"].tolist() == [0] * 11 + [1] * 11


def test_a_class_of_nothing_but_damage_is_an_error(photos):
    for path in (photos / "cats").iterdir():
        path.write_bytes(b"no image")
    done = embed("photos/", "--skip-damaged")
    assert done.status == 2 and "none of the samples of the class 'cats'" in done.error


def test_another_job_does_not_go_on_with_these_shards(photos, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(tool, "_assemble", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert embed("photos/").status == 130
    done = embed("photos/", encoder="means:Mean@64")
    assert done.status == 2 and "features.npz.parts holds the beginning of another" in done.error
    assert "encoder" in done.error
    assert embed("photos/").status == 0
    assert "already" in embed("photos/").error


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        (("photos/",), {"out": "features.csv"}, "must end in .npz or .parquet"),
        (("nothing/",), {}, "no folder nothing"),
        (("photos/", "--label", "x"), {}, "--label are for tables of texts"),
        (("photos/",), {"encoder": "text:hash"}, "texts come from a .csv or .parquet"),
        (("photos/",), {"encoder": "efficientnet-lite7"}, "unknown encoder 'efficientnet-lite7'"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(photos, arguments, options, match):
    before = sorted(path.name for path in photos.parent.iterdir() if path.name != "__pycache__")
    done = embed(*arguments, **options)
    assert done.status == 2 and match in done.error
    after = sorted(path.name for path in photos.parent.iterdir() if path.name != "__pycache__")
    assert after == before


def test_an_empty_folder_is_named(here):
    save_photos(here / "photos" / "cats", 1)
    (here / "photos" / "dogs").mkdir()
    assert "no images of the class 'dogs'" in embed("photos/").error


@pytest.mark.slow
def test_a_large_folder_survives_kills_in_flat_memory(here):
    """20 000 small JPEGs, killed twice; memory is that of a shard, not of the folder."""
    pictures = [photo(seed, 64, 48) for seed in range(50)]
    for name in ("a", "b"):
        (here / "many" / name).mkdir(parents=True)
        for index in range(10_000):
            pictures[index % 50].save(here / "many" / name / f"{index:05}.jpg", quality=50)
    job = command("embed", "many/", "--encoder", "means:Mean@32", "-o", "out.npz")
    for shards in (3, 8):
        running = subprocess.Popen(job, stderr=subprocess.DEVNULL)
        while len(list(here.glob("out.npz.parts/all-*.npz"))) < shards:
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGKILL)
        running.wait()
    measured = (
        "import resource, sys; from onepass.cli import main\n"
        "try: main()\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", measured, *job[3:]], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) < 1.5 * 2**20  # kilobytes
    with zipfile.ZipFile("out.npz") as archive:
        assert archive.testzip() is None
    with np.load("out.npz") as stored:
        assert stored["x"].shape == (20_000, 3)
        assert np.array_equal(stored["x"][:50], stored["x"][50:100])
