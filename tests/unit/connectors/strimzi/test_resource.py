"""YAML with lines."""

import pytest

from connect.core.errors import ConfigError
from connectors.strimzi.resource import read_documents


def test_every_field_knows_its_line() -> None:
    first, second = read_documents("a:\n  b: 1\n  c:\n    - x\n    - d: true\n---\ne: no\n", "f.yaml")
    assert (first.field("a").line, first.field("a").field("b").line) == (1, 2)
    assert first.field("a").field("c").items()[1].field("d").line == 5
    assert first.field("a").field("not-there").line == 1
    assert (second.field("e").line, second.field("e").text()) == (7, "false")


def test_scalars_are_written_as_java_writes_them() -> None:
    (found,) = read_documents("config: {a: -1, b: true, c: 1.5, d: 'x', e: , f: 'true'}\n", "f.yaml")
    assert found.field("config").settings() == {"a": "-1", "b": "true", "c": "1.5", "d": "x", "f": "true"}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [", 2, "this is not YAML"),
        ("a: 1\na: 2\n", 2, "a is set twice"),
        ("a: !!python/object:os.system x\n", 1, "this is not YAML"),
        ("? [a]\n: 1\n", 1, "a key must be text"),
        ("a:\n  ~: x\n", 2, "a key must be text"),
        ('a:\n  1: x\n  "1": y\n', 3, "a.1 is set twice"),
        ("a: &a\n  - *a\n", 2, "aliases and tags are not supported"),
        ("a: &a {b: 1}\nc: {<<: *a, d: 2}\n", 2, "aliases and tags are not supported"),
        ("a: {<<: {b: 1}}\n", 1, "a key must be text"),
        ("a:\n  b: !!bool foo\n", 2, "aliases and tags are not supported"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', None, "an escape is not a valid character"),
        ('a: 1\nb: "\\ud800"\n', 2, "an escape is half a character"),
        ("a: \x01\n", None, "characters that are not allowed"),
        (f"a:\n  {'[' * 101}{']' * 101}", 2, "nested more than 100 levels deep"),
        (f"a:\n  {'[' * 5000}", None, "nested more than 100 levels deep"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        read_documents(text, "f.yaml")
    assert (error.value.file, error.value.line) == ("f.yaml", line)


def test_as_deep_as_is_allowed() -> None:
    (found,) = read_documents("[" * 99 + "a" + "]" * 99, "f.yaml")
    assert [each.value for each in found.texts()] == ["a"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # What is a date or a number of base 60 in YAML 1.1.
        *((text, text) for text in ("2020-01-01", "2024-99-99", "2001-12-14t21:59:43.10-05:00", "10:30", "1:30.5")),
        *((text, "true") for text in ("yes", "On", "TRUE", "y")),
        *((text, "false") for text in ("no", "Off", "FALSE", "n")),
        *((text, text) for text in ("yEs", "_1", "0x_", "1.2.3", "=", "1e999", "1" * 5000)),
        *(
            ("0x1F", "31"),
            ("010", "8"),
            ("0o10", "8"),
            ("0b1_0", "2"),
            ("1_000", "1000"),
            ("+12", "12"),
            ("-0b1", "-1"),
        ),
        *(("5.0", "5"), ("3600e3", "3600000"), (".5", "0.5"), ("08", "8"), ("1e300", "1e+300")),
        *(("'10'", "10"), ("'10:30'", "10:30"), ("<<", "<<")),
        *(("", None), ("~", None), ("Null", None), ("nULL", "nULL")),
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(text: str, read: str | None) -> None:
    (found,) = read_documents(f"a: {text}\n", "f.yaml")
    assert found.field("a").text() == read


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [1]", "a must be a mapping"), ("a: {b: {c: 1}}", r"a\.b must be text"), ("a: {}", r"a\.b is missing")],
)
def test_a_field_of_another_shape_is_refused(text: str, words: str) -> None:
    (found,) = read_documents(text, "f.yaml")
    with pytest.raises(ConfigError, match=words):
        found.field("a").required("b")


@pytest.mark.parametrize(
    ("key", "read"), [("y", "true"), ("No", "false"), ("0x1F", "31"), ("1.5", "1.5"), ("'y'", "y")]
)
def test_keys_are_text_as_json_has_them(key: str, read: str) -> None:
    (found,) = read_documents(f"a: {{{key}: b}}\n", "f.yaml")
    assert found.field("a").field(read).text() == "b"
