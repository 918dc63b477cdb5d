"""Writes the report: one HTML page that loads nothing, neither from the network nor from disk.

The page's source lies in `assets/`. Data from run folders enter the page as escaped JSON, so no
text in them can end its element. The scripts insert texts as text, never as HTML. The page's
content security policy names the checksums of its scripts and styles and blocks all others.
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
    """Writes a report about the runs in `paths` that meet every condition of `where`, and returns
    its data. Raises an InputError unless `output` ends in .html or .htm."""
    expect_suffix(output, "a report", ".html", ".htm")
    data = page_data(*paths, where=where)
    write_output(output, render_page(data).encode())
    return data


def render_page(data: dict[str, Any]) -> str:
    """Returns the HTML of the page that displays `data`."""
    source = resources.files("onepass.report.html").joinpath("assets")
    style = source.joinpath("page.css").read_text("utf-8")
    script = "\n".join(source.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    policy = {
        "default-src": "'none'",
        "script-src": source_hash(script),
        "style-src": source_hash(style),
        "img-src": "data:",  # for the empty icon; without one, browsers request an icon
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    template = Template(source.joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        policy="; ".join(" ".join(rule) for rule in policy.items()),
        style=style,
        data=embed_json(data),
        script=script,
    )


def embed_json(content: object) -> str:
    r"""Returns JSON that is safe inside an HTML element: no text in it can end the element.

    >>> embed_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.translate(ESCAPED)


def source_hash(text: str) -> str:
    """Returns the hash by which a content security policy allows a script or style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
