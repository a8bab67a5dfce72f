"""Versions and ranges of them."""

from __future__ import annotations

import pytest

from connect.runtime.plugins.plugin_registry import InvalidRange, parse_range, version_key

RISING = [
    *("0.9", "1.0-alpha1", "1.0-beta2", "1.0-rc1", "1.0-rc2", "1.0-SNAPSHOT"),
    *("1.0", "1.0.1", "1.9", "1.10", "2.0-1", "10"),
]


def test_order() -> None:
    falling = RISING[::-1]
    assert sorted(falling, key=version_key) == RISING
    assert version_key("1") == version_key("1.0.0") == version_key("1.0-final")


@pytest.mark.parametrize(
    ("text", "newest"),
    [
        ("1.0", "1.0"),
        ("1.1", None),
        ("[1.0]", "1.0"),
        ("[1.0,2.0)", "1.10"),
        ("(,1.9]", "1.9"),
        ("(,1.9)", "1.0.1"),
        ("[1.10,)", "10"),
        ("(1.10,)", "10"),
        ("[0.1,0.9],[1.0.1]", "1.0.1"),
        ("[0.1,0.9] , (1.0,1.9]", "1.9"),
    ],
)
def test_the_newest_in_a_range(text: str, newest: str | None) -> None:
    found = parse_range(text)
    assert found is not None
    assert found.newest(RISING) == newest


def test_a_bare_version_is_a_range_of_itself() -> None:
    assert str(parse_range(" 1.0 ")) == "[1.0,1.0]"


@pytest.mark.parametrize("text", ["latest", "", " "])
def test_no_wish(text: str) -> None:
    assert parse_range(text) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[bad", "Unbounded range: [bad"),
        ("(1)", "Single version must be surrounded by []: (1)"),
        ("[2,1]", "Range defies version ordering: [2,1]"),
        ("[1,1)", "Range defies version ordering: [1,1)"),
        ("[1,3],[2,4]", "Ranges overlap: [1,3],[2,4]"),
        ("[1,),[2,4]", "Ranges overlap: [1,),[2,4]"),
        ("[1]x", "Only fully-qualified sets allowed in multiple set scenario: [1]x"),
    ],
)
def test_malformed_ranges_are_refused_in_mavens_words(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRange) as caught:
        parse_range(text)
    assert str(caught.value) == sentence
