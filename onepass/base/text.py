"""Makes foreign text (names, paths, user input, log records) safe to display, and formats values.

A class name may contain a terminal's escape sequence, a file name bytes that are not text.
Displayed here, they stay on one line and have no effect.
"""

from __future__ import annotations

import codecs
import html
import logging
import re
import unicodedata
from collections.abc import Mapping

BYTE_ORDER_MARK = "\ufeff"  # some editors put it before the first line
LONGEST = 200  # characters of a value in a message
READABLE_ERRORS = "onepass.readable"  # an error handler of codecs, for `errors=`
ASCII_FORMS = {"±": "+-", "…": "...", "─": "-"}


def printable(text: str) -> str:
    r"""Returns the text with everything invisible as an escape sequence: control characters, line
    ends, changes of writing direction and bytes that are not text.

    >>> print(printable("a\x1b[31mred\r\n"), printable("Größe 猫"))
    a\x1b[31mred\r\n Größe 猫
    """
    return text if text.isprintable() else "".join(map(_escape_letter, text))


def _escape_letter(letter: str) -> str:
    # Python counts spaces other than " " (as in Chinese or French text) as unprintable
    if letter.isprintable() or unicodedata.category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape").decode()


def quoted(value: object) -> str:
    """Returns a value as Python writes it, without its middle if it is longer than 200 characters;
    for a huge whole number, its number of bits.

    >>> quoted("er"), quoted(10**5000)
    ("'er'", 'a number of 16610 bits')
    """
    # Python refuses to write an int of more than 4300 digits, and the digits would tell nothing
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # it contains an int of more than 4300 digits
        return f"a {type(value).__name__} with a number of thousands of digits"
    return shortened(text)


def first_sentence(text: str) -> str:
    """Returns the first sentence of a docstring, without its full stop.

    >>> first_sentence("Keeps a reservoir of samples. Details are\\n in the paper.")
    'Keeps a reservoir of samples'
    """
    return " ".join(text.split()).split(". ")[0].rstrip(".")


def error_in_one_line(problem: Exception) -> str:
    """Returns the text of a foreign exception in one line of bounded length, or its type if it has
    no text. Some exceptions quote a whole file."""
    return shortened(" ".join(str(problem).split())) or type(problem).__name__


def describe_encoding(problem: UnicodeDecodeError) -> str:
    """Returns what a file is that could not be read as UTF-8, and what to do. A file of UTF-16, as
    PowerShell writes it, begins with a mark.

    >>> try:
    ...     b"caf\\xe9".decode()
    ... except UnicodeDecodeError as problem:
    ...     describe_encoding(problem)
    'is not UTF-8 text (Latin-1?): save it as UTF-8'
    """
    marked = problem.object.startswith((b"\xff\xfe", b"\xfe\xff"))
    return f"is {'UTF-16 text' if marked else 'not UTF-8 text (Latin-1?)'}: save it as UTF-8"


def shortened(text: str) -> str:
    """Returns the text without its middle if it is longer than 200 characters."""
    cut = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:cut]}...{text[-cut:]}"


def short_value(value: object) -> str:
    """Returns a setting's value in a few characters, or its type if it is not a plain value.

    >>> short_value((0.3051830926545375,)), short_value((0.1,) * 512), short_value(object())
    ('(0.305183,)', '(0.1, 0.1, 0.1, ...: 512)', '<object>')
    """
    if isinstance(value, tuple):
        first = "".join(f"{short_value(item)}, " for item in value[:3])
        return f"({first.rstrip()})" if len(value) <= 3 else f"({first}...: {len(value)})"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str | int | None):
        return quoted(value)
    return f"<{type(value).__name__}>"


def natural_sort_key(text: str) -> tuple[list[str | int], str]:
    """Returns a sort key that orders the numbers in names by size, as people do.

    >>> sorted(["m100-s0", "m50-s10", "m50-s2"], key=natural_sort_key)
    ['m50-s2', 'm50-s10', 'm100-s0']
    """
    pieces = re.split(r"(\d+)", text, flags=re.ASCII)  # text and numbers in turn, text first
    return [int(piece) if at % 2 else piece for at, piece in enumerate(pieces)], text


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """Returns a small HTML table for notebooks; text in it is escaped.

    >>> html_table("<b>", {"a": 1})
    '<table><caption>&lt;b&gt;</caption><tr><th>a</th><td>1</td></tr></table>'
    """
    cells = [
        (html.escape(printable(name)), html.escape(printable(str(value))))
        for name, value in facts.items()
    ]
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells)
    return f"<table><caption>{html.escape(printable(title))}</caption>{rows}</table>"


def format_rate(per_second: float) -> str:
    """Returns a rate with about three digits: whole if it is high, with decimals if it is low.

    >>> format_rate(1234.5), format_rate(27.41), format_rate(2.741), format_rate(0.3704)
    ('1234', '27.4', '2.74', '0.37')
    """
    digits = 0 if per_second >= 100 else 1 if per_second >= 10 else 2
    return f"{per_second:.{digits}f}" if per_second >= 0.1 else f"{per_second:.2g}"


def format_duration(seconds: float) -> str:
    """Returns seconds as text with a fitting unit.

    >>> format_duration(7.2), format_duration(600), format_duration(9000)
    ('7 s', '10.0 m', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} m" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def format_bytes(count: int) -> str:
    """Returns a number of bytes with a unit; "-" for none.

    >>> format_bytes(0), format_bytes(7200), format_bytes(3_080_000)
    ('-', '7.2 kB', '3.1 MB')
    """
    if not count:
        return "-"
    unit, name = (1e6, "MB") if count >= 1e6 else (1e3, "kB")
    return f"{count / unit:.1f} {name}"


def _replace_unencodable(problem: UnicodeError) -> tuple[str, int]:
    """Returns a replacement for the characters that an encoding lacks, and the position after them:
    similar ASCII, or escape sequences."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    letters = problem.object[problem.start : problem.end]
    return (
        "".join(ASCII_FORMS.get(letter) or ascii(letter)[1:-1] for letter in letters),
        problem.end,
    )


codecs.register_error(READABLE_ERRORS, _replace_unencodable)


def _escape_record(record: logging.LogRecord) -> bool:
    """Escapes a log record in place, because warnings quote paths and names and go to terminals;
    returns True, which lets the record pass."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


logging.getLogger("onepass").addFilter(_escape_record)
