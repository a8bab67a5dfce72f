"""The comparison of two records, and how values are shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.inspection.topic_verification import ABBREVIATED_CHARS, abbreviate, difference


@dataclass(frozen=True)
class Rec:
    offset: int = 7
    timestamp: int | None = 5
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = (("h", b""),)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Rec(offset=9), ""),
        (Rec(key=None), "key: 'k' against None"),
        (Rec(value=b""), "value: 'v' against ''"),
        (Rec(headers=(("h", None),)), "headers: (('h', b''),) against (('h', None),)"),
        (Rec(timestamp=6), "timestamp: 5 against 6"),
        (Rec(timestamp=None), "timestamp: 5 against None"),
        (None, "length: a record 'v' against no record"),
    ],
)
def test_the_first_field_that_differs_is_named(other: Rec | None, words: str) -> None:
    assert difference(Rec(), other) == words


def test_a_record_without_a_time_equals_its_copy() -> None:
    assert not difference(Rec(timestamp=None), replace(Rec(), timestamp=-1))


@given(st.one_of(st.none(), st.binary(max_size=500), st.text(max_size=300).map(str.encode)))
def test_abbreviations_are_short_and_whole_values_stay_whole(value: bytes | None) -> None:
    shown = abbreviate(value)
    assert len(shown) <= ABBREVIATED_CHARS
    if value is not None and len(value) < 15:
        assert not shown.endswith("B")


def test_long_values_tell_their_size() -> None:
    assert abbreviate(b"a" * 5000).endswith("...5000B")
    assert abbreviate(b"\x00\xff") == repr(b"\x00\xff")
    assert abbreviate("é".encode()) == "'é'"
