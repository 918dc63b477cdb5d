"""Every `onepass` command in a code block of a page has a real command name and real options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from onepass.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("examples", "benchmarks", "results")),
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)  # language, content
INDENTED = re.compile(r"^ {4}(onepass [^\n]+)$", re.MULTILINE)


def commands_on(text: str) -> list[list[str]]:
    """Returns the words of each command in a fenced or indented block, without comments."""
    blocks = [content for language, content in FENCED.findall(text) if language in ("", "bash")]
    fenced = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in fenced if line.startswith("onepass ")] + INDENTED.findall(text)
    return [shlex.split(line, comments=True) for line in lines]


def mistake(words: list[str]) -> str | None:
    """Returns what is unknown in a command: its name, the name of a sub-command, or an option."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name, *rest = rest
        if name not in command.commands:
            return name
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {"-h", "--help", "--install-completion", "--show-completion"}
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return next((option for option in given if option not in known), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_a_page_exist_and_have_their_options(page: Path) -> None:
    found = commands_on(page.read_text("utf-8"))
    assert [(" ".join(words), mistake(words)) for words in found if mistake(words)] == []


def test_a_command_or_option_that_does_not_exist_is_found() -> None:
    fenced = "```\nonepass run er --memory 5  # five\nonepass runs list --nope\n```\n"
    python = "```python\n>>> import onepass\n```\n"  # its end begins no block
    text = f"{python}{fenced}\n    onepass tell er\n"
    assert [mistake(words) for words in commands_on(text)] == [None, "--nope", "tell"]


def test_readme_has_commands() -> None:
    assert commands_on(PAGES[0].read_text("utf-8"))
