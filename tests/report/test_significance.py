"""Paired tests over the seeds that two rows share."""

from __future__ import annotations

import csv
import io
import math
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import pytest
from command import onepass
from result_lines import run_line, write_lines
from scipy import stats

from onepass.report.significance import compare_paired

OURS = {0: 61.0, 1: 64.5, 2: 59.0, 3: 70.25, 4: 66.0, 5: 63.5}
THEIRS = {0: 60.0, 1: 61.0, 2: 60.5, 3: 64.0, 4: 62.0, 5: 60.5, 9: 10.0}


def test_the_t_test_is_that_of_the_textbook() -> None:
    """t = d / (s / sqrt(n)) with n - 1 degrees of freedom, twice the tail."""
    d = [OURS[seed] - THEIRS[seed] for seed in OURS]
    t = mean(d) / (stdev(d) / math.sqrt(len(d)))
    found = compare_paired(OURS, THEIRS)
    assert found.differences == tuple(d)
    assert found.t_test == pytest.approx(2 * stats.t.sf(abs(t), len(d) - 1))


def test_the_signed_rank_test_counts_all_signs() -> None:
    """The exact p is the share of all 2^n signs of the ranks that are at least as uneven."""
    d = [OURS[seed] - THEIRS[seed] for seed in OURS]
    ranks = [sorted(map(abs, d)).index(abs(difference)) + 1 for difference in d]

    def uneven(signs) -> float:
        up = sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign > 0)
        return abs(up - sum(ranks) / 2)

    all_signs = list(product((1, -1), repeat=len(d)))
    seen = uneven([1 if difference > 0 else -1 for difference in d])
    exact = sum(uneven(signs) >= seen for signs in all_signs) / len(all_signs)
    assert compare_paired(OURS, THEIRS).wilcoxon == pytest.approx(exact)


@pytest.mark.parametrize(
    ("pairs", "t_test", "wilcoxon"), [(1, 0, 0), (2, 0, 0), (3, 1, 0), (5, 1, 0), (6, 1, 1)]
)
def test_too_few_seeds_have_no_p(pairs: int, t_test: int, wilcoxon: int) -> None:
    few = {seed: OURS[seed] for seed in range(pairs)}
    found = compare_paired(few, THEIRS)
    assert (found.t_test is not None, found.wilcoxon is not None) == (t_test, wilcoxon)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_equal_differences_have_no_p(shift: float) -> None:
    found = compare_paired({seed: value + shift for seed, value in THEIRS.items()}, THEIRS)
    assert (found.t_test, found.wilcoxon) == (None, None)


def test_differences_of_equally_many_images_are_equal() -> None:
    """Percentages of 360 images are inexact; equal differences still share ranks and have no p."""
    theirs = {seed: 100 * n / 360 for seed, n in enumerate((200, 211, 223, 238, 251, 307))}
    ours = {seed: 100 * (round(3.6 * value) + 3) / 360 for seed, value in theirs.items()}
    assert len({ours[seed] - theirs[seed] for seed in ours}) > 1
    found = compare_paired(ours, theirs)
    assert (len(found.differences), found.t_test, found.wilcoxon) == (6, None, None)
    ours[0] = theirs[0] + 100 * 6 / 360
    assert compare_paired(ours, theirs).wilcoxon == pytest.approx(
        stats.wilcoxon([6, 3, 3, 3, 3, 3]).pvalue
    )


def rows(*arguments: object) -> list[dict[str, str]]:
    done = onepass("table", *arguments, "--format", "csv")
    assert done.status == 0, done.err
    return list(csv.DictReader(io.StringIO(done.out)))


def of(method: str, values: dict[int, float], **more) -> list[dict]:
    return [run_line(method, seed, value, **more) for seed, value in values.items()]


def test_the_command_tests_each_row_against_the_method_that_is_named(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", *of("gsa", OURS), *of("er", THEIRS))
    gsa, er = rows(file, "--against", "er")
    found = compare_paired(OURS, THEIRS)
    assert float(gsa["difference"]) == pytest.approx(mean(found.differences), abs=1e-4)
    assert float(gsa["difference sd"]) == pytest.approx(stdev(found.differences), abs=1e-4)
    assert gsa["pairs"] == "6"
    assert float(gsa["p (t-test)"]) == pytest.approx(found.t_test, rel=1e-3)
    assert float(gsa["p (Wilcoxon)"]) == pytest.approx(found.wilcoxon, rel=1e-3)
    assert er["pairs"] == ""  # against itself
    text = onepass("table", file, "--against", "er").out
    assert "paired t-test (3 pairs or more)" in text and "signed-rank" in text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("method,difference", "Compared with er. Difference: mean ± standard deviation over"),
        ("method,pairs", "Compared with er. Pairs: seeds that both have.\n"),
        ("method,p (t-test)", "Compared with er. p: two-sided, by the paired t-test (3 pairs"),
        ("method,p (Wilcoxon)", "Compared with er. p: two-sided, by Wilcoxon's signed-rank"),
        ("method,accuracy", ""),
    ],
)
@pytest.mark.parametrize("pivot", [(), ("--pivot", "memory")], ids=["rows", "pivot"])
def test_only_columns_that_are_shown_are_explained(
    columns: str, said: str, pivot: tuple, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "a.jsonl", *of("gsa", OURS), *of("er", THEIRS))
    text = onepass("table", file, "--against", "er", "--columns", columns, *pivot).out
    words = ("Difference:", "Pairs:", "t-test (", "signed-rank", "Compared with")
    assert {word for word in words if word in text} == {word for word in words if word in said}
    assert said in text


