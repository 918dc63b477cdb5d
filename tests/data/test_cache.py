"""Tests of the cache: images are decoded once, and a damaged cache is found and rebuilt."""

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import formats
import numpy as np
import pytest
from formats import flip_byte, noise, truncate
from PIL import Image

import onepass
from onepass import DataError
from onepass.base.errors import WriteError
from onepass.data import cache, files

ARRAYS = ("train_x", "train_y", "test_x", "test_y")
NAMES = ("ant", "bee", "cow")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """Returns the folder of all caches."""
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def images():
    whole = noise(3, (3, 6, 5), train=8, test=2)
    return formats.SplitImages(
        *formats.by_class(whole.train_x, whole.train_y),
        *formats.by_class(whole.test_x, whole.test_y),
    )


@pytest.fixture
def source(tmp_path, images):
    return formats.write_folders(tmp_path / "mine", images, NAMES)


@pytest.fixture
def entry(source, root):
    """Returns the cache folder of the source, already built."""
    onepass.load(str(source))
    return only(root)


def only(root):
    (found,) = visible(root)
    return found


def visible(root):
    """Returns everything in a folder except locks, including leftovers."""
    return [path for path in root.iterdir() if not path.name.endswith(".lock")]


def same(data, images):
    return all(np.array_equal(getattr(data, name), getattr(images, name)) for name in ARRAYS)


@pytest.fixture
def no_decoding(monkeypatch):
    """Returns a switch after which decoding an image fails the test."""

    def refuse(*_, **__):
        raise AssertionError("an image was decoded")

    def switch():
        monkeypatch.setattr(files, "decode_image", refuse)
        monkeypatch.setattr(Image, "open", refuse)

    return switch


# ---- once


def test_the_second_load_decodes_nothing(source, images, no_decoding):
    onepass.load(str(source))
    no_decoding()
    data = onepass.load(str(source))
    assert same(data, images)
    assert data.class_names == NAMES


def test_the_second_load_of_a_published_dataset_reads_none_of_its_files(tmp_path, monkeypatch):
    whole = noise(10, (3, 32, 32))
    formats.write_cifar10(tmp_path / "cifar10", whole)
    onepass.load("cifar10", root=tmp_path)
    monkeypatch.setattr("onepass.data.cifar._read_entries", lambda path: pytest.fail("it was read"))
    assert same(onepass.load("cifar10", root=tmp_path), whole)


def test_the_second_load_logs_nothing(source, caplog):
    onepass.load(str(source))
    with caplog.at_level(logging.INFO, "onepass"):
        onepass.load(str(source))
    assert not caplog.text


def test_images_are_memory_mapped(source, entry):
    data = onepass.load(str(source))
    maps = Path("/proc/self/maps").read_text()
    assert str(entry / "train_x.npy") in maps
    assert str(entry / "test_x.npy") in maps
    del data


def test_writing_to_a_dataset_leaves_the_cache_alone(source, entry, images):
    before = [(entry / f"{name}.npy").read_bytes() for name in ARRAYS]
    data = onepass.load(str(source))
    data.train_x.zero_()
    data.train_y.zero_()
    assert [(entry / f"{name}.npy").read_bytes() for name in ARRAYS] == before
    assert same(onepass.load(str(source)), images)


def test_two_folders_of_the_same_name_have_two_caches(tmp_path, root, images):
    others = noise(3, (3, 6, 5), seed=9)
    first = formats.write_folders(tmp_path / "a" / "mine", images, NAMES)
    second = formats.write_folders(tmp_path / "b" / "mine", others, NAMES)
    onepass.load(str(second))
    assert same(onepass.load(str(first)), images)
    assert len(visible(root)) == 2


def test_one_folder_by_two_paths_has_one_cache(source, root, no_decoding, monkeypatch):
    onepass.load(str(source))
    no_decoding()
    monkeypatch.chdir(source.parent)
    onepass.load("./mine")
    onepass.load(f"{source}/../mine")
    assert len(visible(root)) == 1


def test_a_lock_that_is_a_link_is_refused_and_its_target_is_unchanged(source, entry, tmp_path):
    precious, lock = tmp_path / "precious", entry.with_name(f".{entry.name}.lock")
    precious.write_text("precious")
    lock.unlink()
    lock.symlink_to(precious)
    shutil.rmtree(entry)  # a whole cache is read without its lock
    with pytest.raises(WriteError, match="link"):
        onepass.load(str(source))
    assert precious.read_text() == "precious"


