"""Records of MirrorMaker 2 about itself, against bytes of Java's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.formats.mirror_records import Checkpoint, Heartbeat, MalformedRecord, OffsetSync

VECTORS: list[tuple[Heartbeat | Checkpoint | OffsetSync, str, str]] = [
    (OffsetSync("t1", 2, 5, 7), "0002743100000002", "00000000000000050000000000000007"),
    (Checkpoint("g", "us.t1", 2, 5, 7, ""), "000167000575732e743100000002", "0000000000000000000500000000000000070000"),
    (Heartbeat("us", "eu", 1_700_000_000_000), "0002757300026575", "00000000018bcfe56800"),
]


@pytest.mark.parametrize(("record", "key", "value"), VECTORS)
def test_bytes_are_javas(record: Heartbeat | Checkpoint | OffsetSync, key: str, value: str) -> None:
    assert (record.key().hex(), record.value().hex()) == (key, value)
    assert type(record).decode(bytes.fromhex(key), bytes.fromhex(value)) == record


longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)


@given(
    st.builds(Heartbeat, st.text(), st.text(), longs)
    | st.builds(Checkpoint, st.text(), st.text(), ints, longs, longs, st.text())
    | st.builds(OffsetSync, st.text(), ints, longs, longs)
)
def test_records_come_back(record: Heartbeat | Checkpoint | OffsetSync) -> None:
    assert type(record).decode(record.key(), record.value()) == record


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40), st.sampled_from([Heartbeat, Checkpoint]))
def test_other_bytes_are_refused_in_one_way(key: bytes | None, value: bytes | None, kind: type[Heartbeat]) -> None:
    try:
        record = kind.decode(key, value)
    except MalformedRecord:
        return
    assert key is not None and value is not None
    assert key.startswith(record.key()) and value.startswith(record.value())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (None, b"\0\0" + bytes(8), "no key or no value"),
        (b"\0\1a\0\1b", b"\0\1" + bytes(8), "has version 1, and only 0 is known"),
        (b"\0\1a\0\2b", b"\0\0" + bytes(8), "ends within a field"),
        (b"\xff\xffa\0\1b", b"\0\0" + bytes(8), "ends within a field"),
        (b"\0\1\xff\0\1b", b"\0\0" + bytes(8), "not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(key: bytes | None, value: bytes, words: str) -> None:
    with pytest.raises(MalformedRecord, match=words):
        Heartbeat.decode(key, value)


def test_a_name_that_does_not_fit() -> None:
    with pytest.raises(MalformedRecord, match="is longer than the 32767 bytes"):
        Heartbeat("x" * 32768, "eu", 0).key()
