"""Links and anchors on the pages lead somewhere, and the files and names on them exist."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "results", "examples", "benchmarks", "experiments")
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in ROOT.glob(f"{name}/**/*.md"))]
)
DOCUMENTS = [page for page in PAGES if page.name != "CHANGELOG.md" and "results" not in page.parts]

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`+[^`]*`+")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s>]+)>?[^()]*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
FILE = re.compile(r"`((?:onepass|tests|scripts|benchmarks|examples|docs|experiments)/[\w./-]+\w)`")
SOURCE = re.compile(r"`(\w+(?:/\w+)+\.py)\b")
NAME = re.compile(r"`(onepass(?:\.[A-Za-z_]\w*)+)\b(?!/)")
DEFINITION = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def text_of(page: Path) -> str:
    """Returns the text of a page, or of the markdown cells of a notebook."""
    text = page.read_text("utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def links(text: str) -> list[str]:
    """Returns the targets of all links outside of code."""
    return LINK.findall(CODE.sub("", FENCE.sub("", text)))


@cache
def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    text = FENCE.sub("", page.read_text("utf-8"))
    found: dict[str, int] = {}
    for heading in HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # a link shows its text
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    numbered = {f"{slug}-{n}" for slug, last in found.items() for n in range(1, last + 1)}
    return {*found, *numbered, *re.findall(r'(?:id|name)="([^"]+)"', text)}


def is_broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / unquote(path)).resolve() if path else page
    if not (target.exists() and target.is_relative_to(ROOT)):
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [*PAGES, NOTEBOOK], ids=name)
def test_every_relative_link_and_anchor_leads_somewhere(page: Path) -> None:
    relative = [link for link in links(text_of(page)) if not re.match(r"\w+:", link)]
    assert [link for link in relative if is_broken(page, link)] == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"
    assert links("[a](gone.md) `[b](code.md)` ![c](c.png)\n```\n[d](d.md)\n```\n") == [
        "gone.md",
        "c.png",
    ]
    assert is_broken(page, "gone.md")
    assert is_broken(page, "#gone")
    assert is_broken(page, "../README.md#gone")
    assert not is_broken(page, "../README.md#install")


def test_the_index_has_every_page_of_the_documentation() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in links(index.read_text("utf-8"))}
    assert {page for page in index.parent.glob("*.md") if page != index} <= linked


@pytest.mark.parametrize("page", DOCUMENTS, ids=name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = [path for path in FILE.findall(page.read_text("utf-8")) if "yours" not in path]
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=name)
def test_names_of_the_package_on_a_page_exist(page: Path) -> None:
    named = NAME.findall(page.read_text("utf-8"))
    assert [dotted for dotted in named if not is_importable(dotted)] == []


def is_importable(dotted: str) -> bool:
    """Returns whether a dotted name is a module, or an attribute of one."""
    try:
        return pkgutil.resolve_name(dotted) is not None
    except (ImportError, AttributeError):
        return False


def test_a_name_that_does_not_exist_is_found() -> None:
    assert is_importable("onepass.learning.replay.Replay")
    assert not is_importable("onepass.learning.replay.Nothing")


def test_modules_and_functions_that_contributing_names_exist() -> None:
    """They are written `learning/learner.py:Learner.learn`, below the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named, modules = DEFINITION.findall(text), SOURCE.findall(text)
    assert named
    assert modules
    roots = (ROOT / "onepass", ROOT)
    missing = [path for path in modules if not any((root / path).exists() for root in roots)]
    assert [path for path in missing if "yours" not in path] == []
    assert [f"{path}:{dotted}" for path, dotted in named if not is_defined(path, dotted)] == []


def is_defined(path: str, dotted: str) -> bool:
    """Returns whether a module of the package defines a class, method or function."""
    file = ROOT / "onepass" / path
    if not file.exists():
        return False
    body: list[ast.stmt] = ast.parse(file.read_text("utf-8")).body
    for part in dotted.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = next((node for node in body if isinstance(node, kinds) and node.name == part), None)
        if found is None:
            return False
        body = found.body
    return True