# ---- where


def test_the_environment_sets_the_cache_folder(source, tmp_path, root, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    onepass.load(str(source))
    assert visible(root)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("xdg", "where"), [("", "home/.cache/onepass"), ("xdg", "xdg/onepass")])
def test_the_cache_is_in_the_users_cache_folder_by_default(
    source, tmp_path, monkeypatch, xdg, where
):
    monkeypatch.delenv("ONEPASS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / xdg) if xdg else "")
    onepass.load(str(source))
    assert only(tmp_path / where).name.startswith("mine-")


def test_an_empty_environment_variable_is_ignored(source, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    onepass.load(str(source))
    assert not list((tmp_path / "here").iterdir())


# ---- the source has changed


def added(source):
    (source / "train" / "bee" / "z.png").write_bytes(formats.encode(np.full((3, 6, 5), 9, "u1")))


def removed(source):
    sorted((source / "train" / "bee").iterdir())[2].unlink()


def rewritten(source):
    path = sorted((source / "train" / "bee").iterdir())[2]
    path.write_bytes(formats.encode(np.full((3, 6, 5), 9, "u1")))


def renamed(source):
    first = sorted((source / "train" / "bee").iterdir())[0]
    first.rename(first.with_name("z.png"))


def moved(source):
    first = sorted((source / "train" / "bee").iterdir())[0]
    first.rename(source / "train" / "ant" / first.name)


def another_class(source):
    for part in ("train", "test"):
        shutil.copytree(source / part / "bee", source / part / "dog")


def the_test_part(source):
    path = sorted((source / "test" / "cow").iterdir())[1]
    path.write_bytes(formats.encode(np.full((3, 6, 5), 9, "u1")))


@pytest.mark.parametrize(
    "change", [added, removed, rewritten, renamed, moved, another_class, the_test_part]
)
def test_a_changed_source_is_noticed_and_decoded_again(
    source, entry, change, caplog, tmp_path, monkeypatch
):
    before = onepass.load(str(source))
    change(source)
    with caplog.at_level(logging.WARNING, "onepass"):
        data = onepass.load(str(source))
    assert f"the files behind {entry} have changed" in caplog.text
    assert not same(data, before)
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "fresh"))
    assert same(data, onepass.load(str(source)))


def test_a_source_of_the_same_size_and_other_pixels_is_noticed(tmp_path):
    first, second = noise(10, (1, 28, 28), seed=1), noise(10, (1, 28, 28), seed=2)
    formats.write_idx(tmp_path / "mnist", first)
    onepass.load("mnist", root=tmp_path)
    formats.write_idx(tmp_path / "mnist", second)
    assert same(onepass.load("mnist", root=tmp_path), second)


def test_a_source_that_is_damaged_later_is_not_read_from_the_cache(source, entry, images):
    path = sorted((source / "train" / "bee").iterdir())[2]
    whole = path.read_bytes()
    truncate(path)
    for _ in range(2):
        with pytest.raises(DataError, match=path.name):
            onepass.load(str(source))
    path.write_bytes(whole)
    assert same(onepass.load(str(source)), images)


def test_data_mapped_from_the_old_cache_do_not_change(source, images):
    before = onepass.load(str(source))
    rewritten(source)
    onepass.load(str(source))
    assert same(before, images)


# ---- the cache is damaged


def meta(content):
    def write(entry):
        (entry / "meta.json").write_text(content)
        return entry / "meta.json"

    return write


def meta_with(**changed):
    def write(entry):
        path = entry / "meta.json"
        content = {**json.loads(path.read_text()), **changed}
        path.write_text(
            json.dumps({key: value for key, value in content.items() if value is not None})
        )
        return path

    return write


def gone(name):
    def remove(entry):
        (entry / name).unlink()
        return entry / name

    return remove


def at(name, harm, *how):
    return lambda entry: harm(entry / name, *how)


