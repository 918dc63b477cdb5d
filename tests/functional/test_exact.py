"""Tests that products of whole numbers are exact, against Python's integers."""

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.functional import exact

QUICK = settings(max_examples=60, deadline=None)


class OnCard(torch.Tensor):
    """A tensor that says it is on a GPU, so that it takes torch's products."""

    device = torch.device("cuda")


def python_product(a, b):
    rows, columns = a.long().tolist(), b.long().T.tolist()
    return [[sum(x * y for x, y in zip(r, c, strict=True)) for c in columns] for r in rows]


def column_norm(b):
    return math.sqrt(float(b.double().square().sum(dim=0).amax()))


def product(a, b):
    return exact.product(a, b, column_norm(b), float(b.abs().amax()))


def whole_numbers(n, d, largest, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-largest, largest + 1, (n, d), generator=source).float()


sizes = st.integers(1, 9)
largest = st.sampled_from([1, 31, 512, 2048, 4096])


@QUICK
@given(sizes, sizes, sizes, largest, largest, st.integers(0, 99))
def test_products_equal_pythons(n, k, m, a_largest, b_largest, seed):
    a, b = whole_numbers(n, k, a_largest, seed), whole_numbers(k, m, b_largest, seed + 1)
    expected = python_product(a, b)
    found = product(a, b)
    assert found.long().tolist() == expected
    assert product(a.as_subclass(OnCard), b).long().tolist() == expected
    bound = column_norm(a.T) * column_norm(b)
    assert found.dtype is (torch.float32 if bound < 2**24 else torch.float64)


@QUICK
@given(st.integers(1, 30), sizes, largest, st.integers(0, 99))
def test_gram_equals_pythons(n, d, largest, seed):
    h = whole_numbers(n, d, largest, seed)
    expected = torch.tensor(python_product(h.T, h)).triu()
    found, was_narrow = exact.gram(h)
    assert torch.equal(found.triu().long(), expected)
    on_card, _ = exact.gram(h.as_subclass(OnCard))
    assert torch.equal(on_card.as_subclass(torch.Tensor).triu().long(), expected)
    assert was_narrow == (column_norm(h) ** 2 < 2**24 - 0.5)


def test_the_bound_is_where_float32_stops_being_exact():
    # 4095^2 + 90^2 = 2^24 - 91, and 4095^2 + 91^2 = 2^24 + 90
    assert exact.gram(torch.tensor([[4095.0], [90]]))[1]
    assert not exact.gram(torch.tensor([[4095.0], [91]]))[1]
    h = torch.tensor([[4096.0, 1], [1, 1]])  # 2^24 + 1, which float32 does not hold
    found, narrow = exact.gram(h)
    assert not narrow
    assert found.triu().tolist() == [[2**24 + 1, 4097], [0, 2]]
    assert product(h, h.T)[0, 0] == 2**24 + 1


def test_a_block_past_the_bound_is_exact():
    h = torch.full((1000, 3), 511.0)
    h[0] = 510
    found, narrow = exact.gram(h)
    assert not narrow
    assert found[0, 2] == 999 * 511**2 + 510**2


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_a_card_uses_tf32_at_most_and_only_for_eleven_bits(precision, monkeypatch):
    seen = []
    real = OnCard.__matmul__

    def watched(a, b):
        seen.append((torch.get_float32_matmul_precision(), a.dtype))
        return real(a, b)

    monkeypatch.setattr(OnCard, "__matmul__", watched, raising=False)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for largest in (2**11, 2**11 + 1):
            a = torch.tensor([[float(largest), 1]]).as_subclass(OnCard)
            exact.product(a, torch.ones(2, 2), 1.5, 1)
            exact.product(torch.ones(1, 2).as_subclass(OnCard), a.T, largest + 1.0, largest)
            exact.gram(a)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    assert {mode for mode, _ in seen} == {"high"}
    assert [dtype for _, dtype in seen] == [torch.float32] * 3 + [torch.float64] * 3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["medium", "autocast", "float64", "inference"])
def test_modes_and_threads_change_no_bit(mode, threads):
    h, p = whole_numbers(300, 70, 513), whole_numbers(70, 90, 31)
    expected = h.double() @ p.double(), (h.double().T @ h.double()).triu()
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(threads)
    try:
        if mode == "medium":
            torch.set_float32_matmul_precision("medium")
        if mode == "float64":
            torch.set_default_dtype(torch.float64)
        casting = torch.autocast("cpu", enabled=mode == "autocast")
        with casting, torch.inference_mode(mode == "inference"):
            found = product(h, p), exact.gram(h)[0].triu()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
    assert torch.equal(found[0].double(), expected[0])
    assert torch.equal(found[1].double(), expected[1])


@QUICK
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 99))
def test_class_sums_equal_a_loop(labels, seed):
    h = whole_numbers(len(labels), 3, 4096, seed)
    found = exact.class_sums(h, torch.tensor(labels), 5)
    for label in range(5):
        own = [row for row, one in zip(h.tolist(), labels, strict=True) if one == label]
        expected = [sum(column) for column in zip(*own, strict=True)] if own else [0, 0, 0]
        assert found[label].tolist() == expected
    assert found.dtype is torch.float64


def blas_threads():
    return [part["num_threads"] for part in exact._blas_libraries().info() if is_blas(part)]


def is_blas(part):
    return part["user_api"] == "blas"


def test_blas_has_torchs_threads_inside_and_its_own_after():
    before, torchs = blas_threads(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with exact.blas_threads():
            assert set(blas_threads()) == {1}
    finally:
        torch.set_num_threads(torchs)
    assert blas_threads() == before


def test_products_of_rows_do_not_depend_on_other_rows():
    a, b = whole_numbers(200, 300, 512), whole_numbers(300, 150, 31)
    together = product(a, b)
    for size in (1, 7):
        pieces = [product(piece, b) for piece in torch.split(a, size)]
        assert torch.equal(together, torch.cat(pieces))


def test_products_in_several_threads_are_exact():
    h = whole_numbers(500, 60, 100)
    expected, found = (h.double().T @ h.double()).triu(), []

    def work():
        found.extend(exact.gram(h)[0].triu().double() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    assert all(torch.equal(one, expected) for one in found)


def test_strided_operands_are_exact():
    h = whole_numbers(40, 60, 500)
    for view in (h[::3, ::2], h.T, h[:, :1], h[:1]):
        wide = view.double().numpy()
        assert np.array_equal(exact.gram(view)[0].triu(), np.triu(wide.T @ wide))
        assert np.array_equal(product(view, view.T.contiguous()), wide @ wide.T)
