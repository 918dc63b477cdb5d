"""Nothing registered lacks its tests and documents, and every exemption has a reason.

No method is named here: they come from the registry and the files. The settings of a method are
tested in `tests/methods`.
"""

import math
import re
import tomllib
from pathlib import Path

import pytest

import onepass
from onepass.base.settings import construct
from onepass.learning import registry
from onepass.runs.spec import PRESETS
from onepass.tools.checks import CHECKS, NEEDS_GPU, exemptions

ROOT = Path(__file__).parents[3]
MOST_TRAINED = {"best": 6 * 74, "fast": 192}  # images for a stream batch of ten; ER has 74
each_method = pytest.mark.parametrize("info", registry.methods(), ids=lambda info: info.key)


def method_modules():
    files = (ROOT / "onepass" / "methods").glob("*.py")
    return {f"onepass.methods.{file.stem}" for file in files if file.stem != "__init__"}


def own_tests(info):
    """Returns the text of a method's own test file, or of the files in its folder."""
    name = info.learner.__module__.rpartition(".")[2]
    folder = ROOT / "tests" / "methods"
    return "".join(
        path.read_text()
        for path in [folder / f"test_{name}.py", *sorted((folder / name).glob("test_*.py"))]
        if path.exists()
    )


def named(key, text):
    """Returns whether a document has a row of a method, or mentions it as `this` or **this**."""
    name = re.escape(key)
    return re.search(rf"`{name}`|\*\*{name}\*\*|^\| {name}[ ,]", text, re.MULTILINE) is not None


# ---- methods


def test_every_method_file_registers_a_method_and_is_imported():
    modules = {info.learner.__module__ for info in registry.methods()}
    assert modules == method_modules() - {"onepass.methods.gsa_variants"}


@each_method
def test_every_learner_is_public(info):
    assert getattr(onepass, info.learner.__name__) is info.learner
    assert info.learner.__name__ in onepass.__all__


@each_method
def test_every_method_has_tests_of_its_own(info):
    assert "def test_" in own_tests(info), f"write tests/methods/test_*.py for {info.key}"


@each_method
def test_every_preset_names_its_source_and_builds(info):
    for name, preset in info.learner.presets.items():
        assert name in PRESETS
        assert preset.source.strip()
        assert preset.settings
        images = construct(info.learner, **preset.settings).images_per_batch(10)
        assert images.trained <= MOST_TRAINED.get(name, math.inf)


@each_method
def test_the_values_of_an_official_preset_stand_in_the_methods_own_tests(info):
    pinned = "def test_the_official_preset_has_the_values_of_its_source" in own_tests(info)
    assert pinned == ("official" in info.learner.presets)


@each_method
def test_every_exemption_names_a_check_and_a_reason(info):
    """`test_contract.py` shows that an exempt check really fails."""
    assert set(info.learner.traits.exempt) <= set(exemptions(info.learner)) <= set(CHECKS)
    assert all(reason.strip() for reason in info.learner.traits.exempt.values())


# ---- documents


def test_the_table_of_methods_has_a_row_for_every_method():
    text = (ROOT / "docs" / "methods.md").read_text()
    table = text.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
    rows = re.findall(r"^\| ([\w-]+)", table, re.MULTILINE)
    assert rows[:1] == ["method"]
    expected = sorted(info.key for info in registry.methods())
    assert sorted(rows[1:]) == expected, "the table is made by `make table`: run it"


@each_method
def test_every_method_was_run_on_real_data_or_is_said_not_to_have_been(info):
    texts = {path.name: path.read_text() for path in (ROOT / "results").glob("*.md")}
    places = [name for name, text in texts.items() if named(info.key, text)]
    assert places, (
        f"{info.key} is not in results/*.md: run it there, or name it in results/README.md "
        "under what was not run, and say why"
    )


@pytest.mark.parametrize("folder", ["results/lines", "benchmarks"])
def test_committed_lines_do_not_tell_where_they_were_made(folder):
    """`--append` leaves a run's folder out; a result.json copied by hand would have it."""
    texts = {path.name: path.read_text() for path in (ROOT / folder).glob("*.jsonl")}
    assert texts
    assert [name for name, text in texts.items() if re.search(r'"(/|[A-Z]:\\)[^"]', text)] == []


# ---- the contract and the tools


def test_the_contract_has_at_least_twenty_checks_with_a_sentence_each():
    assert len(CHECKS) >= 20
    assert all(check.__doc__ for check in CHECKS.values())


def test_every_module_of_checks_has_a_file_of_learners_that_break_them():
    """Each of these files asserts that none of its module's checks is left out."""
    files = (ROOT / "tests" / "tools" / "checks").glob("test_*_bites.py")
    broken = {f"onepass.tools.checks.{file.stem.removeprefix('test_')[:-6]}" for file in files}
    assert broken == {check.__module__ for check in CHECKS.values()}


def test_only_these_need_a_gpu():
    assert set(NEEDS_GPU) == {
        "devices_agree",
        "a_graph_gives_the_same_bits",
        "the_step_never_waits",
        "devices_give_the_same_sums",
    }


def test_the_import_contract_knows_every_method_file():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    independent = next(c for c in contracts if c["type"] == "independence")
    assert independent["modules"] == ["onepass.methods.*"]
