"""Tests of settings in TOML files, which are read as `--set` takes them and written back."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from onepass.base import toml
from onepass.base.errors import InputError

NAMES = some.from_regex(r"[a-z_]{1,8}", fullmatch=True)
VALUES = some.one_of(
    some.floats(allow_nan=False, allow_infinity=False).map(repr),
    some.integers(-(2**63), 2**63 - 1).map(str),
    some.sampled_from(
        ["true", "false", "none", "(0.5, 0.25)", "5e-4", "+1", "1_000", "nan", "inf"]
    ),
    some.text(some.characters(exclude_categories=["Cs"]), max_size=20),
)


@given(some.dictionaries(NAMES, VALUES))
def test_written_settings_are_read_back_as_the_same_texts(tmp_path_factory, settings):
    file = tmp_path_factory.getbasetemp() / "settings.toml"
    file.write_text(toml.settings_as_toml(settings), "utf-8", newline="\n")
    assert toml.read_settings_file(file) == settings


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        (b"lr = ", "is not TOML"),
        (b"\xff", "is not UTF-8 text"),
        (b'a = 1\nlr = "1e-3\n', "a quote is not closed .at line 2"),
        (b"lr = '1e-3\nb = 'c'", "a quote is not closed .at line 1"),
        (b"lr = '1e-3", "a quote is not closed .at end of document"),
        ("lr = 1".encode("utf-16"), "is UTF-16 text"),
        (b"\xef\xbb\xbflr = 1", "begins with a byte order mark"),
        (b"a = " + b"[" * 100_000, "is not TOML"),
        (b"[table]\nlr = 1", "table must be a number"),
        (b"lr = [[1]]", "lr must be a number"),
        (b"lr = 2026-11-16", "lr must be a number"),
    ],
)
def test_a_file_without_settings_is_a_one_line_error_that_names_it(content, said, tmp_path):
    file = tmp_path / "settings.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        toml.read_settings_file(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
