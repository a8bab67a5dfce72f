"""Compressed payloads are opened as the library does it, and never beyond their bound."""

from __future__ import annotations

import random
import tracemalloc

import pytest
import zstandard

from connect.wire import records
from connect.wire.records import TooLarge, open_payload, zstd

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
def test_a_payload_that_expands_a_hundredfold_takes_no_memory(codec: int) -> None:
    packed = records.compress(bytes(64 << 20), codec)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            open_payload(packed, codec, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_refused(codec: int) -> None:
    packed = bytearray(records.compress(b"some text of some length" * 20, codec))
    packed[len(packed) // 2 :] = b"\xff" * 5
    with pytest.raises(TooLarge):
        open_payload(bytes(packed), codec, 1 << 20)


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
    for many in (None, zstd()):
        assert bytes(open_payload(packed, 4, 9_000, many)) == payload
        with pytest.raises(TooLarge):
            open_payload(packed, 4, 8_999, many)


def test_a_frame_of_zstd_that_says_another_size_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(text(200)))
    assert zstandard.frame_content_size(bytes(packed)) == 200
    packed[5] += 1
    with pytest.raises(TooLarge):
        open_payload(bytes(packed), 4, 1 << 20, zstd())