DAMAGE = {
    **{f"{name} cut short": at(f"{name}.npy", truncate) for name in ARRAYS},
    **{f"a byte of {name}": at(f"{name}.npy", flip_byte, 0.9) for name in ARRAYS},
    "a byte of a header": at("train_x.npy", flip_byte, 0.01),
    "an empty array": at("train_x.npy", truncate, 0.0),
    **{f"{name} gone": gone(f"{name}.npy") for name in ARRAYS},
    "meta.json gone": gone("meta.json"),
    "empty meta.json": meta(""),
    "meta.json cut short": at("meta.json", truncate),
    "meta.json of nothing": meta("null"),
    "meta.json of a list": meta("[1, 2]"),
    "meta.json of a number": meta("1"),
    "an empty table in meta.json": meta("{}"),
    "meta.json of another format": meta_with(format=99),
    "meta.json without files": meta_with(files=None),
    "meta.json without a file": meta_with(files={}),
    "meta.json without sizes": meta_with(files={name: {} for name in ARRAYS}),
    "meta.json without a fingerprint": meta_with(fingerprint=None),
    "meta.json without class names": meta_with(class_names=None),
    "meta.json with numbers for names": meta_with(class_names=[1, 2, 3]),
    "meta.json with half a character": meta_with(class_names=["ant", "bee", "\ud800"]),
    "meta.json of brackets": meta("[" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_named_and_rebuilt(source, entry, images, damage, caplog, no_decoding):
    path = DAMAGE[damage](entry)
    with caplog.at_level(logging.WARNING, "onepass"):
        data = onepass.load(str(source))
    assert str(path) in caplog.text
    assert same(data, images)
    assert data.class_names == NAMES
    caplog.clear()
    no_decoding()
    assert same(onepass.load(str(source)), images)
    assert not caplog.text


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("train_x", np.zeros((24, 3, 6, 5), np.int8)),
        ("train_x", np.zeros((24, 90), np.uint8)),
        ("test_x", np.zeros((6, 3, 6, 4), np.uint8)),
        ("train_y", np.zeros(24, np.float64)),
        ("train_y", np.zeros(23, np.int64)),
        ("test_y", np.full(6, 3)),
        ("test_y", np.full(6, -1)),
    ],
)
def test_arrays_replaced_by_others_are_rebuilt(source, entry, images, name, other):
    path = entry / f"{name}.npy"
    np.save(path, other)
    recorded = {"size": path.stat().st_size, "written": path.stat().st_mtime_ns}
    content = json.loads((entry / "meta.json").read_text())
    content["files"][name] |= {**recorded, "sha256": cache.file_checksum(path)}
    (entry / "meta.json").write_text(json.dumps(content))
    assert same(onepass.load(str(source)), images)


def test_a_cache_from_before_photos_were_turned_upright_is_rebuilt(source, entry, caplog):
    meta_with(fingerprint=files.fingerprint(source))(entry)
    with caplog.at_level(logging.WARNING, "onepass"):
        onepass.load(str(source))
    assert "decoding them again" in caplog.text


def test_a_folder_of_the_longest_name_can_be_cached(tmp_path, images):
    source = formats.write_folders(tmp_path / ("long " * 51), images, NAMES)
    assert same(onepass.load(source), images)


def test_an_array_that_was_only_touched_is_not_decoded_again(source, entry, images, no_decoding):
    for name in ARRAYS:
        os.utime(entry / f"{name}.npy")
    no_decoding()
    assert same(onepass.load(str(source)), images)


