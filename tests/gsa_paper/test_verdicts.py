"""How far our results reproduce the paper: verdicts need seeds and an interval."""

from __future__ import annotations

from pathlib import Path

import pytest
from result_lines import paper_line, write_lines

from onepass.gsa_paper.verdicts import judge
from onepass.runs import lines

PUBLISHED = 15.7  # er on CIFAR100, M=1000


def verdict(folder: Path, *gaps: float) -> str:
    """Returns the verdict for runs of `er` that end so many points above the published figure."""
    runs = [paper_line("er", seed, PUBLISHED + gap) for seed, gap in enumerate(gaps)]
    results = lines.read_results(write_lines(folder / "a.jsonl", *runs))
    by_cell = {(cell.method, cell.memory): cell for cell in judge(results, "cifar100")}
    assert len(by_cell) == 51
    assert by_cell["gsa", 1000].verdict == "not run"
    return by_cell["er", 1000].verdict


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        # by hand: half the interval is 4.303 s / sqrt(3) for three seeds, 2.48 for s = 1
        ((-1.0, 0.0, 1.0), "reproduced"),
        ((-0.4, 0.6, 1.6), "undecided"),  # 0.6 + 2.48 > 3
        ((-0.6, 0.4, 1.4), "reproduced"),  # 0.4 + 2.48 < 3
        ((4.6, 5.6, 6.6), "higher"),  # 5.6 - 2.48 > 3
        ((4.4, 5.4, 6.4), "undecided"),  # 5.4 - 2.48 < 3
        ((-6.6, -5.6, -4.6), "lower"),
        ((-6.4, -5.4, -4.4), "undecided"),
        ((0.0,), "one seed"),
        ((20.0,), "one seed"),
        ((0.0, 0.1), "undecided"),  # two seeds, however close
        ((20.0, 20.1), "undecided"),
        ((0.0, 0.0, 0.0), "reproduced"),
    ],
)
def test_a_verdict_needs_three_seeds_and_an_interval(
    gaps: tuple[float, ...], expected: str, tmp_path: Path
) -> None:
    assert verdict(tmp_path, *gaps) == expected


def test_other_settings_are_not_the_papers_cell(tmp_path: Path) -> None:
    runs = [paper_line("er", seed, PUBLISHED, variant="best") for seed in range(3)]
    results = lines.read_results(write_lines(tmp_path / "a.jsonl", *runs))
    assert {cell.verdict for cell in judge(results, "cifar100")} == {"not run"}
