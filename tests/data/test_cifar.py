"""Tests of CIFAR's pickles: they are read without running code, or refused with their name."""

import os
import pickle
from pathlib import Path

import formats
import numpy as np
import pytest
from child_process import in_child
from formats import CIFAR10, CIFAR100, truncate
from read_datasets import (
    WRITERS,
    TouchesFile,
    holds,
    random_data,
    refused,
)

import onepass
from onepass.data.catalogue import CATALOGUE


@pytest.mark.parametrize(("name", "names"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_cifar_as_python_2_wrote_it(tmp_path, name, names):
    images = random_data(name, train=5, test=2)
    WRITERS[name][0](tmp_path / name, images)
    data = onepass.load(name, root=tmp_path)
    assert holds(data, images)
    assert data.class_names == tuple(names)


def test_the_pickles_of_these_tests_are_like_the_published_ones(tmp_path):
    folder = formats.write_cifar10(tmp_path, random_data("cifar10"))
    content = (folder / "data_batch_1").read_bytes()
    assert content.startswith(b"\x80\x02}(U\x0bbatch_labelU\x15training batch 1 of 5U\x06labels](K")
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in content
    assert list(pickle.loads(content, encoding="bytes")) == [
        b"batch_label",
        b"labels",
        b"data",
        b"filenames",
    ]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_cifar_as_python_3_writes_it(tmp_path, protocol):
    images = random_data("cifar10")
    folder = formats.write_cifar10(tmp_path / "cifar10", images)
    for path in folder.iterdir():
        entries = pickle.loads(path.read_bytes(), encoding="latin1")
        path.write_bytes(pickle.dumps(entries, protocol=protocol))
    assert holds(onepass.load("cifar10", root=tmp_path), images)


def test_labels_of_cifar_may_be_an_array(tmp_path):
    images = random_data("cifar10")
    folder = formats.write_cifar10(tmp_path / "cifar10", images)
    entries = {"data": images.test_x.reshape(10, -1), "labels": images.test_y}
    (folder / "test_batch").write_bytes(formats.python2_pickle(entries))
    assert holds(onepass.load("cifar10", root=tmp_path), images)


CIFAR_FILES = [
    ("cifar10", "data_batch_1"),
    ("cifar10", "data_batch_4"),
    ("cifar10", "test_batch"),
    ("cifar10", "batches.meta"),
    ("cifar100", "train"),
    ("cifar100", "test"),
    ("cifar100", "meta"),
]


@pytest.fixture(params=CIFAR_FILES, ids=lambda file: file[1])
def cifar_file(request, tmp_path):
    name, file = request.param
    return name, WRITERS[name][0](tmp_path / name, random_data(name)) / file


def gadgets(marker):
    """Returns calls (module, name, arguments) that leave a file behind if they are run."""
    touch = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    return {
        "a command": (os.system.__module__, "system", (f"touch {marker}",)),
        "eval": ("builtins", "eval", (touch,)),
        "exec": ("builtins", "exec", (touch,)),
        "numpy savetxt": ("numpy", "savetxt", (str(marker), (1,))),
        "numpy memmap": ("numpy", "memmap", (str(marker), "u1", "w+", 0, (1,))),
        "numpy testing": ("numpy.testing._private.utils", "runstring", (touch, {})),
        "numpy through a module": ("numpy.lib._npyio_impl", "savetxt", (str(marker), (1,))),
    }


def call(module, name, arguments):
    """Returns a pickle that calls a function when it is loaded, by the opcodes of `__reduce__`."""
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    given = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x04}(U\x04data" + texts + b"\x93" + given + b"Ru."


def call_of_python_2(module, name, arguments):
    given = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02}(U\x04datac" + f"{module}\n{name}\n".encode() + given + b"Ru."


@pytest.mark.parametrize("write", [call, call_of_python_2])
@pytest.mark.parametrize("gadget", gadgets(Path()))
def test_a_pickle_that_calls_code_is_refused_and_runs_nothing(tmp_path, gadget, write):
    marker = tmp_path / "marker"
    module, name, arguments = gadgets(marker)[gadget]
    content = write(module, name, arguments)
    pickle.loads(content)  # the call works in an ordinary unpickler
    marker.unlink()
    path = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10")) / "data_batch_2"
    path.write_bytes(content)
    refused("cifar10", path, "refused", f"{module}.{name}", root=tmp_path)
    assert not marker.exists()


def test_every_cifar_file_is_read_without_running_anything(cifar_file, tmp_path):
    name, path = cifar_file
    marker = tmp_path / "marker"
    path.write_bytes(pickle.dumps({b"data": TouchesFile(marker)}))
    refused(name, path, "refused", root=tmp_path)
    assert not marker.exists()


def test_an_attribute_of_an_allowed_name_is_refused(tmp_path):
    path = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10")) / "data_batch_1"
    for name in ("ndarray.tofile", "ndarray.dump", "dtype.__class__"):
        path.write_bytes(call("numpy", name, ()))
        refused("cifar10", path, "refused", f"numpy.{name}", root=tmp_path)


DEEP = b"\x80\x02}(" + b")" + b"\x85" * 300_000 + b"K\x01u."
POINTERS = {  # dtypes by which NumPy would read eight bytes as a pointer, without the usual flags
    "objects": (b"U\x02i8", b"U\x02O8"),
    "objects by another name": (b"U\x02i8", b"U\x01O"),
    "fields": (b"U\x01<NNN", b"U\x01|NU\x01a\x85}U\x01aU\x02O8K\x00\x86s"),
}


@pytest.mark.parametrize("kind", POINTERS)
def test_no_description_of_an_array_crashes_the_process(tmp_path, kind):
    path = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10")) / "data_batch_1"
    rewritten(path, labels=np.full(4, 0x4141414141414141))
    path.write_bytes(path.read_bytes().replace(*POINTERS[kind]))
    in_child(lambda: refused("cifar10", path, root=tmp_path))


def test_deep_nesting_does_not_crash_the_process(tmp_path):
    path = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10")) / "batches.meta"
    path.write_bytes(DEEP)
    in_child(lambda: refused("cifar10", path, "refused", "keys", root=tmp_path))


def test_a_cifar_file_cannot_grow_without_end(tmp_path):
    path = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10")) / "test_batch"
    text = b"c_codecs\nencode\nq\0X\x10\x27\0\0" + b"a" * 10_000 + b"q\1"
    path.write_bytes(b"\x80\x02(" + text + b"(h\0h\1U\x06latin1\x86R" * 100 + b"l.")
    refused("cifar10", path, "refused", root=tmp_path)


def test_a_truncated_cifar_file_is_named(cifar_file, tmp_path):
    name, path = cifar_file
    truncate(path)
    refused(name, path, "is damaged, or not a CIFAR file", root=tmp_path)


def test_an_empty_cifar_file_is_named(cifar_file, tmp_path):
    name, path = cifar_file
    path.write_bytes(b"")
    refused(name, path, root=tmp_path)


def test_a_missing_cifar_file_is_named(tmp_path):
    for name, file in CIFAR_FILES:
        path = WRITERS[name][0](tmp_path / file / name, random_data(name)) / file
        if file not in ("data_batch_1", "train"):  # without these, the folder is not recognised
            path.unlink()
            refused(name, path, root=tmp_path / file)


def test_a_cifar_file_that_holds_something_else_is_named(cifar_file, tmp_path):
    name, path = cifar_file
    for content in ([1, 2], {"something": "else"}, {}):
        path.write_bytes(formats.python2_pickle(content))
        refused(name, path, root=tmp_path)


def rewritten(path, **entries):
    content = pickle.loads(path.read_bytes(), encoding="latin1")
    path.write_bytes(formats.python2_pickle({**content, **entries}))
    return path


@pytest.mark.parametrize(
    "entries",
    [
        {"labels": [1, 2, 3]},
        {"data": np.zeros((4, 3071), dtype=np.uint8)},
        {"data": np.zeros((4, 3072), dtype=np.int64)},
        {"data": "no array"},
        {"labels": [0, 1, 2, 10]},
        {"labels": ["cat", "dog", "cat", "dog"]},
        {"labels": np.zeros((4, 1), dtype=np.int64)},
    ],
    ids=[
        "few labels",
        "short rows",
        "whole numbers",
        "text",
        "class 10",
        "named labels",
        "columns",
    ],
)
def test_a_batch_that_is_not_images_with_labels_is_named(tmp_path, entries):
    folder = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10"))
    path = rewritten(folder / "data_batch_3", **entries)
    refused("cifar10", folder, root=tmp_path)
    if 10 not in entries.get("labels", []):
        refused("cifar10", path, root=tmp_path)


@pytest.mark.parametrize("label", [1.9, True, None, 2**70])
def test_a_label_that_is_not_a_whole_number_is_refused(tmp_path, label):
    path = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10")) / "data_batch_3"
    content = pickle.loads(path.read_bytes(), encoding="latin1")
    content["labels"][1] = label
    path.write_bytes(pickle.dumps(content))
    refused("cifar10", path, root=tmp_path)


@pytest.mark.parametrize("name", [7, None, b"caf\xe9", "half a character \ud800"])
def test_a_class_name_that_is_not_text_is_refused(tmp_path, name):
    path = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10")) / "batches.meta"
    path.write_bytes(pickle.dumps({"label_names": [*CIFAR10[:9], name]}))
    refused("cifar10", path, root=tmp_path)


@pytest.mark.parametrize(("name", "meta"), [("cifar10", "batches.meta"), ("cifar100", "meta")])
def test_two_cifar_classes_of_the_same_name_are_refused(tmp_path, name, meta):
    names = [
        "cat" if place in (3, 7) else str(place) for place in range(len(CATALOGUE[name].train))
    ]
    folder = WRITERS[name][0](tmp_path / name, random_data(name), names)
    refused(name, folder / meta, "two classes named", root=tmp_path)


def test_cifar_with_another_number_of_classes_is_refused(tmp_path):
    folder = formats.write_cifar10(tmp_path / "cifar10", random_data("cifar10"), CIFAR10[:9])
    refused("cifar10", folder, "10", root=tmp_path)
