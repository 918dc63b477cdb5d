"""Results that do not record all their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from result_lines import paper_line, run_line, write_lines

import onepass
from onepass.base.settings import Preset
from onepass.gsa_paper.protocol import learning_variant
from onepass.runs import query
from onepass.runs.early_settings import completed
from onepass.runs.find import find_runs
from onepass.runs.result import Result


def read(folder: Path, **fields: Any) -> Result:
    made = {"variant": "", **fields}
    (result,) = query.find_results(
        write_lines(folder / "a.jsonl", paper_line("er", 0, 50.0, **made))
    )
    return result


def change_default(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    monkeypatch.setattr(onepass.ER.__dataclass_fields__[name], "default", value)


def test_a_line_without_settings_keeps_the_defaults_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(tmp_path)
    assert before.settings == read(tmp_path, settings={"lr": 1e-3}).settings
    change_default(monkeypatch, "head", "frozen")
    assert read(tmp_path) == before
    assert before.settings["head"] == "trained"
    (found,) = find_runs(tmp_path)
    assert found.get("settings.head") == "trained"


def test_a_line_without_settings_is_another_variant_once_a_default_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [read(tmp_path), read(tmp_path, variant="head=frozen")]
    assert [str(learning_variant(line)) for line in lines] == ["", "head=frozen"]
    change_default(monkeypatch, "head", "frozen")
    assert [str(learning_variant(line)) for line in lines] == ["common earlier", ""]


def test_a_line_without_settings_is_of_an_earlier_preset_once_that_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = read(tmp_path, variant="tuned")
    assert str(learning_variant(line)) == "tuned"
    monkeypatch.setattr(onepass.ER, "presets", {"tuned": Preset({"lr": 0.5}, "a test")})
    assert str(learning_variant(line)) == "tuned earlier"


def test_recorded_settings_stay_and_come_before_the_variants() -> None:
    found = completed("gsa", "tuned lr=1e-3 augment=none fill=none", {})
    assert (found["lr"], found["augment"], found["fill"]) == (1e-3, "none", None)
    assert (found["head"], found["forwards"]) == ("frozen", "separate")
    # a preset has no value for what is newer than the run
    assert completed("gsa", "best lr=1e-3", {"lr": 0.5})["norms"] == "running"
    assert completed("gsa", "best lr=1e-3", {"lr": 0.5})["lr"] == 0.5
    assert completed("a-method-of-mine", "lr=1", {"lr": 2}) == {"lr": 2}


def test_a_line_from_before_a_repair_has_what_the_method_did_then() -> None:
    assert completed("lucir", "", {"lr": 1e-3})["scale"] == 1.0
    found = completed("ssil", "", {"lr": 1e-3})
    assert (found["replayed"], found["rivals"]) == ("old", "side")


def test_what_follows_from_other_fields_is_not_made_up(tmp_path: Path) -> None:
    result = Result.read(run_line("gsa", 3, 50.0, memory=7), "here")
    assert not {"seed", "memory", "device", "mean", "std"} & result.settings.keys()
