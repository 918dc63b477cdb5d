"""Updates the tables on the pages in results/ from the committed lines.

    python scripts/update_results.py

A table stands between two marks. The first holds the command that prints the table, `onepass …` or
`python FILE …`. The rest of a page is written by hand. `make results` runs this script.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARKED = re.compile(
    r"(?s)(?P<mark><!-- (?P<command>(onepass|python) [^\n]*) -->\n).*?"
    r"(?P<end><!-- end of table -->\n)"
)


def printed(words: list[str]) -> str:
    """Returns what the command prints in the repository root."""
    program, *arguments = words
    command = [sys.executable, *(["-m", "onepass"] if program == "onepass" else []), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def updated(text: str, run: Callable[[list[str]], str] = printed) -> str:
    """Returns a page with its tables made again."""

    def replace(table: re.Match[str]) -> str:
        return f"{table['mark']}\n{run(shlex.split(table['command']))}\n{table['end']}"

    return MARKED.sub(replace, text)


def main() -> None:
    for page in sorted(ROOT.glob("results/**/*.md")):
        before = page.read_text("utf-8")
        if (after := updated(before)) != before:
            page.write_text(after, "utf-8")


if __name__ == "__main__":
    main()
