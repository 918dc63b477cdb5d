"""Makes the tables on the pages in results/ anew, from the lines there.

    python scripts/update_results.py

A table stands between two marks, of which the first is the command that makes it, `onepass …` or
`python FILE …`; the rest of a page is written by hand. Run by `make results`.
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
    """What the command prints, run where the results are."""
    program, *arguments = words
    command = [sys.executable, *(["-m", "onepass"] if program == "onepass" else []), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def updated(text: str, run: Callable[[list[str]], str] = printed) -> str:
    """A page with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        return f"{found['mark']}\n{run(shlex.split(found['command']))}\n{found['end']}"

    return MARKED.sub(made, text)


def main() -> None:
    for page in sorted(ROOT.glob("results/**/*.md")):
        before = page.read_text("utf-8")
        if (after := updated(before)) != before:
            page.write_text(after, "utf-8")


if __name__ == "__main__":
    main()
