"""A merged batch holds the records of its parts, as Kafka's clients write them."""

from __future__ import annotations

import random

import pytest

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.merge import MOST_OPENED_BYTES, Unmergeable, merge, zigzag

_NOW_MS = 1_700_000_000_000


def drawn(chance: random.Random, count: int) -> list[records.Record]:
    """Of every length of length, and of timestamps far from the first one's, both ways."""

    def text(most: int) -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(most))])

    return [
        records.Record(
            index,
            chance.choice([_NOW_MS, _NOW_MS + chance.randrange(-(10**11), 10**11), 0, records.NO_TIMESTAMP]),
            text(200),
            text(chance.choice([50, 5000, 40_000])),
            [("header", b"value")] * chance.randrange(3),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("codec", range(5), ids=wire.CODEC_NAMES)
@pytest.mark.parametrize("seed", range(10))
def test_the_records_of_all_parts_follow_one_another(codec: int, seed: int) -> None:
    chance = random.Random(f"{codec}/{seed}")
    parts = [drawn(chance, chance.choice([1, 1, 2, 150])) for _ in range(chance.randrange(1, 9))]
    built = [memoryview(records.build(part, codec, 9, 9, 9)) for part in parts]
    merged = merge(built, codec, 7, 3, 2**31 - 5)
    header = wire.read_header(merged)
    wanted = [record for part in parts for record in part]
    assert header.crc == wire.checksum(merged)
    assert header.size_bytes == len(merged)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 2**31 - 5)
    assert (header.base_offset, header.leader_epoch, header.magic) == (0, -1, 2)
    assert header.attributes == codec
    assert header.record_count == header.last_offset_delta + 1 == len(wanted)
    assert header.max_timestamp == max(record.timestamp_ms for record in wanted)
    found = list(records.decode(merged, 2))
    assert [record.offset for record in found] == list(range(len(wanted)))
    assert [record[1:] for record in found] == [record[1:] for record in wanted]


def test_a_merged_batch_is_byte_for_byte_what_a_producer_would_have_written() -> None:
    chance = random.Random(1)
    wanted = [records.Record(index, _NOW_MS + index, b"key", chance.randbytes(100), []) for index in range(300)]
    parts = [memoryview(records.build(wanted[at : at + 7], 0, 1, 1, 1)) for at in range(0, 300, 7)]
    assert merge(parts, 0, 5, 6, 7) == records.build(wanted, 0, 5, 6, 7)


@pytest.mark.parametrize(
    ("number", "bytes_"),
    [
        (0, b"\x00"),
        (-1, b"\x01"),
        (63, b"\x7e"),
        (64, b"\x80\x01"),
        (-64, b"\x7f"),
        (2**63 - 1, b"\xfe" + b"\xff" * 8 + b"\x01"),
    ],
)
def test_numbers_are_zigzag_varints(number: int, bytes_: bytes) -> None:
    assert zigzag(number) == bytes_


@pytest.mark.parametrize("codec", range(5), ids=wire.CODEC_NAMES)
def test_a_batch_that_cannot_be_read_is_named_whatever_the_codec(codec: int) -> None:
    one = records.build([records.Record(0, _NOW_MS, None, b"v" * 100, [])], codec, 1, 1, 1)
    broken = bytearray(one)
    broken[wire.HEADER_BYTES :] = b"\xff" * 5
    with pytest.raises(Unmergeable):
        merge([one, broken], codec, 5, 6, 7)


def test_what_compresses_too_well_is_not_merged() -> None:
    value = bytes(MOST_OPENED_BYTES // 3)
    one = records.build([records.Record(0, _NOW_MS, None, value, [])], 4, 1, 1, 1)
    assert len(one) < 10_000
    merge([one, one], 4, 5, 6, 7)
    with pytest.raises(Unmergeable, match="more than"):
        merge([one, one, one, one], 4, 5, 6, 7)
