"""Records taken out of a batch and put into one: any header keys, every codec, never beyond the limit."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest
import zstandard
from aiokafka.codec import lz4_encode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.batch import bytes_of, is_text, key_of, readable
from connect.wire.records import MOST_BYTES, TooLarge, header_checksum, open_payload
from tests.kit.logs import bomb_batch, bomb_message, source_batch

LATIN = "\udce9t\udce9"  # what is b"\xe9t\xe9" on the wire
keys = st.binary(max_size=6).map(key_of)
headers = st.lists(st.tuples(keys, st.none() | st.binary(max_size=6)), max_size=3)
fields = st.tuples(
    st.just(0), st.integers(-1, 2**41), st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=9), headers
)


def built(*made: records.Record, codec: int = 0) -> bytes:
    return bytes(records.build(made, codec, 7, 1, 5))


@given(st.binary())
def test_no_byte_of_a_key_is_lost(data: bytes) -> None:
    assert bytes_of(key_of(data)) == data
    assert readable(key_of(data)) == data.decode(errors="replace")
    assert is_text(key_of(data)) == (data.decode(errors="replace").encode() == data)


@given(st.lists(fields, min_size=1, max_size=5), st.sampled_from([0, 1, 2, 3, 4]))
def test_records_go_into_a_batch_and_out_again(given: list, codec: int) -> None:
    made = [records.Record(offset, *rest) for offset, (_, *rest) in enumerate(given)]
    batch = built(*made, codec=codec)
    header = wire.read_header(batch)
    assert list(records.decode(batch, 2)) == made
    assert (header.crc, header.size_bytes, header.codec) == (wire.checksum(batch), len(batch), codec)
    assert built(*records.decode(batch, 2), codec=codec) == batch
    assert list(records.read(records.opened_batch(batch))) == made
    assert (header.base_timestamp, header.max_timestamp) == (given[0][1], max(one[1] for one in given))


@given(st.lists(fields, min_size=1, max_size=5))
def test_plain_python_writes_what_aiokafka_writes(given: list) -> None:
    made = []
    for offset, (_, time_ms, key, value, pairs) in enumerate(given):
        shown = [(readable(name), content) for name, content in pairs]
        made.append(records.Record(offset, time_ms, key, value, shown))
    assert records.payload(made) == built(*made)[wire.HEADER_BYTES :]


def test_times_and_offsets_of_a_broker_are_seen_behind_such_a_key() -> None:
    batch = bytearray(source_batch([40, 43, 45], attributes=wire.LOG_APPEND_TIME))
    plain = list(records.decode(batch, 2))
    key = batch.index(b"\x02n\x04")
    batch[key + 1] = 0xE9
    assert next(records.decode(batch, 2)).headers == [("\udce9", b"40")]
    assert [one._replace(headers=[]) for one in records.decode(batch, 2)] == [one._replace(headers=[]) for one in plain]


def test_what_is_damaged_is_told_behind_such_a_key_too() -> None:
    batch = bytearray(built(records.Record(0, 5, b"k", b"v", [(LATIN, b"end")])))
    for cut_off in (1, 3, 5):
        with pytest.raises(CorruptRecordException):
            list(records.read(bytes(batch[:-cut_off])))
    struct.pack_into(">i", batch, 57, 2)
    with pytest.raises(CorruptRecordException):
        list(records.decode(batch, 2))


def test_half_of_a_pair_that_stands_for_no_byte_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        built(records.Record(0, 5, None, None, [("\ud800", None)]))


@pytest.mark.parametrize(
    "read",
    [
        lambda: list(records.decode(bomb_batch(5), 2)),
        lambda: list(records.decode(bomb_message(5), 1)),
        lambda: list(records.read(records.opened_batch(bomb_batch(5)))),
    ],
    ids=["batch", "message of magic 1", "batch in plain Python"],
)
def test_a_mib_that_expands_to_a_gib_is_refused_in_bounded_memory(read: Callable[[], object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            read()
        assert tracemalloc.get_traced_memory()[1] < 1.2 * MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_compresses_well_is_read_within_the_bound(codec: int) -> None:
    made = [records.Record(offset, 5, None, bytes(1 << 20), []) for offset in range(20)]
    assert list(records.decode(built(*made, codec=codec), 2)) == made


CODECS = (1, 2, 3, 4)


def text(size: int) -> bytes:
    """What compresses as records do."""
    return "".join(random.Random(size).choices("abcdefgh", k=size)).encode()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 1000, 200_000])
def test_a_payload_comes_out_as_it_was(codec: int, size: int) -> None:
    payload = text(size)
    assert bytes(open_payload(records.compress(payload, codec), codec, 1 << 20)) == payload


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_more_than_it_may_be_is_refused(codec: int) -> None:
    packed = records.compress(text(10_000), codec)
    assert len(open_payload(packed, codec, 10_000)) == 10_000
    with pytest.raises(TooLarge):
        open_payload(packed, codec, 9_999)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_refused(codec: int) -> None:
    packed = bytearray(records.compress(b"some text of some length" * 20, codec))
    packed[len(packed) // 2 :] = b"\xff" * 5
    with pytest.raises(TooLarge):
        open_payload(bytes(packed), codec, 1 << 20)


def test_messages_of_magic_1_are_read() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    for offset in (0, 1):
        builder.append(offset, timestamp=5, key=b"k", value=None)
    found = list(records.decode(bytes(builder.build()), 1))
    assert found == [records.Record(offset, 5, b"k", None, []) for offset in (0, 1)]


def test_levels_that_are_not_set_are_javas() -> None:
    payload = b"".join(b'{"order": %d, "total": %d}' % (number, number * 7919 % 1000) for number in range(500))
    lz4, zstd_of = (partial(records.compress, payload, codec) for codec in (3, 4))
    assert lz4() == lz4(9)  # Java's default, which is not its ninth level
    assert len(lz4(10)) < len(lz4())
    assert zstd_of() == zstd_of(3) != zstd_of(1)


def frames_of_zstd(payload: bytes) -> dict[str, bytes]:
    """One payload as producers' libraries write it: with its size said or not, in one frame or two, with a window that
    is larger than what we keep."""
    stream = zstandard.ZstdCompressor().compressobj()
    half = len(payload) // 2
    pack = zstandard.ZstdCompressor().compress
    wide = zstandard.ZstdCompressionParameters(window_log=25)
    far = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    return {
        "size said": pack(payload),
        "size not said": stream.compress(payload) + stream.flush(),
        "two frames": pack(payload[:half]) + pack(payload[half:]),
        "a wide window": far.compress(payload) + far.flush(),
    }


@pytest.mark.parametrize("kind", ["size said", "size not said", "two frames", "a wide window"])
def test_zstd_is_read_as_each_library_writes_it(kind: str) -> None:
    payload = text(9_000)
    packed = frames_of_zstd(payload)[kind]
    assert bytes(open_payload(packed, 4, 9_000)) == payload
    with pytest.raises(TooLarge):
        open_payload(packed, 4, 8_999)


def test_a_frame_of_zstd_that_says_another_size_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(text(200)))
    assert zstandard.frame_content_size(bytes(packed)) == 200
    packed[5] += 1
    with pytest.raises(TooLarge):
        open_payload(bytes(packed), 4, 1 << 20)


@pytest.mark.parametrize("payload", [b"", b"abc", b"0" * 100_000])
def test_it_is_what_a_library_puts_into_a_frame(payload):
    frame = lz4_encode(payload)
    assert header_checksum(frame[4:6]) == frame[6]


@pytest.mark.parametrize(
    ("text", "xxh32"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)]
)
def test_it_is_the_second_byte_of_the_published_hash(text, xxh32):
    assert header_checksum(text) == xxh32 >> 8 & 0xFF
