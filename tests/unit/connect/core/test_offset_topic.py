"""Java's bytes for source offsets, and the fold of their topic."""

from __future__ import annotations

from itertools import permutations

import pytest

from connect.core import status_and_offset_topics
from connect.core.status_and_offset_topics import SourceOffsets

CONNECTOR = "MirrorSourceConnector"


def test_bytes_of_a_mirrored_partition() -> None:
    key = status_and_offset_topics.mirror_key(CONNECTOR, "us", "t", 0)
    assert key == b'["MirrorSourceConnector",{"cluster":"us","partition":0,"topic":"t"}]'
    assert status_and_offset_topics.mirror_value(41) == b'{"offset":41}'


def folded(*records: tuple[bytes | None, bytes | None]) -> SourceOffsets:
    state = SourceOffsets()
    for key, value in records:
        assert status_and_offset_topics.apply(state, key, value) is None
    return state


def test_the_latest_offset_counts() -> None:
    key = status_and_offset_topics.mirror_key(CONNECTOR, "us", "t", 3)
    state = folded((key, b'{"offset":1}'), (key, b'{"offset":7}'))
    assert state.mirrored_offset(CONNECTOR, "us", "t", 3) == 7
    assert state.mirrored_offset(CONNECTOR, "us", "t", 4) is None
    assert state.mirrored_offset("other", "us", "t", 3) is None
    assert state.partitions == {CONNECTOR: {key: {"cluster": "us", "partition": 3, "topic": "t"}}}


def test_a_tombstone_resets() -> None:
    key = status_and_offset_topics.mirror_key(CONNECTOR, "us", "t", 3)
    state = folded((key, b'{"offset":1}'), (key, None))
    assert state == SourceOffsets(partitions={CONNECTOR: {}})


@pytest.mark.parametrize(
    "order",
    [
        # As Java's connectors store them, and as its worker stored what came over REST.
        ("cluster", "partition", "topic"),
        ("partition", "topic", "group"),
        ("sourceClusterAlias", "targetClusterAlias"),
        ("cluster", "partition", "more", "topic"),
    ],
)
def test_java_maps_have_an_order_of_their_own(order: tuple[str, ...]) -> None:
    for given_order in permutations(order):
        assert tuple(status_and_offset_topics.in_java_order(dict.fromkeys(given_order))) == order


def test_large_java_maps_have_larger_tables() -> None:
    """27 fields make a table of 64: in one of 32, a and A would share a bucket."""
    letters = [*"ABCDEFGHIJKLMNOPQRSTUVWXYZa"]
    assert list(status_and_offset_topics.in_java_order(dict.fromkeys(reversed(letters)))) == letters


@pytest.mark.parametrize(
    "value", [b"{}", b'{"offset":null}', b'{"offset":"5"}', b'{"offset":-1}', b'{"offset":true}', b'{"offset":1.5}']
)
def test_an_offset_that_is_none(value: bytes) -> None:
    state = folded((status_and_offset_topics.mirror_key(CONNECTOR, "us", "t", 0), value))
    assert state.mirrored_offset(CONNECTOR, "us", "t", 0) is None


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        *((key, b"{}", "not an array") for key in (None, b'{"a":1}', b'["a"]', b'["a",[]]', b"[1,{}]")),
        *((key, b"{}", "key cannot be read") for key in (b"\xff", b"[1")),
        (b'["a",{}]', b"{", "value cannot be read"),
        (b'["a",{}]', b"[]", "value is not an object"),
    ],
)
def test_foreign_records_are_passed_over_with_a_word(key: bytes | None, value: bytes, why: str) -> None:
    state = SourceOffsets()
    said = status_and_offset_topics.apply(state, key, value)
    assert said is not None
    assert why in said
    assert state == SourceOffsets()
