"""Positions as bytes: they come back as they went, and what is not known is refused with a word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.formats.position import (
    KeyKind,
    LastRun,
    LaterFormat,
    Position,
    PositionKey,
    StoredPosition,
    UnknownFormat,
    can_follow,
    decode_kind,
    decode_position,
    decode_position_key,
    encode_claimant_header,
    encode_position,
    encode_position_key,
    encode_progress,
    encode_run_header,
    fold_position,
)

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.none() | st.uuids().filter(lambda value: value != UUID(int=0))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=249)
POSITIONS = st.builds(
    Position,
    source_topic=NAMES,
    source_partition=INT32,
    source_topic_id=IDS,
    next_source_offset=INT64,
    source_leader_epoch=INT32,
    target_topic=NAMES,
    target_partition=INT32,
    target_topic_id=IDS,
    target_end=INT64,
    transactional_id=NAMES,
    producer_id=INT64,
    producer_epoch=INT16,
    next_sequence=INT32,
    is_handed_over=st.booleans(),
    is_atomic=st.booleans(),
    is_last_ours=st.booleans(),
)
EXAMPLE = Position("orders", 1, UUID(int=1), 10, 2, "us.orders", 1, UUID(int=2), 9, "txn", 77, 3, 8)
KEY = PositionKey("MirrorSourceConnector", "orders", 1)


@given(connector=NAMES, position=POSITIONS)
def test_round_trip(connector: str, position: Position) -> None:
    key = PositionKey(connector, position.source_topic, position.source_partition)
    raw = encode_position_key(key)
    assert decode_kind(raw) is KeyKind.POSITION
    assert decode_position_key(raw) == key
    assert decode_position(key, encode_position(position)) == position


def test_the_bytes_stay() -> None:
    """Stored for years: a change of these bytes is a change of version."""
    key = encode_position_key(KEY).hex()
    assert key == "0101" + "0015" + b"MirrorSourceConnector".hex() + "0006" + b"orders".hex() + "00000001"
    assert encode_position(EXAMPLE).hex() == (
        "01" + "000000000000000a" + "00000002" + "00000001" + "0000000000000009" + "000000000000004d" + "0003"
        "00000008" + UUID(int=1).hex + UUID(int=2).hex + "0009" + b"us.orders".hex() + "0003" + b"txn".hex() + "00"
    )


def test_each_flag_has_its_bit() -> None:
    flags = {"is_handed_over": 1, "is_atomic": 2, "is_last_ours": 4}
    assert {name: encode_position(replace(EXAMPLE, **{name: True}))[-1] for name in flags} == flags  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [None, b"", b"\x01", b"\x02[", b'["connector",{}]', b"[" * 9])
def test_unknown_keys_are_refused(key: bytes | None) -> None:
    with pytest.raises(UnknownFormat):
        decode_kind(key)


@pytest.mark.parametrize("read", [decode_kind, lambda data: decode_position(KEY, data)])
def test_what_a_later_version_wrote_is_not_passed_over(read: Callable[[bytes], object]) -> None:
    with pytest.raises(LaterFormat, match="of version 2: this Heliograph knows version 1 only"):
        read(b"\x02\x01")


def test_kinds_of_later_versions_are_passed_over() -> None:
    assert decode_kind(b"\x01\x63 whatever it holds") is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "version none"),
        (b"[" + encode_position(EXAMPLE)[1:], "of version 91"),
        (encode_position(EXAMPLE)[:-1], "cut short"),
        (encode_position(EXAMPLE)[:20], "cut short"),
        (encode_position(EXAMPLE) + b"\x00", "1 bytes too many"),
    ],
)
def test_values_of_another_form_are_refused(value: bytes, said: str) -> None:
    with pytest.raises(UnknownFormat, match=said):
        decode_position(KEY, value)


def progress(**changes: Any) -> bytes:
    return encode_progress(replace(EXAMPLE, **changes), LastRun(3, 9))


def folded(*records: tuple[KeyKind, bytes | None], run: LastRun | None = None) -> StoredPosition | None:
    headers = (encode_run_header(run),) if run else ()
    found = None
    for kind, value in records:
        found = fold_position(found, kind, KEY, value, headers if kind is KeyKind.POSITION else ())
    return found


FULL = (KeyKind.POSITION, encode_position(EXAMPLE))
LATER = replace(EXAMPLE, next_source_offset=20, source_leader_epoch=4, target_end=18, next_sequence=17)
FLAGS = {"is_handed_over": True, "is_last_ours": True}
OTHERS = {"target_topic": "other", "producer_epoch": 9, "next_source_offset": 9}


def test_progress_goes_on_from_the_full_record_before_it() -> None:
    assert can_follow(LATER, EXAMPLE)
    later = (KeyKind.PROGRESS, encode_progress(LATER, LastRun(3, 9)))
    assert folded(FULL, later) == StoredPosition(LATER, EXAMPLE, LastRun(3, 9))
    assert folded(FULL, later, FULL, run=LastRun(3, 7)) == StoredPosition(EXAMPLE, EXAMPLE, LastRun(3, 7))
    assert folded(later) is None
    assert folded(FULL, later, (KeyKind.POSITION, None), later) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"producer_epoch": 4, "next_source_offset": 30},  # of a writer that was superseded, or its successor's
        {"producer_id": 78, "next_source_offset": 30},
        {"next_source_offset": 19},  # a request that arrived late
        {"next_source_offset": 20},
    ],
)
def test_progress_of_another_producer_or_of_before_does_not_count(changes: dict[str, Any]) -> None:
    later = (KeyKind.PROGRESS, encode_progress(LATER, None))
    assert folded(FULL, later, (KeyKind.PROGRESS, progress(**changes))) == StoredPosition(LATER, EXAMPLE, None)


def test_progress_that_arrives_after_the_hand_over_does_not_count() -> None:
    over = replace(EXAMPLE, is_handed_over=True)
    late = (KeyKind.PROGRESS, progress(next_source_offset=30))
    assert folded((KeyKind.POSITION, encode_position(over)), late) == StoredPosition(over, over)


@pytest.mark.parametrize("changes", [{name: value} for name, value in {**FLAGS, **OTHERS}.items()])
def test_what_progress_has_no_room_for_needs_a_full_record(changes: dict[str, Any]) -> None:
    assert not can_follow(replace(EXAMPLE, **changes), EXAMPLE)


@pytest.mark.parametrize(("java", "altered"), [(9, False), (19, True), (8, True), (None, True)])
def test_javas_offset_is_altered_if_it_is_not_the_one_of_the_full_record(java: int | None, altered: bool) -> None:
    assert StoredPosition(LATER, EXAMPLE).was_altered(java) is altered


def test_an_earlier_version_reads_the_full_record_and_passes_progress_over() -> None:
    """It knows kinds up to 8, ignores headers, and refuses values with bytes it does not know."""
    assert encode_position_key(KEY, KeyKind.PROGRESS)[1] == 9
    assert len(encode_position(EXAMPLE)) == 71 + 2 + len("us.orders") + 2 + len("txn") + 1


def test_a_claimant_stands_beside_the_position_until_its_successor_writes_one() -> None:
    claimed = KeyKind.POSITION, encode_position(EXAMPLE), (encode_claimant_header("mm2-1-commit"),)
    stored = None
    for kind, value, headers in (claimed, (KeyKind.PROGRESS, encode_progress(LATER, None), ())):
        stored = fold_position(stored, kind, KEY, value, headers)
        assert stored is not None
        assert stored.claimant == "mm2-1-commit"
    stored = fold_position(stored, KeyKind.POSITION, KEY, encode_position(EXAMPLE), ())
    assert stored == StoredPosition(EXAMPLE, EXAMPLE)
