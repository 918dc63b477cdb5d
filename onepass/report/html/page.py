"""A report as one page of HTML that needs nothing else: no network, no fonts, no scripts.

The page's source lies in `page/`. What comes from run folders is put in as JSON, as data: nothing
in it can end the element that it stands in, the scripts write it as text only, and the page's
policy lets no script and no style run but those whose checksums it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from onepass.base.fileio import expect_suffix, write_output
from onepass.report.html.data import page_data

SCRIPTS = ("elements.js", "charts.js", "tables.js", "sections.js")
ESCAPED = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def write_report(paths: list[Path], output: Path, where: Sequence[str] = ()) -> dict[str, Any]:
    """Writes the page about the runs that meet every condition, and gives what it shows."""
    expect_suffix(output, "a report", ".html", ".htm")
    shown = page_data(*paths, where=where)
    write_output(output, render_page(shown).encode())
    return shown


def render_page(shown: dict[str, Any]) -> str:
    source = resources.files("onepass.report.html").joinpath("assets")
    style = source.joinpath("page.css").read_text("utf-8")
    script = "\n".join(source.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    policy = {
        "default-src": "'none'",
        "script-src": source_hash(script),
        "style-src": source_hash(style),
        "img-src": "data:",  # the empty icon, without which browsers ask for one
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    template = Template(source.joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        policy="; ".join(" ".join(rule) for rule in policy.items()),
        style=style,
        data=embed_json(shown),
        script=script,
    )


def embed_json(content: object) -> str:
    r"""JSON that may stand inside of a page.

    >>> embed_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.translate(ESCAPED)


def source_hash(text: str) -> str:
    """By which a policy names a script or a style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
