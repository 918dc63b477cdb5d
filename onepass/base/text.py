"""Words that others wrote (names, paths, what was typed), made fit to be shown.

A class may be named after a terminal's escape sequence, a file after bytes that are no text. What
shows such a word shows it on one line and lets it do nothing.
"""

from __future__ import annotations

import codecs
import html
import logging
import re
import unicodedata
from collections.abc import Mapping

LONGEST = 200  # letters of a value in a message
READABLE_ERRORS = "onepass.readable"  # a name for `errors=` of an encoding
ASCII_FORMS = {"±": "+-", "…": "...", "─": "-"}


def printable(text: str) -> str:
    r"""The same text with everything that is not to be seen written as an escape: control
    characters, line ends, changes of direction, bytes that are no text.

    >>> print(printable("a\x1b[31mred\r\n"), printable("Größe 猫"))
    a\x1b[31mred\r\n Größe 猫
    """
    return text if text.isprintable() else "".join(map(_escape_letter, text))


def _escape_letter(letter: str) -> str:
    if letter.isprintable() or unicodedata.category(letter) == "Zs":  # spaces of other scripts
        return letter
    return letter.encode("unicode_escape").decode()


def quoted(value: object) -> str:
    """As Python writes it; the middle is left out of what is very long.

    >>> quoted("er"), quoted(10**5000)
    ("'er'", 'a number of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # a number that Python refuses to write is inside
        return f"a {type(value).__name__} with a number of thousands of digits"
    return shortened(text)


def first_sentence(text: str) -> str:
    """Returns the first sentence of a docstring, without its full stop.

    >>> first_sentence("Keeps a reservoir of samples. More is\\n said in the paper.")
    'Keeps a reservoir of samples'
    """
    return " ".join(text.split()).split(". ")[0].rstrip(".")


def error_in_one_line(problem: Exception) -> str:
    """Returns what another's exception says, in one line; some quote all of a file."""
    return shortened(" ".join(str(problem).split())) or type(problem).__name__


def shortened(text: str) -> str:
    cut = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:cut]}...{text[-cut:]}"


def short_value(value: object) -> str:
    """A value of a setting in a few letters; of one that is no plain value, its kind.

    >>> short_value((0.3051830926545375,)), short_value((0.1,) * 512), short_value(object())
    ('(0.305183,)', '(0.1, 0.1, 0.1, ...: 512)', '<object>')
    """
    if isinstance(value, tuple):
        first = "".join(f"{short_value(one)}, " for one in value[:3])
        return f"({first.rstrip()})" if len(value) <= 3 else f"({first}...: {len(value)})"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str | int | None):
        return quoted(value)
    return f"<{type(value).__name__}>"


def natural_sort_key(text: str) -> tuple[list[str | int], str]:
    """A key to sort names by as people do: numbers in them by their size.

    >>> sorted(["m100-s0", "m50-s10", "m50-s2"], key=natural_sort_key)
    ['m50-s2', 'm50-s10', 'm100-s0']
    """
    parts = re.split(r"(\d+)", text, flags=re.ASCII)
    return [int(part) if at % 2 else part for at, part in enumerate(parts)], text


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """For notebooks: a small table, in which no text is taken for HTML.

    >>> html_table("<b>", {"a": 1})
    '<table><caption>&lt;b&gt;</caption><tr><th>a</th><td>1</td></tr></table>'
    """
    cells = [
        (html.escape(printable(name)), html.escape(printable(str(one))))
        for name, one in facts.items()
    ]
    rows = "".join(f"<tr><th>{name}</th><td>{one}</td></tr>" for name, one in cells)
    return f"<table><caption>{html.escape(printable(title))}</caption>{rows}</table>"


def format_rate(per_second: float) -> str:
    """Whole where it is fast, with digits where it is slow.

    >>> format_rate(1234.5), format_rate(27.41), format_rate(2.741), format_rate(0.3704)
    ('1234', '27.4', '2.74', '0.37')
    """
    digits = 0 if per_second >= 100 else 1 if per_second >= 10 else 2
    return f"{per_second:.{digits}f}" if per_second >= 0.1 else f"{per_second:.2g}"


def _replace_unencodable(problem: UnicodeError) -> tuple[str, int]:
    """For an encoding that does not have a letter: something like it, or its number."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    letters = problem.object[problem.start : problem.end]
    return "".join(ASCII_FORMS.get(one) or ascii(one)[1:-1] for one in letters), problem.end


codecs.register_error(READABLE_ERRORS, _replace_unencodable)


def _escape_record(record: logging.LogRecord) -> bool:
    """Warnings quote paths and names, and go to a terminal too."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


logging.getLogger("onepass").addFilter(_escape_record)