@pytest.mark.parametrize(
    "other",
    [{"memory": 200}, {"validation": 0.1}, {"stream": "blurry"}, {"dataset": "other"}],
    ids=lambda other: next(iter(other)),
)
def test_rows_of_another_stream_are_not_compared(other: dict, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", *of("gsa", OURS), *of("er", THEIRS, **other))
    assert {row["pairs"] for row in rows(file, "--against", "er")} == {""}


def test_a_row_without_memory_is_compared_only_if_the_reference_has_one_size(
    tmp_path: Path,
) -> None:
    """A run without memory is compared with M=100, and also when M=200 stands beside it."""
    lines = [*of("er", THEIRS), *of("finetune", OURS, memory=0)]
    alone = write_lines(tmp_path / "a.jsonl", *lines)
    assert rows(alone, "--against", "er")[1]["pairs"] == "6"
    several = write_lines(tmp_path / "b.jsonl", *lines, *of("er", OURS, memory=200))
    assert {row["pairs"] for row in rows(several, "--against", "er")} == {""}
    assert (
        "it has no memory and er has several sizes"
        in onepass("table", several, "--against", "er").out
    )


def test_a_row_is_compared_with_its_own_variant_or_a_named_one(tmp_path: Path) -> None:
    shifted = {seed: value - 1 for seed, value in THEIRS.items()}
    lines = [
        *of("gsa", OURS),
        *of("er", THEIRS, variant="lr=1"),
        *of("er", shifted, variant="lr=2"),
    ]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    assert rows(file, "--against", "er")[0]["pairs"] == ""
    assert "VARIANT" in onepass("table", file, "--against", "er").out
    first, other = (float(rows(file, "--against", f"er lr={n}")[0]["difference"]) for n in (1, 2))
    assert other == pytest.approx(first + 1, abs=1e-3)
    refused = onepass("table", file, "--against", "err")
    assert refused.status == 2 and "er lr=1, er lr=2, gsa" in refused.error


def test_a_table_has_room_for_tests_against_one_method(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", *of("gsa", OURS), *of("er", THEIRS), *of("scr", OURS))
    asked = ("--against", "published", "--against", "er", "--against", "er")
    assert rows(file, *asked)[0]["pairs"] == "6"
    assert onepass("table", file, *asked).out.count("Compared with er.") == 1
    refused = onepass("table", file, *asked, "--against", "gsa")
    assert refused.status == 2 and "against one method, not 2" in refused.error


def test_common_names_the_variant_with_all_defaults(tmp_path: Path) -> None:
    """Ablations are compared with `gsa common`, the full method."""
    whole = [run_line("gsa", seed, 30.0 + seed) for seed in range(3)]
    parts = [run_line("gsa", seed, 28.0 + seed, variant="without=new") for seed in range(3)]
    file = write_lines(tmp_path / "a.jsonl", *whole, *parts)
    found = {row["variant"]: row for row in rows(file, "--against", "gsa common")}
    assert found[""]["pairs"] == ""
    assert float(found["without=new"]["difference"]) == pytest.approx(-2.0)
    assert {row["pairs"] for row in rows(file, "--against", "gsa")} == {""}


def test_variants_that_are_not_compared_with_each_other_are_named(tmp_path: Path) -> None:
    lines = [*of("gsa", OURS), *of("er", THEIRS), *of("er", OURS, variant="lr=2")]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    said = "Not compared with each other: er common, er lr=2. --against 'er common' compares all"
    assert said in onepass("table", file, "--against", "er").out
    for against in ("er common", "gsa"):
        assert "each other" not in onepass("table", file, "--against", against).out


def test_variants_that_could_not_be_compared_are_not_named(tmp_path: Path) -> None:
    """Variants on two streams cannot be compared."""
    lines = [*of("er", THEIRS), *of("er", OURS, variant="stream=blurry", stream="blurry")]
    file = write_lines(tmp_path / "a.jsonl", *lines)
    assert "each other" not in onepass("table", file, "--against", "er").out
