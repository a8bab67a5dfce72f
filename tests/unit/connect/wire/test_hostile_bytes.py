"""Any bytes from a broker or a log: each decoder has documented outcomes only, and takes bounded time and memory."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
import zstandard
from aiokafka.errors import CorruptRecordException
from hypothesis import given, settings
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import merge, rebase, records
from connect.wire.fetch_produce import MalformedAnswer, decode_fetch, decode_produce, read_tags, read_uvarint, uvarint
from connectors.dataplane.batches.fetched_batches import CorruptBatch, cut
from tests.kit.logs import bomb, source_batch

CODECS = range(len(wire.CODEC_NAMES))
RIGHT = [source_batch([0, 1, 2], codec=codec) for codec in CODECS]
SAMPLES = [*RIGHT, *(bytes(records.compress(one, 1)) for one in RIGHT), b"", b"\0" * 80]
_CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Bytes by chance, or a right batch with a few bytes changed, cut off or repeated."""
    data = bytearray(draw(st.one_of(st.sampled_from(SAMPLES), st.binary(max_size=200))))
    for at, byte in draw(_CHANGES):
        if at < len(data):
            data[at] = byte
    return bytes(data[: draw(st.integers(0, 500))]) * draw(st.sampled_from([1, 1, 2]))


def _merged(data: bytes) -> object:
    return merge.merge([data], data[22] & wire.CODEC_MASK, 1, 0, 0)


def _rebased(module: object) -> Callable[[bytes], object]:
    return lambda data: module.rebased([memoryview(data)], 0)  # type: ignore[attr-defined]


DECODERS: dict[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...]]] = {
    "fetch": (lambda data: decode_fetch(memoryview(data), 16), (MalformedAnswer,)),
    "fetch by name": (lambda data: decode_fetch(memoryview(data), 12), (MalformedAnswer,)),
    "produce": (lambda data: decode_produce(memoryview(data), 13), (MalformedAnswer,)),
    "produce by name": (lambda data: decode_produce(memoryview(data), 9), (MalformedAnswer,)),
    "tags": (lambda data: read_tags(memoryview(data), 0), (MalformedAnswer, IndexError)),
    "extents": (lambda data: list(wire.extents(data)), ()),
    "cut": (lambda data: list(cut(memoryview(bytearray(data)), 0, [(1, 0)], 1 << 20)), (CorruptBatch,)),
    "records": (lambda data: list(records.decode(data, 2)), (records.TooLarge, CorruptRecordException)),
    "records of magic 1": (lambda data: list(records.decode(data, 1)), (records.TooLarge, CorruptRecordException)),
    "records of magic 0": (lambda data: list(records.decode(data, 0)), (records.TooLarge, CorruptRecordException)),
    "merge": (_merged, (merge.Unmergeable,)),
    "rebase": (_rebased(rebase), (ValueError, IndexError)),
    "compiled rebase": (_rebased(merge.rebase), (ValueError, IndexError)),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=damaged())
def test_a_decoder_has_documented_outcomes_only(name: str, data: bytes) -> None:
    decode, documented = DECODERS[name]
    if name in ("records", "merge") and len(data) < wire.HEADER_BYTES:
        return  # a caller has cut it out by its length
    try:
        decode(data)
    except documented:
        return


@given(st.integers(1, 10), st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=4)), max_size=3))
@settings(max_examples=300)
def test_both_implementations_say_the_same_of_any_records(count: int, noises: list[tuple[int, bytes]]) -> None:
    compiled = pytest.importorskip("connect.wire._rebase")
    payload = bytearray(RIGHT[0][wire.HEADER_BYTES :] * count)
    for at, noise in noises:
        place = at % len(payload)
        payload[place : place + len(noise)] = noise
    header = bytearray(RIGHT[0][: wire.HEADER_BYTES])
    struct.pack_into(">i", header, 8, wire.HEADER_BYTES - wire.LOG_OVERHEAD_BYTES + len(payload))
    struct.pack_into(">i", header, 23, 3 * count - 1)
    batch, first_ms = memoryview(header + payload), wire.read_header(header).base_timestamp + 7

    def outcome(module: Any) -> object:
        try:
            return module.rebased([memoryview(RIGHT[0]), batch], first_ms)
        except (ValueError, IndexError):
            return "refused"

    assert outcome(rebase) == outcome(compiled)


@pytest.mark.parametrize("name", ["fetch", "produce", "tags", "records"])
def test_a_number_without_end_is_refused_at_once(name: str) -> None:
    decode, documented = DECODERS[name]
    endless = b"\x80" * (8 << 20)
    front = RIGHT[0][: wire.HEADER_BYTES] if name == "records" else b"\0" * 10 if name == "fetch" else b""
    began_s = time.process_time()
    with pytest.raises(documented):
        decode(front + endless)
    assert time.process_time() - began_s < 1


def test_a_number_has_at_most_32_bits() -> None:
    assert read_uvarint(memoryview(b"\xff\xff\xff\xff\x0f"), 0) == (2**32 - 1, 5)
    with pytest.raises(MalformedAnswer):
        read_uvarint(memoryview(b"\xff\xff\xff\xff\xff\x01"), 0)


def expanding(codec: str) -> bytes:
    """What expands to half a GiB of zeros and more, or says so (snappy: its best ratio is 21)."""
    if codec == "gzip":
        return bomb()
    if codec == "snappy":
        return uvarint(1 << 30) + bytes(1000)
    stream: Any = zstandard.ZstdCompressor().compressobj() if codec == "zstd" else cramjam.lz4.Compressor()
    parts = [stream.compress(bytes(1 << 20)) for _ in range(512)]
    return bytes(stream.finish()) if codec == "lz4" else b"".join([*parts, stream.flush()])


_OPENS = """
import resource, sys
from connect.wire import merge, records
from tests.kit.logs import batch_of
codec = int(sys.argv[1])
hostile = batch_of(0, sys.stdin.buffer.read(), codec)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for attempt in (lambda: list(records.decode(hostile, 2)), lambda: list(records.read(records.opened_batch(hostile))),
                lambda: merge.merge([hostile], codec, 1, 0, 0)):
    try:
        attempt()
    except (records.TooLarge, merge.Unmergeable) as error:
        assert "exceeds" in str(error), error
    else:
        sys.exit("it was opened")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", wire.CODEC_NAMES[1:])
def test_what_expands_to_half_a_gib_is_refused_within_300_mib(codec: str) -> None:
    command = [sys.executable, "-c", _OPENS, str(wire.CODEC_NAMES.index(codec))]
    done = subprocess.run(command, check=False, input=expanding(codec), capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) < 300 << 10  # ru_maxrss is in KiB


def test_all_zstd_frames_of_a_payload_are_read() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress
    payload = frame(b"first ") + frame(b"second")
    assert bytes(records.open_payload(payload, 4, 1 << 20)) == b"first second"
