"""Properties files: Java's syntax, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.config.properties import MAX_FILE_BYTES, load_properties, parse_properties
from connect.core.errors import ConfigError

TEXT = rb"""
# a comment
! another
us->eu.enabled = true
us.bootstrap.servers=a:9092,\
                     b:9092
spaced\ key : value with spaces\u0020
tasks.max 2
empty
us->eu.enabled = false
"""


def test_keys_values_and_lines() -> None:
    properties = parse_properties(TEXT, "mm2.properties")
    assert dict(properties) == {
        "us->eu.enabled": "false",
        "us.bootstrap.servers": "a:9092,b:9092",
        "spaced key": "value with spaces ",
        "tasks.max": "2",
        "empty": "",
    }
    assert [properties.line(key) for key in properties] == [10, 5, 7, 8, 9]
    assert properties.line("absent") is None


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_whatever_ends_them(line_end: str) -> None:
    properties = parse_properties(line_end.join(["# x", "a=\\", "  1", "", "b=2"]))
    assert (properties["a"], properties.line("a"), properties.line("b")) == ("1", 2, 5)


def test_bytes_are_latin_1_and_a_byte_order_mark_is_skipped() -> None:
    assert dict(parse_properties(b"\xef\xbb\xbfname=caf\xe9")) == {"name": "café"}


def test_escapes_beyond_the_basic_plane() -> None:
    assert parse_properties(r"a=\uD83D\uDE00")["a"] == "\U0001f600"


def test_a_malformed_escape_names_the_line_and_not_the_value() -> None:
    with pytest.raises(ConfigError, match=r"^f\.properties:2: malformed \\u escape") as caught:
        parse_properties("a=1\npassword=secret\\u12", "f.properties")
    assert "secret" not in str(caught.value)


def test_repr_holds_no_values() -> None:
    assert "s3cret" not in repr(parse_properties("password=s3cret"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent", b"", "cannot be read: No such file"),
        ("", b"", "is a folder"),
        ("file", b"PK\x03\x04\0\0", "binary data"),
        ("file", b"#" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
    ids=["absent", "folder", "binary", "large"],
)
def test_what_is_no_properties_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_properties(tmp_path / name)
    assert caught.value.file == str(tmp_path / name)


@given(st.dictionaries(st.text("abc.->$\\ =:#!é\t", min_size=1), st.text("ab\\ =:#!é\t\n")))
def test_what_is_escaped_comes_back(values: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return "".join(f"\\u{ord(char):04x}" if not char.isalnum() or ord(char) > 127 else char for char in text)

    text = "".join(f"{escaped(key)}={escaped(value)}\n" for key, value in values.items())
    assert dict(parse_properties(text)) == values


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\\"), max_size=60))
def test_any_text_without_escapes_is_read(text: str) -> None:
    properties = parse_properties(text.encode("latin-1"), "f")
    assert all(properties.line(key) is not None for key in properties)


def test_a_warning_has_the_file_and_the_line_of_the_key_that_it_begins_with(tmp_path: Path) -> None:
    file = tmp_path / "worker.properties"
    file.write_text("group.id = g\nplugin.path = /plugins\n")
    found = load_properties(file)
    assert found.warning("plugin.path has no effect") == f"{file}:2: plugin.path has no effect"
    assert found.warning("two flows form a circle") == f"{file}: two flows form a circle"
