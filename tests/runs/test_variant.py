"""Variants: names and values that become text and are parsed back."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from onepass.runs.variant import Variant, shared

LINES = Path(__file__).parents[2] / "results/lines"
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("preset", "in", "note")
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.sampled_from(["", "tuned", "best"]), st.dictionaries(NAMES, TEXTS, max_size=5))
def test_the_text_of_a_variant_is_parsed_back_exactly(preset, settings):
    variant = Variant(({"preset": preset} if preset else {}) | settings)
    assert Variant.parse(str(variant)) == variant
    assert list(Variant.parse(str(variant))) == list(variant)


def test_every_committed_line_is_read_and_shown_as_it_was_written():
    found = [
        json.loads(line) for file in LINES.glob("*.jsonl") for line in file.read_text().splitlines()
    ]
    texts = {line["variant"] for line in found if isinstance(line.get("variant"), str)}
    assert len(texts) > 50
    for text in texts:
        assert str(Variant.parse(text)) == text


def test_unquoted_words_of_early_lines_continue_a_value_or_are_a_note():
    assert Variant.parse("label=sepal length batch=5")["label"] == "sepal length"
    parsed = Variant.parse("official every=5000, a narrow network")
    assert parsed.without("every") == {"preset": "official", "note": "a narrow network"}


def test_shared_entries_are_left_out_of_each_variant():
    variants = [Variant(preset="tuned", lr="1"), Variant(preset="tuned", lr="2")]
    common = shared(variants)
    assert [str(variant.beyond(common)) for variant in variants] == ["lr=1", "lr=2"]
    assert shared(variants[:1]) == {}