def test_a_truncated_array_is_noticed_even_with_the_recorded_time(source, entry, images, caplog):
    path = entry / "train_x.npy"
    stat = path.stat()
    os.utime(truncate(path), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert same(onepass.load(str(source)), images)
    assert str(path) in caplog.text


def test_a_thorough_check_finds_a_changed_byte_with_the_recorded_time(entry):
    assert cache.find_damage(entry, thorough=True) is None
    path = entry / "train_x.npy"
    stat = path.stat()
    flip_byte(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert str(path) in cache.find_damage(entry, thorough=True)


# ---- building goes wrong


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("moment", [1, 13, 28], ids=["first", "training", "testing"])
def test_an_exception_half_way_leaves_nothing(source, root, images, monkeypatch, problem, moment):
    real, calls = files.decode_image, iter(range(1, 1000))

    def decode(*arguments, **options):
        if next(calls) == moment:
            raise problem("now")
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "decode_image", decode)
        with pytest.raises(problem, match="now"):
            onepass.load(str(source))
    assert not visible(root)
    assert same(onepass.load(str(source)), images)


def child(script, *arguments, **options):
    start = "import os, sys, time, signal, resource, onepass\nfrom pathlib import Path\n"
    start += "from onepass.data import files\nreal = files.decode_image\n"
    command = [sys.executable, "-c", start + script, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


KILLED = """
left = iter(range(int(sys.argv[2])))
def decode(*arguments, **options):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)
files.decode_image = decode
onepass.load(sys.argv[1])
"""


def test_a_killed_build_leaves_no_cache(source, root, images):
    process = child(KILLED, source, 13)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert [path for path in root.iterdir() if not path.name.startswith(".")] == []
    assert same(onepass.load(str(source)), images)
    assert visible(root) == [only(root)]


TOGETHER = """
source, meet, log = map(Path, sys.argv[1:4])
def decode(content, name, *arguments, **options):
    with log.open("a") as file:
        file.write(f"{name}\\n")
    time.sleep(0.005)
    return real(content, name, *arguments, **options)
files.decode_image = decode
(meet / str(os.getpid())).touch()
while len(list(meet.iterdir())) < 2:
    time.sleep(0.005)
data = onepass.load(str(source))
print(data.train_x.sum().item(), data.test_x.sum().item())
"""


@pytest.mark.slow
def test_two_processes_at_once_build_one_correct_cache(source, root, images, tmp_path):
    (tmp_path / "meet").mkdir()
    log = tmp_path / "decoded.txt"
    both = [child(TOGETHER, source, tmp_path / "meet", log) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    wanted = f"{images.train_x.sum()} {images.test_x.sum()}\n"
    assert [out for out, _ in said] == [wanted, wanted]
    decoded = log.read_text().splitlines()
    assert len(decoded) == len(set(decoded)) == 30
    assert visible(root) == [only(root)]
    assert same(onepass.load(str(source)), images)


FULL = """
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    onepass.load(sys.argv[1])
except (OSError, onepass.OnepassError) as problem:
    print(type(problem).__name__, isinstance(problem, OSError), problem)
"""


def test_a_full_disk_is_an_error_and_leaves_no_half_cache(source, root, images):
    process = child(FULL, source, 1000)
    out, err = process.communicate(timeout=60)
    assert out.startswith("WriteError True"), err
    assert str(root) in out and os.strerror(errno.EFBIG) in out
    assert not visible(root)
    assert same(onepass.load(str(source)), images)


def test_a_full_disk_is_found_before_anything_is_decoded(source, root, monkeypatch, no_decoding):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(files, "decode_image", lambda *_, **__: pytest.fail("an image was decoded"))
    with pytest.raises(OSError, match="No space left"):
        onepass.load(str(source))
    assert not visible(root)


@pytest.mark.parametrize(
    ("writer", "file"),
    [
        ("os.posix_fallocate", "train_x.npy"),
        ("numpy.save", "train_y.npy"),
        ("pathlib.Path.write_text", "meta.json"),
    ],
)
def test_a_full_disk_is_an_error_that_names_the_file(source, root, monkeypatch, writer, file):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, full)
    with pytest.raises(onepass.OnepassError, match=rf"{root}.*/{file} .*No space left") as caught:
        onepass.load(str(source))
    assert isinstance(caught.value, OSError)
    assert not visible(root)


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "file"))
    with pytest.raises((OSError, onepass.OnepassError), match=str(tmp_path / "file")):
        onepass.load(str(source))


def test_a_cache_that_may_only_be_read_serves(source, entry, monkeypatch):
    """An administrator made it, or it lies in a container's image."""

    def refuse(path, *, wait):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(cache, "locked_file", refuse)
    assert len(onepass.load(str(source)).train_y) == 24
    shutil.rmtree(entry)
    with pytest.raises(WriteError, match="Permission denied"):
        onepass.load(str(source))


def test_a_damaged_cache_is_named_once_and_decoded_again(source, entry, caplog):
    (entry / "train_y.npy").unlink()
    with caplog.at_level(logging.WARNING):
        onepass.load(str(source))
    (line,) = caplog.messages
    assert "train_y.npy is missing" in line
    assert only(entry.parent) == entry and (entry / "train_y.npy").exists()
