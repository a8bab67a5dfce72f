"""The checksum that lz4 frames of magic 0 ought to have."""

from __future__ import annotations

import pytest
from aiokafka.codec import lz4_encode

from connect.wire.records import header_checksum


@pytest.mark.parametrize("payload", [b"", b"abc", b"0" * 100_000])
def test_it_is_what_a_library_puts_into_a_frame(payload):
    frame = lz4_encode(payload)
    assert header_checksum(frame[4:6]) == frame[6]


@pytest.mark.parametrize(
    ("text", "xxh32"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)]
)
def test_it_is_the_second_byte_of_the_published_hash(text, xxh32):
    assert header_checksum(text) == xxh32 >> 8 & 0xFF
